"""Reads the log of one attempt as a whole: from the job's files or from the log store, whichever counts.

A store gets an attempt's last lines a moment after its end, so they are waited for, but not for long. Nothing is
understood here; what does is handed in.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple

from activities.site import Site
from activities.sweep_cursor import SweepCursor
from activities.telemetry.joblog import BLIND, AttemptLog, read_attempt
from activities.telemetry.logsource import moment, read_job
from activities.telemetry.store_follow import LogStore
from recovery.blame import NODE_CLASSES
from recovery.records import Certainty, Finding, JobState, JobView, Progress, Role, ToldCode

AGAIN_S = 2.0
"""Seconds between two reads while the last lines are waited for."""


class LogWords(NamedTuple):
    """What a log says."""

    findings: tuple[Finding, ...]
    progress: Progress
    has_output: bool
    """Whether it printed anything; true where that cannot be known."""
    notes: tuple[str, ...]
    told_codes: tuple[ToldCode, ...] = ()
    """Exit codes of tasks that srun told."""


async def words_of_attempt(
    site: Site, view: JobView, cursor: SweepCursor, understand: Callable[[AttemptLog], LogWords]
) -> LogWords:
    """What the attempt's log says. `understand` is called in a thread, again where lines may be on their way."""
    store = site.logs.get(view.cluster)
    files: AttemptLog | None = None
    if store is None or store.files_first:
        files = await asyncio.to_thread(read_attempt, view, cursors=cursor.by_path)
    if store is None or (files is not None and not files.blind):
        assert files is not None
        return await asyncio.to_thread(understand, files)
    ends = time.monotonic() + _may_come_s(store, view)
    while True:
        log = await _stored(store, view, cursor)
        if files is not None:
            log = AttemptLog(log.parts, (*files.notes, *log.notes))
        words = await asyncio.to_thread(understand, log)
        left = ends - time.monotonic()
        if left <= 0 or any(_settles_it(finding) for finding in words.findings):
            return words
        await asyncio.sleep(min(left, AGAIN_S))


async def _stored(store: LogStore, view: JobView, cursor: SweepCursor) -> AttemptLog:
    since = view.start_time
    if since is None and cursor.store is not None and cursor.attempt == view.restarts:
        since = moment(cursor.store.begin)
    if since is None:
        return AttemptLog((), (f"{BLIND}{store.source.name}: nobody tells when attempt {view.restarts} began",))
    return await store.source.read_attempt(read_job(view.job_id, view.raw_id, since), view.end_time)


def _may_come_s(store: LogStore, view: JobView) -> float:
    """Seconds in which last lines of the attempt may still arrive; 0 while it runs, more of it is seen later then."""
    if view.end_time is None or view.state in {JobState.COMPLETED, JobState.CANCELLED} or view.state.is_alive:
        return 0.0
    # Slurm's clock may be ahead of this one.
    return min(store.settle_s, store.settle_s - (datetime.now(UTC) - view.end_time).total_seconds())


def _settles_it(finding: Finding) -> bool:
    """Whether a cause is known so well that a line which comes later would hardly change it."""
    return (
        finding.role is Role.ROOT
        and finding.certainty is Certainty.CONFIRMED
        and finding.fault_class in NODE_CLASSES
        and bool(finding.nodes)
    )
