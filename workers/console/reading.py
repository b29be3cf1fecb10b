"""What the console shows, read from the audit store: the same for pages and API. Changes nothing, never asks Temporal.

Functions here are synchronous; `Readings` runs them in its own threads, each with a deadline.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar

from pydantic_core import to_jsonable_python

from activities.audit.records import Event, JobFilter, JobRow
from activities.audit.store import AuditStore
from activities.contracts import EventKind
from activities.sweep_cursor import SweepCursor, read_cursor
from recovery.incident_records import Incident
from recovery.scorecard import Scorecard
from workers.cli_incidents import incidents_of
from workers.cli_jobs import events_of, recorded_life, with_incidents
from workers.cli_nodes import everything_of, held_against
from workers.cli_policy import explained, policy_in_force
from workers.cli_scorecard import read_scorecard
from workers.console.problems import StoreTooSlow
from workers.console.shapes import (
    ClusterNow,
    Explanation,
    FaultCount,
    IncidentTold,
    JobPage,
    JobStory,
    NodeStory,
    NodeTold,
    Now,
    PolicyTold,
    Reports,
)
from workers.settings import Settings

P = ParamSpec("P")
T = TypeVar("T")

THREADS = 8
DID = (EventKind.STEP, EventKind.OUTCOME, EventKind.OPERATOR, EventKind.MISSED, EventKind.INCIDENT, EventKind.ADVICE)
"""Kinds of rows that tell what relight and people did."""
RECENT = 60
MOST_KEPT = 100
LOOKS_KEPT_S = 10.0
REPORTS_KEPT_S = 30.0


class Source:
    """The store and the settings that a reading function reads."""

    def __init__(self, store: AuditStore, settings: Settings) -> None:
        self.store = store
        self.settings = settings
        self._kept: dict[tuple[object, ...], tuple[float, Any]] = {}
        self._making = threading.Lock()

    def kept(self, key: tuple[object, ...], seconds: float, make: Callable[[], T]) -> T:
        """What `make` gives, or gave within so many seconds: what reads much is read once for all open pages."""
        with self._making:
            made, value = self._kept.get(key, (-math.inf, None))
            if time.monotonic() - made > seconds:
                if len(self._kept) > MOST_KEPT:
                    self._kept.clear()
                value = make()
                self._kept[key] = (time.monotonic(), value)
        told: T = value
        return told

    def clusters(self, only: str = "") -> list[str]:
        return [only] if only else sorted(self.settings.clusters)


class Readings:
    """Runs reading functions beside the event loop."""

    def __init__(self, source: Source, *, deadline_s: float) -> None:
        self.source = source
        self._deadline_s = deadline_s
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="console-read")

    async def __call__(self, work: Callable[Concatenate[Source, P], T], *words: P.args, **named: P.kwargs) -> T:
        """Raises StoreTooSlow, and what `work` raises."""
        call = partial(work, self.source, *words, **named)
        try:
            async with asyncio.timeout(self._deadline_s):
                return await asyncio.get_running_loop().run_in_executor(self._threads, call)
        except TimeoutError:
            raise StoreTooSlow(
                f"the audit store has not answered within {self._deadline_s:g} s (console.deadline_s): it is busy "
                "or out of reach; try again in a moment"
            ) from None

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)


# ------------------------------------------------------------------------------------------------ now


def now_of(source: Source, cluster: str = "") -> Now:
    store, at = source.store, datetime.now(UTC)
    names = source.clusters(cluster)
    counts = [one for one in store.counts() if one.cluster in names]
    clusters = []
    for name in names:
        mine = [one for one in counts if one.cluster == name]
        phases: Counter[str] = Counter()
        states: Counter[str] = Counter()
        for one in mine:
            phases["paused" if one.paused else one.phase or "opening"] += one.jobs
            states[one.state] += one.jobs
        clusters.append(
            ClusterNow(
                cluster=name,
                watched=sum(one.jobs for one in mine),
                running=states["RUNNING"],
                pending=states["PENDING"],
                phases=dict(sorted(phases.items())),
                incidents=len(store.open_incidents(name)),
                drained=len(store.drains(name)),
                excluded=len({one.node for one in store.exclusions(name)}),
                swept_at=store.swept_at(name),
                **source.kept(("looks", name), LOOKS_KEPT_S, partial(_looks, store, name)),
            )
        )
    incidents = [_incident(name, one) for name, one in incidents_of(store, names, everything=False, limit=20)]
    waiting = store.listed(JobFilter(cluster=cluster, state="waiting_approval"), limit=20)
    recent = store.recent(names, DID, at - timedelta(days=1), limit=RECENT)
    return Now(
        at=at, clusters=tuple(clusters), incidents=tuple(incidents), waiting=tuple(waiting), recent=tuple(recent)
    )


def _looks(store: AuditStore, cluster: str) -> dict[str, Any]:
    """When the logs of running jobs were looked at last, and how many of them cannot be read."""
    cursors = [read_cursor(row.cursor) for row in store.watched(cluster)]
    looked = [cursor.pace.looked_at for cursor in cursors if cursor.pace.looked_at is not None]
    blind = [cursor for cursor in cursors if is_blind(cursor)]
    return {"looked_at": max(looked, default=None), "blind": len(blind)}


def is_blind(cursor: SweepCursor) -> bool:
    """Whether the job's log cannot be read now."""
    return bool(cursor.blind) and cursor.blind[-1].end is None and cursor.blind[-1].attempt == cursor.pace.attempt


