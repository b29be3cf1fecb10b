"""The pages that people read. They show what `reading` tells; every state of a page has its address.

Nothing here changes anything; what operators may do stands in `pages_doing`.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Query, Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from activities.audit.records import Event, JobFilter
from recovery.records import Attempt, FaultClass, JobState, Mode
from workers.cli_nodes import check_node
from workers.console import reading
from workers.console.api import cursor_of, place_of, rules
from workers.console.axis import Axis, lay_out
from workers.console.csv_text import csv_of
from workers.console.gatekeeping import PageViewer
from workers.console.live import NOW, topic_of
from workers.console.pages_frame import render
from workers.console.shapes import JobStory
from workers.console.state import of
from workers.naming import check_cluster, job_of, span_of
from workers.screen import Trouble
from workers.settings import Settings

router = APIRouter(include_in_schema=False)

PAGE = 50
MOST_SHOWN = 300
"""Rows of one attempt's log on its page, the newest; the API has all."""
BEFORE_END = timedelta(seconds=60)
PHASES = ("watching", "recovering", "waiting_approval", "waiting_permit", "left_alone", "paused", "stopped", "finished")
STATES = (JobState.PENDING, JobState.RUNNING, JobState.FAILED, JobState.NODE_FAIL, JobState.OUT_OF_MEMORY,
          JobState.COMPLETED, JobState.CANCELLED, JobState.TIMEOUT)  # fmt: skip

Word = Annotated[str, Query(max_length=255)]


def _known(settings: Settings, cluster: str) -> str:
    if cluster:
        check_cluster(cluster, settings)
    return cluster


@router.get("/")
async def now(request: Request, who: PageViewer) -> HTMLResponse:
    told = await of(request).readings(reading.now_of)
    return render(request, "now.html", who, now=told.at, told=told, live=NOW)


@router.get("/jobs")
async def jobs(
    request: Request,
    who: PageViewer,
    cluster: Word = "",
    user: Word = "",
    partition: Word = "",
    state: Word = "",
    mode: Word = "",
    fault: Word = "",
    q: Annotated[str, Query(max_length=200)] = "",
    closed: bool = False,
    cursor: Word = "",
) -> Response:
    settings = of(request).settings
    if q.strip() and not closed:
        direct = _exactly(q.strip(), settings)
        if direct and await _is_known(request, direct):
            return RedirectResponse(f"/jobs/{quote('-'.join(direct))}", 303)
    wanted = JobFilter(
        cluster=_known(settings, cluster), user=user.strip(), partition=partition.strip(), state=state, mode=mode,
        fault=fault, text=q, closed=closed,
    )  # fmt: skip
    found = await of(request).readings(reading.jobs_of, wanted, place_of(cursor), PAGE)
    asked = {
        "cluster": cluster, "user": user, "partition": partition, "state": state, "mode": mode, "fault": fault, "q": q,
        "closed": "true" if closed else "",
    }  # fmt: skip
    kept = {key: value for key, value in asked.items() if value}
    following = f"/jobs?{urlencode({**kept, 'cursor': cursor_of(found.before)})}" if found.before is not None else ""
    return render(
        request, "jobs.html", who,
        now=datetime.now(UTC), found=found, asked=asked, first=f"/jobs?{urlencode(kept)}", following=following,
        on_first=not cursor, live=NOW, clusters=sorted(settings.clusters), phases=PHASES,
        states=[one.value for one in STATES],
        modes=[one.value for one in Mode], faults=[one.value for one in FaultClass if one is not FaultClass.NONE],
    )  # fmt: skip


def _exactly(text: str, settings: Settings) -> tuple[str, str] | None:
    try:
        return job_of(text, settings)
    except Trouble:
        return None


async def _is_known(request: Request, job: tuple[str, str]) -> bool:
    return await of(request).readings(lambda source: source.store.latest_life(*job)) is not None


@router.get("/jobs/{job}")
async def job(request: Request, who: PageViewer, job: str) -> HTMLResponse:
    console = of(request)
    cluster, job_id = job_of(job, console.settings)
    told = await console.readings(reading.story_of, cluster, job_id)
    policy, trouble = None, ""
    try:
        policy = await console.readings(reading.explanation_of, cluster, job_id)
    except Trouble as error:  # a policy file that cannot be read must not hide the job
        trouble = str(error)
    at = datetime.now(UTC)
    return render(
        request, "job.html", who,
        now=at, job=f"{cluster}-{job_id}", told=told, policy=policy, policy_trouble=trouble,
        axis=lay_out(told.attempts, told.events, at),
        chapters=chapters(told, at), points=progress_points(told, at), live=topic_of(cluster, job_id),
        commands=commands(told, console.settings), ui=workflow_address(told, console.settings),
    )  # fmt: skip


class Chapter:
    """One attempt with its part of the log."""

    def __init__(self, number: int, attempt: Attempt | None, events: list[Event], axis: Axis | None) -> None:
        self.number, self.attempt, self.axis = number, attempt, axis
        self.left_out = max(0, len(events) - MOST_SHOWN)
        self.events = events[-MOST_SHOWN:]


def chapters(told: JobStory, now: datetime) -> list[Chapter]:
    """The newest attempt first; the axis of one that has ended begins a minute before its end."""
    known = {one.number: one for one in told.attempts}
    by_number: dict[int, list[Event]] = {number: [] for number in known}
    for event in told.events:
        by_number.setdefault(event.attempt, []).append(event)
    found = []
    for number, events in sorted(by_number.items(), reverse=True):
        attempt = known.get(number)
        begin = attempt.end_time - BEFORE_END if attempt is not None and attempt.end_time is not None else None
        axis = lay_out([attempt] if attempt is not None else [], events, now, begin=begin) if begin else None
        found.append(Chapter(number, attempt, events, axis))
    return found


