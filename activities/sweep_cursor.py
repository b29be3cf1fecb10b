"""What the sweep remembers of one job between sweeps, as JSON in the `watched` table."""

from __future__ import annotations

from pydantic import ValidationError

from activities.telemetry.joblog import LogCursor
from recovery.records import Record

MAX_CHILDREN = 200
MAX_LOGS = 8


class SweepCursor(Record):
    """Log offsets, dependents seen, and which fault was told."""

    logs: tuple[LogCursor, ...] = ()
    children: tuple[str, ...] = ()
    attempt: int = 0
    state: str = ""
    faults: tuple[str, ...] = ()
    note: str = ""

    @property
    def by_path(self) -> dict[str, LogCursor]:
        return {log.path: log for log in self.logs}


def read_cursor(text: str) -> SweepCursor:
    """A lost or damaged cursor means reading again from the start, never a second action."""
    try:
        return SweepCursor.model_validate_json(text) if text else SweepCursor()
    except ValidationError:
        return SweepCursor()
