"""An advice that asks something of a person names the command, for that very job."""

from __future__ import annotations

from typing import Any

import pytest

from recovery.policy import Policy, decide
from recovery.records import JobState, JobView
from recovery.situation import Demand
from tests.recovery.situations import attempt, situation, view

FORCE = "relight force prod-12345 --action restart"


@pytest.mark.parametrize(
    ("job", "more", "move"),
    [
        (view(), {"directive_error": "bad"}, "submit it anew with a corrected comment"),
        (view(JobState.RUNNING), {"directive_error": "bad"}, "scontrol update jobid=12345 comment="),
        (view(), {"stopped": True}, FORCE),
        (view(), {"paused": True, "paused_by": "bob"}, "paused by bob; relight resume prod-12345"),
        (view(), {"dependents_started": ("12346",)}, FORCE),
        (view(), {"twins": ("12399",)}, FORCE),
        (view(het_job_id=12345), {}, "scontrol requeue 12345"),
        (view(JobState.SUSPENDED), {}, "scontrol resume 12345"),
        (view(JobState.PENDING, reason="DependencyNeverSatisfied"), {}, "scancel 12345"),
        (view(), {"own_faults": 3, "attempts": (attempt(0, own_fault=True),)}, FORCE),
        (
            view(),
            {"force": Demand(action="restart", exclude=("n77",))},
            "node n77 is not known in this cluster; did you mean n07?",
        ),
    ],
)
def test_the_next_move_is_named(job: JobView, more: dict[str, Any], move: str) -> None:
    assert move in decide(situation(job, **more), Policy()).reason
