"""Watches GPU, fabric and host metrics for all running jobs of a cluster at once, through any Prometheus.

A look goes by the last round of queries and costs next to nothing. A server that is away, slow or wrong makes the watch
blind, which is said; it never raises and never holds the sweep up. Nothing is concluded from series that are missing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from activities.telemetry.hostnames import HostNames
from activities.telemetry.metric_changes import Change
from activities.telemetry.metric_findings import XidTable, findings_of, of_node
from activities.telemetry.metric_levels import (
    FABRIC_IDLE,
    TENSOR_IDLE,
    Levels,
    absent_node,
    all_idle,
    levels_by_node,
    slow_nodes,
)
from activities.telemetry.metric_queries import ANSWERS, BOOTED, CLOCK, DOWN_S, METRICS, Level, Queries, QueryShape
from activities.telemetry.metric_round import Round, Rounds, Source
from activities.telemetry.prometheus import Prometheus, PrometheusAccess
from recovery.faults.catalogue import Catalogue
from recovery.measured import JobMetrics, MeasuredJob
from recovery.records import Finding, Nodes, Record, Role

__all__ = ["JobMetrics", "MeasuredJob", "MetricsSource", "MetricsWatch"]

log = logging.getLogger("relight.metrics")

PATIENCE_S = 1.0
"""Longest a look waits for a round that is under way; it then goes by the round before."""

STALE_ROUNDS = 4
"""A round older than so many intervals counts as none."""

REMEMBERED_S = 600.0
"""Nodes of jobs that were looked at within this are read along in a round, whoever asked for it."""

REMEMBERED_JOBS = 20_000
LONG_AGO_S = 6 * 3600.0
"""How far it is looked back for a sign that an idle job ever worked."""

ASKED_BACK = 4
"""Most jobs for which that is asked in one round."""

BOOT_S = 60.0
"""A node that came up within this after the job's start was started for it."""

MAX_BLIND = 20
OWN_ERROR = "metrics: an error in relight itself, see the worker's log"

LIMITS = {Level.TENSOR_MOST: TENSOR_IDLE, Level.TRAFFIC: FABRIC_IDLE}


class MetricsSource(Record):
    """Where metrics come from, and how they are read."""

    access: PrometheusAccess
    shape: QueryShape = QueryShape()
    interval_s: float = 15.0


@dataclass(frozen=True)
class _Joined:
    """One round, as seen by the nodes of the jobs."""

    round: Round
    nodes: Nodes
    levels: Levels
    changes: Mapping[str, Sequence[Change]]
    down: Mapping[str, tuple[str, ...]]
    sources: Mapping[tuple[str, Level], Source]
    judged: dict[MeasuredJob, JobMetrics] = field(default_factory=dict)


@dataclass
class _Memory:
    """What is remembered of one attempt of a job."""

    worked: set[Level] = field(default_factory=set)
    asked: set[Level] = field(default_factory=set)
    idle_since: datetime | None = None


