"""What can go wrong between relight and Slurm, each its own class: a scheduler that is away is never "job unknown"."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class RefusalKind(StrEnum):
    """Why the gate changed nothing (or could not tell)."""

    UNKNOWN_JOB = "unknown_job"
    UNKNOWN_NODE = "unknown_node"
    DENIED = "denied"  # Slurm's own permission
    BAD_REQUEST = "bad_request"
    BAD_CONFIG = "bad_config"  # the gate's folder or settings
    STOPPED = "stopped"  # the STOP file
    CEILING = "ceiling"  # changes within the hour
    LATE = "late"  # the deadline has passed
    STALE = "stale"  # another restart count than the change is meant for
    CHANGED = "changed"  # the job changed while it was checked: look again
    BUSY = "busy"  # another call holds this job
    FINISHED = "finished"
    CANCELLED = "cancelled"
    NOT_RESTARTABLE = "not_restartable"  # interactive, heterogeneous or --no-requeue
    HELD = "held"
    SUSPENDED = "suspended"
    DEPENDENT = "dependent"  # a dependent has started
    TWIN = "twin"  # a newer copy lives
    COMPLETING = "completing"  # cannot be told from a cancelled job yet
    PENDING = "pending"  # waits already: nothing to requeue
    NOT_PENDING = "not_pending"
    NODE_TAKEN = "node_taken"  # others took the node out of service, or have taken it over
    NOT_DRAINED = "not_drained"
    LAST_NODES = "last_nodes"  # of a partition
    CAP = "cap"  # nodes held in all
    STATE_NOT_ALLOWED = "state_not_allowed"  # e.g. TIMEOUT without being asked for
    SLURM_ERROR = "slurm_error"
    GATE_ERROR = "gate_error"


class SlurmError(Exception):
    """Anything that keeps relight from reading or changing Slurm."""


class SlurmctldAway(SlurmError):
    """slurmctld cannot be reached or does not answer. `unsure`: a change may still have been made."""

    def __init__(self, message: str, *, unsure: bool = False) -> None:
        super().__init__(message)
        self.unsure = unsure


class SlurmTimeout(SlurmctldAway):
    """The gate itself did not answer in time. A change may have been made: repeat it with `again`."""

    def __init__(self, message: str) -> None:
        super().__init__(message, unsure=True)


class SlurmdbdAway(SlurmError):
    """Accounting is configured but cannot be read now."""


class GateBroken(SlurmError):
    """The gate could not be started or did not speak its language: an installation problem."""


class Refused(SlurmError):
    """The gate or Slurm said no; nothing was changed."""

    def __init__(self, kind: RefusalKind, message: str, detail: Mapping[str, object] | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.detail: dict[str, object] = dict(detail or {})

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.message}"