# ------------------------------------------------------------------------------------------------ jobs


def jobs_of(source: Source, wanted: JobFilter, before: int | None, limit: int) -> JobPage:
    """One page; how many there are in all is told with the first."""
    rows = source.store.listed(wanted, before=before, limit=limit + 1)
    more = len(rows) > limit
    rows, _ = with_incidents(source.store, rows[:limit])
    total = source.store.count(wanted) if before is None else None
    return JobPage(items=tuple(rows), before=rows[-1].life_id if more else None, total=total)


def story_of(source: Source, cluster: str, job_id: str) -> JobStory:
    """Everything about one job. Raises Trouble when relight has no record of it."""
    store = source.store
    life = recorded_life(store, cluster, job_id)
    events = events_of(store, life)
    row = _row_of(store, life.life_id)
    watched = store.watched_job(cluster, job_id)
    cursor = read_cursor(watched.cursor) if watched is not None and watched.life_id == life.life_id else None
    told = [event for event in events if event.kind == EventKind.WAITS]
    waits = told[-1].summary if life.phase.startswith("waiting_") and life.closed_at is None and told else ""
    return JobStory(
        life=life,
        row=row,
        attempts=store.attempts(life.life_id),
        events=tuple(events),
        progress=watched if cursor is not None else None,
        blind_since=cursor.blind[-1].begin if cursor is not None and is_blind(cursor) else None,
        waits=waits,
        excluded=tuple(one for one in store.exclusions(cluster) if one.job_id == job_id),
    )


def _row_of(store: AuditStore, life_id: int) -> JobRow | None:
    rows, _ = with_incidents(store, store.listed(JobFilter(closed=True), before=life_id + 1, limit=1))
    return rows[0] if rows and rows[0].life_id == life_id else None


def events_page(source: Source, cluster: str, job_id: str, after: int, limit: int) -> tuple[list[Event], int | None]:
    life = recorded_life(source.store, cluster, job_id)
    rows = source.store.events(cluster, job_id, life_id=life.life_id, after_id=after, limit=limit + 1)
    more = len(rows) > limit
    return rows[:limit], rows[limit - 1].id if more else None


def explanation_of(source: Source, cluster: str, job_id: str) -> Explanation:
    found = explained(source.store, source.settings, cluster, job_id, datetime.now(UTC))
    return Explanation.model_validate(to_jsonable_python(found.data()))


# ------------------------------------------------------------------------------------------------ nodes, incidents


def nodes_of(source: Source, cluster: str = "") -> tuple[NodeTold, ...]:
    return tuple(NodeTold.model_validate(one) for one in held_against(source.store, source.clusters(cluster)))


def node_of(source: Source, cluster: str, node: str) -> NodeStory:
    return NodeStory.model_validate(everything_of(source.store, cluster, node))


def incidents_list(source: Source, cluster: str, everything: bool, limit: int) -> tuple[IncidentTold, ...]:
    found = incidents_of(source.store, source.clusters(cluster), everything=everything, limit=limit)
    return tuple(_incident(name, one) for name, one in found)


def _incident(cluster: str, one: Incident) -> IncidentTold:
    return IncidentTold(cluster=cluster, summary=one.summary, is_open=one.is_open, incident=one)


def policy_told(source: Source) -> PolicyTold:
    history = source.store.recent(source.clusters(), [EventKind.POLICY], datetime(2000, 1, 1, tzinfo=UTC), limit=50)
    return PolicyTold(history=tuple(history), **policy_in_force(source.store, source.settings))


# ------------------------------------------------------------------------------------------------ reports


def card_of(source: Source, cluster: str, span: timedelta) -> Scorecard:
    def read() -> Scorecard:
        return read_scorecard(source.store, source.clusters(cluster), span, datetime.now(UTC))

    return source.kept(("card", cluster, span), REPORTS_KEPT_S, read)


def reports_of(source: Source, cluster: str, span: timedelta) -> Reports:
    at = datetime.now(UTC)
    names = source.clusters(cluster)
    faults = source.store.faults(names, at - span)
    weeks: Counter[tuple[datetime, str]] = Counter()
    for fault in faults:
        monday = (fault.at - timedelta(days=fault.at.weekday())).replace(hour=0, minute=0, second=0, microsecond=0)
        weeks[monday, fault.fault_class] += 1
    return Reports(
        since=at - span,
        until=at,
        faults=len(faults),
        restarted=sum(1 for fault in faults if fault.by_relight),
        by_week=tuple(
            FaultCount(week=week, fault_class=kind, faults=number) for (week, kind), number in sorted(weeks.items())
        ),
        nodes=tuple(source.store.suspected_nodes(names, at - span)),
    )
