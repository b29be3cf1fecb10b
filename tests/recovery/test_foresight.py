"""What the next failure would get: the same rules as for real failures, asked ahead."""

from __future__ import annotations

from recovery.foresight import JobFacts, foresee
from recovery.policy import Policy
from recovery.records import Action, Attempt, FaultClass, JobState, Mode
from tests.recovery.situations import NODES, T0, at, attempt

JOB = JobFacts(cluster="prod", job_id="12345", nodes=NODES, min_nodes=2, mode=Mode.ACT)


def ahead(
    attempts: tuple[Attempt, ...], job: JobFacts = JOB, policy: Policy | None = None
) -> dict[str, tuple[Action, str]]:
    found = foresee(job, attempts, policy or Policy(), at(5000))
    return {one.case: (one.advice.action, one.advice.rule) for one in found}


def failed(number: int) -> Attempt:
    cause = {"fault_class": FaultClass.INTERCONNECT, "signature": "nccl.watchdog"}
    return attempt(number, **cause, last_step=30, last_checkpoint=30, restarted_by="relight")


def test_a_job_that_never_failed_is_told_what_each_kind_of_failure_would_get() -> None:
    running = attempt(0, state=JobState.RUNNING, end_time=None, submit_time=T0, exit_code=0)
    assert ahead((running,)) == {
        "broken hardware, the node known": (Action.RESTART, "suspect"),
        "a cause that cannot be told": (Action.RESTART, "unknown"),
        "an error of the user's code": (Action.STOP, "cannot_help"),
        "out of memory": (Action.RESTART, "out_of_memory"),
        "the time limit": (Action.LEAVE_ALONE, "timeout"),
    }
    assert ahead(()).keys() == ahead((running,)).keys()


def test_the_last_failure_of_a_budget_is_told_before_it_comes() -> None:
    again, advanced = (
        "the same cause as last (nccl.watchdog), no new checkpoint",
        "the same cause as last (nccl.watchdog), after a new checkpoint",
    )
    two, three = tuple(map(failed, range(2))), tuple(map(failed, range(3)))
    assert ahead(two)[again] == (Action.RESTART, "infrastructure")
    assert ahead(three)[again] == (Action.STOP, "budget_spent")
    assert ahead(three)[advanced] == (Action.RESTART, "infrastructure")


def test_the_mode_and_the_policy_of_the_job_hold_for_what_is_to_come() -> None:
    asked = foresee(JOB.model_copy(update={"mode": Mode.APPROVE}), (failed(0),), Policy(), at(5000))
    assert any(one.advice.needs_approval for one in asked)
    assert set(ahead((failed(0),), policy=Policy(max_restarts=0)).values()) <= {
        (Action.STOP, "budget_spent"),
        (Action.LEAVE_ALONE, "timeout"),
    }
    assert set(ahead((), JOB.model_copy(update={"paused": True})).values()) == {
        (Action.LEAVE_ALONE, "paused"),
        (Action.LEAVE_ALONE, "timeout"),
    }
