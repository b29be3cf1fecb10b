"""Policy rules for jobs that are alive: waiting, held or running.

Each function answers with an advice or None; their order and their documentation stand in `rules.py`.
"""

from __future__ import annotations

from datetime import timedelta

from recovery.budgets import IN_ALL, LAUNCH, spent, spent_text
from recovery.case import Case
from recovery.records import Action, Advice, FaultClass, Finding, JobState, Retry, Role


def launch_failed(case: Case) -> Advice | None:
    if not case.launch_failed:
        return None
    gone = spent(case.budgets, (LAUNCH, IN_ALL))
    if not gone:
        return case.advise(
            Action.RELEASE, "launch_failed", "its launch failed on a node, which Slurm drained; the job itself is well"
        )
    why = f"its launch keeps failing: {spent_text(case.attempts, gone)}"
    if case.policy.stop_requeued:
        return case.advise(Action.STOP, "launch_failed", why, notify=True)
    told = f"{why}; it stays held until a person releases it (scontrol release {case.view.job_id})"
    return case.leave_alone("launch_failed", told, notify=True)


def held(case: Case) -> Advice | None:
    if case.state is not JobState.SPECIAL_EXIT and not case.view.held:
        return None
    reason = case.view.reason or "no reason given"
    return case.leave_alone("held", f"the job is held ({reason}); whoever holds it releases it", notify=True)


def arm(case: Case) -> Advice | None:
    if not case.state.is_alive or case.view.requeue or not case.policy.arm_requeue:
        return None
    if case.situation.frozen:
        later = case.situation.now + timedelta(minutes=1)
        return case.advise(Action.WAIT, "arm", f"not armed yet: {case.situation.frozen}", look_again_at=later)
    return case.advise(Action.ARM, "arm", "submitted with --no-requeue: once failed, Slurm would refuse to requeue it")


def in_job_retry(case: Case) -> Advice | None:
    if case.state is not JobState.RUNNING:
        return None
    fault = _open_fault(case)
    if fault is None:
        return None
    until = fault.seen_at + timedelta(seconds=case.policy.in_job_retry_limit_s)
    if case.situation.now < until:
        reason = f"a fault was seen ({fault.summary}), but the job goes on; its own script may recover"
        return case.advise(Action.WAIT, "in_job_retry", reason, look_again_at=until)
    reason = f"the job still runs, without a new step since a fault was seen ({fault.summary})"
    reason += f"; if it is stuck: {case.forced_restart}"
    return case.leave_alone("in_job_retry", reason, notify=True)


def _open_fault(case: Case) -> Finding | None:
    """The newest root fault of a running attempt after which no step was completed; None without one."""
    step_at = case.situation.progress.step_at
    faults = [
        finding
        for finding in case.situation.findings
        if finding.role is Role.ROOT
        and finding.attempt == case.view.restarts
        and finding.fault_class is not FaultClass.NONE
        and finding.retry is not Retry.HANDS_OFF
        and (step_at is None or step_at < (finding.at or finding.seen_at))
    ]
    return max(faults, key=lambda finding: finding.seen_at, default=None)


def running(case: Case) -> Advice | None:
    if case.state not in {JobState.RUNNING, JobState.CONFIGURING, JobState.RESIZING}:
        return None
    return case.leave_alone("running", "the job is running", routine=True)


def blamed_late(case: Case) -> Advice | None:
    if not case.blamed_late:
        return None
    exclude = tuple(node for node in case.exclusions(at_once=True) if node not in case.situation.declined)
    if not exclude:
        return None
    why = f"the job waits for its restart, and only now it is known: {case.situation.verdict.reason}"
    return case.advise(Action.GUARD, "blamed_late", f"{why}; it keeps off {', '.join(exclude)}", exclude=exclude)


def waiting(case: Case) -> Advice | None:
    if case.state is not JobState.PENDING or case.node_fail_requeued:
        return None
    reason = case.view.reason or "no reason given"
    return case.leave_alone("waiting", f"the job waits in the queue ({reason})", routine=True)
