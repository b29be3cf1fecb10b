"""What the scheduler's states mean."""

from __future__ import annotations

from datetime import timedelta

import pytest

from recovery.records import AttemptRow, FaultClass, Finding, JobState, JobView, Retry, Role
from recovery.scheduler import scheduler_findings
from tests.recovery.logs import NODES, NOW, view


def row(state: JobState, **more: object) -> AttemptRow:
    return AttemptRow.model_validate({"raw_id": 4711, "state": state, "nodes": NODES, "end_time": NOW, **more})


def job(state: JobState, **more: object) -> JobView:
    return view(state=state).model_copy(update=more)


def one(job: JobView, row: AttemptRow | None = None, *, own_stop: bool = False) -> Finding:
    (found,) = scheduler_findings(job, row, NOW, own_stop=own_stop)
    assert found.trusted
    assert found.detector == "scheduler"
    return found


HANDS_OFF = [
    (JobState.COMPLETED, "completed"),
    (JobState.TIMEOUT, "timeout"),
    (JobState.PREEMPTED, "preempted"),
    (JobState.CANCELLED, "cancelled"),
    (JobState.DEADLINE, "deadline"),
    (JobState.REQUEUED, "requeued"),
    (JobState.SPECIAL_EXIT, "special_exit"),
    (JobState.SUSPENDED, "suspended"),
    (JobState.STOPPED, "suspended"),
]
BROKEN = [
    (JobState.FAILED, "failed", FaultClass.UNKNOWN, Retry.YES),
    (JobState.NODE_FAIL, "node_fail", FaultClass.HARDWARE, Retry.YES),
    (JobState.OUT_OF_MEMORY, "out_of_memory", FaultClass.OUT_OF_MEMORY, Retry.ONCE),
    (JobState.BOOT_FAIL, "boot_fail", FaultClass.SYSTEM_SOFTWARE, Retry.YES),
]
SILENT = [JobState.PENDING, JobState.CONFIGURING, JobState.RUNNING, JobState.RESIZING, JobState.UNKNOWN]


@pytest.mark.parametrize(("state", "name"), HANDS_OFF)
def test_an_end_on_purpose_is_no_fault_and_not_ours(state: JobState, name: str) -> None:
    found = one(job(state))
    assert (found.signature, found.fault_class, found.retry) == (
        f"scheduler.{name}",
        FaultClass.NONE,
        Retry.HANDS_OFF,
    )


@pytest.mark.parametrize(("state", "name", "fault_class", "retry"), BROKEN)
def test_a_failure_has_its_class(state: JobState, name: str, fault_class: FaultClass, retry: Retry) -> None:
    found = one(job(state))
    assert (found.signature, found.fault_class, found.retry) == (f"scheduler.{name}", fault_class, retry)


@pytest.mark.parametrize("state", SILENT)
def test_a_job_that_waits_or_runs_gives_nothing(state: JobState) -> None:
    assert scheduler_findings(job(state), None, NOW) == ()


def test_every_state_is_answered() -> None:
    told = {state for state, *_ in HANDS_OFF} | {state for state, *_ in BROKEN} | set(SILENT)
    assert told == set(JobState) - {JobState.COMPLETING}


def test_the_exit_of_a_failed_job_is_told_and_is_a_symptom() -> None:
    code = one(job(JobState.FAILED, exit_code=2))
    killed = one(job(JobState.FAILED, exit_signal=9))
    assert "exit code 2" in code.summary
    assert "signal 9" in killed.summary
    assert code.role is killed.role is Role.SYMPTOM


def test_a_script_that_could_not_be_started_is_told_apart() -> None:
    for found in (
        one(job(JobState.FAILED, exit_signal=53)),
        one(job(JobState.FAILED, exit_signal=53), row(JobState.FAILED, exit_signal=53)),
    ):
        assert (found.signature, found.retry) == ("scheduler.start_failed", Retry.ONCE)


