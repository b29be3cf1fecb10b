"""The HTTP API, version 1: everything the pages show, as JSON, and what operators may ask of a job.

Reading never asks Temporal. Fields are only ever added to what is answered here.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from hashlib import sha256
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Path, Query, Request, Response
from fastapi.routing import APIRoute
from starlette.responses import StreamingResponse

from activities.audit.records import Event, JobFilter, JobRow
from recovery.policy import RULES
from recovery.records import Attempt
from recovery.scorecard import Scorecard
from workers.cli_nodes import check_node
from workers.console import reading
from workers.console.demanding import demand
from workers.console.gatekeeping import ApiOperator, ApiViewer, api_viewer
from workers.console.live import NOW, stream
from workers.console.problems import RESPONSES, Problem
from workers.console.shapes import (
    ClusterNow,
    Explanation,
    IncidentTold,
    JobTold,
    NodeStory,
    NodeTold,
    Now,
    Page,
    PolicyTold,
    Progressed,
    Reports,
    RuleTold,
)
from workers.console.state import of
from workers.console.telling import Answered, Verb, Wish
from workers.naming import check_cluster, job_of, span_of

MOST = 500
_TOPIC = re.compile(r"now|job:[A-Za-z0-9][A-Za-z0-9_.-]{0,63}-[1-9][0-9]{0,9}(_[0-9]{1,9})?")


class Tagged(APIRoute):
    """Answers carry an ETag; who has that version already is answered with 304 and nothing."""

    def get_route_handler(self) -> Callable[[Request], Any]:
        handler = super().get_route_handler()

        async def tagged(request: Request) -> Response:
            response: Response = await handler(request)
            if request.method != "GET" or response.status_code != 200 or isinstance(response, StreamingResponse):
                return response
            tag = f'"{sha256(response.body).hexdigest()[:32]}"'
            headers = {"ETag": tag, "Cache-Control": "private, no-cache", "Vary": "Authorization, Cookie"}
            known = [one.strip().removeprefix("W/") for one in request.headers.get("if-none-match", "").split(",")]
            if tag in known or "*" in known:
                return Response(status_code=304, headers=headers)
            response.headers.update(headers)
            return response

        return tagged


router = APIRouter(
    prefix="/api/v1", route_class=Tagged, dependencies=[Depends(api_viewer)], responses=RESPONSES, tags=["relight"]
)

ClusterName = Annotated[str, Query(description="only this cluster", max_length=64)]
Cursor = Annotated[str, Query(description="`next` of the page before", max_length=200)]
Limit = Annotated[int, Query(ge=1, le=MOST, description="most items of a page")]
JobName = Annotated[str, Path(description="as prod-12345 or prod-12345_7", max_length=100)]
Since = Annotated[str, Query(description="how far to look back: 12h, 30d, 8w", max_length=10)]


def cursor_of(number: int | None) -> str | None:
    """An opaque word for a place in a list."""
    return None if number is None else base64.urlsafe_b64encode(f"v1:{number}".encode()).decode().rstrip("=")


def place_of(cursor: str) -> int | None:
    """Raises Problem for what was not `next` of a page."""
    if not cursor:
        return None
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode("ascii")
    except (binascii.Error, ValueError):
        text = ""
    found = re.fullmatch(r"v1:([0-9]{1,18})", text)
    if found is None:
        raise Problem(400, "cursor: expected `next` of the page before, unchanged; leave it out for the first page")
    return int(found[1])


def _cluster(request: Request, name: str) -> str:
    if name:
        check_cluster(name, of(request).settings)
    return name


def _job(request: Request, job: str) -> tuple[str, str]:
    return job_of(job, of(request).settings)


@router.get("/now")
async def now(request: Request, cluster: ClusterName = "") -> Now:
    """The state of the clusters, open incidents, what waits for a yes, and what was done in the last day."""
    return await of(request).readings(reading.now_of, _cluster(request, cluster))


@router.get("/clusters")
async def clusters(request: Request) -> Page[ClusterNow]:
    return Page(items=(await of(request).readings(reading.now_of)).clusters)


@router.get("/jobs")
async def jobs(
    request: Request,
    cluster: ClusterName = "",
    user: Annotated[str, Query(max_length=64)] = "",
    partition: Annotated[str, Query(max_length=255)] = "",
    state: Annotated[str, Query(description="Slurm state or phase, paused or stopped", max_length=64)] = "",
    mode: Annotated[str, Query(max_length=16)] = "",
    fault: Annotated[str, Query(description="class of a fault that one of its attempts had", max_length=32)] = "",
    q: Annotated[str, Query(description="part of the name, beginning of the id, or the user", max_length=200)] = "",
    closed: Annotated[bool, Query(description="also jobs that Slurm has forgotten")] = False,
    cursor: Cursor = "",
    limit: Limit = 50,
) -> Page[JobRow]:
    """Jobs, the newest first."""
    wanted = JobFilter(
        cluster=_cluster(request, cluster), user=user, partition=partition, state=state, mode=mode, fault=fault,
        text=q, closed=closed,
    )  # fmt: skip
    found = await of(request).readings(reading.jobs_of, wanted, place_of(cursor), limit)
    return Page(items=found.items, next=cursor_of(found.before), total=found.total)


@router.get("/jobs/{job}")
async def job_told(request: Request, job: JobName) -> JobTold:
    """One job with its attempts."""
    cluster, job_id = _job(request, job)
    told = await of(request).readings(reading.story_of, cluster, job_id)
    progress = Progressed.model_validate(told.progress.model_dump()) if told.progress is not None else None
    return JobTold(
        job=f"{cluster}-{job_id}",
        life=told.life,
        row=told.row,
        attempts=told.attempts,
        progress=progress,
        blind_since=told.blind_since,
        waits=told.waits,
        excluded=told.excluded,
    )


@router.get("/jobs/{job}/attempts")
async def attempts(request: Request, job: JobName) -> Page[Attempt]:
    """Oldest first."""
    return Page(items=(await of(request).readings(reading.story_of, *_job(request, job))).attempts)


@router.get("/jobs/{job}/events")
async def events(request: Request, job: JobName, cursor: Cursor = "", limit: Limit = 100) -> Page[Event]:
    """The job's log, oldest first: findings, verdicts, advice, steps, outcomes, and what people said."""
    after = place_of(cursor) or 0
    rows, last = await of(request).readings(reading.events_page, *_job(request, job), after, limit)
    return Page(items=tuple(rows), next=cursor_of(last))


