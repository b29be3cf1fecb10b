"""Rows of the audit log as requests and answers of activities make them: one place for who writes and who verifies.

Pure: no clock, no database. The key of a row is the same over retries; rows that only an activity's inside knows of
(waits, blind time, moves of a start time) are made where they happen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from datetime import datetime

from activities import contracts as c
from recovery.attribution import Attribution
from recovery.directive import Directive
from recovery.records import Action, Finding, JobView


def opened_row(request: c.OpenJob, view: JobView, life_id: int, reopened: bool, at: datetime) -> c.NewEvent:
    who = "by hand" if request.by_hand else "by the sweep"
    word = "opened again" if reopened else "opened"
    return c.NewEvent(
        key=f"{life_id}:opened:{request.run_id}",
        kind=c.EventKind.OPENED,
        at=at,
        attempt=view.restarts,
        summary=f"{word} {who}: job {view.job_id} of {view.user}, {view.state.value}",
        body={"workflow_id": request.workflow_id, "run_id": request.run_id},
    )


def state_row(request: c.ExamineJob, view: JobView, directive: Directive, at: datetime) -> c.NewEvent:
    ended = f", exit {view.exit_code}:{view.exit_signal}" if view.state.is_final else ""
    where = f" on {len(view.nodes)} node{'' if len(view.nodes) == 1 else 's'}" if view.nodes else ""
    return c.NewEvent(
        # A changed comment is a new row: what the job asks stands in it.
        key=f"{request.life_id}:state:{view.restarts}:{view.state.value}:{view.completing}:{view.held}"
        f":{hash_of(view.comment)}",
        kind=c.EventKind.STATE,
        at=at,
        attempt=view.restarts,
        summary=f"{view.state.value}{' (completing)' if view.completing else ''}{where}"
        f"{ended}, restart count {view.restarts}",
        body={
            "state": view.state.value,
            "reason": view.reason,
            "nodes": list(view.nodes[:512]),
            "excluded": list(view.excluded),
            "partition": view.partition,
            "account": view.account,
            "qos": view.qos,
            "min_nodes": view.min_nodes,
            "overrides": request.overrides.model_dump(mode="json", exclude_none=True),
            "requeue": view.requeue,
            "directive": directive.model_dump(mode="json", exclude_defaults=True),
            "start_time": view.start_time.isoformat() if view.start_time else None,
            "end_time": view.end_time.isoformat() if view.end_time else None,
        },
    )


def finding_row(life_id: int, finding: Finding) -> c.NewEvent:
    return c.NewEvent(
        key=f"{life_id}:finding:{finding.id}",
        kind=c.EventKind.FINDING,
        at=finding.at or finding.seen_at,
        attempt=finding.attempt,
        summary=finding.summary,
        body=finding.model_dump(mode="json"),
    )


def directive_row(life_id: int, view: JobView, error: str, at: datetime) -> c.NewEvent:
    return c.NewEvent(
        key=f"{life_id}:directive:{hash_of(view.comment)}",
        kind=c.EventKind.DIRECTIVE,
        at=at,
        attempt=view.restarts,
        summary=f"the comment's directive is not understood: {error}",
        body={"comment": view.comment},
    )


def plan_rows(request: c.PlanStep, at: datetime) -> tuple[c.NewEvent, ...]:
    """Verdict, advice and plan of one step."""
    advice, verdict = request.advice, request.verdict
    without = f" without {', '.join(advice.exclude)}" if advice.exclude else ""
    drained = f"; drain {', '.join(advice.drain)}" if advice.drain else ""
    held = f"; hold {', '.join(advice.keep_nodes)}" if advice.keep_nodes else ""
    approved = f", approved by {request.approved_by}" if request.approved_by else ""
    return (
        c.NewEvent(
            key=f"verdict:{request.step_key}",
            kind=c.EventKind.VERDICT,
            at=at,
            attempt=advice.restart_count,
            summary=f"{verdict.fault_class.value}: {verdict.reason}",
            body=verdict.model_dump(mode="json"),
        ),
        c.NewEvent(
            key=f"advice:{request.step_key}",
            kind=c.EventKind.ADVICE,
            at=at,
            attempt=advice.restart_count,
            summary=f"{advice.action.value}{without} by rule {advice.rule}: {advice.reason}",
            body=advice.model_dump(mode="json"),
        ),
        c.NewEvent(
            key=f"plan:{request.step_key}",
            kind=c.EventKind.PLAN,
            at=at,
            attempt=advice.restart_count,
            summary=f"{advice.action.value}{without} for restart count {advice.restart_count}{drained}{held}{approved}",
            body={"step_key": request.step_key, "approved_by": request.approved_by},
        ),
    )


def left_out_row(request: c.PlanStep, answer: c.PermitAnswer, at: datetime) -> c.NewEvent:
    return c.NewEvent(
        key=f"withheld:{request.step_key}",
        kind=c.EventKind.INCIDENT if answer.incident else c.EventKind.WATCHDOG,
        at=at,
        attempt=request.advice.restart_count,
        summary=f"{', '.join(answer.left_out)} not excluded: {answer.reason}",
        body={"step_key": request.step_key, "withheld": list(answer.left_out)},
    )


def intent_row(action: Action, request: c.StepRequest, at: datetime) -> c.NewEvent:
    return c.NewEvent(
        key=f"{request.step_key}:intent",
        kind=c.EventKind.STEP,
        at=at,
        attempt=request.restart_count,
        summary=f"{action.value} asked of Slurm for restart count {request.restart_count}",
        body={"action": action.value, "done": None, "exclude": list(request.exclude)},
    )


def refused_row(action: Action, request: c.StepRequest, kind: str, message: str, at: datetime) -> c.NewEvent:
    return c.NewEvent(
        key=f"{request.step_key}:refused:{kind}",
        kind=c.EventKind.STEP,
        at=at,
        attempt=request.restart_count,
        summary=f"{action.value} refused ({kind}): {message}",
        body={"action": action.value, "done": False, "refused": kind},
    )


def done_row(action: Action, request: c.StepRequest, result: c.StepResult, at: datetime, state: str) -> c.NewEvent:
    """`state`: of the job after the change."""
    return c.NewEvent(
        key=f"{request.step_key}:done",
        kind=c.EventKind.STEP,
        at=at,
        attempt=request.restart_count,
        summary=result.message,
        body={
            "action": action.value,
            "done": True,
            "already": result.already,
            "acted_at": at.isoformat(),
            "restarts": result.restarts,
            "state": state,
            "excluded": list(result.excluded),
            "dropped": list(result.dropped),
        },
    )


def drain_row(request: c.DrainRequest, node: str, summary: str, done: bool, at: datetime) -> c.NewEvent:
    return c.NewEvent(
        key=f"{request.step_key}:drain:{node}:{'done' if done else 'refused'}",
        kind=c.EventKind.STEP,
        at=at,
        attempt=request.attempt,
        summary=summary,
        body={"action": c.DRAIN, "node": node, "done": done},
    )


def attribution_rows(request: c.AttributeJob, answers: Iterable[Attribution], at: datetime) -> Sequence[c.NewEvent]:
    return [
        c.NewEvent(
            key=f"{request.life_id}:attribution:{request.wanted.key}:{one.phase.value}:{one.provider}",
            kind=c.EventKind.ATTRIBUTION,
            at=at,
            attempt=request.wanted.subject.restarts,
            by=one.provider,
            summary=one.summary,
            body=one.model_dump(mode="json"),
        )
        for one in answers
    ]


def hash_of(text: str) -> str:
    """A short stable name for a text, for idempotency keys."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:16]
