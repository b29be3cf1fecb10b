"""What an operator can force, and the sentence with which everything else is refused."""

from typing import Any

import pytest

from recovery.directive import Directive
from recovery.policy import Demand, Policy, decide
from recovery.records import Action, Advice, JobState, Mode
from tests.recovery.situations import NODES, row, situation, view


def forced(job: Any = None, *, action: str = "restart", policy: Policy | None = None, **more: Any) -> Advice:
    demand = {"action": action, "by": "oncall", "reason": "because"}
    for key in ("exclude", "restart_count"):
        if key in more:
            demand[key] = more.pop(key)
    return decide(situation(job, force=Demand.model_validate(demand), **more), policy or Policy())


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"directive": Directive(max_restarts=0)},
        {"paused": True},
        {"stopped": True},
        {"exclude": ("n02", "n07")},
        {"restart_count": 0},
        {"job": view(JobState.RUNNING)},
        {"job": view(JobState.TIMEOUT)},
        {"job": view(exit_code=93)},
    ],
)
def test_a_restart_overrules_budgets_pauses_stops_and_causes(more: dict[str, Any]) -> None:
    advice = forced(**more)
    assert (advice.action, advice.rule) == (Action.RESTART, "force")
    assert advice.exclude == tuple(more.get("exclude", ()))
    assert "oncall" in advice.reason


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"mode": Mode.MONITOR}, "monitor mode"),
        ({"action": "explode"}, "expected restart, stop or release"),
        ({"restart_count": 3}, "at 0 now"),
        ({"exclude": ("mars",)}, "mars is not known"),
        ({"exclude": ("n02",), "job": view(required_nodes=("n02",))}, "required by the job itself"),
        ({"exclude": ("n02",), "nodes_usable": NODES}, "3 usable nodes would remain, the job needs 4"),
        ({"job": view(JobState.COMPLETED)}, "has finished"),
        ({"job": view(JobState.CANCELLED)}, "was cancelled"),
        ({"job": view(), "row": row(JobState.CANCELLED)}, "was cancelled"),
        ({"job": view(JobState.COMPLETING)}, "how is not known yet"),
        ({"job": view(JobState.SUSPENDED)}, "resume it first"),
        ({"job": view(JobState.PENDING)}, "nothing to restart"),
        ({"job": view(batch=False)}, "not a batch job"),
        ({"job": view(het_job_id=1)}, "heterogeneous"),
        ({"job": view(requeue=False)}, "--no-requeue"),
        ({"twins": ("12399",)}, "12399"),
        ({"dependents_started": ("12346",)}, "12346"),
        ({"frozen": "STOP file"}, "STOP file"),
        ({"directive": Directive(paused=True)}, "its owner"),
        ({"action": "release", "job": view(JobState.PENDING)}, "not held"),
        ({"action": "release", "job": view(JobState.PENDING, priority=0, reason="JobHeldUser")}, "scontrol release"),
        ({"action": "stop", "job": view(JobState.COMPLETED)}, "has finished"),
    ],
)
def test_what_cannot_be_is_refused_with_a_sentence_that_helps(more: dict[str, Any], why: str) -> None:
    advice = forced(**more)
    assert (advice.action, advice.rule) == (Action.LEAVE_ALONE, "force")
    assert advice.reason.startswith("refused: ")
    assert why in advice.reason


def test_a_stop_and_a_release_can_be_forced() -> None:
    assert forced(view(JobState.RUNNING), action="stop").action is Action.STOP
    held = view(JobState.PENDING, priority=0, reason="launch_failed_requeued_held", restarts=1)
    assert forced(held, action="release").action is Action.RELEASE


def test_a_forced_change_needs_no_second_yes() -> None:
    assert not forced(mode=Mode.APPROVE).needs_approval
