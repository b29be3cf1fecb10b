"""Each invariant is broken once on purpose: a check that cannot fail would let anything pass."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from activities.audit.records import Event
from activities.contracts import EventKind
from tests.chaos.facts import JobFacts, Row
from tests.chaos.invariants import broken, unfinished
from tests.chaos.plan import JobFault

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
STEP = "prod-7:1:0:restart:0"


def _event(number: int, kind: str, key: str, attempt: int = 0, /, **body: Any) -> Event:
    at = NOON + timedelta(seconds=number)
    return Event(
        id=number,
        cluster="prod",
        job_id="7",
        life_id=1,
        key=key,
        kind=kind,
        at=at,
        recorded_at=at,
        by="relight",
        summary="",
        attempt=attempt,
        body=body,
        workflow_id="prod-7",
        run_id="r",
    )


def _events() -> list[Event]:
    return [
        _event(0, EventKind.OPENED, "opened"),
        _event(1, EventKind.ADVICE, f"advice:{STEP}", action="restart"),
        _event(2, EventKind.PLAN, f"plan:{STEP}", step_key=STEP),
        _event(3, EventKind.STEP, f"{STEP}:intent", done=None, action="restart"),
        _event(4, EventKind.STEP, f"{STEP}:done", done=True, action="restart"),
        _event(5, EventKind.OUTCOME, f"outcome:{STEP}", step_key=STEP, kind="restarted"),
        _event(9, EventKind.STATE, "state", 1, state="COMPLETED"),
    ]


def _facts(**more: Any) -> JobFacts:
    """A job that crashed, was restarted once without the broken node, and finished."""
    rows = (
        Row(state="REQUEUED", nodes=frozenset({"node1", "node2"}), submitted=NOON),
        Row(state="COMPLETED", nodes=frozenset({"node1", "node3"}), submitted=NOON + timedelta(seconds=3)),
    )
    usual: dict[str, Any] = {
        "job": 7,
        "fault": JobFault.CRASH,
        "monitor": False,
        "struck_nodes": frozenset({"node2"}),
        "state": "COMPLETED",
        "restarts": 1,
        "requeues": 1,
        "excluded": frozenset({"node2"}),
        "rows": rows,
        "events": tuple(_events()),
    }
    return JobFacts(**usual | more)


def _without(*keys: str) -> tuple[Event, ...]:
    return tuple(event for event in _events() if event.key not in keys)


def test_a_job_that_came_back_once_is_fine() -> None:
    assert (broken(_facts()), unfinished(_facts())) == ([], [])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"requeues": 2}, "requeued 2 times for 1 planned restarts"),
        ({"monitor": True}, "monitor mode and was requeued"),
        ({"restarts": 2}, "restart count 2: 1 requeues and 0 lost nodes do not explain it"),
        ({"fault": JobFault.USER_ERROR}, "requeued although its fault was user_error"),
        ({"state": "PENDING", "priority": 0}, "is held"),
        ({"excluded": frozenset({"node9"})}, "on which it never ran"),
        ({"excluded": frozenset({"node1"})}, "which nothing ever befell"),
        ({"events": _without(f"advice:{STEP}")}, "without its advice before it"),
        ({"events": _without(f"plan:{STEP}")}, "without its plan before it"),
        ({"events": _without(f"{STEP}:intent")}, "without its intent before it"),
        ({"events": _without(f"{STEP}:done")}, "without its step before it"),
        ({"events": _without("opened")}, "begins with advice"),
    ],
)
def test_what_can_never_be_made_good_is_told(change: dict[str, Any], told: str) -> None:
    assert any(told in text for text in broken(_facts(**change))), broken(_facts(**change))


def test_a_requeue_before_its_plan_is_told() -> None:
    rows = (_facts().rows[0], _facts().rows[1].model_copy(update={"submitted": NOON}))
    assert any("without a plan of its own" in text for text in broken(_facts(rows=rows)))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"state": "PENDING"}, "expected finished"),
        ({"state": "RUNNING"}, "expected finished"),
        ({"state": ""}, "unknown to Slurm"),
        ({"state": "FAILED"}, "newest advice: restart"),
        ({"events": _without("state")}, "expected finished"),
        ({"events": _without(f"outcome:{STEP}")}, "has no outcome"),
    ],
)
def test_what_is_not_at_rest_is_told(change: dict[str, Any], told: str) -> None:
    assert any(told in text for text in unfinished(_facts(**change)))


def test_a_job_that_failed_and_was_stopped_with_a_reason_is_at_rest() -> None:
    stop = _event(10, EventKind.ADVICE, "advice:stop", 1, action="stop")
    assert unfinished(_facts(state="FAILED", events=(*_events(), stop))) == []