class MetricsWatch:
    """`look` at every sweep. Without a source it knows nothing and costs nothing."""

    def __init__(self, source: MetricsSource | None, catalogue: Catalogue) -> None:
        self._source = source
        self._shape = source.shape if source is not None else QueryShape()
        self._server = Prometheus(source.access) if source is not None else None
        self._rounds = Rounds(self._server, Queries(self._shape)) if self._server is not None else None
        self._xids = XidTable(catalogue)
        self._last: Round | None = None
        self._asking: asyncio.Task[None] | None = None
        self._joined: _Joined | None = None
        self._nodes: dict[str, float] = {}
        self._memory: dict[tuple[str, int, str], _Memory] = {}
        self._trouble = ""

    @property
    def configured(self) -> bool:
        return self._source is not None

    def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()
        if self._server is not None:
            self._server.close()

    async def look(self, jobs: Sequence[MeasuredJob], *, fresh: bool = False) -> Mapping[str, JobMetrics]:
        """What metrics tell of these jobs, by job id; nothing where no server is configured. Never raises.

        `fresh` waits for a round that begins now, `deadline_s` at most (twice that where one is under way); not where
        the last one brought nothing, since a job that crashed must not wait for a server that is away.
        """
        if self._source is None or not jobs:
            return {}
        now = time.monotonic()
        self._nodes |= {node: now for job in jobs for node in job.nodes}
        if fresh and not self._is_away(now):
            await self._fresh(jobs, now)
        else:
            if self._last is None or now - self._last.ended >= self._source.interval_s:
                self._begin(jobs)
            if self._asking is not None:
                await asyncio.wait({self._asking}, timeout=PATIENCE_S)
        last = self._last
        if last is None or time.monotonic() - last.ended > STALE_ROUNDS * self._source.interval_s:
            return {job.job_id: JobMetrics(blind=("metrics: no answer yet",)) for job in jobs}
        try:
            joined = self._join(last)
            for job in jobs:
                if job not in joined.judged:
                    joined.judged[job] = self._judge(job, joined)
        except Exception:
            log.exception("metrics could not be joined to jobs")
            return {job.job_id: JobMetrics(blind=(OWN_ERROR,)) for job in jobs}
        return {job.job_id: joined.judged[job] for job in jobs}

    # ------------------------------------------------------------------------------------------------ rounds

    def _is_away(self, now: float) -> bool:
        assert self._source is not None
        return self._last is not None and self._last.failed and now - self._last.ended < self._source.interval_s

    def _begin(self, jobs: Sequence[MeasuredJob]) -> asyncio.Task[None]:
        """The round under way, else a new one."""
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask(jobs))
        return self._asking

    async def _fresh(self, jobs: Sequence[MeasuredJob], since: float) -> None:
        """Waits for a round that began after `since`: the second one, where one is under way."""
        for _ in range(2):
            await asyncio.wait({self._begin(jobs)})
            if self._last is not None and self._last.began >= since:
                return

    async def _ask(self, jobs: Sequence[MeasuredJob]) -> None:
        assert self._rounds is not None
        began = time.monotonic()
        self._nodes = {node: at for node, at in self._nodes.items() if began - at < REMEMBERED_S}
        try:
            self._last = await self._rounds.ask(tuple(sorted(self._nodes)))
            await self._look_back(jobs, self._join(self._last))
        except Exception:  # whatever is wrong with metrics, the sweep goes on without them
            log.exception("metrics could not be read")
            self._last = Round(began=began, ended=time.monotonic(), blind=(OWN_ERROR,))
        trouble = "; ".join(self._last.blind)
        if trouble != self._trouble:
            self._trouble = trouble
            log.warning("blind: %s", trouble) if trouble else log.info("metrics are seen again")

    async def _look_back(self, jobs: Sequence[MeasuredJob], joined: _Joined) -> None:
        """Whether jobs that are idle now ever worked: only then does idleness tell anything. Asked once per attempt."""
        assert self._rounds is not None
        asked = 0
        for job in jobs:
            memory = self._remembered(job)
            for level, limit in LIMITS.items():
                idle = all_idle(joined.levels.get(level, {}), job.nodes, limit)
                if not idle or level in memory.worked | memory.asked or asked >= ASKED_BACK or job.start_time is None:
                    continue
                asked += 1
                age_s = (datetime.now(UTC) - job.start_time).total_seconds()
                sources = [joined.sources[node, level] for node in job.nodes if (node, level) in joined.sources]
                found = await self._rounds.worked(level, sources, min(LONG_AGO_S, max(60.0, age_s)))
                if found is None:
                    return
                memory.asked.add(level)
                if any(value > limit for value in found):
                    memory.worked.add(level)

    # ------------------------------------------------------------------------------------------------ joining

    def _join(self, last: Round) -> _Joined:
        nodes = tuple(sorted(self._nodes))
        if self._joined is not None and self._joined.round is last and self._joined.nodes == nodes:
            return self._joined
        hosts = HostNames(nodes, labels=self._shape.host_labels, names=last.names)
        changed: dict[str, list[Change]] = {}
        for change in last.changes:
            if (node := hosts.node_of(change.labels)) is not None:
                changed.setdefault(node, []).append(change)
        down: dict[str, tuple[str, ...]] = {}
        for row in last.down:
            if (node := hosts.node_of(row.labels)) is not None:
                down[node] = (*down.get(node, ()), row.labels.get("job") or row.labels.get("instance", "?"))
        sources: dict[tuple[str, Level], Source] = {}
        assert self._rounds is not None
        for row in last.levels:
            level = row.labels.get(ANSWERS)
            if level in LIMITS and (node := hosts.node_of(row.labels)) is not None:
                source = self._rounds.source_of(row.labels)
                if source is not None:
                    sources[node, Level(level)] = source
        self._joined = _Joined(
            round=last,
            nodes=nodes,
            levels=levels_by_node(last.levels, hosts),
            changes=changed,
            down=down,
            sources=sources,
        )
        return self._joined

    def _remembered(self, job: MeasuredJob) -> _Memory:
        key = (job.job_id, job.attempt, str(job.start_time))
        if key not in self._memory:
            if len(self._memory) >= REMEMBERED_JOBS:
                for old in list(self._memory)[: REMEMBERED_JOBS // 2]:
                    del self._memory[old]
            self._memory[key] = _Memory()
        return self._memory[key]

    # ------------------------------------------------------------------------------------------------ judging

    def _judge(self, job: MeasuredJob, joined: _Joined) -> JobMetrics:
        now, last = datetime.now(UTC), joined.round
        found, doubts = findings_of(job, joined.changes, self._xids, skew_s=last.skew_s, seen_at=now)
        findings = (*found, *self._of_nodes(job, joined, now))
        blind = (*last.blind, *self._missing(job, joined), *doubts)
        if job.end_time is not None:
            return JobMetrics(findings=findings, blind=blind[:MAX_BLIND])
        memory = self._remembered(job)
        tensor = self._idle(job, joined, Level.TENSOR_MOST, memory, now)
        fabric = self._idle(job, joined, Level.TRAFFIC, memory, now) if len(job.nodes) > 1 else None
        if tensor or fabric:
            window = now - timedelta(seconds=self._shape.idle_s)
            memory.idle_since = memory.idle_since or max(window, job.start_time or window)
        else:
            memory.idle_since = None
        slow, how = slow_nodes(joined.levels, job.nodes)
        absent = absent_node(joined.levels, job.nodes) if tensor else None
        return JobMetrics(
            tensor_idle=tensor,
            fabric_idle=fabric,
            idle_since=memory.idle_since,
            absent_nodes=(absent,) if absent is not None else (),
            findings=findings,
            slow_nodes=slow,
            slow_how=how,
            blind=blind[:MAX_BLIND],
        )

    def _idle(self, job: MeasuredJob, joined: _Joined, level: Level, memory: _Memory, now: datetime) -> bool | None:
        """Whether it is idle although it worked before. A job that never used the tensor cores (or this fabric) does
        not hang because it does not use them now."""
        idle = all_idle(joined.levels.get(level, {}), job.nodes, LIMITS[level])
        young = job.start_time is None or (now - job.start_time).total_seconds() < self._shape.idle_s
        if idle is False and not young:
            memory.worked.add(level)
        if idle and (young or level not in memory.worked):
            return None
        return idle

    def _of_nodes(self, job: MeasuredJob, joined: _Joined, now: datetime) -> list[Finding]:
        """Hosts that rebooted under the job, and hosts nothing is heard of any more."""
        found = []
        for node in job.nodes:
            booted = joined.levels.get(Level.BOOTED, {}).get(node)
            if booted is not None and job.start_time is not None:
                at = datetime.fromtimestamp(booted - joined.round.skew_s, UTC)
                if at > job.start_time + timedelta(seconds=BOOT_S) and (job.end_time is None or at < job.end_time):
                    text = f"{node} was rebooted under the job at {at:%Y-%m-%d %H:%M:%SZ}"
                    found.append(of_node(job, node, "node.rebooted", text, now, at=at, source="node_boot_time_seconds"))
            elif (targets := joined.down.get(node)) and not _heard_of(joined.levels, node):
                text = f"{node} has not answered any scrape for {DOWN_S} s ({', '.join(sorted(targets))})"
                found.append(of_node(job, node, "node.silent", text, now, role=Role.SYMPTOM, source="up"))
        return found

    def _missing(self, job: MeasuredJob, joined: _Joined) -> list[str]:
        """What is not measured of this job's hosts."""
        told = []
        existing = joined.round.existing
        if existing is not None:
            for metric in METRICS:
                if metric.core and metric.name not in existing:
                    told.append(f"no {metric.name} anywhere, so not seen: {metric.blinds}")
        for node in job.nodes:
            if (targets := joined.down.get(node)) and _heard_of(joined.levels, node):
                told.append(f"{node}: {', '.join(sorted(targets))} does not answer scrapes")
        for level, name, what in ((Level.GPUS, CLOCK, "GPU metrics"), (Level.BOOTED, BOOTED, "host metrics")):
            measured = joined.levels.get(level, {})
            if existing is not None and name not in existing and not measured:
                continue  # told already
            lost = [node for node in job.nodes if node not in measured]
            if lost:
                others = f" and {len(lost) - 5} more" if len(lost) > 5 else ""
                told.append(f"no {what} of {', '.join(lost[:5])}{others}")
        return told


def _heard_of(levels: Levels, node: str) -> bool:
    return any(node in values for values in levels.values())
