"""What the next failure of a job would get: the rules and budgets of today, asked about failures yet to come. Pure.

The same function decides as for real failures; nothing here is a rule of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from recovery.policy import decide
from recovery.policy_numbers import Policy
from recovery.records import (
    Advice,
    Attempt,
    Confidence,
    FaultClass,
    JobState,
    JobView,
    Mode,
    Progress,
    Record,
    Retry,
    Suspect,
    Verdict,
)
from recovery.situation import Situation


class JobFacts(Record):
    """What must be known of the job to ask."""

    cluster: str
    job_id: str
    user: str = ""
    nodes: tuple[str, ...] = ()
    min_nodes: int = 1
    requeue: bool = True
    paused: bool = False
    stopped: bool = False
    mode: Mode = Mode.MONITOR
    mode_from: str = ""
    policy_name: str = ""


class Foreseen(Record):
    """One failure that may come, and what would follow."""

    case: str
    advice: Advice


class _Case(NamedTuple):
    title: str
    state: JobState
    verdict: Verdict
    advances: bool = False


def foresee(job: JobFacts, attempts: Sequence[Attempt], policy: Policy, now: datetime) -> tuple[Foreseen, ...]:
    """What each kind of failure would get if it came now. `attempts` are those on record, oldest first."""
    past = list(attempts)
    alive = bool(past) and not past[-1].state.is_final
    current = past.pop() if alive else Attempt(number=past[-1].number + 1 if past else 0)
    current = current.model_copy(
        update={
            "nodes": current.nodes or job.nodes,
            "start_time": current.start_time or now,
            "submit_time": current.submit_time or now,
        }
    )
    last = next((one for one in reversed(past) if one.fault_class is not None and not one.own_fault), None)
    return tuple(_asked(job, past, current, one, policy, now) for one in _cases(last, current))


def _cases(last: Attempt | None, current: Attempt) -> Iterator[_Case]:
    node = current.nodes[0] if current.nodes else ""
    suspect = (Suspect(node=node, how="supposed", confidence=Confidence.HIGH),) if node else ()
    if last is not None and last.fault_class is not None:
        name = last.signature or last.fault_class.value
        same = Verdict(fault_class=last.fault_class, signature=last.signature, reason=f"{name} again")
        yield _Case(f"the same cause as last ({name}), no new checkpoint", JobState.FAILED, same)
        yield _Case(f"the same cause as last ({name}), after a new checkpoint", JobState.FAILED, same, advances=True)
    hardware = Verdict(
        fault_class=FaultClass.HARDWARE, signature="supposed.hardware", suspects=suspect, reason="a node broke"
    )
    yield _Case("broken hardware, the node known", JobState.FAILED, hardware)
    unknown = Verdict(fault_class=FaultClass.UNKNOWN, reason="nothing tells why")
    yield _Case("a cause that cannot be told", JobState.FAILED, unknown)
    user = Verdict(
        fault_class=FaultClass.USER, signature="supposed.user", retry=Retry.NO, reason="an error in its code"
    )
    yield _Case("an error of the user's code", JobState.FAILED, user)
    memory = Verdict(fault_class=FaultClass.OUT_OF_MEMORY, signature="supposed.oom", reason="out of memory")
    yield _Case("out of memory", JobState.OUT_OF_MEMORY, memory)
    limit = Verdict(fault_class=FaultClass.NONE, retry=Retry.HANDS_OFF, reason="the time limit")
    yield _Case("the time limit", JobState.TIMEOUT, limit)


def _asked(
    job: JobFacts, past: Sequence[Attempt], current: Attempt, one: _Case, policy: Policy, now: datetime
) -> Foreseen:
    best = max((step for attempt in past for step in attempt.steps), default=0)
    reached = {"last_step": best + 1, "last_checkpoint": best + 1} if one.advances else {}
    failing = current.model_copy(update={"state": one.state, "end_time": now, **reached})
    view = JobView(
        cluster=job.cluster,
        job_id=job.job_id,
        raw_id=0,
        user=job.user,
        state=one.state,
        restarts=current.number,
        requeue=job.requeue or policy.arm_requeue,
        exit_code=1 if one.state is JobState.FAILED else 0,
        submit_time=current.submit_time,
        start_time=current.start_time,
        end_time=now,
        nodes=current.nodes,
        min_nodes=job.min_nodes,
        looked_at=now,
    )
    situation = Situation(
        now=now + timedelta(seconds=1),
        view=view,
        attempts=(*past, failing),
        verdict=one.verdict,
        progress=Progress(attempt=current.number),
        mode=job.mode,
        mode_from=job.mode_from,
        paused=job.paused,
        stopped=job.stopped,
        expected_restart=current.number > 0,
        policy_name=job.policy_name,
    )
    return Foreseen(case=one.title, advice=decide(situation, policy))
