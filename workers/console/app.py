"""Puts the console together: pages, API, live feed, and the headers that every answer carries.

It opens nothing by itself: store, settings and access are given to it, and closed by whoever gave them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI
from starlette.datastructures import MutableHeaders
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from activities.audit.store import AuditStore
from workers.console import answers, api, health, pages, pages_doing
from workers.console.access import Access
from workers.console.live import Live
from workers.console.metrics import Counted
from workers.console.pages_frame import STATIC
from workers.console.reading import Readings, Source
from workers.console.state import Console
from workers.console.telling import Telling
from workers.settings import Settings

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


class OwnHeaders:
    """Puts the same headers on every answer, also on errors."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, with_headers if scope["type"] == "http" else send)


def create(settings: Settings, store: AuditStore, access: Access, *, hosts: tuple[str, ...] = ()) -> FastAPI:
    """`hosts`: names under which it answers; none: any."""
    readings = Readings(Source(store, settings), deadline_s=settings.console.deadline_s)
    live = Live(readings)
    counted = Counted()
    live.heard.append(counted.count)
    console = Console(settings, readings, access, live, Telling(settings.temporal), counted)

    @asynccontextmanager
    async def running(_: FastAPI) -> AsyncIterator[None]:
        feed = asyncio.create_task(live.run())
        try:
            yield
        finally:
            feed.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await feed
            readings.close()

    app = FastAPI(
        title="relight",
        version=version("relight"),
        description="What relight sees, decides and does, and what operators may ask of it.",
        docs_url=None,  # the stock pages fetch their scripts from elsewhere
        redoc_url=None,
        openapi_url="/api/v1/openapi.json",
        lifespan=running,
    )
    app.state.console = console
    answers.install(app)
    for part in (api, pages_doing, pages, health):
        app.include_router(part.router)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    if hosts:
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False)
    app.add_middleware(OwnHeaders)
    return app
