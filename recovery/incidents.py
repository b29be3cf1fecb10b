"""Which failures of several jobs are one fault: opens, joins and closes incidents. Pure; the sweep calls it.

The same input always gives the same answer, and giving it again changes nothing. What an incident means for one job's
restart stands in `incident_effects.py`; nothing is decided about a job here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from recovery.incident_records import ClusterLook, Failure, Incident, IncidentKind, Sign
from recovery.policy_numbers import Policy
from recovery.records import FaultClass

AWAY_S = 10.0
"""A slurmctld that was away for less has done no harm that a look would not show."""

RETURN_S = 60.0
"""So long restarts are paced after slurmctld came back: nodes and jobs report to it one after the other."""

OWN_KILLS = 2
"""Nodes that Slurm drained with "Kill task failed" after our own restarts; so many are no accident."""

REMEMBERED = timedelta(hours=1)
"""Failures and closed incidents older than this are not given here any more."""

SHARED = frozenset(
    {FaultClass.HARDWARE, FaultClass.INTERCONNECT, FaultClass.SYSTEM_SOFTWARE, FaultClass.SCHEDULER}
)  # fmt: skip
"""Classes of which one signature on several jobs is one fault. A user's error in all his jobs is his own."""

OF_SWITCHES = frozenset({FaultClass.INTERCONNECT, FaultClass.SYSTEM_SOFTWARE, FaultClass.SCHEDULER, FaultClass.UNKNOWN})
NODE_GONE = ("scheduler.node_fail", "scheduler.boot_fail", "node.")
"""Hardware signatures that a lost switch explains as well."""

_ORDER = list(IncidentKind)


def correlate(
    failures: Iterable[Failure], look: ClusterLook, known: Iterable[Incident], now: datetime, numbers: Policy
) -> tuple[Incident, ...]:
    """Incidents that are new or changed, by id. `known`: open ones, and those closed within REMEMBERED."""
    before = {one.id: one for one in known}
    after = dict(before)
    _slurmctld(after, look, now)
    _ourselves(after, look, now)
    taken = {member for one in after.values() for member in one.members}
    fresh = [one for one in sorted(failures, key=_in_order) if one.key not in taken]
    rest = _without_joined(after, fresh, look)
    while (opened := _opened(rest, look, now, numbers)) is not None:
        after[opened.id] = opened
        mine = set(opened.members)
        rest = _without_joined(after, [one for one in rest if one.key not in mine], look)
    _close(after, look, now, numbers)
    return tuple(one for name, one in sorted(after.items()) if before.get(name) != one)


def open_of(incidents: Iterable[Incident], kind: IncidentKind) -> Incident | None:
    return next((one for one in incidents if one.kind is kind and one.is_open), None)


# ------------------------------------------------------------------------------------------------ not from failures


def _slurmctld(after: dict[str, Incident], look: ClusterLook, now: datetime) -> None:
    kind = IncidentKind.SLURMCTLD
    known = open_of(after.values(), kind)
    if look.away_since is not None:
        if known is not None:
            after[known.id] = known.model_copy(update={"last_at": now, "back_at": None})
        elif (now - look.away_since).total_seconds() >= AWAY_S:
            made = _new(kind, kind.value, f"{look.away_since.isoformat()}", now)
            after.setdefault(made.id, made)
        return
    if known is not None and known.back_at is None:
        after[known.id] = known.model_copy(update={"back_at": now, "last_at": now})
    if known is None and look.was_away is not None:
        since, until = look.was_away
        if (until - since).total_seconds() >= AWAY_S and now - until < timedelta(seconds=RETURN_S):
            made = _new(kind, kind.value, since.isoformat(), now).model_copy(update={"back_at": until})
            after.setdefault(made.id, made)


def _ourselves(after: dict[str, Incident], look: ClusterLook, now: datetime) -> None:
    kind = IncidentKind.OURSELVES
    known = open_of(after.values(), kind)
    told = {node for one in after.values() if one.kind is kind for node in one.nodes}
    fresh = tuple(sorted(set(look.own_kills) - told))
    if known is not None:
        if fresh:
            nodes = tuple(sorted({*known.nodes, *fresh}))
            after[known.id] = known.model_copy(update={"nodes": nodes, "last_at": now})
        return
    if len(fresh) >= OWN_KILLS:
        made = _new(kind, kind.value, ",".join(fresh) + now.isoformat(), now).model_copy(update={"nodes": fresh})
        after[made.id] = made


def _new(kind: IncidentKind, cause: str, seed: str, now: datetime) -> Incident:
    digest = hashlib.sha256(f"{kind.value}\n{cause}\n{seed}".encode()).hexdigest()[:8]
    return Incident(id=f"{kind.value}-{digest}", kind=kind, cause=cause, opened_at=now, last_at=now)


# ------------------------------------------------------------------------------------------------ from failures


def _in_order(failure: Failure) -> tuple[datetime, str, int]:
    return failure.at, failure.job_id, failure.attempt


def _without_joined(after: dict[str, Incident], failures: Sequence[Failure], look: ClusterLook) -> list[Failure]:
    """Those that no open incident explains; the others are one of it from now on."""
    opened = sorted((one for one in after.values() if one.is_open), key=lambda one: (_ORDER.index(one.kind), one.id))
    if not opened:
        return list(failures)
    rest, joining = [], dict[str, list[Failure]]()
    for failure in failures:
        mine = _causes(failure, look)
        incident = next((one for one in opened if (one.kind, one.cause) in mine), None)
        if incident is None:
            rest.append(failure)
        else:
            joining.setdefault(incident.id, []).append(failure)
    for name, members in joining.items():
        after[name] = _with_members(after[name], members)
    return rest


