"""Judges whether a running job hangs: no completed step for longer than is normal for it, and who else says so. Pure.

One witness (the silence of the log) makes a hang suspected; a second one (a fault told in the log, idle metrics, an
event of a node) confirms it. Missing logs are blind time and never a hang.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime, timedelta
from enum import StrEnum

from pydantic import Field

from recovery.measured import JobMetrics, with_survivals
from recovery.node_events import NodeEvent, NodeTrouble
from recovery.pace import FIRST_LOOKS, Pace, Phase
from recovery.policy_numbers import Policy
from recovery.records import (
    Certainty,
    Confidence,
    FaultClass,
    Finding,
    JobView,
    Nodes,
    Record,
    Retry,
    Role,
    Time,
)

STARTS_LEARNED = 2
"""Start-ups, saves or evaluations that were seen before what they took counts instead of the policy's number."""

PHASE_TIMES = 3.0
"""An announced phase may take this many times the longest of its kind."""

PAUSE_TIMES = 2.0
"""An unannounced pause that came before may take this many times the longest of them."""

ECHO = timedelta(seconds=10)
"""What ranks print within this after a fault is its echo; what is printed later is a sign of life."""

ABSENT_HOW = "its GPUs stand still while those of all other hosts wait at full use"

WAITING_WORDS = ("nccl.watchdog", "gloo.")
"""Signatures (their beginnings) that tell of ranks waiting for each other; what is printed after them is no restart."""


class Stage(StrEnum):
    """How far a hang is established, least first."""

    SUSPECTED = "suspected"  # the log is silent, nothing else says so
    OVERDUE = "overdue"  # and has been for the policy's longer limit
    CONFIRMED = "confirmed"  # a second witness says so

    @property
    def acts(self) -> bool:
        return self is not Stage.SUSPECTED


class Hang(Record):
    """A job that makes no progress. It stays the same while nothing changes, so that it is told once."""

    attempt: int
    stage: Stage
    step: int | None = Field(default=None, description="last completed step; None: it never came to the first")
    since: Time = Field(description="when that step was seen, or the start-up began")
    limit_s: int
    normal: str = Field(default="", description="how the limit came about, for people")
    witnesses: tuple[str, ...] = Field(default=(), description="who else says so")

    @property
    def key(self) -> str:
        return f"hang:{self.stage.value}:{self.step}"

    @property
    def summary(self) -> str:
        what = "never came to a first step" if self.step is None else f"no completed step after step {self.step}"
        alone = "nothing else says so" + (", but it lasts" if self.stage is Stage.OVERDUE else "")
        more = "; ".join(self.witnesses) or alone
        return f"{what}, longer than {self.limit_s} s ({self.normal}); {more}"


def judge(
    pace: Pace,
    policy: Policy,
    now: datetime,
    *,
    metrics: JobMetrics | None = None,
    events: Sequence[NodeEvent] = (),
    total: int | None = None,
    own_progress: bool = False,
    before: Hang | None = None,
) -> Hang | None:
    """Whether a RUNNING job hangs at this moment, with what was last seen of it. `total`: steps the run shall have;
    `own_progress`: the job brought its own expression for progress lines; `before`: the last judgement, since a
    witness may fall silent again."""
    since = pace.at or pace.begun
    if since is None:
        return None
    limit_s, normal = limit(pace, policy, total)
    quiet_s = pace.quiet_s(now)
    if quiet_s < limit_s:
        return None
    understood = pace.knows_steps or own_progress
    if not understood and _speaks(pace, now, limit_s):
        return None  # it prints, and nobody understands what: that is no silence
    if before is not None and (before.attempt, before.step) != (pace.attempt, pace.step):
        before = None
    witnesses = tuple(dict.fromkeys((*(before.witnesses if before else ()), *_witnesses(pace, metrics, events))))[:6]
    stage = Stage.SUSPECTED
    if not _helps_itself(pace, policy, quiet_s):
        busy = metrics is not None and metrics.tensor_idle is False
        if witnesses:
            stage = Stage.CONFIRMED
        elif understood and not busy and quiet_s >= limit_s + policy.hang_one_witness_s:
            stage = Stage.OVERDUE
    if before is not None and before.stage.acts and not stage.acts:
        stage = before.stage
    return Hang(
        attempt=pace.attempt,
        stage=stage,
        step=pace.step,
        since=since,
        limit_s=before.limit_s if before else round(limit_s),
        normal=before.normal if before else normal,
        witnesses=witnesses,
    )


