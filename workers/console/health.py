"""For machines that watch the console: does it live, can it serve, and the metrics.

None of them needs Temporal; /metrics is for those who may look.
"""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import PlainTextResponse, Response

from activities.audit.store import AuditUnavailable
from workers.console.gatekeeping import ApiViewer
from workers.console.metrics import CONTENT_TYPE, exposition
from workers.console.problems import StoreTooSlow
from workers.console.state import of

router = APIRouter(tags=["health"])


@router.get("/healthz", response_class=PlainTextResponse)
async def healthz() -> PlainTextResponse:
    """The process answers."""
    return PlainTextResponse("ok\n", headers={"Cache-Control": "no-store"})


@router.get("/readyz", response_class=PlainTextResponse)
async def readyz(request: Request) -> PlainTextResponse:
    """The audit store can be read. 503 otherwise, without a word about why: that is in the log."""
    try:
        await of(request).readings(lambda source: source.store.ping())
    except (AuditUnavailable, StoreTooSlow):
        return PlainTextResponse("the audit store cannot be read\n", 503, headers={"Cache-Control": "no-store"})
    return PlainTextResponse("ready\n", headers={"Cache-Control": "no-store"})


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request, who: ApiViewer) -> Response:
    """In the form that Prometheus reads."""
    console = of(request)
    text = await console.readings(exposition, console.counted)
    return Response(text, media_type=CONTENT_TYPE, headers={"Cache-Control": "no-store"})
