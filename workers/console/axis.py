"""Lays the story of a job out on one time axis: when each attempt waited and ran, and what was seen, decided and done.

Pure: numbers and words come out, the template draws them. What lies too close together becomes one mark with a count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from activities.audit.records import Event
from activities.contracts import EventKind
from recovery.records import FAILURES, Attempt, JobState
from workers.console.words import flat

WIDTH = 1000
LEFT = 90
"""Room for the lanes' names."""
CLOSE = 9.0
LANES = (
    ("seen", (EventKind.FINDING, EventKind.WATCHDOG, EventKind.MISSED, EventKind.INCIDENT)),
    ("decided", (EventKind.VERDICT, EventKind.ADVICE, EventKind.ATTRIBUTION, EventKind.WAITS)),
    ("done", (EventKind.STEP, EventKind.OUTCOME)),
    ("people", (EventKind.OPERATOR,)),
)
_STEPS_S = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21_600, 43_200, 86_400, 172_800, 604_800)
_MOST_TICKS = 8


@dataclass(frozen=True)
class Bar:
    x: float
    width: float
    kind: str
    words: str


@dataclass(frozen=True)
class Mark:
    x: float
    kind: str
    count: int
    words: str


@dataclass(frozen=True)
class Lane:
    name: str
    marks: tuple[Mark, ...]


@dataclass(frozen=True)
class Axis:
    begin: datetime
    end: datetime
    bars: tuple[Bar, ...]
    lanes: tuple[Lane, ...]
    ticks: tuple[tuple[float, str], ...]

    @property
    def height(self) -> int:
        return 50 + 24 * len(self.lanes)


def lay_out(
    attempts: Sequence[Attempt], events: Sequence[Event], now: datetime, *, begin: datetime | None = None
) -> Axis | None:
    """The axis from the first to the last thing known (a running attempt lasts until now), or from `begin` on."""
    times = [time for one in attempts for time in (one.submit_time, one.start_time, one.end_time) if time is not None]
    times += [event.at for event in events]
    if any(one.start_time is not None and one.end_time is None for one in attempts):
        times.append(now)
    if not times:
        return None
    begin = begin or min(times)
    end = max([*times, begin + timedelta(seconds=10)])
    scale = _Scale(begin, end)
    lanes = tuple(
        Lane(name, marks)
        for name, kinds in LANES
        if (marks := _marks([event for event in events if event.kind in kinds and event.at >= begin], scale))
    )
    return Axis(begin, end, tuple(_bars(attempts, scale, now)), lanes, _ticks(scale))


class _Scale:
    def __init__(self, begin: datetime, end: datetime) -> None:
        self.begin, self.seconds = begin, (end - begin).total_seconds()

    def x(self, time: datetime) -> float:
        share = (time - self.begin).total_seconds() / self.seconds
        return round(LEFT + min(1.0, max(0.0, share)) * (WIDTH - LEFT - 10), 1)


def _bars(attempts: Iterable[Attempt], scale: _Scale, now: datetime) -> Iterable[Bar]:
    for one in attempts:
        if one.submit_time is not None:
            until = one.start_time or one.end_time or now
            if until > scale.begin and until > one.submit_time:
                yield _bar(one.submit_time, until, "waited", f"attempt {one.number} waited in the queue", scale)
        if one.start_time is not None:
            until = one.end_time or now
            if until >= scale.begin:
                words = f"attempt {one.number} {one.state.value}"
                yield _bar(one.start_time, until, _kind(one), words, scale)


def _bar(begin: datetime, end: datetime, kind: str, words: str, scale: _Scale) -> Bar:
    x = scale.x(begin)
    return Bar(x, round(max(2.0, scale.x(end) - x), 1), kind, f"{words}, {begin:%H:%M:%S} to {end:%H:%M:%S} UTC")


def _kind(attempt: Attempt) -> str:
    if attempt.end_time is None and attempt.state.is_alive:
        return "runs"
    if attempt.state in FAILURES or attempt.fault_class is not None:
        return "failed"
    return "completed" if attempt.state is JobState.COMPLETED else "ended"


def _marks(events: Sequence[Event], scale: _Scale) -> tuple[Mark, ...]:
    found: list[Mark] = []
    for event in sorted(events, key=lambda one: (one.at, one.id)):
        x = scale.x(event.at)
        words = f"{event.at:%H:%M:%S} {event.kind}: {flat(event.summary, 160)}"
        if found and x - found[-1].x < CLOSE:
            last = found[-1]
            more = f"{last.words}\n{words}" if last.count < 12 else last.words
            found[-1] = Mark(last.x, last.kind if last.kind == event.kind else "several", last.count + 1, more)
        else:
            found.append(Mark(x, event.kind, 1, words))
    return tuple(found)


def _ticks(scale: _Scale) -> tuple[tuple[float, str], ...]:
    step = next((one for one in _STEPS_S if scale.seconds / one <= _MOST_TICKS), None)
    if step is None:
        step = _STEPS_S[-1] * (int(scale.seconds / _STEPS_S[-1] / _MOST_TICKS) + 1)
    form = "%H:%M:%S" if step < 60 else "%H:%M" if step < 86_400 else "%m-%d"
    first = int(scale.begin.timestamp()) // step + 1
    found = []
    for number in range(first, first + _MOST_TICKS + 1):
        time = datetime.fromtimestamp(number * step, scale.begin.tzinfo)
        if (time - scale.begin).total_seconds() > scale.seconds:
            break
        found.append((scale.x(time), time.strftime(form)))
    return tuple(found)
