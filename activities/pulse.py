"""Feels the pulse of running jobs at each sweep: how each one goes, whether it hangs or lags, what befell its nodes.

It reads nothing but what the sweep has read anyway (and the node list, at most every ten seconds). Judgements are
pure functions of `recovery/`; they are kept in the sweep's cursor, and the workflow is told when they change.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache

from activities.site import Site
from activities.slurm.answers import SweepRow
from activities.slurm.errors import SlurmError
from activities.slurm.hostlist import BadHostlist, expand
from activities.slurm.placement import as_if_heard, nobody_is_heard
from activities.sweep_cursor import SweepCursor
from activities.telemetry.logwatch import LogLook
from recovery import hang, straggler
from recovery.blame import NODE_CLASSES
from recovery.directive import parse_comment
from recovery.measured import JobMetrics, MeasuredJob, with_survivals
from recovery.node_events import NodeEvent, is_eventful, node_events
from recovery.pace import Look, Pace, after
from recovery.policy_numbers import Policy
from recovery.progress import Dialect, DialectError, own_dialect
from recovery.records import JobState, Nodes, NodeView, Role

NODES_EVERY_S = 10.0
OUTAGE_S = 30.0
"""Looks at a job that are further apart than this (or than five sweeps) mean that nobody looked meanwhile."""

KEEP_S = 20.0
"""While nothing happens the pace is written this often, so that a new sweep knows until when the old one looked."""

LATE_S = 180.0
"""So long after an attempt's end metrics may still tell of its nodes: exporters collect, then servers scrape."""

ENDED = 10_000
"""Most ended attempts that are remembered for that."""

METRICS = 8
"""Most findings of metrics whose names are kept with a job; the findings themselves are asked for again."""

Key = tuple[str, int, str]
"""Cluster, life and job."""


