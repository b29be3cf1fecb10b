"""Turns what the sweep judged of a running job into findings, when the job is examined.

A judgement counts only while the sweep goes on looking: after an outage, or when the fresh look shows new steps, it
counts for nothing. Events of nodes are told afresh from the node list.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from activities.pulse import LATE_S
from activities.sweep_cursor import SweepCursor
from recovery.attempts import view_of_earlier
from recovery.hang import Hang, hang_finding
from recovery.node_events import NodeTrouble, node_events, node_findings
from recovery.records import Attempt, FaultClass, Finding, JobState, JobView, NodeView, Progress, Role
from recovery.straggler import Straggler, straggler_finding

STALE = timedelta(seconds=90)
"""A judgement of a sweep that has not looked for so long is none."""


SHORTLY = timedelta(minutes=2)
"""A daemon that was restarted so long before an attempt's end may be the reason for it."""


def judgements(
    view: JobView,
    cursor: SweepCursor,
    nodes: Sequence[NodeView],
    progress: Progress,
    now: datetime,
    *,
    told_step: int | None,
) -> tuple[Hang | None, Straggler | None, tuple[Finding, ...]]:
    """Hang, straggler, and the findings for them and for events of nodes; of a running attempt only.

    `told_step` is the highest step when it was judged, `progress` what is known now.
    """
    if view.state is not JobState.RUNNING or view.completing:
        return None, None, ()
    pace = cursor.pace
    fresh = pace.attempt == view.restarts and pace.looked_at is not None and now - pace.looked_at <= STALE
    hang = cursor.hang if fresh and progress.step == told_step else None
    lag = cursor.straggler if fresh else None
    step_at = pace.went_on_at(view.restarts, newer=progress.step != told_step)
    events = node_events(nodes, view.nodes, view.start_time)
    found = node_findings(view, events, now, step_at=step_at, stopped=hang is not None)
    if hang is not None and hang.attempt == view.restarts:
        found = (hang_finding(view, hang, now), *found)
    if lag is not None and lag.attempt == view.restarts:
        found = (straggler_finding(view, lag, now), *found)
    return hang, lag, found


def after_the_fact(
    view: JobView, nodes: Sequence[NodeView], findings: Sequence[Finding], now: datetime
) -> tuple[Finding, ...]:
    """Nodes that were restarted under an attempt that has ended since: its others then only report the loss of a peer.

    A restarted daemon alone counts only right before the end, and where the log shows no other cause.
    """
    if view.start_time is None or view.end_time is None or view.state in {JobState.COMPLETED, JobState.CANCELLED}:
        return ()
    caused = any(one.role is Role.ROOT and one.fault_class is not FaultClass.UNKNOWN for one in findings)
    events = [
        event
        for event in node_events(nodes, view.nodes, view.start_time)
        if event.at is not None
        and event.at <= view.end_time
        and (
            event.trouble is NodeTrouble.REBOOTED
            or (event.trouble is NodeTrouble.DAEMON_RESTARTED and not caused and view.end_time - event.at <= SHORTLY)
        )
    ]
    return node_findings(view, events, now, step_at=None, stopped=True)


def just_ended(view: JobView, attempts: Sequence[Attempt], now: datetime) -> JobView | None:
    """The job as it was in the attempt before the waiting one, while metrics may still tell something new of it."""
    earlier = next((one for one in attempts if one.number == view.restarts - 1), None)
    if earlier is None or not earlier.nodes or earlier.start_time is None:
        return None
    end = earlier.end_time or view.submit_time  # a requeue sets it anew
    if end is None or (now - end).total_seconds() > LATE_S:
        return None
    return view_of_earlier(view, earlier.model_copy(update={"end_time": end}), None)
