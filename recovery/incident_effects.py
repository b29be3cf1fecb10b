"""What an open incident means for one job: its exclusions are withheld, its restart is paced, put off or held off.

Pure. `rules_incident.py` and the permit ask the same questions here, so that they cannot differ.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from recovery.incident_records import Incident, IncidentKind, Sign
from recovery.incidents import of_switch
from recovery.policy_numbers import Policy
from recovery.records import FaultClass, Nodes, Record

SAID_AGAIN = timedelta(minutes=3)
"""That slurmctld is away counts for so long after the sweep has said it last."""


class Affected(Record):
    """One failed attempt with its verdict."""

    user: str = ""
    nodes: Nodes = ()
    signature: str = ""
    fault_class: FaultClass = FaultClass.UNKNOWN


_SHARED_FAULTS = frozenset(
    {IncidentKind.MAINTENANCE, IncidentKind.FILE_SYSTEM, IncidentKind.SWITCH, IncidentKind.SIGNATURE}
)
_NOT_THE_CLUSTERS = frozenset({FaultClass.USER, FaultClass.OUT_OF_MEMORY, FaultClass.NONE})


def explains(incident: Incident, job: Affected) -> bool:
    """Whether the incident is why this job failed. What one user's jobs print counts for that user's jobs only."""
    if not incident.is_open or incident.kind not in _SHARED_FAULTS or incident.only_user not in {"", job.user}:
        return False
    match incident.kind:
        case IncidentKind.FILE_SYSTEM:
            return job.fault_class is FaultClass.STORAGE
        case IncidentKind.SIGNATURE:
            return job.signature == incident.cause
        case IncidentKind.MAINTENANCE:
            return bool(set(job.nodes) & set(incident.nodes)) and job.fault_class not in _NOT_THE_CLUSTERS
        case _:
            sign = Sign(signature=job.signature, fault_class=job.fault_class)
            return bool(set(job.nodes) & set(incident.nodes)) and of_switch(sign)


def explaining(incidents: Iterable[Incident], job: Affected) -> Incident | None:
    """The incident that is why this job failed: then no node of it alone is to blame."""
    return next((one for one in incidents if explains(one, job)), None)


def paces(incident: Incident, job: Affected) -> bool:
    """Whether the job's restart takes its turn with those of the others."""
    return incident.is_open and (incident.kind is IncidentKind.SLURMCTLD or explains(incident, job))


def holds_off(incident: Incident, now: datetime) -> str:
    """Why nothing at all is restarted while it is open; empty: something is."""
    if not incident.is_open:
        return ""
    if incident.kind is IncidentKind.OURSELVES:
        return incident.summary
    away = incident.kind is IncidentKind.SLURMCTLD and incident.back_at is None
    # The sweep says so again and again; where it has fallen silent, the gate still asks slurmctld itself.
    return incident.summary if away and now - incident.last_at <= SAID_AGAIN else ""


def put_off_until(incident: Incident, policy: Policy) -> datetime | None:
    """A file system that is away kills the restarted jobs again: until it has been quiet for a while."""
    if incident.kind is not IncidentKind.FILE_SYSTEM:
        return None
    return incident.last_at + timedelta(seconds=policy.incident_quiet_s)
