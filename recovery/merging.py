"""Puts what was found in several files of one attempt into one order: by time, where the files tell it. Pure.

Within one file its own order stands, since clocks of nodes differ and a log is written in order. A fault must never
seem to be survived by steps that came before it: where nothing tells when it was, it was last.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import accumulate

from recovery.faults.moments import dated
from recovery.faults.scanner import Hit
from recovery.progress import StepMark

Found = Hit | StepMark

SKEW = timedelta(seconds=10)
"""So far clocks of nodes may lie apart: a step of one node is held to come after a line of another only beyond that."""

_BEGIN = datetime.min.replace(tzinfo=UTC)
_END = datetime.max.replace(tzinfo=UTC)


def in_time(
    hits: Sequence[Hit], marks: Sequence[StepMark], *, file_span: int, zone: tzinfo, now: datetime
) -> tuple[list[Hit], list[StepMark]]:
    """Hits and marks with places in one order over all files. `file_span` is how far apart their offsets begin."""
    files: defaultdict[int, list[Found]] = defaultdict(list)
    every: list[Found] = [*hits, *marks]
    for one in every:
        files[one.offset // file_span].append(one)
    timed: list[tuple[datetime, int, int, Found]] = []
    for number, found in files.items():
        found.sort(key=lambda one: one.offset)
        times = _times(found, zone, now)
        if any(isinstance(one, StepMark) and at == _END for at, one in zip(times, found, strict=True)):
            times = [_BEGIN] * len(found)  # steps without times: what other files say counts as later
        times = _as_early_as_can_be(found, times)
        timed += [(at, number, place, one) for place, (at, one) in enumerate(zip(times, found, strict=True))]
    timed.sort(key=lambda row: row[:3])
    merged: list[Hit] = []
    steps: list[StepMark] = []
    for place, (_, _, _, one) in enumerate(timed):
        if isinstance(one, Hit):
            merged.append(replace(one, offset=place))
        else:
            steps.append(replace(one, offset=place))
    return merged, steps


def _as_early_as_can_be(found: Sequence[Found], times: Sequence[datetime]) -> list[datetime]:
    """Steps moved ahead by what clocks may lie apart, never over a line before them in their own file."""
    placed: list[datetime] = []
    least = _BEGIN
    for one, at in zip(found, times, strict=True):
        if isinstance(one, StepMark) and at > _BEGIN:
            placed.append(max(least, at - SKEW))
        else:
            placed.append(at)
            least = at
    return placed


def _times(found: Sequence[Found], zone: tzinfo, now: datetime) -> list[datetime]:
    """A time for each, never going back.

    What tells none was written before the next that does: a traceback has no times, the launcher's line after it has.
    """
    told = [dated(one.at, zone=zone, now=now) if one.at is not None else None for one in found]
    times: list[datetime] = []
    following = _END
    for at in reversed(told):
        following = at if at is not None else following
        times.append(following)
    return list(accumulate(reversed(times), max))