@router.get("/jobs/{job}/policy")
async def explanation(request: Request, job: JobName) -> Explanation:
    """Which rule fired, on which facts, which budgets are left, and what the next failure would get."""
    return await of(request).readings(reading.explanation_of, *_job(request, job))


@router.get("/nodes")
async def nodes(request: Request, cluster: ClusterName = "") -> Page[NodeTold]:
    """Nodes that something is held against: suspicions, exclusions, drains."""
    return Page(items=await of(request).readings(reading.nodes_of, _cluster(request, cluster)))


@router.get("/nodes/{cluster}/{node}")
async def node_told(
    request: Request,
    cluster: Annotated[str, Path(max_length=64)],
    node: Annotated[str, Path(max_length=255)],
) -> NodeStory:
    """Everything about one node, also what is over."""
    check_node(node)
    return await of(request).readings(reading.node_of, _cluster(request, cluster), node)


@router.get("/incidents")
async def incidents(
    request: Request,
    cluster: ClusterName = "",
    closed: Annotated[bool, Query(description="also closed ones")] = False,
    limit: Limit = 100,
) -> Page[IncidentTold]:
    """Faults that several jobs share, of each cluster the newest first."""
    return Page(items=await of(request).readings(reading.incidents_list, _cluster(request, cluster), closed, limit))


@router.get("/policy")
async def policy(request: Request) -> PolicyTold:
    """The policy file, and which policy each cluster's worker follows."""
    return await of(request).readings(reading.policy_told)


@router.get("/policy/table")
async def table() -> Page[RuleTold]:
    """The rules, in the order in which they are asked."""
    return Page(items=rules())


def rules() -> tuple[RuleTold, ...]:
    return tuple(RuleTold(id=rule.id, situation=rule.situation, advice=rule.advice) for rule in RULES)


@router.get("/reports")
async def reports(request: Request, cluster: ClusterName = "", since: Since = "30d") -> Reports:
    """Faults by class and week, and the nodes that were suspected most."""
    return await of(request).readings(reading.reports_of, _cluster(request, cluster), span_of(since, "since"))


@router.get("/reports/scorecard")
async def scorecard(request: Request, cluster: ClusterName = "", since: Since = "30d") -> Scorecard:
    """What was advised, compared with what happened next."""
    return await of(request).readings(reading.card_of, _cluster(request, cluster), span_of(since, "since"))


@router.get("/live", response_class=StreamingResponse)
async def live(
    request: Request, who: ApiViewer, topic: Annotated[str, Query(description="now, or job:prod-12345")] = NOW
) -> StreamingResponse:
    """Server-sent events: `changed` whenever something about the topic has changed."""
    console = of(request)
    if not _TOPIC.fullmatch(topic):
        raise Problem(400, "topic: expected now, or job: and a job, as in job:prod-12345")
    if console.live.is_full:
        raise Problem(503, "too many pages are open; reload this one by hand", {"Retry-After": "60"})
    feed = stream(console.live, topic, lambda: console.access.identify(request) is not None)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(feed, media_type="text/event-stream", headers=headers)


@router.post("/jobs/{job}/{verb}")
async def tell(
    request: Request,
    who: ApiOperator,
    job: JobName,
    verb: Verb,
    wish: Wish,
    idempotency_key: Annotated[
        str, Header(max_length=200, description="the same key is carried out once, however often it is sent")
    ] = "",
) -> Answered:
    """Pause, resume, force or approve: the job's workflow answers. 409: it refused, with the reason."""
    cluster, job_id = _job(request, job)
    return await demand(of(request), cluster, job_id, verb, wish, by=who.name, once=idempotency_key)
