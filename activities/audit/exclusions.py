"""Exclusions of a cluster that count now, and how many more a step may make: part of the permit's transaction.

Words of logs and words that no user can write are counted apart, and of the former one user's take a part only: what
one user's jobs print can neither use up what others need nor keep a node in that is known to be bad.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, and_, select, update

from activities.audit.records import Excluded, PermitRequest
from activities.audit.tables import lives, permits
from recovery.policy_numbers import nodes_of_share
from recovery.records import Action, JobState, Nodes

_FINAL = frozenset(state.value for state in JobState if state.is_final)
_AT_REST = frozenset({"finished", "stopped", "left_alone", "closed"})
"""Phases in which relight brings a job that has ended back no more."""


@dataclass(frozen=True)
class Room:
    """What a step may exclude now. Not granted: it has to wait, or never may (`hopeless`)."""

    granted: bool
    nodes: Nodes = ()
    reason: str = ""
    hopeless: bool = False
    next_end: datetime | None = None
    """When the first of the exclusions that count ends by itself."""


def give_up(connection: Connection, cluster: str, job_id: str, nodes: Sequence[str]) -> None:
    """Exclusions of one job that were relaxed: they count no more."""
    mine = (permits.c.cluster == cluster) & (permits.c.job_id == job_id) & permits.c.excluded_until.is_not(None)
    for row in connection.execute(select(permits.c.id, permits.c.nodes).where(mine).with_for_update()).all():
        left = [node for node in row.nodes if node not in nodes]
        if len(left) < len(row.nodes):
            connection.execute(update(permits).where(permits.c.id == row.id).values(nodes=left))


def excluded(connection: Connection, cluster: str | None, now: datetime) -> list[Excluded]:
    """What jobs are kept away from now: of each job and node the exclusion that lasts longest."""
    found: dict[tuple[str, str, str], Excluded] = {}
    for row in _standing(connection, cluster, now):
        for node in row["nodes"]:
            found[(row["cluster"], node, row["job_id"])] = Excluded(
                cluster=row["cluster"],
                node=node,
                job_id=row["job_id"],
                step_key=row["step_key"],
                since=row["granted_at"],
                until=row["excluded_until"],
            )
    return [found[key] for key in sorted(found)]


def room(connection: Connection, request: PermitRequest) -> Room:
    """How many of the nodes that the step wants to exclude fit into the policy's shares."""
    share, wanted = request.max_excluded_share, set(request.nodes)
    if share is None or not wanted:
        return Room(True, request.nodes)
    sure = wanted & set(wanted if request.forced else request.certain)
    if share <= 0:
        return Room(False, reason="the policy allows no exclusions (max_excluded_share is 0)", hopeless=True)
    if request.cluster_nodes <= 0:
        reason = f"the number of nodes of {request.cluster} is not known at the moment"
        return Room(True, (), reason) if _goes_without(request) and not sure else Room(False, reason=reason)
    standing = _standing(connection, request.cluster, request.now)
    found = _fitting(request, sure, wanted - sure, _Counted.of(standing))
    return replace(found, next_end=min((row["excluded_until"] for row in standing), default=None))


@dataclass(frozen=True)
class _Counted:
    """Nodes that are excluded: on words that no user can write, and by whose logs."""

    certain: frozenset[str]
    told: Mapping[str, frozenset[str]]

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]]) -> _Counted:
        certain: set[str] = set()
        told: dict[str, set[str]] = {}
        for row in rows:
            sure = set(row["nodes"]) & set(row["certain"] or ())
            certain |= sure
            told.setdefault(row["user_name"] or "", set()).update(set(row["nodes"]) - sure)
        return cls(frozenset(certain), {user: frozenset(nodes) for user, nodes in told.items()})

    @property
    def all(self) -> frozenset[str]:
        return self.certain.union(*self.told.values())


def _fitting(request: PermitRequest, sure: set[str], told: set[str], counted: _Counted) -> Room:
    assert request.max_excluded_share is not None
    limit = max(1, nodes_of_share(request.max_excluded_share, request.cluster_nodes))  # a small cluster may avoid one
    within = f"the {limit} that max_excluded_share {request.max_excluded_share:g} allows"
    if len(sure) > limit:
        of_all = f"of {request.cluster_nodes} on {request.cluster}"
        return Room(False, reason=f"{len(sure)} nodes to exclude, {of_all}, are more than {within}", hopeless=True)
    if len(counted.certain | sure) > limit and not sure <= counted.certain:
        reason = f"{len(counted.certain)} nodes of {request.cluster} that are known to be bad are excluded already; "
        return Room(False, reason=f"{reason}{len(sure - counted.certain)} more would pass {within}")

    user = request.affected.user
    part = max(1, nodes_of_share(request.max_excluded_per_user, limit)) if user else limit
    everything, mine = set(counted.all | sure), set(counted.told.get(user, ()))
    hopeless = len(told) > part or len(told | sure) > limit  # even if nothing else were excluded
    fit: list[str] = []
    why = ""
    for node in sorted(told):
        if node not in everything and len(everything) >= limit:
            why = f"{len(counted.all)} nodes of {request.cluster} are excluded already, of {within}"
        elif user and node not in mine and len(mine) >= part:
            why = (
                f"jobs of {user} keep {len(mine)} nodes excluded, of the {part} that max_excluded_per_user "
                f"{request.max_excluded_per_user:g} leaves to one user"
            )
        else:
            everything.add(node)
            mine.add(node)
            fit.append(node)
    if why and not (_goes_without(request) or hopeless):
        return Room(False, reason=why)
    if why and request.action is Action.GUARD and not fit and not sure:
        return Room(False, reason=why, hopeless=True)
    return Room(True, tuple(sorted({*fit, *sure})), why)


def _goes_without(request: PermitRequest) -> bool:
    """A job that broke is rather restarted than left alone; one that Slurm brings back by itself needs no step."""
    return request.last_ask and request.action is not Action.GUARD


def _standing(connection: Connection, cluster: str | None, now: datetime) -> list[dict[str, Any]]:
    """Permits whose exclusions count, the last to end last. Those of jobs that have ended count no more; they do again
    when such a job comes back after all."""
    of_the_job = and_(lives.c.cluster == permits.c.cluster, lives.c.job_id == permits.c.job_id)
    query = (
        select(permits, lives.c.user_name, lives.c.state, lives.c.phase, lives.c.closed_at)
        .outerjoin(lives, of_the_job)
        .where(permits.c.excluded_until > now)
        .order_by(permits.c.excluded_until, permits.c.id, lives.c.number)
    )
    if cluster is not None:
        query = query.where(permits.c.cluster == cluster)
    latest = {row["id"]: dict(row) for row in connection.execute(query).mappings()}  # the last life of a job id
    return [row for row in latest.values() if not _has_ended(row)]


def _has_ended(row: Mapping[str, Any]) -> bool:
    return row["closed_at"] is not None or (row["state"] in _FINAL and row["phase"] in _AT_REST)
