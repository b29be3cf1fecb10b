"""Turns what the scheduler says about a job into findings. Pure: a look and an accounting row in, findings out.

These are the only findings of a job that its owner cannot write (`trusted`). A state in which nothing has happened
gives none. Why it happened is not asked here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from recovery.records import (
    AttemptRow,
    Certainty,
    FaultClass,
    Finding,
    JobState,
    JobView,
    Nodes,
    Retry,
    Role,
)

START_FAILED_SIGNAL = 53
"""Slurm's exit code 0:53: the batch script could not be started, mostly for its output file or working folder."""


@dataclass(frozen=True)
class _Fact:
    """What one state means. `name` becomes the signature `scheduler.<name>`."""

    name: str
    title: str
    fault_class: FaultClass
    retry: Retry
    role: Role = Role.ROOT


_COMPLETED = _Fact("completed", "The job has finished", FaultClass.NONE, Retry.HANDS_OFF)
_FAILED = _Fact("failed", "The job ended with an error", FaultClass.UNKNOWN, Retry.YES, Role.SYMPTOM)
_START_FAILED = _Fact("start_failed", "The batch script could not be started", FaultClass.STORAGE, Retry.ONCE)
_NODE_FAIL = _Fact("node_fail", "A node of the job failed", FaultClass.HARDWARE, Retry.YES)
_OUT_OF_MEMORY = _Fact("out_of_memory", "The job used more memory than it had", FaultClass.OUT_OF_MEMORY, Retry.ONCE)
_TIMEOUT = _Fact("timeout", "The job reached its time limit", FaultClass.NONE, Retry.HANDS_OFF)
_PREEMPTED = _Fact("preempted", "The job was preempted", FaultClass.NONE, Retry.HANDS_OFF)
_CANCELLED = _Fact("cancelled", "The job was cancelled", FaultClass.NONE, Retry.HANDS_OFF)
_BOOT_FAIL = _Fact("boot_fail", "A node did not boot for the job", FaultClass.SYSTEM_SOFTWARE, Retry.YES)
_DEADLINE = _Fact("deadline", "The job reached its deadline", FaultClass.NONE, Retry.HANDS_OFF)
_REQUEUED = _Fact("requeued", "The job was requeued", FaultClass.NONE, Retry.HANDS_OFF)
_SPECIAL_EXIT = _Fact("special_exit", "The site holds the job for its exit code", FaultClass.NONE, Retry.HANDS_OFF)
_SUSPENDED = _Fact("suspended", "The job is suspended", FaultClass.NONE, Retry.HANDS_OFF)
_LAUNCH_HELD = _Fact(
    "launch_failed_held", "A node could not start the job, and Slurm holds it", FaultClass.SYSTEM_SOFTWARE, Retry.YES
)
_HELD = _Fact("held", "The job is held", FaultClass.NONE, Retry.HANDS_OFF)
_TOO_MANY_REQUEUES = _Fact("too_many_requeues", "Slurm requeued the job too often", FaultClass.NONE, Retry.HANDS_OFF)
_NEVER_SATISFIED = _Fact(
    "dependency_never_satisfied", "What the job waits for will never be", FaultClass.NONE, Retry.HANDS_OFF
)
_CANNOT_BE_PLACED = _Fact(
    "cannot_be_placed", "No nodes can be found for the job", FaultClass.SCHEDULER, Retry.YES, Role.SYMPTOM
)

_BY_STATE: dict[JobState, _Fact] = {
    JobState.COMPLETED: _COMPLETED,
    JobState.FAILED: _FAILED,
    JobState.NODE_FAIL: _NODE_FAIL,
    JobState.OUT_OF_MEMORY: _OUT_OF_MEMORY,
    JobState.TIMEOUT: _TIMEOUT,
    JobState.PREEMPTED: _PREEMPTED,
    JobState.CANCELLED: _CANCELLED,
    JobState.BOOT_FAIL: _BOOT_FAIL,
    JobState.DEADLINE: _DEADLINE,
    JobState.REQUEUED: _REQUEUED,
    JobState.SPECIAL_EXIT: _SPECIAL_EXIT,
    JobState.SUSPENDED: _SUSPENDED,
    JobState.STOPPED: _SUSPENDED,
}

# Why a job waits, as words without punctuation: scontrol writes launch_failed_requeued_held, squeue with spaces.
_BY_REASON: tuple[tuple[Callable[[str], bool], _Fact], ...] = (
    (lambda reason: "launch failed requeued held" in reason, _LAUNCH_HELD),
    (lambda reason: reason in {"jobholdmaxrequeue", "max requeue exceeded"}, _TOO_MANY_REQUEUES),
    (lambda reason: reason in {"specialexit", "special exit"}, _SPECIAL_EXIT),
    (lambda reason: "requeued in held state" in reason, _HELD),
    (lambda reason: reason in {"jobhelduser", "jobheldadmin"}, _HELD),
    (lambda reason: reason == "dependencyneversatisfied", _NEVER_SATISFIED),
    (lambda reason: reason.startswith("badconstraints"), _CANNOT_BE_PLACED),
    (lambda reason: reason.startswith("reqnodenotavail") and "may be reserved" not in reason, _CANNOT_BE_PLACED),
    (lambda reason: reason == "partitionconfig", _CANNOT_BE_PLACED),
)


