"""The story of one job as text: what it is, its attempts, and all that was seen, decided and done, in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta

from rich.text import Text

from activities.audit.records import Event, Life
from activities.contracts import EventKind
from activities.slurm.hostlist import fold
from recovery.records import Attempt
from workers.screen import clean, moment, one_line

_STYLES = {
    EventKind.FINDING: "red",
    EventKind.VERDICT: "magenta",
    EventKind.ADVICE: "cyan",
    EventKind.OUTCOME: "green",
    EventKind.OPERATOR: "yellow",
    EventKind.MISSED: "bold red",
    EventKind.WATCHDOG: "yellow",
    EventKind.INCIDENT: "bold yellow",
    EventKind.WAITS: "yellow",
}


def story(life: Life, attempts: Sequence[Attempt], events: Sequence[Event]) -> Iterator[Text]:
    """The story, line by line."""
    yield from _head(life)
    yield from _waits(life, events)
    yield Text()
    yield Text("Attempts", style="bold")
    for attempt in attempts:
        yield _attempt(attempt)
    if not attempts:
        yield Text("  none recorded yet")
    yield Text()
    yield Text("What happened", style="bold")
    for event in events:
        yield from _event(event)
    if not events:
        yield Text("  nothing recorded yet")
    yield Text()
    yield Text(
        f"More: temporal workflow show --workflow-id {clean(life.workflow_id) or f'{life.cluster}-{life.job_id}'}"
    )


def _head(life: Life) -> Iterator[Text]:
    line = Text()
    line.append(f"{life.cluster}-{life.job_id}", style="bold")
    line.append(one_line(f"  {life.name}  user {life.user}"))
    yield line
    phase = [life.state, life.phase, f"mode {life.mode or 'not known yet'}", f"restart count {life.restarts}"]
    if life.paused:
        phase.append(f"paused by {life.paused_by or 'an operator'}")
    if life.stopped:
        phase.append("stopped for good")
    yield Text(clean("  " + " · ".join(part for part in phase if part)))
    yield Text(f"  first seen {moment(life.first_seen)}, last change {moment(life.updated_at)}")
    if life.closed_at is not None:
        yield Text(clean(f"  closed {moment(life.closed_at)}: {life.close_reason}"))


def _waits(life: Life, events: Sequence[Event]) -> Iterator[Text]:
    """What it waits for now, where its phase says that it does."""
    told = [event for event in events if event.kind == EventKind.WAITS]
    if life.phase.startswith("waiting_") and life.closed_at is None and told:
        yield Text(clean(f"  waits {told[-1].summary}").replace("\n", " "), style="bold yellow")


def _attempt(attempt: Attempt) -> Text:
    parts = [f"  {attempt.number}  {attempt.state.value:<13}", moment(attempt.start_time)]
    if attempt.start_time and attempt.end_time:
        parts.append(f"for {_length(attempt.end_time - attempt.start_time)}")
    if attempt.nodes:
        parts.append(f"on {fold(attempt.nodes)}")
    if attempt.excluded:
        parts.append(f"without {fold(attempt.excluded)}")
    if attempt.last_step is not None:
        first = f"{attempt.first_step}-" if attempt.first_step is not None else ""
        parts.append(f"steps {first}{attempt.last_step}")
    if attempt.last_checkpoint is not None:
        parts.append(f"checkpoint {attempt.last_checkpoint}")
    if attempt.exit_code or attempt.exit_signal:
        parts.append(f"exit {attempt.exit_code}:{attempt.exit_signal}")
    if attempt.fault_class is not None:
        parts.append(f"{attempt.fault_class.value} {attempt.signature}".rstrip())
    if attempt.suspects:
        parts.append(f"suspects {fold(attempt.suspects)}")
    if attempt.own_fault:
        parts.append("died of relight's own doing")
    if attempt.restarted_by:
        parts.append(f"restarted by {attempt.restarted_by}")
    return Text(clean("  ".join(parts)))


def _event(event: Event) -> Iterator[Text]:
    line = Text(f"  {moment(event.at)}  ")
    line.append(f"{event.kind:<9}", style=_STYLES.get(event.kind, ""))
    by = f" (by {event.by})" if event.by and event.by != "relight" else ""
    line.append(clean(f" {event.summary}{by}").replace("\n", " "))
    yield line
    for detail in _details(event):
        yield Text(clean(f"{'':34}{detail}").replace("\n", " "))


def _details(event: Event) -> Iterable[str]:
    """What a person wants to see at once of an event's body."""
    body = event.body
    if event.kind == EventKind.FINDING and body.get("evidence"):
        yield f"> {str(body['evidence']).strip().splitlines()[0][:160]}"
    if event.kind == EventKind.ADVICE:
        if body.get("rule"):
            policy = f", policy {body['policy']}" if body.get("policy") else ""
            yield f"rule {body['rule']}, mode {body.get('mode', '-')}{policy}"
        budgets = body.get("budgets")
        if isinstance(budgets, list | tuple) and budgets:
            used = [one for one in budgets if isinstance(one, dict) and one.get("used")]
            yield "budgets: " + (
                ", ".join(f"{b.get('name')} {b.get('used'):g}/{b.get('limit'):g}" for b in used) or "unused"
            )


def _length(span: timedelta) -> str:
    seconds = int(span.total_seconds())
    if seconds >= 3600:
        return f"{seconds // 3600} h {seconds % 3600 // 60} min"
    return f"{seconds // 60} min {seconds % 60} s" if seconds >= 60 else f"{seconds} s"
