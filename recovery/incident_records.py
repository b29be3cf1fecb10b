"""The records of incidents: failures as they are compared, what the sweep knows beside them, what was found. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from pydantic import Field

from recovery.records import FaultClass, JobState, Nodes, Record, Time

MOST_NAMES = 512


class IncidentKind(StrEnum):
    """What several jobs share. In the order in which a failure is ascribed."""

    OURSELVES = "ourselves"  # our own restarts left processes that cannot be killed
    SLURMCTLD = "slurmctld"  # the scheduler was away
    MAINTENANCE = "maintenance"  # their nodes are in a maintenance reservation
    FILE_SYSTEM = "file_system"
    SWITCH = "switch"
    SIGNATURE = "signature"  # the same fault on different nodes


class Sign(Record):
    """One thing that speaks for a cause: a signature of the catalogue and its class."""

    signature: str
    fault_class: FaultClass
    root: bool = Field(default=True, description="a cause, not the mere loss of a peer that any cause brings with it")


class Failure(Record):
    """One attempt of one job that failed, as far as it matters whether others share its fault."""

    job_id: str
    attempt: int
    life_id: int = 0
    user: str = ""
    at: Time = Field(description="when it ended")
    seen_at: Time = Field(description="when it was first seen")
    state: JobState = JobState.FAILED
    nodes: Nodes = ()
    signs: tuple[Sign, ...] = ()

    @property
    def key(self) -> str:
        return f"{self.job_id}:{self.attempt}"

    @property
    def trusted(self) -> bool:
        """The scheduler itself says that nodes failed; nobody can print that."""
        return self.state in {JobState.NODE_FAIL, JobState.BOOT_FAIL}


class ClusterLook(Record):
    """What the sweep knows of the cluster while it looks at failures."""

    away_since: Time | None = Field(default=None, description="slurmctld does not answer since; None: it does")
    was_away: tuple[Time, Time] | None = Field(default=None, description="its last outage, from when until when")
    switches: Mapping[str, Nodes] = Field(default_factory=dict, description="nodes of each leaf switch")
    running: tuple[Nodes, ...] = Field(default=(), description="nodes of each watched job that runs on")
    maintenance: Nodes = Field(default=(), description="nodes in a maintenance reservation")
    own_kills: Nodes = Field(default=(), description='nodes with "Kill task failed" after a restart of ours on them')


class Incident(Record):
    """One fault that several jobs share."""

    id: str = Field(description="the same however often it is found")
    kind: IncidentKind
    cause: str = Field(description="name of the switch, signature, or the kind itself")
    opened_at: Time
    last_at: Time = Field(description="when the last failure of it was seen")
    members: tuple[str, ...] = Field(default=(), description="job:attempt, or node, that belong to it")
    jobs: int = 0
    only_user: str = Field(default="", description="all its jobs are this user's, and only they have a say: it counts "
                           "for no other user's jobs")  # fmt: skip
    nodes: Nodes = Field(default=(), description="nodes of the switch, in maintenance, or drained")
    back_at: Time | None = Field(default=None, description="when slurmctld answered again")
    closed_at: Time | None = None
    closed_by: str = ""
    close_reason: str = ""

    @property
    def is_open(self) -> bool:
        return self.closed_at is None

    @property
    def summary(self) -> str:
        many = f"{self.jobs} jobs"
        match self.kind:
            case IncidentKind.OURSELVES:
                names = ", ".join(self.nodes[:8])
                return f'relight\'s own restarts left processes that cannot be killed ("Kill task failed" on {names})'
            case IncidentKind.SLURMCTLD:
                return "slurmctld was away" if self.back_at is not None else "slurmctld is away"
            case IncidentKind.MAINTENANCE:
                return f"{many} failed on nodes that are in a maintenance reservation"
            case IncidentKind.FILE_SYSTEM:
                return f"{many} failed with a file system error"
            case IncidentKind.SWITCH:
                return f"{many} failed on switch {self.cause}"
            case IncidentKind.SIGNATURE:
                return f"{many} failed with {self.cause} on different nodes"

    def without_members(self) -> Incident:
        """For the record of one job: its own history needs no list of all others."""
        return self.model_copy(update={"members": (), "nodes": self.nodes[:MOST_NAMES]})
