"""Keeps account of the time in which a running job's log could not be read, for its record.

Whether the job hangs is not judged here: `recovery/pace.py` leaves such time out by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from activities.sweep_cursor import MAX_BLIND, BlindTime, SweepCursor
from activities.telemetry.logsource import Gap
from activities.telemetry.logwatch import LogLook

TOLD = timedelta(seconds=10)
"""Shorter stretches are not remembered: a file appears a moment after its job, a line arrives a moment late."""

WHY_LENGTH = 300


def with_blind_time(cursor: SweepCursor, look: LogLook, attempt: int, now: datetime) -> SweepCursor:
    """The cursor after one more look at a running job's log. A look that was none changes nothing."""
    if not look.asked:
        return cursor
    known = [one for one in cursor.blind if one.attempt == attempt or one.end is not None]
    lasts = known.pop() if known and known[-1].end is None else None
    known += [one for gap in look.gaps if (one := _of_gap(gap, attempt)) not in known]
    if not look.readable:
        # Nothing is known since the last look that could be had.
        begin = cursor.pace.looked_at if cursor.pace.attempt == attempt else None
        known.append(lasts or BlindTime(attempt=attempt, begin=begin or now, why=look.cursor.note[:WHY_LENGTH]))
    elif lasts is not None and now - lasts.begin >= TOLD:
        known.append(lasts.model_copy(update={"end": now}))
    blind = tuple(known[-MAX_BLIND:])
    return cursor if blind == cursor.blind else cursor.model_copy(update={"blind": blind})


def _of_gap(gap: Gap, attempt: int) -> BlindTime:
    return BlindTime(attempt=attempt, begin=gap.span.begin, end=gap.span.end, why=gap.why[:WHY_LENGTH])


def blind_summaries(blind: Sequence[BlindTime], attempt: int, *, over: bool) -> dict[str, str]:
    """What to write down of an attempt's blind time, by a key that stays the same. A stretch that lasts is told when
    the attempt is over."""
    told: dict[str, str] = {}
    for one in blind:
        if one.attempt != attempt or (one.end is None and not over):
            continue
        end = f"for {(one.end - one.begin).total_seconds():.0f} s" if one.end is not None else "up to its end"
        key = f"{attempt}:{one.begin.isoformat(timespec='seconds')}"
        why = one.why.removeprefix("blind: ")
        told[key] = f"the log was not readable from {one.begin:%H:%M:%S} UTC {end}" + (f": {why}" if why else "")
    return told
