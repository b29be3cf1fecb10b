"""Pages by which an operator acts: one asks whether it is meant, and why; its form does it. And signing in and out.

Each form carries the token of our own page, and a key by which Temporal carries it out once, however often it is sent.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import parse_qsl, quote

from fastapi import APIRouter, Request
from pydantic import ValidationError
from starlette.responses import HTMLResponse, RedirectResponse, Response

from workers.connect import TemporalAway
from workers.console import reading
from workers.console.access import Identity
from workers.console.demanding import demand
from workers.console.gatekeeping import SIGN_IN, PageOperator
from workers.console.pages_frame import render
from workers.console.problems import Problem, problem_of
from workers.console.state import of
from workers.console.telling import Verb, Wish
from workers.naming import job_of, nodes_of
from workers.screen import Trouble
from workers.settings import ConfigError

router = APIRouter(include_in_schema=False)

LONGEST_FORM = 20_000


@dataclass(frozen=True)
class Deed:
    """One thing that can be asked of a job."""

    name: str
    verb: Verb
    title: str
    meaning: str
    action: Literal["restart", "stop", "release"] | None = None
    yes: bool | None = None


DEEDS = {
    deed.name: deed
    for deed in (
        Deed("pause", "pause", "Pause", "relight leaves the job alone until it is resumed. The job itself runs on."),
        Deed("resume", "resume", "Resume", "relight watches over the job again."),
        Deed(
            "restart", "force", "Restart now",
            "Slurm requeues the job: it ends where it runs, and starts again from its last checkpoint. "
            "Budgets do not bind.",
            action="restart",
        ),
        Deed("stop", "force", "Stop", "Slurm cancels the job, and relight does not restart it.", action="stop"),
        Deed("release", "force", "Release", "A job that Slurm held after a failed launch is let go.", action="release"),
        Deed("approve", "approve", "Approve", "What relight advised is done now.", yes=True),
        Deed("reject", "approve", "Reject", "What relight advised is not done.", yes=False),
    )
}  # fmt: skip


def _deed(name: str) -> Deed:
    deed = DEEDS.get(name)
    if deed is None:
        raise Problem(404, f"{name!r:.40} cannot be done to a job, expected one of: {', '.join(DEEDS)}")
    return deed


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a form of ours. Raises Problem for one that did not come from our own page."""
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > LONGEST_FORM:
            raise Problem(413, "the form is too long")
    if not request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        raise Problem(415, "expected a form")
    fields = dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=50))
    if not of(request).access.sessions.is_own_form(request, fields.get("form", "")):
        raise Problem(
            403,
            "this form is not from a page that this console gave to this browser, or it is too old: go back, reload "
            "the page, and send it again",
        )
    return fields


@router.get("/jobs/{job}/do/{name}")
async def ask(request: Request, who: PageOperator, job: str, name: str) -> HTMLResponse:
    return await _asked(request, who, job, _deed(name), {})


async def _asked(
    request: Request,
    who: Identity,
    job: str,
    deed: Deed,
    fields: dict[str, str],
    *,
    trouble: str = "",
    status: int = 200,
) -> HTMLResponse:
    cluster, job_id = job_of(job, of(request).settings)
    told = await of(request).readings(reading.story_of, cluster, job_id)
    return render(
        request, "doing.html", who, status=status,
        job=f"{cluster}-{job_id}", life=told.life,
        advice=told.row.last_advice if told.row is not None else "", deed=deed, trouble=trouble,
        once=secrets.token_urlsafe(12),
        reason=fields.get("reason", ""), exclude=fields.get("exclude", ""),
    )  # fmt: skip


@router.post("/jobs/{job}/do/{name}")
async def do(request: Request, who: PageOperator, job: str, name: str) -> HTMLResponse:
    deed = _deed(name)
    cluster, job_id = job_of(job, of(request).settings)
    fields = await read_form(request)
    try:
        wish = _wish(deed, fields)
        told = await demand(of(request), cluster, job_id, deed.verb, wish, by=who.name, once=fields.get("once", ""))
    except (Problem, Trouble, TemporalAway, ConfigError) as error:
        problem = problem_of(error)
        return await _asked(request, who, job, deed, fields, trouble=problem.detail, status=problem.status)
    return render(request, "done.html", who, job=f"{cluster}-{job_id}", told=told)


def _wish(deed: Deed, fields: dict[str, str]) -> Wish:
    given: dict[str, Any] = {"reason": fields.get("reason", "").strip(), "action": deed.action, "yes": deed.yes}
    if deed.verb == "force" and fields.get("restart_count"):
        given["restart_count"] = fields["restart_count"]
    if deed.name == "restart":
        given["exclude"] = nodes_of(fields.get("exclude", ""))
    try:
        return Wish.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        raise Problem(400, f"{first['loc'][0]}: {first['msg']}") from None


# ------------------------------------------------------------------------------------------------ signing in


@router.get(SIGN_IN)
async def sign_in_page(request: Request, back: str = "/") -> Response:
    if of(request).access.identify(request) is not None:
        return RedirectResponse(own_path(back), 303)
    return render(request, "sign_in.html", None, back=own_path(back), trouble="")


@router.post(SIGN_IN)
async def sign_in(request: Request) -> Response:
    fields = await read_form(request)
    back = own_path(fields.get("back", "/"))
    access = of(request).access
    fingerprint, hot = access.sign_in(request, fields.get("token", "").strip())
    if not fingerprint:
        trouble = "Too many tries: wait a minute." if hot else "That token is not known here."
        return render(request, "sign_in.html", None, status=429 if hot else 401, back=back, trouble=trouble)
    response = RedirectResponse(back, 303)
    access.sessions.write(response, access.sessions.open(fingerprint))
    return response


@router.post("/sign-out")
async def sign_out(request: Request) -> Response:
    await read_form(request)
    response = RedirectResponse(SIGN_IN, 303)
    of(request).access.sessions.end(response)
    return response


def own_path(back: str) -> str:
    """A path of ours to go back to; never another site's address, however it is written."""
    plain = back.startswith("/") and not back.startswith("//") and "\\" not in back and back.isprintable()
    return quote(back, safe="/?&=%-_.~+:,") if plain else "/"
