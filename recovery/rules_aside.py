"""Policy rules that stand aside: situations in which the job is not relight's to touch, or not now.

Each function answers with an advice or None; their order and their documentation stand in `rules.py`.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from recovery.case import Case, plain_reason
from recovery.directive import what_to_do
from recovery.records import Action, Advice, JobState, Retry


def not_opted_in(case: Case) -> Advice | None:
    if case.situation.opted_in:
        return None
    return case.leave_alone("not_opted_in", "the job's comment does not opt in to relight")


def bad_directive(case: Case) -> Advice | None:
    if not case.situation.directive_error:
        return None
    return case.leave_alone("bad_directive", f"{case.situation.directive_error}; {what_to_do(case.view)}")


def stopped(case: Case) -> Advice | None:
    if not case.situation.stopped:
        return None
    return case.leave_alone(
        "stopped", f"relight stopped this job for good; {case.forced_restart} undoes it", routine=True
    )


def finished(case: Case) -> Advice | None:
    if case.state is not JobState.COMPLETED:
        return None
    return case.leave_alone("finished", "the job has finished")


def cancelled(case: Case) -> Advice | None:
    if case.state is not JobState.CANCELLED:
        return None
    uid = case.situation.row.cancelled_by if case.situation.row else None
    return case.leave_alone("cancelled", "the job was cancelled" + (f" by uid {uid}" if uid is not None else ""))


def preempted(case: Case) -> Advice | None:
    if case.state is not JobState.PREEMPTED or case.named_ending:
        return None
    return case.leave_alone("preempted", "the job was preempted, which is the site's own decision")


def deadline(case: Case) -> Advice | None:
    if case.state is not JobState.DEADLINE:
        return None
    return case.leave_alone("deadline", "the job passed its deadline; another attempt would pass it too")


ACCOUNTING_LAG_S = 30.0
"""So long after a requeue, what accounting does not tell of the attempt before is not waited for."""


def requeue_not_told(case: Case) -> Advice | None:
    if not _requeued_by_another(case) or not case.situation.accounting or case.view.held or case.node_fail_requeued:
        return None
    row, now = case.situation.previous_row, case.situation.now
    told = row is not None and (row.state.is_final or row.state is JobState.REQUEUED)
    if told or abs((now - (case.view.submit_time or now)).total_seconds()) > ACCOUNTING_LAG_S:
        return None
    later = now + timedelta(seconds=2)
    reason = "the job was requeued, and accounting does not tell yet how the attempt before ended"
    return case.advise(Action.WAIT, "requeue_not_told", reason, look_again_at=later, routine=True)


def _requeued_by_another(case: Case) -> bool:
    return case.view.state is JobState.PENDING and case.view.restarts > 0 and not case.situation.expected_restart


def requeued_elsewhere(case: Case) -> Advice | None:
    waits = _requeued_by_another(case)
    ours = case.node_fail_requeued or case.launch_failed or case.view.held
    if case.state is not JobState.REQUEUED and (not waits or ours):
        return None
    return case.leave_alone("requeued_elsewhere", "somebody other than relight requeued the job; it is in their hands")


def interactive(case: Case) -> Advice | None:
    if case.view.batch:
        return None
    return case.leave_alone("interactive", "not a batch job; Slurm cannot requeue interactive jobs")


def heterogeneous(case: Case) -> Advice | None:
    if case.view.het_job_id is None:
        return None
    return case.leave_alone(
        "heterogeneous",
        "heterogeneous jobs are only watched: restarting one changes several jobs at once, which relight does not do; "
        f"scontrol requeue {case.view.het_job_id} restarts all its components",
        notify=case.actionable,
    )


def dependency_never(case: Case) -> Advice | None:
    if case.view.state is not JobState.PENDING or "dependencyneversatisfied" not in plain_reason(case.view):
        return None
    return case.leave_alone(
        "dependency_never",
        "the job waits for a dependency that can never be satisfied; "
        f"scancel {case.view.job_id}, or give it another: scontrol update jobid={case.view.job_id} dependency=...",
    )


def completing(case: Case) -> Advice | None:
    if case.state is not JobState.COMPLETING:
        return None
    now = case.situation.now
    # Looks thin out while the epilog lasts: half the time it has lasted already, 2 to 30 s.
    age_s = (now - (case.view.end_time or case.view.looked_at)).total_seconds()
    later = now + timedelta(seconds=min(30.0, max(2.0, age_s / 2)))
    return case.advise(Action.WAIT, "completing", "the job is ending and how is not known yet", look_again_at=later)


def state_unknown(case: Case) -> Advice | None:
    if case.state is not JobState.UNKNOWN:
        return None
    return case.leave_alone("state_unknown", "Slurm reports a state that relight does not know", notify=True)


def dependent_started(case: Case) -> Advice | None:
    if not case.actionable or not case.situation.dependents_started:
        return None
    names = ", ".join(case.situation.dependents_started[:5])
    return case.leave_alone(
        "dependent_started",
        f"job {names} depends on this one and has started already; to restart this one first, cancel that, then "
        f"{case.forced_restart}",
        notify=True,
    )


def twin(case: Case) -> Advice | None:
    if not case.actionable or not case.situation.twins:
        return None
    names = ", ".join(case.situation.twins[:5])
    why = f"job {names} of the same user does the same work now; to go on with this one instead, cancel that, then "
    return case.leave_alone("twin", f"{why}{case.forced_restart}", notify=True)


def timeout(case: Case) -> Advice | None:
    if case.state is not JobState.TIMEOUT or case.named_ending:
        return None
    return case.leave_alone("timeout", "the job reached its time limit; the policy's restart_on does not name TIMEOUT")


def suspended(case: Case) -> Advice | None:
    if case.state not in {JobState.SUSPENDED, JobState.STOPPED}:
        return None
    return case.leave_alone(
        "suspended",
        f"the job is {case.state.value}; relight waits for whoever stopped it "
        f"to resume it (scontrol resume {case.view.job_id})",
    )


def paused(case: Case) -> Advice | None:
    if case.situation.directive.paused:
        return case.leave_alone("paused", "paused by its owner, in the job's comment; only a new comment ends that")
    if case.situation.paused:
        who, job = case.situation.paused_by or "an operator", f"{case.view.cluster}-{case.view.job_id}"
        return case.leave_alone("paused", f"paused by {who}; relight resume {job} ends that")
    return None


def hands_off(case: Case) -> Advice | None:
    # An ending that the policy names is restarted, though by itself it is nobody's fault.
    if not case.actionable or case.named_ending or case.situation.verdict.retry is not Retry.HANDS_OFF:
        return None
    return case.leave_alone("hands_off", f"not relight's to restart: {case.situation.verdict.reason}")


def frozen(case: Case) -> Advice | None:
    if not case.actionable or not case.situation.frozen:
        return None
    now, why = case.situation.now, case.situation.frozen
    if case.launch_failed or case.stuck:
        # It stays as it is, and would for ever: there is no ordinary scheduling to fall back to.
        later = now + timedelta(minutes=5)
        return case.advise(Action.WAIT, "frozen", f"the cluster must not be touched now: {why}", look_again_at=later)
    until = _frozen_until(case)
    if until is None or now >= until:
        told = f"the cluster stayed frozen until it was too late: {why}. When that is over: {case.forced_restart}"
        return case.leave_alone("frozen", told, notify=True)
    later = min(now + timedelta(seconds=15), until)
    return case.advise(Action.WAIT, "frozen", f"the cluster must not be touched now: {why}", look_again_at=later)


def _frozen_until(case: Case) -> datetime | None:
    """An ended job waits for the permit's time, or until Slurm is about to forget it. A waiting one waits as long."""
    wait = timedelta(seconds=case.policy.permit_wait_s)
    if not case.ended:
        since = case.view.submit_time or case.failing.end_time
        return since + wait if since else None
    end, purge = case.view.end_time or case.failing.end_time, case.purge_at()
    return min(end + wait, purge) if end and purge else purge
