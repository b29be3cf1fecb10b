"""The sweep: one scheduler read and one pass over the logs for all jobs of a cluster, every few seconds.

It starts a workflow for each job that opted in and signals a job's workflow only when something about that job
changed. Its text is not trusted and it decides nothing: the workflow reads the job again by itself. What it remembers
lives in SQL, so that another sweep can go on where this one stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple

from temporalio import activity
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory
from temporalio.service import RPCError, RPCStatusCode

from activities import contracts as c
from activities.audit.records import Watched
from activities.audit.trouble import AuditUnavailable
from activities.blind_time import with_blind_time
from activities.correlating import Correlating
from activities.draining import NodeCare
from activities.failing import seen_by_sweep
from activities.pulse import Key, Pulse, blamed, own_progress
from activities.site import Site
from activities.slurm.answers import SweepRow
from activities.slurm.errors import SlurmctldAway, SlurmError
from activities.sweep_cursor import MAX_CHILDREN, SweepCursor, read_cursor
from activities.telemetry.joblog import can_read
from activities.telemetry.logsource import read_job
from activities.telemetry.logwatch import LogLook, LogWatch, watched_files
from activities.telemetry.store_feed import StoreFeed
from activities.telemetry.store_follow import Followed, StoreFollower
from recovery.directive import parse_comment
from recovery.incident_records import Failure
from recovery.measured import JobMetrics
from recovery.records import JobState, Progress

log = logging.getLogger("relight.sweep")

SIGN_EVERY_S = 5.0
BEAT_S = 1.0
ONE_SWEEP_S = 150.0
"""Longest single sweep: longer than a gate call against a slurmctld that does not answer."""

START_LIMIT = 50
"""Workflows started or signalled at once."""

GONE = "gone"
ON_NODES = frozenset({JobState.RUNNING, JobState.SUSPENDED, JobState.STOPPED})
SETTLED = frozenset({JobState.COMPLETED, JobState.CANCELLED})


@lru_cache(maxsize=50_000)
def speaks_to_us(comment: str) -> bool:
    """Whether the comment opts in (or tries to: a bad directive is told on the job's record)."""
    return parse_comment(comment).opted_in


class _Seen(NamedTuple):
    """What one sweep found out about one job."""

    row: Watched
    """What is to be remembered; the same object when nothing changed."""
    judged: Watched | None
    """The row as it was, with a judgement that the job's workflow was not told yet."""
    news: list[str]


class SweepingActivities:
    """The one activity of ClusterWatch."""

    def __init__(self, site: Site, temporal: Client) -> None:
        self.site, self.temporal = site, temporal
        self._tried: dict[str, str] = {}
        self._told_policy: dict[str, tuple[str, str]] = {}
        self._told_sweep: dict[str, float] = {}
        self._logs = LogWatch(site.catalogue)
        self._pulse = Pulse(site)
        self._stores = {cluster: StoreFollower(store.source) for cluster, store in site.logs.items()}
        self._care = NodeCare(site)
        self._correlating = Correlating(site)

    @activity.defn(name=c.SWEEP)
    async def sweep(self, request: c.SweepRequest) -> c.SweepReport:
        """Sweeps for about `duration_s`, heartbeating counts."""
        self.site.client(request.cluster)
        report = c.SweepReport()
        ends = time.monotonic() + request.duration_s
        while time.monotonic() < ends and not activity.is_worker_shutdown():
            began = time.monotonic()
            report = await self._one(request.cluster, report)
            self._care.tend(request.cluster)
            left = self.site.sweep_interval_s - (time.monotonic() - began)
            if left > 0:
                await asyncio.sleep(left)
        await self._care.close()
        if activity.is_worker_shutdown():
            raise ApplicationError(
                "this worker stops; another one goes on",
                type="WorkerStops",
                category=ApplicationErrorCategory.BENIGN,
            )
        return report

    async def _one(self, cluster: str, report: c.SweepReport) -> c.SweepReport:
        """One sweep. The heartbeat goes on only while it moves: a sweep that hangs is ended and told."""
        began, since = time.monotonic(), _now()
        work = asyncio.create_task(self._sweep_once(cluster, report))
        try:
            while not work.done():
                activity.heartbeat(report)
                if time.monotonic() - began > ONE_SWEEP_S:
                    raise TimeoutError(f"a sweep took longer than {ONE_SWEEP_S:g} s")
                await asyncio.wait({work}, timeout=BEAT_S)
            done = work.result()
            await self._tell_sweep(cluster)
            return done
        except (SlurmError, AuditUnavailable, RPCError, TimeoutError) as problem:
            text = f"{type(problem).__name__}: {problem}"[:200]
            if text != report.last_error:
                log.warning("the sweep of %s is blind: %s", cluster, text)
            if isinstance(problem, SlurmctldAway):
                await self._correlating.blind(cluster, since)
            return report.model_copy(
                update={
                    "errors": report.errors + 1,
                    "blind_s": report.blind_s + (time.monotonic() - began),
                    "last_error": text,
                }
            )
        finally:
            work.cancel()

    async def _sweep_once(self, cluster: str, report: c.SweepReport) -> c.SweepReport:
        await asyncio.to_thread(self._tell_policy, cluster)
        began = _now()
        rows = await self.site.client(cluster).sweep(self._everything(cluster))
        watched = {row.job_id: row for row in await asyncio.to_thread(self.site.store.watched, cluster)}
        links = _links(rows)
        changed: dict[str, Watched] = {}
        signals: dict[str, tuple[str, list[str]]] = {}
        starts: list[SweepRow] = []
        judged: list[Watched] = []
        failures: list[Failure] = []
        alive: set[Key] = set()
        await self._pulse.look_at_nodes(cluster, rows)
        measured = await self._pulse.measured(cluster, [row for row in rows if row.job_id in watched])
        cursors = {job_id: read_cursor(known.cursor) for job_id, known in watched.items()}
        feeds = await self._feeds(cluster, rows, watched, cursors)
        for row in rows:
            known = watched.pop(row.job_id, None)
            if known is None:
                if self._is_new(cluster, row):
                    starts.append(row)
                continue
            seen = await self._look_at(known, cursors[row.job_id], row, links, measured.get(row.job_id), feeds)
            if seen.news:
                signals[row.job_id] = (row.state.value, seen.news)
            if seen.row is not known:
                changed[row.job_id] = seen.row
            if seen.judged is not None:
                judged.append(seen.judged)
            failure = seen_by_sweep(known, seen.row, row, self.site.catalogue, began)
            if failure is not None:
                failures.append(failure)
            if row.state in ON_NODES:
                alive.add((cluster, known.life_id, row.job_id))
        self._pulse.forget_others(cluster, alive)
        for job_id, known in watched.items():
            if known.seen != GONE:
                signals[job_id] = ("", [GONE])
                changed[job_id] = known.model_copy(update={"seen": GONE})
        await self._correlating.after_sweep(cluster, began, rows, failures)
        if judged:
            # Before the signals: what the workflow is woken for must be there when it looks.
            await asyncio.to_thread(self.site.store.save_cursors, cluster, judged)
        limit = asyncio.Semaphore(START_LIMIT)
        sent = await asyncio.gather(
            *(self._start(cluster, row, limit) for row in starts),
            *(self._signal(cluster, job_id, state, told, limit) for job_id, (state, told) in signals.items()),
        )
        # Saved after the signals: a crash between the two tells a job twice, never not at all.
        unsent = {name for name in sent if name}
        saved = [row for job_id, row in changed.items() if job_id not in unsent]
        if saved:
            await asyncio.to_thread(self.site.store.save_cursors, cluster, saved)
        return report.model_copy(
            update={
                "sweeps": report.sweeps + 1,
                "jobs": len(rows),
                "watched": len(rows) and sum(1 for row in rows if row.job_id not in watched) - len(starts),
                "started": report.started + len(starts),
                "signals": report.signals + len(signals),
            }
        )

    async def _tell_sweep(self, cluster: str) -> None:
        """For those who watch over relight, a sign now and then that the cluster is watched."""
        if time.monotonic() - self._told_sweep.get(cluster, -SIGN_EVERY_S) < SIGN_EVERY_S:
            return
        self._told_sweep[cluster] = time.monotonic()
        with contextlib.suppress(AuditUnavailable):  # the sign is then missing, as it should be
            await asyncio.to_thread(self.site.store.sweep_went_well, cluster)

    def _tell_policy(self, cluster: str) -> None:
        """One row of the cluster's log for each policy file that was taken up, and for each that could not be."""
        source = self.site.policies
        policies = source.current()
        told = (policies.hash, source.problem)
        if self._told_policy.get(cluster) == told:
            return
        file = str(source.path) if source.path is not None else policies.file
        summary = f"policy {file} in force (hash {policies.hash})"
        if source.problem:
            summary = f"policy file {file} cannot be used, the last good one (hash {policies.hash}) is kept: "
            summary += source.problem
        # The same file may come again: the moment makes the row a new one.
        now = _now()
        event = c.NewEvent(
            key=f"policy:{cluster}:{policies.hash}:{now.isoformat()}",
            kind=c.EventKind.POLICY,
            at=now,
            summary=summary[:1900],
            body={"file": file, "hash": policies.hash, "problem": source.problem[:8000], "names": list(policies.names)},
        )
        self.site.store.append(cluster, "", None, [event])
        self._told_policy[cluster] = told

    # -------------------------------------------------------------------------------------------- who is watched

    def _everything(self, cluster: str) -> bool:
        """Whether the policy opts jobs in by place, so that jobs without a comment count as well."""
        return self.site.policies.current().opts_in_somewhere(cluster)

    def _is_new(self, cluster: str, row: SweepRow) -> bool:
        opted_in = speaks_to_us(row.comment)
        if not opted_in and self._everything(cluster):
            effective = self.site.policies.current().of_job(cluster, row)
            opted_in = effective.opt_in and not parse_comment(row.comment).opted_out
        if not opted_in or row.state in SETTLED:
            return False
        return self._tried.get(f"{cluster}-{row.job_id}") != row.seen

    # -------------------------------------------------------------------------------------------- one job

    async def _feeds(
        self,
        cluster: str,
        rows: Sequence[SweepRow],
        watched: Mapping[str, Watched],
        cursors: Mapping[str, SweepCursor],
    ) -> dict[str, StoreFeed | None]:
        """What the log store has of the jobs that it counts for, by job; None where it has not answered yet."""
        store = self.site.logs.get(cluster)
        if store is None:
            return {}
        wanted = [row for row in rows if row.job_id in watched and _has_log(row)]
        if store.files_first:
            filed = await asyncio.to_thread(lambda: {row.job_id for row in wanted if _has_file(watched[row.job_id])})
            wanted = [row for row in wanted if row.job_id not in filed]
        followed = [
            Followed(
                read_job(row.job_id, row.raw_id, datetime.fromtimestamp(row.start, UTC)),
                row.restarts,
                cursors[row.job_id].store,
            )
            for row in wanted
            if row.start is not None
        ]
        feeds = await self._stores[cluster].follow(followed)
        return {row.job_id: feeds.get(row.job_id) for row in wanted}

    async def _look_at(
        self,
        known: Watched,
        before: SweepCursor,
        row: SweepRow,
        links: Mapping[str, tuple[str, ...]],
        metrics: JobMetrics | None,
        feeds: Mapping[str, StoreFeed | None],
    ) -> _Seen:
        """What is new about one watched job: in the scheduler's row, in its logs, in how it goes."""
        cursor = _with_links(before, row, links)
        news = ["state"] if row.seen != known.seen else []
        update: dict[str, object] = {"seen": row.seen} if news else {}
        running = row.state is JobState.RUNNING and not row.completing
        waiting = row.state is JobState.PENDING and row.restarts > 0 and before.attempt != row.restarts
        stored = row.job_id in feeds
        if (waiting and self.site.reads_files(known.cluster)) or stored or _has_log(row):
            own, progress = own_progress(row.comment), known.progress_of(row.restarts)

            def read() -> LogLook:
                if stored:
                    return self._logs.look_at_feed(feeds[row.job_id], cursor, row.restarts, progress, own=own)
                return self._logs.look(known, cursor, row.restarts, progress, waiting=waiting, own=own)

            look = await asyncio.to_thread(read)
            cursor = look.cursor
            if look.changed:
                update |= _columns(row.restarts, look.progress)
            if progress.first_step is None and look.progress.first_step is not None:
                news.append("progress")
            if look.new_faults:
                news.append("fault")
            if running and look.asked:
                cursor = with_blind_time(cursor, look, row.restarts, _now())
                cursor = self._pulse.feel(known.cluster, row, known.life_id, look, cursor, _now(), metrics=metrics)
        elif row.state in ON_NODES:
            cursor = self._pulse.feel(known.cluster, row, known.life_id, None, cursor, _now())
        if row.state is JobState.PENDING and row.restarts > 0:
            cursor = cursor.while_waiting(blamed(metrics))
        elif not running and cursor.judged:
            cursor = cursor.without_judgement()
        judged: Watched | None = None
        if cursor.judged != cursor.told:
            news += cursor.news
            judged = known.model_copy(update={"cursor": before.with_judgement_of(cursor).model_dump_json()})
            cursor = cursor.model_copy(update={"told": cursor.judged})
        if cursor != before:
            update["cursor"] = cursor.model_dump_json()
        return _Seen(known.model_copy(update=update) if update else known, judged, news)

    # -------------------------------------------------------------------------------------------- telling workflows

    async def _start(self, cluster: str, row: SweepRow, limit: asyncio.Semaphore) -> str:
        workflow_id = f"{cluster}-{row.job_id}"
        nodes = f"{row.node_count} node{'s' if row.node_count != 1 else ''}"
        async with limit:
            await self.temporal.start_workflow(
                "JobRecovery",
                {"cluster": cluster, "job_id": row.job_id, "by": "watch"},
                id=workflow_id,
                task_queue=c.workflow_queue(cluster),
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                static_summary=f"job {row.job_id} of {row.user}, {nodes}, {_plain(row.name)}"[:200],
            )
        # Remembered only here: where the workflow refuses the job, it is not started again until something changes.
        self._tried[workflow_id] = row.seen
        if len(self._tried) > 100_000:
            self._tried.clear()
        return ""

    async def _signal(self, cluster: str, job_id: str, state: str, told: list[str], limit: asyncio.Semaphore) -> str:
        """Signals the job's workflow; one that is no more is started again. Gives the id where it could not."""
        workflow_id = f"{cluster}-{job_id}"
        observation = c.Observation(changes=tuple(told), state=state)
        async with limit:
            try:
                await self.temporal.get_workflow_handle(workflow_id).signal("observe", observation)
                return ""
            except RPCError as problem:
                if problem.status is not RPCStatusCode.NOT_FOUND:
                    log.warning("workflow %s could not be told: %s", workflow_id, problem)
                    return job_id
            return await self._revive(cluster, job_id, told)

    async def _revive(self, cluster: str, job_id: str, told: list[str]) -> str:
        """The workflow of a watched job has ended, by a person or a fault: begun again, unless the job is gone."""
        if told == [GONE]:
            await asyncio.to_thread(self.site.store.unwatch, cluster, job_id)
            return ""
        workflow_id = f"{cluster}-{job_id}"
        try:
            ended = await self.temporal.get_workflow_handle(workflow_id).describe()
            why = (ended.status or WorkflowExecutionStatus.FAILED).name
        except RPCError:
            why = "unknown to Temporal"
        log.warning("the workflow of watched job %s is %s: started again", workflow_id, why)
        await self.temporal.start_workflow(
            "JobRecovery",
            {"cluster": cluster, "job_id": job_id, "by": "watch"},
            id=workflow_id,
            task_queue=c.workflow_queue(cluster),
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        )
        return ""


def _has_log(row: SweepRow) -> bool:
    """Whether the job's current attempt prints, or has printed."""
    return row.state is JobState.RUNNING or row.completing or row.state.is_final


def _has_file(known: Watched) -> bool:
    return any(can_read(path, known.uid) for path in watched_files(known))


def _links(rows: list[SweepRow]) -> dict[str, tuple[str, ...]]:
    """Which jobs wait for which: Slurm forgets the link once it is fulfilled, so it is remembered."""
    return {row.job_id: tuple(link.child for link in row.dependents) for row in rows if row.dependents}


def _with_links(cursor: SweepCursor, row: SweepRow, links: Mapping[str, tuple[str, ...]]) -> SweepCursor:
    children = tuple(sorted({*cursor.children, *links.get(row.job_id, ())}))[:MAX_CHILDREN]
    return cursor if children == cursor.children else cursor.model_copy(update={"children": children})


def _columns(attempt: int, progress: Progress) -> dict[str, object]:
    names = ("first_step", "first_step_at", "step", "step_at", "total_steps", "checkpoint", "checkpoint_at")
    return {"attempt": attempt, **{name: getattr(progress, name) for name in names}}


def _plain(text: str) -> str:
    return " ".join(text.split())[:80]


def _now() -> datetime:
    return datetime.now(UTC)
