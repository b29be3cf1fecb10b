"""Events of a running job's nodes, as the scheduler tells them: down, silent, draining, restarted under the job.

A node that reboots within seconds loses its part of a job and nobody notices: Slurm keeps the job RUNNING. Pure;
what to do about it is the policy's business.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from enum import StrEnum

from pydantic import Field

from recovery.records import Certainty, FaultClass, Finding, JobView, NodeView, Record, Retry, Role, Time

EVENTS = 20
"""Most events told of one job."""

CLOCKS = timedelta(seconds=2)
"""Clocks of nodes and controller may differ by this much."""

WENT_ON = timedelta(seconds=15)
"""A step completed this long after an event shows that the job survived it."""

MANY = 4
"""Daemons that were restarted on more than one in so many nodes were restarted by somebody, not by a failing node."""


class NodeTrouble(StrEnum):
    DOWN = "down"
    NOT_RESPONDING = "not_responding"
    REBOOTED = "rebooted"
    DAEMON_RESTARTED = "daemon_restarted"
    DRAINING = "draining"


_TITLES = {
    NodeTrouble.DOWN: "is down",
    NodeTrouble.NOT_RESPONDING: "does not answer Slurm",
    NodeTrouble.REBOOTED: "was rebooted under the running job",
    NodeTrouble.DAEMON_RESTARTED: "had its slurmd restarted under the running job",
    NodeTrouble.DRAINING: "is being drained",
}

TAKES_THE_JOB = frozenset({NodeTrouble.DOWN, NodeTrouble.NOT_RESPONDING, NodeTrouble.REBOOTED})
"""Each of these is a reason for steps to stop; a restarted daemon is one only when steps did stop."""


class NodeEvent(Record):
    """One thing that is the matter with one node of a running job."""

    node: str
    trouble: NodeTrouble
    at: Time | None = Field(default=None, description="when, where Slurm tells it")
    reason: str = ""

    @property
    def key(self) -> str:
        """The same for the same event however often it is seen."""
        moment = f":{int(self.at.timestamp())}" if self.at is not None else ""
        return f"{self.node}:{self.trouble.value}{moment}"

    @property
    def text(self) -> str:
        because = f" ({self.reason})" if self.reason else ""
        return f"{self.node} {_TITLES[self.trouble]}{because}"

    def survived(self, step_at: datetime | None) -> bool:
        """Whether a step was completed long enough after it. Of what has no moment that cannot be told."""
        return self.at is not None and step_at is not None and step_at > self.at + WENT_ON


def is_eventful(node: NodeView, earliest_start: datetime | None) -> bool:
    """Whether any job that started at that moment or later could have an event on this node. Cheap."""
    return bool(_events(node, earliest_start))


def node_events(
    nodes: Iterable[NodeView], allocation: Collection[str], started: datetime | None
) -> tuple[NodeEvent, ...]:
    """Events on the nodes of a job that runs since `started`, at most 20, sorted by node."""
    mine = sorted((node for node in nodes if node.name in allocation), key=lambda node: node.name)
    events = [event for node in mine for event in _events(node, started)]
    restarted = [event for event in events if event.trouble is NodeTrouble.DAEMON_RESTARTED]
    if len(restarted) > max(1, len(allocation) // MANY):
        events = [event for event in events if event.trouble is not NodeTrouble.DAEMON_RESTARTED]
    return tuple(events[:EVENTS])


def _events(node: NodeView, started: datetime | None) -> list[NodeEvent]:
    flags = set(node.flags)
    reason = " ".join(node.reason.split())[:120]
    events = []
    if node.state in {"DOWN", "ERROR"} or "FAIL" in flags:
        events.append(NodeEvent(node=node.name, trouble=NodeTrouble.DOWN, reason=reason))
    elif "NOT_RESPONDING" in flags:
        events.append(NodeEvent(node=node.name, trouble=NodeTrouble.NOT_RESPONDING))
    elif "DRAIN" in flags:
        events.append(NodeEvent(node=node.name, trouble=NodeTrouble.DRAINING, reason=reason))
    if started is not None:
        if node.boot_time is not None and node.boot_time > started + CLOCKS:
            events.append(NodeEvent(node=node.name, trouble=NodeTrouble.REBOOTED, at=node.boot_time))
        elif node.slurmd_start_time is not None and node.slurmd_start_time > started + CLOCKS:
            events.append(NodeEvent(node=node.name, trouble=NodeTrouble.DAEMON_RESTARTED, at=node.slurmd_start_time))
    return events


def node_findings(
    view: JobView, events: Iterable[NodeEvent], now: datetime, *, step_at: datetime | None, stopped: bool
) -> tuple[Finding, ...]:
    """The events as findings of the running attempt. `stopped`: its steps have stopped, so they may be the reason."""
    return tuple(_finding(view, event, now, step_at, stopped) for event in events)


def _finding(view: JobView, event: NodeEvent, now: datetime, step_at: datetime | None, stopped: bool) -> Finding:
    survived = event.survived(step_at)
    cause = not survived and (event.trouble in TAKES_THE_JOB or (stopped and event.trouble is not NodeTrouble.DRAINING))
    sure = stopped or event.trouble in {NodeTrouble.DOWN, NodeTrouble.REBOOTED}
    signature = f"node.{event.trouble.value}"
    parts = (view.cluster, view.raw_id, view.restarts, event.key, cause, sure)
    after = "; steps have stopped since" if cause and stopped else "; the job went on" if survived else ""
    return Finding(
        id=hashlib.sha256("\n".join(str(part) for part in parts).encode()).hexdigest()[:32],
        attempt=view.restarts,
        detector="nodes",
        signature=signature,
        fault_class=FaultClass.HARDWARE if cause else FaultClass.NONE,
        role=Role.ROOT if cause else Role.BENIGN,
        retry=Retry.YES,
        certainty=Certainty.CONFIRMED if sure else Certainty.SUSPECTED,
        at=event.at,
        seen_at=now,
        nodes=(event.node,),
        how="the scheduler tells it of this node",
        trusted=True,
        summary=f"{event.text}{after}",
        source="scheduler",
    )
