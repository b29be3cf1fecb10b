"""The frame of every page: the templates, what all of them are given, and the browser's session.

Everything that is put into a template is escaped; no template marks anything as safe.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse

from activities.slurm.hostlist import fold
from workers.console.access import Identity
from workers.console.state import of
from workers.console.words import clock, flat, shown, span

HERE = Path(__file__).parent
STATIC = HERE / "static"
TABS = (("Now", "/"), ("Jobs", "/jobs"), ("Nodes", "/nodes"), ("Incidents", "/incidents"), ("Reports", "/reports"),
        ("Policy", "/policy"))  # fmt: skip


@lru_cache(maxsize=1)
def templates() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"clock": clock, "span": span, "flat": flat, "shown": shown, "since": _since, "fold": _fold}
    environment.globals |= {"tabs": TABS, "version": version("relight")}
    return environment


def _since(now: datetime, time: datetime | None) -> timedelta | None:
    return None if time is None else max(timedelta(0), now - time)


def _fold(nodes: tuple[str, ...]) -> str:
    return fold(nodes) if nodes else "–"


def render(
    request: Request,
    template: str,
    identity: Identity | None,
    *,
    status: int = 200,
    headers: Mapping[str, str] | None = None,
    **given: Any,
) -> HTMLResponse:
    """A page. A browser without a session gets one, so that the page's forms can be told from forged ones."""
    sessions = of(request).access.sessions
    session = sessions.read(request)
    fresh = session is None
    if session is None:
        session = sessions.open()
    text = (
        templates()
        .get_template(template)
        .render(
            path=request.url.path,
            here=request.url.path + (f"?{request.url.query}" if request.url.query else ""),
            who=identity,
            form=sessions.form_token(session),
            **given,
        )
    )
    response = HTMLResponse(text, status, headers={"Cache-Control": "no-store", **(headers or {})})
    if fresh:
        sessions.write(response, session)
    return response


def trouble_page(request: Request, status: int, title: str, detail: str, headers: Mapping[str, str]) -> HTMLResponse:
    identity = of(request).access.identify(request)
    return render(request, "trouble.html", identity, status=status, headers=headers, title=title, detail=detail)
