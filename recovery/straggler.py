"""Judges whether a running job lags behind its own usual pace, and which host is to blame where metrics tell. Pure.

A drop counts only when it lasts: the median of the latest windows of steps against what was usual before. Pauses,
evaluations, saves and the first steps after a start are in neither.
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from statistics import median

from pydantic import Field

from recovery.measured import JobMetrics
from recovery.pace import Pace
from recovery.policy_numbers import Policy
from recovery.records import Certainty, FaultClass, Finding, JobView, Nodes, Record, Retry, Role, Time

LATEST = 4
"""Windows that must show the drop, in the median; one window lasts at least a quarter of the policy's time."""

RECOVERED = 0.5
"""A straggler is over when no more than this share of the drop is left."""


class Straggler(Record):
    """A job that lags. It stays the same while nothing changes, so that it is told once."""

    attempt: int
    since: Time
    drop: float = Field(description="share of the usual throughput that is lost")
    usual_s: float = Field(description="seconds of a step before")
    nodes: Nodes = Field(default=(), description="slow hosts, from metrics; empty: cannot be told")
    how: str = ""

    @property
    def key(self) -> str:
        return f"straggler:{','.join(self.nodes)}"

    @property
    def summary(self) -> str:
        who = f"{', '.join(self.nodes)} is behind ({self.how})" if self.nodes else "which host is behind cannot be told"
        return f"{self.drop:.0%} of its usual throughput is lost (a step used to take {self.usual_s:.3g} s); {who}"


def window_s(policy: Policy) -> float:
    """Least length of a window of steps, so that LATEST of them last as long as the policy wants to see a drop."""
    return policy.straggler_for_s / LATEST


def judge(
    pace: Pace, policy: Policy, *, metrics: JobMetrics | None = None, before: Straggler | None = None
) -> Straggler | None:
    """Whether the job lags; `before` is the last judgement."""
    if pace.usual_s is None or not pace.windows:
        return None
    if before is not None and before.attempt != pace.attempt:
        before = None
    latest = pace.windows[-LATEST:]
    now_s = median(window.step_s for window in latest)
    drop = max(0.0, 1 - pace.usual_s / now_s) if now_s > 0 else 0.0
    nodes, how = (metrics.slow_nodes, metrics.slow_how) if metrics is not None else ((), "")
    if before is not None:
        if drop < RECOVERED * policy.straggler_drop:
            return None
        return before.model_copy(update={"nodes": nodes, "how": how}) if nodes and not before.nodes else before
    if pace.slow_at is None or pace.slow < LATEST or drop < policy.straggler_drop:
        return None
    return Straggler(
        attempt=pace.attempt, since=pace.slow_at, drop=round(drop, 2), usual_s=pace.usual_s, nodes=nodes, how=how[:200]
    )


def straggler_finding(view: JobView, straggler: Straggler, now: datetime) -> Finding:
    """The judgement as a finding: a cause only where metrics, which no user writes, name the host."""
    nodes = tuple(node for node in straggler.nodes if node in view.nodes)
    parts = (view.cluster, view.raw_id, straggler.attempt, "straggler", straggler.since, *nodes)
    return Finding(
        id=hashlib.sha256("\n".join(str(part) for part in parts).encode()).hexdigest()[:32],
        attempt=straggler.attempt,
        detector="progress",
        signature="straggler.slow_host" if nodes else "straggler.slow",
        fault_class=FaultClass.HARDWARE if nodes else FaultClass.UNKNOWN,
        role=Role.ROOT if nodes else Role.SYMPTOM,
        retry=Retry.YES,
        certainty=Certainty.CONFIRMED,
        at=straggler.since,
        seen_at=now,
        nodes=nodes,
        how=straggler.how if nodes else "",
        trusted=bool(nodes),
        summary=straggler.summary,
        source="metrics" if nodes else "log",
    )
