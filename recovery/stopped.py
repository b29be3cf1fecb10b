"""Tells from a whole log that its training stopped without a word: steps were left, nothing was written since. Pure.

A log alone cannot tell a hang from a death that left no trace; both end the run, and a new attempt helps both.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo

from recovery.faults.moments import dated
from recovery.records import Certainty, FaultClass, Finding, Retry, Role

QUIET = timedelta(minutes=30)
"""Shortest silence that counts: evaluations and saves of large models take as long."""

TIMES_LONGEST = 5.0
"""A silence of so many times what the steps took; 5 is what hang.py takes for running jobs."""

START = timedelta(hours=1)
"""Longest start-up, until the first step."""

ZONES_S = (*range(0, 15 * 3600, 3600), *(int(hours * 3600) for hours in (3.5, 4.5, 5.5, 5.75, 6.5, 8.75, 9.5, 10.5)))
"""How far clocks of time zones lie apart (seconds)."""

NEAR_S = 15.0


@dataclass(frozen=True, slots=True)
class LogEnd:
    """What the end of a log shows."""

    step: int | None
    """Last completed step."""
    total: int | None
    steps_per_s: float | None
    """Steps a second over the whole log, where lines tell times."""
    last_at: datetime | None
    """The latest time written in it; without a zone where the log tells none."""
    starting: str = ""
    """What the end of the log says it is doing before its first step; empty: nothing known."""
    whole_line: bool = True
    source: str = ""
    line: int = 0


def last_written(
    last_at: datetime | None, written: datetime | None, *, zone: tzinfo, now: datetime
) -> tuple[datetime | None, str]:
    """When the log was last written to, and how that is known.

    A file's own time is that of its copy, when it was copied. The times in a log may be of another zone, though: where
    they differ from the file's time by just a zone, the file's time holds.
    """
    told = dated(last_at, zone=zone, now=now) if last_at is not None else None
    if told is None or (written is not None and told > written + timedelta(seconds=NEAR_S)):
        return written, "by the file's own time"
    if written is not None and last_at is not None and last_at.tzinfo is None:
        apart = (written - told).total_seconds()
        if any(abs(apart - shift) <= NEAR_S for shift in ZONES_S):
            return written, "by the file's own time"
    return told, "by the times in the log"


def stopped(
    end: LogEnd, *, written: datetime | None, started: datetime | None, zone: tzinfo, now: datetime
) -> Finding | None:
    """The finding, None where the log may still be written or the training may have come to its end."""
    last, how = last_written(end.last_at, written, zone=zone, now=now)
    if last is None or not end.whole_line:
        return None
    quiet = now - last
    if end.step is None:
        since = max(last, started) if started is not None else last
        if not end.starting or now - since < START:
            return None
        summary = f"It never came to a first step: {end.starting}, and nothing since {_clock(last)} ({how})"
        return _finding("hang.no_first_step", FaultClass.SYSTEM_SOFTWARE, summary, end, last, now)
    if end.total is None or end.step >= end.total:
        return None
    step_s = 1 / end.steps_per_s if end.steps_per_s else 0.0
    if quiet < max(QUIET, timedelta(seconds=TIMES_LONGEST * step_s)):
        return None
    summary = f"Steps stopped after step {end.step} of {end.total} without a word; nothing since {_clock(last)} ({how})"
    return _finding("hang.no_step", FaultClass.INTERCONNECT, summary, end, last, now)


def _finding(
    signature: str, fault_class: FaultClass, summary: str, end: LogEnd, last: datetime, now: datetime
) -> Finding:
    return Finding(
        id=hashlib.sha256(f"{signature}\n{end.source}\n{end.step}".encode()).hexdigest()[:32],
        attempt=0,
        detector="progress",
        signature=signature,
        fault_class=fault_class,
        role=Role.SYMPTOM,
        retry=Retry.YES,
        certainty=Certainty.SUSPECTED,
        at=last,
        seen_at=now,
        summary=summary,
        source=end.source,
        line=end.line or None,
    )


def _clock(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"