def scheduler_findings(
    view: JobView, row: AttemptRow | None, now: datetime, *, own_stop: bool = False
) -> tuple[Finding, ...]:
    """What the scheduler says about the current attempt, and about the one that Slurm has just requeued.

    `row` is the latest attempt in accounting, None where there is none. `own_stop` tells that relight itself
    cancelled the job. A pending job whose latest row has ended was requeued: that finding has the number of the
    attempt that ended, one less than the restart count. Ids are stable over looks.
    """
    findings: list[Finding] = []
    if view.state is JobState.PENDING:
        if row is not None and view.restarts > 0 and (fact := _BY_STATE.get(row.state)) is not None:
            findings.append(_of_row(view, row, fact, now, own_stop))
        if (waits := _why_it_waits(view)) is not None:
            findings.append(_finding(view, waits, view.restarts, now, detail=view.reason))
        return tuple(findings)
    state = _base_state(view, row)
    fact = _BY_STATE.get(state)
    if fact is None:
        return ()
    if row is not None and row.state is state:
        return (_of_row(view, row, fact, now, own_stop, attempt=view.restarts),)
    detail = _exit(view.exit_code, view.exit_signal) if fact is _FAILED else ""
    if fact is _FAILED and view.exit_signal == START_FAILED_SIGNAL:
        fact = _START_FAILED
    if fact is _CANCELLED:
        detail = "by relight" if own_stop else "accounting does not say by whom"
    return (_finding(view, fact, view.restarts, now, detail=detail, at=view.end_time, nodes=_sole(fact, view.nodes)),)


def _base_state(view: JobView, row: AttemptRow | None) -> JobState:
    """The state of the current attempt. While COMPLETING only accounting may know it."""
    if view.state is not JobState.COMPLETING:
        return view.state
    if row is not None and row.state.is_final and (row.end_time is not None or row.state is JobState.CANCELLED):
        return row.state
    return JobState.COMPLETING


def _of_row(
    view: JobView, row: AttemptRow, fact: _Fact, now: datetime, own_stop: bool, *, attempt: int | None = None
) -> Finding:
    detail = ""
    if fact is _FAILED:
        detail = _exit(row.exit_code, row.exit_signal)
        fact = _START_FAILED if row.exit_signal == START_FAILED_SIGNAL else fact
    elif fact is _CANCELLED:
        detail = _cancelled_by(view, row, own_stop)
    elif fact is _REQUEUED:
        detail = "by relight, Slurm or a person: the restart's own record tells"
    number = max(0, view.restarts - 1) if attempt is None else attempt
    return _finding(view, fact, number, now, detail=detail, at=row.end_time, nodes=_sole(fact, row.nodes))


def _cancelled_by(view: JobView, row: AttemptRow, own_stop: bool) -> str:
    if own_stop:
        return "by relight"
    if row.cancelled_by is None:
        return "accounting does not say by whom"
    if row.cancelled_by == view.uid:
        return "by its owner"
    return "by root" if row.cancelled_by == 0 else f"by uid {row.cancelled_by}"


def _exit(code: int, signal: int) -> str:
    if signal:
        return f"killed by signal {signal}" + (f", exit code {code}" if code else "")
    return f"exit code {code}"


def _sole(fact: _Fact, nodes: Nodes) -> Nodes:
    """Slurm does not say which node failed; of a job on one node there is no doubt."""
    return nodes if fact in {_NODE_FAIL, _BOOT_FAIL} and len(nodes) == 1 else ()


def _why_it_waits(view: JobView) -> _Fact | None:
    reason = " ".join(view.reason.replace("_", " ").lower().split())
    return next((fact for matches, fact in _BY_REASON if matches(reason)), None)


def _finding(
    view: JobView,
    fact: _Fact,
    attempt: int,
    now: datetime,
    *,
    detail: str = "",
    at: datetime | None = None,
    nodes: Nodes = (),
) -> Finding:
    signature = f"scheduler.{fact.name}"
    parts = (view.cluster, view.raw_id, attempt, signature, detail)
    return Finding(
        id=hashlib.sha256("\n".join(str(part) for part in parts).encode()).hexdigest()[:32],
        attempt=attempt,
        detector="scheduler",
        signature=signature,
        fault_class=fact.fault_class,
        role=fact.role,
        retry=fact.retry,
        certainty=Certainty.CONFIRMED,
        at=at,
        seen_at=now,
        nodes=nodes,
        how="the job ran on this node only" if nodes else "",
        trusted=True,
        summary=f"{fact.title} ({detail})" if detail else fact.title,
        source="accounting" if at is not None and view.end_time is None else "scheduler",
    )