def _with_members(incident: Incident, joining: Sequence[Failure]) -> Incident:
    members = (*incident.members, *(one.key for one in joining))
    others = any(one.trusted or one.user != incident.only_user for one in joining)
    return incident.model_copy(
        update={
            "members": members,
            "jobs": len({member.partition(":")[0] for member in members}),
            "last_at": max(incident.last_at, *(one.seen_at for one in joining)),
            "only_user": "" if others else incident.only_user,
        }
    )


def _causes(failure: Failure, look: ClusterLook) -> tuple[tuple[IncidentKind, str], ...]:
    """What the failure may be part of, the most telling first."""
    found: list[tuple[IncidentKind, str]] = []
    nodes = set(failure.nodes)
    if nodes & set(look.maintenance):
        found.append((IncidentKind.MAINTENANCE, IncidentKind.MAINTENANCE.value))
    if any(sign.fault_class is FaultClass.STORAGE for sign in failure.signs):
        found.append((IncidentKind.FILE_SYSTEM, IncidentKind.FILE_SYSTEM.value))
    if failure.trusted or not failure.signs or any(of_switch(sign) for sign in failure.signs):
        found += [(IncidentKind.SWITCH, name) for name in sorted(look.switches) if nodes & set(look.switches[name])]
    shared = sorted({sign.signature for sign in failure.signs if sign.root and sign.fault_class in SHARED})
    found += [(IncidentKind.SIGNATURE, name) for name in shared]
    return tuple(found)


def of_switch(sign: Sign) -> bool:
    """Whether a lost switch would look like this."""
    gone = sign.fault_class is FaultClass.HARDWARE and sign.signature.startswith(NODE_GONE)
    return gone or sign.fault_class in OF_SWITCHES


def _opened(rest: Sequence[Failure], look: ClusterLook, now: datetime, numbers: Policy) -> Incident | None:
    """The most telling cause that enough of the failures share."""
    by_cause: dict[tuple[IncidentKind, str], list[Failure]] = {}
    for failure in rest:
        for one in _causes(failure, look):
            by_cause.setdefault(one, []).append(failure)
    near = {one: _within(found, numbers) for one, found in by_cause.items()}
    groups = {one: found for one, found in near.items() if found and _holds(one, found, near, look)}
    if not groups:
        return None
    kind, cause = min(groups, key=lambda one: (_ORDER.index(one[0]), -len(groups[one]), one[1]))
    members = groups[kind, cause]
    users = {one.user for one in members}
    alone = len(users) == 1 and not any(one.trusted for one in members)
    nodes = look.switches.get(cause, ()) if kind is IncidentKind.SWITCH else ()
    if kind is IncidentKind.MAINTENANCE:
        nodes = look.maintenance
    made = _new(kind, cause, f"{members[0].key} {members[0].at.isoformat()}", now)
    return made.model_copy(
        update={
            "last_at": max(one.seen_at for one in members),
            "members": tuple(one.key for one in members),
            "jobs": len({one.job_id for one in members}),
            "only_user": users.pop() if alone else "",
            "nodes": tuple(nodes),
        }
    )


def _within(found: Sequence[Failure], numbers: Policy) -> list[Failure]:
    """The latest of the failures (in order of time) that lie close enough together and are of enough jobs."""
    window = timedelta(seconds=numbers.incident_window_s)
    jobs: dict[str, int] = {}
    first, best = 0, (0, 0)
    for last, failure in enumerate(found):
        jobs[failure.job_id] = jobs.get(failure.job_id, 0) + 1
        while found[first].at < failure.at - window:
            gone = found[first].job_id
            jobs[gone] -= 1
            if not jobs[gone]:
                del jobs[gone]
            first += 1
        if len(jobs) >= numbers.incident_jobs:
            best = (first, last + 1)
    return list(found[best[0] : best[1]])


def _holds(
    cause: tuple[IncidentKind, str],
    found: Sequence[Failure],
    groups: Mapping[tuple[IncidentKind, str], Sequence[Failure]],
    look: ClusterLook,
) -> bool:
    kind, name = cause
    if kind is IncidentKind.SWITCH:
        nodes = set(look.switches[name])
        going_on = sum(1 for one in look.running if nodes & set(one))
        rivals = [len(more) for (what, other), more in groups.items() if what is kind and other != name]
        return going_on < len(found) and len(found) > max(rivals, default=0) and not _one_node(found)
    if kind is IncidentKind.MAINTENANCE:
        return True
    return not _one_node(found)


def _one_node(found: Sequence[Failure]) -> bool:
    """All of them ran on one and the same node: then it is the node, not something shared by many."""
    known = [set(one.nodes) for one in found if one.nodes]
    return bool(known) and bool(set.intersection(*known))


# ------------------------------------------------------------------------------------------------ closing


def _close(after: dict[str, Incident], look: ClusterLook, now: datetime, numbers: Policy) -> None:
    for incident in [one for one in after.values() if one.is_open]:
        if incident.kind is IncidentKind.SLURMCTLD:
            quiet_since, wait_s = incident.back_at, RETURN_S
        else:
            quiet_since, wait_s = incident.last_at, float(numbers.incident_close_s)
        if quiet_since is None or (now - quiet_since).total_seconds() < wait_s:
            continue
        why = f"slurmctld has answered for {wait_s:g} s" if incident.back_at else f"no more of it for {wait_s:g} s"
        after[incident.id] = incident.model_copy(update={"closed_at": now, "closed_by": "relight", "close_reason": why})
