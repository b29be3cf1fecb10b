"""Which rows a history implies, and how far they must agree with it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from activities import contracts as c
from activities.audit.comparing import LATE, Expected
from activities.audit.implied import SHAPES, Call, Implied, Likeness, implied
from activities.audit.records import Event
from recovery.records import Action, Advice, FaultClass, Verdict
from tests.activities.audit.samples import NOON, at, event

PLAN = c.PlanStep(
    cluster="prod",
    job_id="1",
    life_id=7,
    step_key="prod-1:7:0:restart:0",
    verdict=Verdict(fault_class=FaultClass.HARDWARE, reason="a GPU is lost"),
    advice=Advice(action=Action.RESTART, rule="suspect", reason="another node", exclude=("n1",)),
    workflow_id="prod-1",
    run_id="r",
)
STEP = c.StepRequest(
    cluster="prod", job_id="1", life_id=7, step_key="prod-1:7:0:restart:0", restart_count=0, deadline=NOON
)


def stored(told: c.NewEvent, **changes: Any) -> Event:
    fields: dict[str, Any] = {
        **told.model_dump(),
        "id": 1,
        "cluster": "prod",
        "job_id": "1",
        "life_id": 7,
        "recorded_at": NOON,
        "workflow_id": "prod-1",
        "run_id": "r",
    }
    return Event.model_validate(fields | changes)


def expecting(*rows: Implied) -> Expected:
    made = Expected()
    made.add(rows)
    return made


def exact(told: c.NewEvent, *, certain: bool = True) -> Implied:
    return Implied(event=told, life_id=7, likeness=Likeness.EXACT, certain=certain)


def test_a_row_that_agrees_is_neither_missing_nor_different() -> None:
    told = event("7/a", body={"n": 1})
    expected = expecting(exact(told))
    assert [one.event for one in expected.missing({})] == [told]
    known = {"7/a": stored(told)}
    assert (expected.missing(known), expected.different(known, "r")) == ([], [])


@pytest.mark.parametrize(
    "changes",
    [{"summary": "x"}, {"body": {"n": 2}}, {"by": "bob"}, {"attempt": 4}, {"at": at(1)}, {"kind": "x"}, {"life_id": 8}],
)
def test_each_word_of_a_row_that_a_request_carried_is_compared(changes: dict[str, Any]) -> None:
    told = event("7/a", body={"n": 1})
    ((row, how),) = expecting(exact(told)).different({"7/a": stored(told, **changes)}, "r")
    assert row.key == "7/a"
    assert how.startswith(next(iter(changes)))


def test_of_a_key_that_was_asked_for_twice_any_of_the_words_will_do() -> None:
    first, second = event("7/a", summary="first"), event("7/a", summary="second")
    expected = expecting(exact(first, certain=False), exact(second))
    assert [one.event.summary for one in expected.missing({})] == ["second"]
    for told in (first, second):
        assert not expected.different({"7/a": stored(told)}, "r")
    assert expected.different({"7/a": stored(first, summary="third")}, "r")


def test_a_row_that_an_earlier_run_has_written_keeps_its_own_words() -> None:
    told = event("7/a")
    assert not expecting(exact(told)).different({"7/a": stored(told, summary="older", run_id="earlier")}, "r")


def test_what_an_activity_may_have_written_is_neither_missed_nor_untold() -> None:
    (intent, done) = implied(Call(name=c.RESTART, request=STEP, at=NOON)).rows
    expected = expecting(intent, done)
    assert expected.missing({}) == []
    assert expected.untold([stored(intent.event), stored(done.event)], None) == []


def test_a_step_that_no_request_asked_for_is_told() -> None:
    body = {"action": "restart"}
    strange = stored(event("prod-1:7:0:restart:9:done", "step", body=body))
    hold = stored(event("prod-1:7:0:restart:0:hold:done", "step", body={"action": "hold"}))
    assert expecting().untold([strange, hold, stored(event("7/w", "watchdog"))], None) == [strange]


@pytest.mark.parametrize(("recorded_at", "told"), [(NOON, True), (at(3600), False)])
def test_a_row_younger_than_the_end_of_an_open_history_is_not_judged(recorded_at: datetime, told: bool) -> None:
    row = stored(event("7/plan", "plan"), recorded_at=recorded_at)
    assert bool(expecting().untold([row], NOON + LATE + timedelta(seconds=1))) is told


def test_a_plan_implies_verdict_advice_and_plan_at_about_that_time() -> None:
    call = Call(name=c.PLAN, request=PLAN, answer=c.PermitAnswer(granted=True), at=NOON)
    rows = implied(call).rows
    assert [row.event.kind for row in rows] == ["verdict", "advice", "plan"]
    expected = expecting(*rows)
    known = {row.event.key: stored(row.event, at=at(0.4)) for row in rows}
    assert not expected.different(known, "r")
    advice = known["advice:prod-1:7:0:restart:0"]
    body = {**advice.body, "exclude": ["n2"]}
    assert expected.different(known | {advice.key: advice.model_copy(update={"body": body})}, "r")
    answer = c.PermitAnswer(granted=True, left_out=("n1",), incident="switch-1")
    left_out = implied(call.model_copy(update={"answer": answer})).rows
    assert [row.event.kind for row in left_out] == ["verdict", "advice", "plan", "incident"]


def test_a_record_that_was_told_with_fewer_fields_agrees() -> None:
    rows = implied(Call(name=c.PLAN, request=PLAN, answer=c.PermitAnswer(granted=True), at=NOON)).rows
    known = {row.event.key: stored(row.event) for row in rows}
    advice = known["advice:prod-1:7:0:restart:0"]
    older = {key: value for key, value in advice.body.items() if key != "keep_nodes"}
    assert not expecting(*rows).different(known | {advice.key: advice.model_copy(update={"body": older})}, "r")


def test_every_activity_that_writes_rows_is_known() -> None:
    silent = {c.DECIDE, c.SETTLE, c.SAVE_EVIDENCE, c.SWEEP, c.KEEP_HISTORIES}
    names = {value for key, value in vars(c).items() if key.isupper() and isinstance(value, str)}
    queues = {c.EVIDENCE_QUEUE, c.ATTRIBUTION_QUEUE}
    assert names - queues == set(SHAPES) | silent