def progress_points(told: JobStory, now: datetime) -> list[list[float | None]]:
    """Times, completed steps and completed checkpoints for the chart. A gap stands between two attempts."""
    rows: list[tuple[float, float | None, float | None]] = []
    watched = told.progress
    for one in told.attempts:
        if one.start_time is None:
            continue
        if one.first_step is not None:
            rows.append((one.start_time.timestamp(), float(one.first_step), None))
        mine = watched if watched is not None and watched.attempt == one.number else None
        if mine is not None and mine.step is not None and mine.step_at is not None:
            rows.append((mine.step_at.timestamp(), float(mine.step), None))
        elif one.last_step is not None:
            end = one.end_time or now
            rows.append((end.timestamp(), float(one.last_step), _number(one.last_checkpoint)))
            rows.append((end.timestamp() + 0.001, None, None))
        if mine is not None and mine.checkpoint is not None and mine.checkpoint_at is not None:
            rows.append((mine.checkpoint_at.timestamp(), None, float(mine.checkpoint)))
    rows.sort(key=lambda row: row[0])
    return [list(column) for column in zip(*rows, strict=True)] if len(rows) > 1 else []


def _number(value: int | None) -> float | None:
    return None if value is None else float(value)


def commands(told: JobStory, settings: Settings) -> list[str]:
    job = f"{told.life.cluster}-{told.life.job_id}"
    namespace = f" --namespace {settings.temporal.namespace}" if settings.temporal.namespace else ""
    return [
        f"relight show {job}",
        f"relight policy explain {job}",
        f"relight pause {job} --reason '…'",
        f"temporal workflow show{namespace} --workflow-id {job}",
        f"temporal workflow query{namespace} --workflow-id {job} --type state",
    ]


def workflow_address(told: JobStory, settings: Settings) -> str:
    ui = settings.console.temporal_ui
    if ui is None:
        return ""
    namespace = quote(settings.temporal.namespace or "default", safe="")
    return f"{ui.rstrip('/')}/namespaces/{namespace}/workflows/{quote(told.life.workflow_id, safe='')}"


@router.get("/nodes")
async def nodes(request: Request, who: PageViewer, cluster: Word = "") -> HTMLResponse:
    settings = of(request).settings
    told = await of(request).readings(reading.nodes_of, _known(settings, cluster))
    names = sorted(settings.clusters)
    return render(
        request, "nodes.html", who, now=datetime.now(UTC), told=told, cluster=cluster, clusters=names, live=NOW
    )


@router.get("/nodes/{cluster}/{node}")
async def node(request: Request, who: PageViewer, cluster: str, node: str) -> HTMLResponse:
    check_node(node)
    told = await of(request).readings(reading.node_of, _known(of(request).settings, cluster), node)
    return render(request, "node.html", who, now=datetime.now(UTC), told=told, live=NOW)


@router.get("/incidents")
async def incidents(request: Request, who: PageViewer, cluster: Word = "", closed: bool = False) -> HTMLResponse:
    settings = of(request).settings
    told = await of(request).readings(reading.incidents_list, _known(settings, cluster), closed, 200)
    return render(
        request, "incidents.html", who,
        now=datetime.now(UTC), told=told, cluster=cluster, closed=closed, clusters=sorted(settings.clusters), live=NOW,
    )  # fmt: skip


@router.get("/reports")
async def reports(request: Request, who: PageViewer, cluster: Word = "", since: Word = "30d") -> HTMLResponse:
    console = of(request)
    length = span_of(since, "since")
    card = await console.readings(reading.card_of, _known(console.settings, cluster), length)
    told = await console.readings(reading.reports_of, cluster, length)
    weeks = sorted({one.week for one in told.by_week})
    kinds = sorted({one.fault_class for one in told.by_week})
    count = {(one.week, one.fault_class): one.faults for one in told.by_week}
    bars = [[week.timestamp() for week in weeks], *([count.get((week, kind), 0) for week in weeks] for kind in kinds)]
    return render(
        request, "reports.html", who,
        now=datetime.now(UTC), card=card, told=told, weeks=weeks, kinds=kinds, count=count, bars=bars,
        cluster=cluster, since=since,
        clusters=sorted(console.settings.clusters), live="",
        query=urlencode({"cluster": cluster, "since": since} if cluster else {"since": since}),
    )  # fmt: skip


@router.get("/reports.csv")
async def reports_csv(request: Request, who: PageViewer, cluster: Word = "", since: Word = "30d") -> Response:
    """The judged recommendations, one a row."""
    console = of(request)
    card = await console.readings(reading.card_of, _known(console.settings, cluster), span_of(since, "since"))
    columns = (
        "at",
        "cluster",
        "job_id",
        "attempt",
        "fault_class",
        "signature",
        "action",
        "rule",
        "mode",
        "judgement",
        "why",
    )
    rows = [[getattr(case, column, "") for column in columns] for case in card.cases]
    headers = {"Content-Disposition": 'attachment; filename="relight-scorecard.csv"', "Cache-Control": "no-store"}
    return Response(csv_of(columns, rows), media_type="text/csv; charset=utf-8", headers=headers)


@router.get("/policy")
async def policy(request: Request, who: PageViewer) -> HTMLResponse:
    told = await of(request).readings(reading.policy_told)
    return render(request, "policy.html", who, now=datetime.now(UTC), told=told, rules=rules(), live=NOW)
