"""What a decision looked at, as short sentences for people: they stand with the advice on the job's record. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from recovery.case import Case

MOST = 20
LENGTH = 200
"""Most facts of one advice, and the longest of them (characters): they stand in histories."""


def facts_of(case: Case) -> tuple[str, ...]:
    """The facts, the most telling first."""
    return tuple(fact[:LENGTH] for fact in list(_facts(case))[:MOST])


def _facts(case: Case) -> Iterator[str]:
    situation, view, verdict, failing = case.situation, case.view, case.situation.verdict, case.failing
    ended = f", exit {view.exit_code}:{view.exit_signal}" if case.ended else ""
    yield f"state {case.state.value}{ended}, restart count {view.restarts}"
    if situation.row is not None and situation.row.state is not view.state:
        yield f"accounting says {situation.row.state.value}"
    if failing.told_codes:
        yield "exit codes that srun told: " + ", ".join(
            f"{told.code}{f' on {told.node}' if told.node else ''}" for told in failing.told_codes[:5]
        )
    if case.actionable:
        told = f" {verdict.signature}" if verdict.signature else ""
        who = f"retry: {verdict.retry.value}, by {verdict.by}"
        yield f"cause {verdict.fault_class.value}{told} ({who}): {verdict.reason}"
    for suspect in verdict.suspects[:5]:
        where = "" if suspect.node in case.allocation else ", not a node of this job"
        yield f"suspect {suspect.node} ({suspect.confidence.value}{where}): {suspect.how}"
    if situation.hang is not None and situation.hang.attempt == view.restarts:
        yield f"hang: {situation.hang.summary}"
    if situation.straggler is not None and situation.straggler.attempt == view.restarts:
        yield f"lag: {situation.straggler.summary}"
    if failing.last_step is not None or failing.last_checkpoint is not None:
        yield f"last completed step {_or_none(failing.last_step)}, checkpoint {_or_none(failing.last_checkpoint)}"
    if len(case.attempts) > 1:
        ours = sum(one.own_fault for one in case.attempts)
        died = f", {ours} of them died of relight's own doing" if ours else ""
        yield f"{len(case.attempts)} attempts so far{died}"
    if situation.nodes_known:
        yield f"{len(situation.nodes_usable)} of {len(situation.nodes_known)} nodes usable, {view.min_nodes} needed"
    if not view.requeue:
        yield "submitted with --no-requeue"
    if situation.frozen:
        yield f"frozen: {situation.frozen}"
    if situation.twins:
        yield f"copies alive: {', '.join(situation.twins[:5])}"
    if situation.dependents_started:
        yield f"dependents started: {', '.join(situation.dependents_started[:5])}"
    yield f"mode {situation.mode.value}" + (f" (set by {situation.mode_from})" if situation.mode_from else "")


def _or_none(value: int | None) -> str:
    return "none" if value is None else str(value)