class Pulse:
    """What one sweeping process knows of running jobs beyond their cursors."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._looks: dict[Key, Pace] = {}
        self._policies: dict[tuple[str, ...], Policy] = {}
        self._policies_of: object = None
        self._nodes_at: dict[str, float] = {}
        self._eventful: dict[str, tuple[NodeView, ...]] = {}
        self._attempts: dict[tuple[str, str], MeasuredJob] = {}
        """By cluster and job: the attempt that ran last, for as long as late news of it are waited for."""

    async def look_at_nodes(self, cluster: str, rows: Sequence[SweepRow]) -> None:
        """Reads the nodes anew where that is due. An unreadable list leaves what was known."""
        if time.monotonic() - self._nodes_at.get(cluster, -NODES_EVERY_S) < NODES_EVERY_S:
            return
        starts = [row.start for row in rows if row.state is JobState.RUNNING and row.start is not None]
        if not starts:
            self._eventful[cluster] = ()
            return
        try:
            nodes = await self._site.nodes(cluster)
        except SlurmError:
            return
        nodes = as_if_heard(nodes) if nobody_is_heard(nodes) else nodes
        self._nodes_at[cluster] = time.monotonic()
        earliest = datetime.fromtimestamp(min(starts), UTC)
        self._eventful[cluster] = tuple(node for node in nodes if is_eventful(node, earliest))

    async def measured(self, cluster: str, rows: Sequence[SweepRow]) -> Mapping[str, JobMetrics]:
        """What metrics tell of the running jobs among the rows."""
        if not self._site.is_measured(cluster):
            return {}
        jobs, now = [], datetime.now(UTC)
        for row in rows:
            if row.state is JobState.RUNNING and not row.completing and row.start is not None:
                job = MeasuredJob(
                    job_id=row.job_id,
                    raw_id=row.raw_id,
                    nodes=_expanded(row.node_list),
                    start_time=datetime.fromtimestamp(row.start, UTC),
                    attempt=row.restarts,
                )
                self._attempts.pop((cluster, row.job_id), None)
                if len(self._attempts) < ENDED:
                    self._attempts[cluster, row.job_id] = job
                jobs.append(job)
            elif (ended := self._ended(cluster, row, now)) is not None and row.state is JobState.PENDING:
                jobs.append(ended)
        return await self._site.measured(cluster, jobs)

    def _ended(self, cluster: str, row: SweepRow, now: datetime) -> MeasuredJob | None:
        """The attempt of a job that ran last, while metrics may still tell something new of it. A sweep that has begun
        since knows none."""
        key = (cluster, row.job_id)
        job = self._attempts.get(key)
        if job is not None and job.end_time is None:
            job = self._attempts[key] = job.model_copy(update={"end_time": now})
        if job is None or job.end_time is None or (now - job.end_time).total_seconds() > LATE_S:
            self._attempts.pop(key, None)
            return None
        return job

    def feel(
        self,
        cluster: str,
        row: SweepRow,
        life_id: int,
        look: LogLook | None,
        cursor: SweepCursor,
        now: datetime,
        *,
        metrics: JobMetrics | None = None,
    ) -> SweepCursor:
        """The cursor after one more look. `look` None: the job is suspended, its silence says nothing."""
        key = (cluster, life_id, row.job_id)
        stored = cursor.pace
        pace = self._latest(key, stored)
        policy = self._policy(cluster, row)
        started = datetime.fromtimestamp(row.start, UTC) if row.start is not None else None
        seen = Look(at=now, attempt=row.restarts, started=started, readable=False)
        if look is not None:
            seen = Look(
                at=now,
                attempt=row.restarts,
                started=started,
                readable=look.readable,
                grew=look.grew,
                step=look.step,
                phase=look.phase,
                words=look.words,
            )
        outage_s = max(OUTAGE_S, 5 * self._site.sweep_interval_s)
        pace = after(pace, seen, window_s=straggler.window_s(policy), outage_s=outage_s)
        self._looks[key] = pace
        hung: hang.Hang | None = None
        lags: straggler.Straggler | None = None
        events: tuple[NodeEvent, ...] = ()
        if look is not None:
            events = self._events(cluster, row, started)
            hung = hang.judge(
                pace,
                policy,
                now,
                metrics=metrics,
                events=events,
                total=look.progress.total_steps,
                own_progress=own_progress(row.comment) is not None,
                before=cursor.hang,
            )
            lags = straggler.judge(pace, policy, metrics=metrics, before=cursor.straggler) if hung is None else None
        names = [event.key for event in events if not event.survived(pace.after_at)]
        names += _told_by(metrics, pace.after_at) if look is not None else []
        over = cursor.over if cursor.over is not None and cursor.over.attempt == pace.attempt else None
        if cursor.hang is not None and cursor.hang.attempt == pace.attempt and cursor.hang.step != pace.step:
            over = cursor.hang
        judged: dict[str, object] = {"hang": hung, "over": over, "straggler": lags, "nodes": tuple(names), "late": ()}
        late = stored.looked_at is None or (now - stored.looked_at).total_seconds() >= KEEP_S
        if late or not pace.same_but_for_time(stored) or pace.attempt != stored.attempt:
            judged["pace"] = pace
        return cursor.model_copy(update=judged)

    def forget_others(self, cluster: str, keys: set[Key]) -> None:
        """Drops what is known of jobs that run no more."""
        self._looks = {key: pace for key, pace in self._looks.items() if key[0] != cluster or key in keys}

    def _latest(self, key: Key, stored: Pace) -> Pace:
        """This process may have looked since the pace was written, another one may have written since."""
        mine = self._looks.get(key)
        if mine is None or mine.looked_at is None or (stored.looked_at and stored.looked_at > mine.looked_at):
            return stored
        return mine

    def _events(self, cluster: str, row: SweepRow, started: datetime | None) -> tuple[NodeEvent, ...]:
        eventful = self._eventful.get(cluster, ())
        return node_events(eventful, _expanded(row.node_list), started) if eventful else ()

    def _policy(self, cluster: str, row: SweepRow) -> Policy:
        """The policy that holds for the job; resolving it takes longer than all the rest, so it is remembered."""
        current = self._site.policies.current()
        if current is not self._policies_of or len(self._policies) > 50_000:
            self._policies, self._policies_of = {}, current
        about = (cluster, row.partition, row.account, row.qos, row.user, row.comment)
        policy = self._policies.get(about)
        if policy is None:
            asked = parse_comment(row.comment).directive
            policy = current.of_job(cluster, row, asked).policy
            self._policies[about] = policy
        return policy


def _told_by(metrics: JobMetrics | None, step_at: datetime | None) -> list[str]:
    """Names of what metrics found and the training did not survive, bounded."""
    found = with_survivals(metrics.findings, step_at) if metrics is not None else ()
    names = {f"metric:{one.signature}:{','.join(one.nodes)}"[:100] for one in found if one.role is not Role.BENIGN}
    return sorted(names)[:METRICS]


def blamed(metrics: JobMetrics | None) -> Nodes:
    """Nodes that metrics blame for the end of an attempt."""
    found = metrics.findings if metrics is not None else ()
    causes = [one for one in found if one.role is Role.ROOT and one.fault_class in NODE_CLASSES]
    return tuple(sorted({node for one in causes for node in one.nodes}))[:METRICS]


@lru_cache(maxsize=20_000)
def _expanded(node_list: str) -> Nodes:
    try:
        return expand(node_list)
    except BadHostlist:
        return ()


@lru_cache(maxsize=5_000)
def own_progress(comment: str) -> Dialect | None:
    """The job's own expression for progress lines, None without one that can be used."""
    text = parse_comment(comment).directive.progress
    if text is None:
        return None
    try:
        return own_dialect(text)
    except DialectError:
        return None