def limit(pace: Pace, policy: Policy, total: int | None = None) -> tuple[float, str]:
    """Longest silence that is still normal at this place of the run, in seconds, and why."""
    floor = float(policy.hang_floor_s)
    if pace.step is None or (pace.longest_s == 0 and pace.looks <= FIRST_LOOKS):
        return start_limit(pace, policy), "start-up"
    longest = pace.longest_s
    base, why = max(policy.hang_times_longest * longest, floor), f"longest normal wait {longest:.1f} s"
    if total is not None and pace.step >= total:
        return max(base, float(policy.hang_start_s)), "after its last step"
    if pace.phase is not Phase.NONE:
        known = pace.saves if pace.phase is Phase.SAVE else pace.evals
        name = "save" if pace.phase is Phase.SAVE else "evaluation"
        if len(known) < STARTS_LEARNED:
            return max(base, float(policy.hang_phase_s)), f"{name} announced"
        return max(base, PHASE_TIMES * max(known)), f"{name} announced, longest {max(known):.0f} s"
    if pace.pauses and pace.pause_is_due():
        pause = max(seconds for _, seconds in pace.pauses)
        # One stop that mended itself after hours must not make every later hang last as long.
        allowed = PAUSE_TIMES * pause
        if len(pace.pauses) < 3:
            allowed = min(allowed, float(policy.hang_phase_s))
        if allowed > base:
            return allowed, f"pauses of up to {pause:.0f} s are normal"
    return base, why


def start_limit(pace: Pace, policy: Policy) -> float:
    """Longest normal start-up, in seconds."""
    if len(pace.starts) >= STARTS_LEARNED:
        return max(policy.hang_times_longest * max(pace.starts), float(policy.hang_floor_s))
    return max([float(policy.hang_start_s), *(PAUSE_TIMES * took for took in pace.starts)])


def _speaks(pace: Pace, now: datetime, limit_s: float) -> bool:
    return pace.grew_at is not None and (now - pace.grew_at).total_seconds() < limit_s


def _witnesses(pace: Pace, metrics: JobMetrics | None, events: Sequence[NodeEvent]) -> list[str]:
    found = [f"the log tells of {word} after that" for word in pace.words]
    if metrics is not None:
        if metrics.tensor_idle:
            found.append("its tensor cores are idle")
            found += [f"{ABSENT_HOW}: {node}" for node in metrics.absent_nodes]
        if metrics.fabric_idle:
            found.append("its nodes send nothing over the fabric")
        faults = with_survivals(metrics.findings, pace.after_at)
        found += [f"metrics tell: {one.summary}"[:200] for one in faults if one.role is not Role.BENIGN][:2]
    for event in events:
        if event.trouble is not NodeTrouble.DRAINING and not event.survived(pace.after_at):
            found.append(event.text)
    return found


def _helps_itself(pace: Pace, policy: Policy, quiet_s: float) -> bool:
    """Whether a fault was told and the job then printed more: its script or launcher may be starting it anew."""
    if pace.words_at is None or pace.grew_at is None or pace.grew_at <= pace.words_at + ECHO:
        return False
    if all(word.startswith(WAITING_WORDS) for word in pace.words):
        return False
    return quiet_s < start_limit(pace, policy)


def absent_finding(view: JobView, hang: Hang, nodes: Nodes, now: datetime) -> Finding | None:
    """Of a hang, the host that metrics show not to wait as all others do; None: none. It is inferred from the outside,
    so it is no sure thing, and what the log says of a cause goes before it."""
    mine = tuple(node for node in nodes if node in view.nodes)
    if len(mine) != 1:
        return None
    parts = (view.cluster, view.raw_id, hang.attempt, "hang.absent_host", hang.step, *mine)
    return Finding(
        id=hashlib.sha256("\n".join(str(part) for part in parts).encode()).hexdigest()[:32],
        attempt=hang.attempt,
        detector="metrics",
        signature="hang.absent_host",
        fault_class=FaultClass.INTERCONNECT,
        role=Role.ROOT,
        retry=Retry.YES,
        certainty=Certainty.SUSPECTED,
        at=hang.since,
        seen_at=now,
        nodes=mine,
        confidence=Confidence.MEDIUM,
        how=ABSENT_HOW,
        summary=f"All hosts wait but {mine[0]}, which did not come to where they wait",
        source="metrics",
    )


def hang_finding(view: JobView, hang: Hang, now: datetime) -> Finding:
    """The judgement as a finding. What is the cause is told by others: this is a symptom of unknown class."""
    signature = "hang.no_first_step" if hang.step is None else "hang.no_step"
    parts = (view.cluster, view.raw_id, hang.attempt, signature, hang.step, hang.stage.value)
    return Finding(
        id=hashlib.sha256("\n".join(str(part) for part in parts).encode()).hexdigest()[:32],
        attempt=hang.attempt,
        detector="progress",
        signature=signature,
        fault_class=FaultClass.UNKNOWN,
        role=Role.SYMPTOM,
        retry=Retry.YES,
        certainty=Certainty.CONFIRMED if hang.stage.acts else Certainty.SUSPECTED,
        at=hang.since,
        seen_at=now,
        summary=hang.summary,
        source="log",
    )
