"""What must stand in the audit store, by a workflow's history: the rows that activities wrote, with their keys.

Pure: records in, records out. Rows that only the inside of an activity knew of (waits, blind time, moves of a start
time, limits of the policy of that day) are implied by no history and are not looked for.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict

from activities import contracts as c
from activities import rows
from recovery.directive import what_to_do
from recovery.records import Action, Attempt, JobView, Record

STEPS = {
    c.RESTART: Action.RESTART,
    c.STOP: Action.STOP,
    c.GUARD: Action.GUARD,
    c.RELEASE: Action.RELEASE,
    c.ARM: Action.ARM,
}

STANDING = ("phase", "mode", "paused", "paused_by", "stopped")

SHAPES: dict[str, tuple[type[Record], type[Record]]] = {
    c.OPEN_JOB: (c.OpenJob, c.JobOpening),
    c.EXAMINE: (c.ExamineJob, c.Examination),
    c.PLAN: (c.PlanStep, c.PermitAnswer),
    c.RECORD: (c.RecordEvents, c.Done),
    c.DRAIN: (c.DrainRequest, c.DrainResult),
    c.ATTRIBUTE: (c.AttributeJob, c.AttributionAnswers),
    c.CLOSE_JOB: (c.CloseJob, c.Done),
    **dict.fromkeys(STEPS, (c.StepRequest, c.StepResult)),
}
"""Activities that write rows a history can tell, with the models of their request and answer."""


class Likeness(StrEnum):
    """How far a row must agree with what the history tells."""

    EXACT = "exact"  # the request carried the row itself
    WORDS = "words"  # all but the moment, which the activity took from its own clock
    KIND = "kind"  # an earlier try of the activity may have seen something slightly different


class Call(BaseModel):
    """One activity of a history, as far as it is told."""

    model_config = ConfigDict(frozen=True)

    name: str
    request: Any
    answer: Any = None
    """None: it has not answered, or its answer is lost."""
    at: datetime
    """When it began, or was asked for."""


class Implied(Record):
    """One row, and how far it must agree."""

    event: c.NewEvent
    life_id: int
    likeness: Likeness
    certain: bool
    """False: the activity never answered, so that the row may stand there and need not."""


class Implication(BaseModel):
    """What one call implies."""

    model_config = ConfigDict(frozen=True)

    rows: tuple[Implied, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    life: int | None = None
    """The life that all of it is of."""
    view: JobView | None = None
    """The job as it was when that life was opened."""
    closed: str | None = None
    """Why that life was closed."""
    standing: dict[str, Any] | None = None
    """What was shown of it from then on: phase, mode, whether it is paused, by whom, whether it was stopped."""


def implied(call: Call) -> Implication:
    """The rows that a call has written (certain), or may have written."""
    request, answer = call.request, call.answer
    if isinstance(request, c.OpenJob):
        return _opened(request, answer, call.at)
    life: int | None = getattr(request, "life_id", None)
    if not life:
        return Implication()
    attempts: tuple[Attempt, ...] = ()
    standing: dict[str, Any] | None = None
    if isinstance(request, c.RecordEvents):
        if answer is not None:
            standing = {key: told for key in STANDING if (told := getattr(request, key)) is not None}
        found = [_row(one, life, Likeness.EXACT, answer is not None) for one in request.events]
    elif isinstance(request, c.PlanStep):
        found = list(_planned(request, answer, life, call.at))
    elif isinstance(request, c.ExamineJob):
        found = list(_examined(request, answer, life, call.at))
        attempts = answer.attempts if answer is not None else ()
    elif isinstance(request, c.StepRequest):
        found = list(_stepped(STEPS[call.name], request, answer, life, call.at))
    elif isinstance(request, c.DrainRequest):
        found = list(_drained(request, answer, life, call.at))
    elif isinstance(request, c.AttributeJob):
        told = answer.attributions if answer is not None else ()
        found = [_row(one, life, Likeness.WORDS, True) for one in rows.attribution_rows(request, told, call.at)]
    elif isinstance(request, c.CloseJob) and answer is not None:
        return Implication(life=life, closed=request.reason)
    else:
        return Implication()
    return Implication(rows=tuple(found), attempts=attempts, life=life, standing=standing)


def _row(event: c.NewEvent, life: int, likeness: Likeness, certain: bool) -> Implied:
    return Implied(event=event, life_id=life, likeness=likeness, certain=certain)


def _opened(request: c.OpenJob, answer: c.JobOpening | None, at: datetime) -> Implication:
    if answer is None or answer.life_id is None or answer.view is None:
        return Implication()
    event = rows.opened_row(request, answer.view, answer.life_id, answer.reopened, at)
    row = _row(event, answer.life_id, Likeness.KIND, True)
    return Implication(rows=(row,), life=answer.life_id, view=answer.view)


def _planned(request: c.PlanStep, answer: c.PermitAnswer | None, life: int, at: datetime) -> Iterator[Implied]:
    for event in rows.plan_rows(request, at):
        yield _row(event, life, Likeness.WORDS, answer is not None)
    if answer is not None and answer.left_out:
        yield _row(rows.left_out_row(request, answer, at), life, Likeness.KIND, True)


def _examined(request: c.ExamineJob, answer: c.Examination | None, life: int, at: datetime) -> Iterator[Implied]:
    if answer is None or answer.view is None:
        return
    yield _row(rows.state_row(request, answer.view, answer.directive, at), life, Likeness.KIND, True)
    for finding in answer.findings:
        yield _row(rows.finding_row(life, finding), life, Likeness.KIND, True)
    if answer.directive_error:
        error = f"{answer.directive_error}; {what_to_do(answer.view)}"
        event = rows.directive_row(life, answer.view, error, at)
        yield _row(event, life, Likeness.KIND, True)


def _stepped(
    action: Action, request: c.StepRequest, answer: c.StepResult | None, life: int, at: datetime
) -> Iterator[Implied]:
    yield _row(rows.intent_row(action, request, at), life, Likeness.WORDS, answer is not None)
    if answer is None:
        # A try that changed something may have died before its answer reached Temporal.
        lost = c.StepResult(done=True, message="")
        yield _row(rows.done_row(action, request, lost, at, ""), life, Likeness.KIND, False)
    elif answer.done:
        acted_at = answer.acted_at or at
        yield _row(rows.done_row(action, request, answer, acted_at, ""), life, Likeness.KIND, True)
    else:
        event = rows.refused_row(action, request, answer.refused, answer.message, at)
        yield _row(event, life, Likeness.WORDS, True)


def _drained(request: c.DrainRequest, answer: c.DrainResult | None, life: int, at: datetime) -> Iterator[Implied]:
    if answer is None:
        return
    told = [(node, f"{node} drained: {request.how or request.signature}", True) for node in answer.drained]
    told += [(node, f"{node} not drained: {why}", False) for node, why in sorted(answer.refused.items())]
    for node, summary, done in told:
        yield _row(rows.drain_row(request, node, summary, done, at), life, Likeness.KIND, True)
