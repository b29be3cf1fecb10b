"""Compares the rows that a workflow's history implies with those that stand in the audit store. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from pydantic import Field

from activities.audit import text
from activities.audit.implied import STEPS, Implied, Likeness
from activities.audit.records import Event
from activities.audit.tables import BODY, KEY
from activities.contracts import EventKind, NewEvent
from recovery.records import Record, Time

LATE = timedelta(minutes=1)
"""A row this much younger than the end of a history that goes on may be of an activity that is not in it yet."""

MOST_VERSIONS = 8
"""One key may be asked for again with other words; the first one written stays."""

OF_WORKFLOWS = frozenset(
    {EventKind.VERDICT, EventKind.ADVICE, EventKind.PLAN, EventKind.STEP, EventKind.OPERATOR, EventKind.MISSED,
     EventKind.CLOSED}
)  # fmt: skip
"""Kinds of rows that stand in the request of an activity, so that none can exist without a history that tells it.
Of steps only the change itself: what else was done for it stands in no request."""

_SUMMARY, _BY = 2000, 255


class Problem(StrEnum):
    GAP = "gap"  # the history tells a row that is missing
    DIFFERENT = "different"  # the row says something else than the history
    UNTOLD = "untold"  # a row of the workflow's own that its history does not tell
    LIFE = "life"  # the life itself is missing, or is another job's
    ATTEMPT = "attempt"  # the record of an attempt is missing
    NO_HISTORY = "no_history"  # rows whose history should still be there
    UNREADABLE = "unreadable"  # a history that cannot be understood


class Discrepancy(Record):
    """One thing in which history and audit store do not agree."""

    problem: Problem
    cluster: str
    job_id: str
    life_id: int | None = None
    workflow_id: str = ""
    run_id: str = ""
    key: str = ""
    kind: str = ""
    at: Time | None = None
    detail: str = ""
    repaired: bool = Field(default=False, description="the missing row was inserted")


class Expected:
    """What one run's history tells, by key of the row."""

    def __init__(self) -> None:
        self.by_key: dict[str, list[Implied]] = {}

    def add(self, rows: Iterable[Implied]) -> None:
        for row in rows:
            versions = self.by_key.setdefault(text.name(row.event.key, KEY), [])
            if len(versions) < MOST_VERSIONS and row not in versions:
                versions.append(row)

    def missing(self, known: Mapping[str, Event]) -> list[Implied]:
        """Rows that must be there and are not, in the order in which they were written."""
        return [
            next(one for one in versions if one.certain)
            for key, versions in self.by_key.items()
            if key not in known and any(one.certain for one in versions)
        ]

    def different(self, known: Mapping[str, Event], run_id: str) -> list[tuple[Event, str]]:
        """Rows that agree with no version of what the history tells, and in what they differ from the first."""
        found = []
        for key, versions in self.by_key.items():
            row = known.get(key)
            if row is None:
                continue
            told = [_difference(row, one, run_id) for one in versions]
            if all(told):
                found.append((row, told[0]))
        return found

    def untold(self, rows: Sequence[Event], until: datetime | None) -> list[Event]:
        """Rows of the workflow's own that the history does not tell. `until`: its end so far, where it goes on."""
        return [
            row
            for row in rows
            if _is_of_workflow(row) and row.key not in self.by_key and (until is None or row.recorded_at < until - LATE)
        ]


def _is_of_workflow(row: Event) -> bool:
    if row.kind == EventKind.STEP:
        return row.body.get("action") in set(STEPS.values()) and row.key.endswith((":intent", ":done"))
    return row.kind in OF_WORKFLOWS


def _difference(row: Event, told: Implied, run_id: str) -> str:
    """In what the row differs from what the history tells; empty: it agrees as far as it must."""
    event = told.event
    if row.life_id != told.life_id:
        return f"life_id: recorded {row.life_id}, the history tells {told.life_id}"
    if row.kind != event.kind:
        return f"kind: recorded {row.kind}, the history tells {event.kind}"
    # Of a key that another run has written first, only the kind can be compared.
    likeness = told.likeness if row.run_id == run_id else Likeness.KIND
    if likeness is Likeness.KIND:
        return ""
    pairs: list[tuple[str, Any, Any]] = [
        ("summary", row.summary, text.words(event.summary, _SUMMARY)),
        ("attempt", row.attempt, event.attempt),
        ("by", row.by, text.words(event.by, _BY)),
    ]
    body = stored_body(event)
    if likeness is Likeness.EXACT:
        pairs += [("body", row.body, body), ("at", row.at, event.at)]
    elif not _within(row.body, body):
        pairs.append(("body", row.body, body))
    for name, recorded, wanted in pairs:
        if recorded != wanted:
            return f"{name}: recorded {_shown(recorded)}, the history tells {_shown(wanted)}"
    return ""


def _within(recorded: Any, wanted: Any) -> bool:
    """Whether all that is recorded is told as well: in a newer relight a record has more fields than it had then."""
    if isinstance(recorded, dict) and isinstance(wanted, dict):
        return all(key in wanted and _within(value, wanted[key]) for key, value in recorded.items())
    if isinstance(recorded, list) and isinstance(wanted, list):
        return len(recorded) == len(wanted) and all(map(_within, recorded, wanted))
    return bool(recorded == wanted)


def stored_body(event: NewEvent) -> Any:
    """The body as the store gives it back."""
    return json.loads(text.to_json(event.body, BODY))


def _shown(value: object) -> str:
    shown = value.isoformat() if isinstance(value, datetime) else value if isinstance(value, str) else json.dumps(value)
    return text.words(shown, 160)
