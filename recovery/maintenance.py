"""Maintenance windows: those of the policy file's calendar and those Slurm has reserved. Pure; reads no clock.

Tells which window a start would run into. What follows from it is decided in `delays.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from recovery.records import Nodes, Record, Time

LONGEST = timedelta(days=31)
"""Longest single window; a longer one is a typing error."""


class Repeat(StrEnum):
    """How often a window comes again."""

    NEVER = "never"
    DAILY = "daily"
    WEEKLY = "weekly"


_EVERY = {Repeat.DAILY: timedelta(days=1), Repeat.WEEKLY: timedelta(days=7)}


def _moment(value: Any) -> Any:
    """YAML reads a time with a zone by itself; a text is left to pydantic, anything else is no time."""
    if isinstance(value, datetime | str):
        return value
    raise ValueError("a time with its zone is expected, such as 2026-12-01T08:00:00Z")


def _with_zone(value: datetime) -> datetime:
    if value.tzinfo is None:
        raise ValueError(f"{value.isoformat()} tells no time zone, expected one such as {value.isoformat()}Z")
    return value.astimezone(UTC)


Moment = Annotated[datetime, BeforeValidator(_moment), AfterValidator(_with_zone)]


class Maintenance(BaseModel):
    """One window of the calendar."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, populate_by_name=True)

    begins: Moment = Field(alias="from")
    """When it begins, with a time zone: 2026-12-01T08:00:00Z."""
    ends: Moment = Field(alias="to")
    """When it ends."""
    repeat: Repeat = Repeat.NEVER
    """never, daily or weekly, by the clock of UTC."""
    partitions: tuple[str, ...] = ()
    """Only jobs of these partitions; left out: all."""
    reason: Annotated[str, Field(max_length=200)] = ""
    """What people are told."""

    @model_validator(mode="after")
    def _is_a_window(self) -> Self:
        if self.ends <= self.begins:
            raise ValueError(f"ends {self.ends.isoformat()}, expected later than from ({self.begins.isoformat()})")
        longest = min(LONGEST, _EVERY.get(self.repeat, LONGEST))
        if self.ends - self.begins > longest:
            raise ValueError(f"lasts {self.ends - self.begins}, expected at most {longest}")
        return self


class Window(Record):
    """One window on the clock, whoever announced it."""

    begins: Time
    ends: Time
    reason: str = ""
    nodes: Nodes = Field(default=(), description="nodes it takes; empty: all")


def in_calendar(calendar: Iterable[Maintenance], partition: str, now: datetime) -> tuple[Window, ...]:
    """The window of each entry that is open or comes next, for jobs of that partition (several: "a,b")."""
    mine = set(partition.split(","))
    found = []
    for entry in calendar:
        if entry.partitions and not mine & set(entry.partitions):
            continue
        begins, ends = entry.begins, entry.ends
        every = _EVERY.get(entry.repeat)
        if every is not None and ends <= now:
            later = every * (int((now - ends) / every) + 1)
            begins, ends = begins + later, ends + later
        if ends > now:
            found.append(Window(begins=begins, ends=ends, reason=entry.reason or "maintenance"))
    return tuple(sorted(found, key=lambda window: window.begins))


def start_behind(
    windows: Iterable[Window], start: datetime, needs: timedelta, usable: Iterable[str], min_nodes: int
) -> tuple[datetime, Window] | None:
    """The first start from `start` on after which `needs` is left before a window, and the window that is in the way.

    None: nothing is in the way. A window that leaves enough usable nodes is Slurm's to go round.
    """
    nodes = frozenset(usable)
    last: Window | None = None
    for window in sorted(_taking(windows, nodes, min_nodes), key=lambda one: one.begins):
        if window.ends > start and window.begins < start + needs:
            start, last = window.ends, window
    return (start, last) if last is not None else None


def _taking(windows: Iterable[Window], usable: frozenset[str], min_nodes: int) -> Iterator[Window]:
    for window in windows:
        if not window.nodes or not usable or len(usable - set(window.nodes)) < max(1, min_nodes):
            yield window
