"""What is advised for running jobs that hang or lag, and for nodes that failed under them."""

from __future__ import annotations

from typing import Any

import pytest

from recovery.hang import Hang, Stage
from recovery.policy import Policy, decide
from recovery.policy_numbers import OnStuck
from recovery.records import Action, Confidence, FaultClass, JobState, Mode, Progress, Retry, Verdict
from recovery.situation import Situation
from recovery.straggler import Straggler
from tests.recovery.situations import at, attempt, finding, situation, suspect, verdict, view

SILENT = Verdict(fault_class=FaultClass.UNKNOWN, signature="hang.no_step", reason="no completed step after step 70")


def hang(stage: Stage = Stage.CONFIRMED, **more: Any) -> Hang:
    return Hang(**{"attempt": 0, "stage": stage, "step": 70, "since": at(200), "limit_s": 300, **more})


def hung(found: Hang | None = None, job: Any = None, **more: Any) -> Situation:
    usual: dict[str, Any] = {"hang": found or hang(), "verdict": SILENT, "attempts": (running(),)}
    return situation(job or view(JobState.RUNNING), **{**usual, **more})


def running(number: int = 0, **more: Any) -> Any:
    return attempt(number, state=JobState.RUNNING, end_time=None, exit_code=0, **more)


def told(one: Situation, policy: Policy | None = None) -> tuple[Action, str]:
    advice = decide(one, policy or Policy())
    return advice.action, advice.rule


def test_a_suspected_hang_is_told_and_left_alone() -> None:
    advice = decide(hung(hang(Stage.SUSPECTED)), Policy())
    assert (advice.action, advice.rule, advice.notify) == (Action.LEAVE_ALONE, "hang_suspected", True)


@pytest.mark.parametrize("stage", [Stage.OVERDUE, Stage.CONFIRMED])
def test_a_hang_is_restarted_when_confirmed_or_overdue(stage: Stage) -> None:
    assert told(hung(hang(stage))) == (Action.RESTART, "hang")


def test_without_a_suspect_no_node_is_excluded() -> None:
    assert decide(hung(), Policy()).exclude == ()


def test_a_suspect_is_excluded() -> None:
    advice = decide(hung(verdict=verdict(FaultClass.HARDWARE, suspect("n02"))), Policy())
    assert (advice.action, advice.exclude) == (Action.RESTART, ("n02",))


def test_a_cause_that_running_again_cannot_help_stops_the_job() -> None:
    cause = verdict(FaultClass.USER, signature="python.import_error", retry=Retry.NO)
    assert told(hung(verdict=cause)) == (Action.STOP, "hang")


def test_budgets_bind_as_ever() -> None:
    past = [
        attempt(number, fault_class=FaultClass.UNKNOWN, signature="hang.no_step", last_step=70) for number in range(2)
    ]
    one = hung(hang(attempt=2), view(JobState.RUNNING, restarts=2), attempts=(*past, running(2, last_step=70)))
    advice = decide(one, Policy())
    assert (advice.action, advice.rule) == (Action.STOP, "hang")
    assert "unknown 2 of 2" in advice.reason


def test_the_policy_may_only_tell() -> None:
    advice = decide(hung(), Policy(hang=OnStuck.NOTIFY))
    assert (advice.action, advice.rule, advice.notify) == (Action.LEAVE_ALONE, "hang", True)


@pytest.mark.parametrize("state", [JobState.SUSPENDED, JobState.STOPPED, JobState.PENDING, JobState.COMPLETING])
def test_only_a_running_job_hangs(state: JobState) -> None:
    assert decide(hung(job=view(state)), Policy()).action is not Action.RESTART


def test_a_judgement_of_another_attempt_says_nothing() -> None:
    assert told(hung(job=view(JobState.RUNNING, restarts=1))) == (Action.LEAVE_ALONE, "running")


@pytest.mark.parametrize(
    ("more", "rule"),
    [
        ({"twins": ("12399",)}, "twin"),
        ({"dependents_started": ("12346",)}, "dependent_started"),
        ({"paused": True}, "paused"),
        ({"verdict": verdict(FaultClass.NONE, retry=Retry.HANDS_OFF)}, "hands_off"),
    ],
)
def test_relight_stands_aside_for_a_hung_job_as_for_a_failed_one(more: dict[str, Any], rule: str) -> None:
    assert told(hung(**more)) == (Action.LEAVE_ALONE, rule)


def test_a_frozen_cluster_is_waited_for() -> None:
    assert told(hung(frozen="STOP file")) == (Action.WAIT, "frozen")


def test_a_job_that_slurm_would_not_requeue_is_left_alone() -> None:
    one = hung(job=view(JobState.RUNNING, requeue=False))
    assert told(one, Policy(arm_requeue=False)) == (Action.LEAVE_ALONE, "hang")


def test_in_approve_mode_a_person_is_asked() -> None:
    advice = decide(hung(mode=Mode.APPROVE), Policy())
    assert (advice.action, advice.needs_approval, advice.approve_within_s) == (Action.RESTART, True, 1800)


# ------------------------------------------------------------------------------------------------ stragglers


def lagging(*nodes: str, **more: Any) -> Situation:
    lag = Straggler(attempt=0, since=at(100), drop=0.5, usual_s=2.0, nodes=nodes, how="clock")
    cause = Verdict(fault_class=FaultClass.UNKNOWN, signature="straggler.slow", reason="it lags")
    if nodes:
        cause = verdict(FaultClass.HARDWARE, *(suspect(node) for node in nodes), signature="straggler.slow_host")
    usual: dict[str, Any] = {
        "straggler": lag,
        "verdict": cause,
        "attempts": (running(),),
        "progress": Progress(step=70, checkpoint=70, checkpoint_at=at(500)),
    }
    return situation(view(JobState.RUNNING), **{**usual, **more})


RESTARTS = Policy(straggler=OnStuck.RESTART)


def test_a_straggler_is_told() -> None:
    advice = decide(lagging("n02"), Policy())
    assert (advice.action, advice.rule, advice.notify) == (Action.LEAVE_ALONE, "straggler", True)


def test_a_straggler_is_restarted_without_the_slow_host_where_the_policy_says_so() -> None:
    advice = decide(lagging("n02"), RESTARTS)
    assert (advice.action, advice.rule, advice.exclude) == (Action.RESTART, "straggler", ("n02",))


@pytest.mark.parametrize(
    "one",
    [
        lagging(),
        lagging("n02", progress=Progress(step=70)),
        lagging("n02", progress=Progress(step=70, checkpoint=10, checkpoint_at=at(-100))),
        lagging("stranger"),
        lagging("n02", nodes_usable=("n01", "n02", "n03", "n04")),  # too few would remain
        lagging("n02", verdict=verdict(FaultClass.HARDWARE, suspect("n02", Confidence.LOW))),
    ],
)
def test_otherwise_it_is_not_restarted(one: Situation) -> None:
    assert told(one, RESTARTS) == (Action.LEAVE_ALONE, "straggler")


def test_a_hang_goes_before_a_straggler() -> None:
    assert told(lagging("n02", hang=hang())) == (Action.RESTART, "hang")


# ------------------------------------------------------------------------------------------------ nodes


def test_a_node_that_failed_under_a_running_job_is_told() -> None:
    event = finding(detector="nodes", signature="node.rebooted", nodes=("n02",), trusted=True, summary="n02 rebooted")
    advice = decide(situation(view(JobState.RUNNING), findings=(event,)), Policy())
    assert (advice.action, advice.rule, advice.notify) == (Action.LEAVE_ALONE, "node_event", True)
    assert "n02 rebooted" in advice.reason
