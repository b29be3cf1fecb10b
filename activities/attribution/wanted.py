"""Says whether somebody outside is to be asked about what an examination showed, and for how long that is waited for.

Nothing is asked here. Where no provider is configured the answer is None, and the workflow issues no command.
"""

from __future__ import annotations

from collections.abc import Sequence

from activities import contracts as c
from activities.attribution.provider import Attributors
from activities.deciding import failing_view, verdict_of
from recovery.attribution import About, may_help
from recovery.records import FAILURES, AttemptRow, JobState, JobView
from recovery.situation import split_rows

"""Endings that want an explanation. Of the others nobody is asked."""

NO_FAULT = frozenset({JobState.COMPLETED, JobState.CANCELLED})


def wanted(attributors: Attributors | None, seen: c.Examination, *, paused: bool) -> c.AttributionWanted | None:
    """The question that what was seen raises; None: nobody is asked."""
    if attributors is None or not attributors.providers or seen.view is None or seen.opted_out or paused:
        return None
    if seen.hang is not None and seen.hang.stage.acts:
        # Recorded only: whether a running job is restarted is no question for an outsider.
        return _of(attributors, seen.view, About.HANG, "hang", counts=False)
    subject = failing_view(seen)
    state = _ending(subject, seen.rows)
    if state not in FAILURES or _died_of_us(seen, subject):
        return None
    counts = may_help(verdict_of(seen), seen.findings, subject)
    return _of(attributors, subject, About.ENDED, state.value.lower(), counts=counts)


def _of(
    attributors: Attributors, subject: JobView, about: About, signal: str, *, counts: bool
) -> c.AttributionWanted | None:
    wait_s = attributors.fast_s if counts else 0.0
    if wait_s <= 0 and attributors.slow_s <= 0:
        return None
    return c.AttributionWanted(
        about=about, signal=signal, subject=subject, wait_s=wait_s, slow_s=attributors.slow_s, counts=counts
    )


def _ending(subject: JobView, rows: Sequence[AttemptRow]) -> JobState:
    """How the attempt ended; while COMPLETING only accounting knows."""
    row, _ = split_rows(subject, rows)
    if row is not None and (
        subject.state is JobState.COMPLETING or row.state in {JobState.COMPLETED, JobState.CANCELLED}
    ):
        return row.state
    return subject.state


def _died_of_us(seen: c.Examination, subject: JobView) -> bool:
    return any(one.number == subject.restarts and one.own_fault for one in seen.attempts)