@pytest.mark.parametrize(
    ("by", "own_stop", "words"),
    [(1000, False, "by its owner"), (0, False, "by root"), (1234, False, "by uid 1234"), (0, True, "by relight")],
)
def test_it_is_told_who_cancelled(by: int, own_stop: bool, words: str) -> None:
    found = one(job(JobState.CANCELLED), row(JobState.CANCELLED, cancelled_by=by), own_stop=own_stop)
    assert words in found.summary


def test_without_accounting_it_is_not_known_who_cancelled() -> None:
    assert "does not say by whom" in one(job(JobState.CANCELLED)).summary
    assert "does not say by whom" in one(job(JobState.CANCELLED), row(JobState.CANCELLED)).summary


def test_while_completing_only_accounting_knows() -> None:
    completing = job(JobState.COMPLETING, completing=True)
    assert scheduler_findings(completing, None, NOW) == ()
    assert scheduler_findings(completing, row(JobState.RUNNING, end_time=None), NOW) == ()
    assert one(completing, row(JobState.CANCELLED, cancelled_by=1000)).signature == "scheduler.cancelled"
    assert one(completing, row(JobState.FAILED, exit_code=1)).signature == "scheduler.failed"


def test_an_old_row_does_not_speak_for_the_current_attempt() -> None:
    found = one(job(JobState.FAILED, restarts=2, exit_code=3), row(JobState.NODE_FAIL))
    assert (found.signature, found.attempt) == ("scheduler.failed", 2)


def test_a_failed_node_that_slurm_requeued_belongs_to_the_attempt_before() -> None:
    waiting = job(JobState.PENDING, restarts=1, reason="BeginTime")
    found = one(waiting, row(JobState.NODE_FAIL))
    assert (found.signature, found.attempt, found.at) == ("scheduler.node_fail", 0, NOW)


def test_a_requeue_is_told() -> None:
    found = one(job(JobState.PENDING, restarts=3, reason="BeginTime"), row(JobState.REQUEUED))
    assert (found.signature, found.attempt, found.retry) == ("scheduler.requeued", 2, Retry.HANDS_OFF)


def test_a_first_attempt_that_waits_has_no_earlier_one() -> None:
    assert scheduler_findings(job(JobState.PENDING, reason="Priority"), row(JobState.FAILED), NOW) == ()


@pytest.mark.parametrize(
    ("reason", "name"),
    [
        ("launch failed requeued held", "launch_failed_held"),
        ("launch_failed_requeued_held", "launch_failed_held"),
        ("JobHeldUser", "held"),
        ("JobHeldAdmin", "held"),
        ("job requeued in held state", "held"),
        ("JobHoldMaxRequeue", "too_many_requeues"),
        ("SpecialExit", "special_exit"),
        ("DependencyNeverSatisfied", "dependency_never_satisfied"),
        ("BadConstraints", "cannot_be_placed"),
        ("ReqNodeNotAvail, UnavailableNodes:n01", "cannot_be_placed"),
    ],
)
def test_why_a_job_waits_for_ever_is_told(reason: str, name: str) -> None:
    found = one(job(JobState.PENDING, reason=reason))
    assert found.signature == f"scheduler.{name}"
    assert reason in found.summary


@pytest.mark.parametrize(
    "reason", ["Priority", "Resources", "BeginTime", "Dependency", "None", "", "JobArrayTaskLimit"]
)
def test_an_ordinary_wait_is_none(reason: str) -> None:
    assert scheduler_findings(job(JobState.PENDING, reason=reason), None, NOW) == ()


def test_a_node_is_named_only_where_there_is_just_one() -> None:
    assert one(job(JobState.NODE_FAIL)).nodes == ()
    assert one(job(JobState.NODE_FAIL, nodes=("n02",))).nodes == ("n02",)
    assert one(job(JobState.FAILED, nodes=("n02",))).nodes == ()


def test_the_same_fact_has_the_same_id_and_another_attempt_another_one() -> None:
    first = one(job(JobState.FAILED, exit_code=1))
    again = one(job(JobState.FAILED, exit_code=1, looked_at=NOW + timedelta(seconds=9)))
    later = one(job(JobState.FAILED, exit_code=1, restarts=1))
    assert first.id == again.id != later.id
