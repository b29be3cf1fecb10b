"""Nodes that relight takes out of service: who may be drained now, what is drained, and what has come back.

The caps hold for the whole cluster: the caller's transaction holds the cluster's row, so askers are answered one after
the other, each knowing what was granted before.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, func, insert, or_, select, update

from activities.audit.permits import lock_cluster
from activities.audit.records import Drain, DrainGrant
from activities.audit.tables import clearings, drains
from activities.audit.trouble import KeyTaken
from recovery.policy_numbers import nodes_of_share

_HOUR = timedelta(hours=1)


def grant(connection: Connection, request: DrainGrant) -> tuple[Drain | None, str]:
    """The drain to carry out, or None with the reason why not. Asked again by the same step: the same drain."""
    lock_cluster(connection, request.cluster, request.now)
    mine = (drains.c.step_key == request.step_key) & (drains.c.node == request.node)
    held = connection.execute(select(drains).where(mine)).mappings().first()
    if held is not None:
        if (held["cluster"], held["life_id"]) != (request.cluster, request.life_id):
            raise KeyTaken(f"step key {request.step_key!r} has drained {request.node} for another job already")
        return _drain(dict(held)), ""
    here = drains.c.cluster == request.cluster
    standing = set(connection.execute(select(drains.c.node).where(here, drains.c.ended_at.is_(None))).scalars())
    if request.node in standing:
        return None, f"relight has drained {request.node} already"
    limit = max(1, nodes_of_share(request.max_share, request.cluster_nodes))
    if request.cluster_nodes <= 0 or len(standing) >= limit:
        return None, (
            f"relight holds {len(standing)} nodes of {request.cluster} drained, of {request.cluster_nodes}: "
            f"max_drained_share {request.max_share:g} allows {limit}"
        )
    # What the gate refused took no node out of service, and counts for nothing.
    recent = here & (drains.c.granted_at > request.now - _HOUR)
    recent &= or_(drains.c.drained_at.is_not(None), drains.c.ended_at.is_(None))
    count = connection.execute(select(func.count()).select_from(drains).where(recent)).scalar() or 0
    if count >= request.max_per_hour:
        return None, f"{count} nodes of {request.cluster} were drained within the hour, as many as max_drains_per_hour"
    connection.execute(
        insert(drains).values(
            cluster=request.cluster,
            node=request.node,
            step_key=request.step_key,
            life_id=request.life_id,
            job_id=request.job_id,
            signature=request.signature,
            how=request.how,
            granted_at=request.now,
            until=request.now + timedelta(seconds=request.expiry_s),
            drained_at=None,
            ended_at=None,
            ended_by="",
            end_reason="",
        )
    )
    return _drain(dict(connection.execute(select(drains).where(mine)).mappings().one())), ""


def carried_out(connection: Connection, drain_id: int, now: datetime) -> None:
    query = update(drains).where(drains.c.id == drain_id, drains.c.drained_at.is_(None))
    connection.execute(query.values(drained_at=now))


def end(connection: Connection, drain_id: int, by: str, reason: str, now: datetime) -> bool:
    """Ends the drain; False when it had ended before."""
    query = update(drains).where(drains.c.id == drain_id, drains.c.ended_at.is_(None))
    return bool(connection.execute(query.values(ended_at=now, ended_by=by, end_reason=reason)).rowcount)


def standing(connection: Connection, cluster: str | None = None) -> list[Drain]:
    """Drains that have not ended, oldest first; `cleared` is the last clearing after the drain was granted."""
    last = (
        select(clearings.c.cluster, clearings.c.node, func.max(clearings.c.id).label("id"))
        .group_by(clearings.c.cluster, clearings.c.node)
        .subquery()
    )
    query = (
        select(drains, clearings.c.at, clearings.c.by_whom, clearings.c.reason)
        .outerjoin(last, (last.c.cluster == drains.c.cluster) & (last.c.node == drains.c.node))
        .outerjoin(clearings, (clearings.c.id == last.c.id) & (clearings.c.at > drains.c.granted_at))
        .where(drains.c.ended_at.is_(None))
        .order_by(drains.c.id)
    )
    if cluster is not None:
        query = query.where(drains.c.cluster == cluster)
    return [_drain(dict(row)) for row in connection.execute(query).mappings()]


def of_node(connection: Connection, cluster: str, node: str, limit: int = 20) -> list[Drain]:
    """Drains of one node, also those that have ended, newest first."""
    query = select(drains).where(drains.c.cluster == cluster, drains.c.node == node)
    found = connection.execute(query.order_by(drains.c.id.desc()).limit(limit)).mappings()
    return [_drain(dict(row)) for row in found]


def _drain(row: Mapping[str, Any]) -> Drain:
    told = {key: row[key] for key in Drain.model_fields if key in row}
    cleared: dict[str, Any] = {}
    if row.get("at") is not None:
        cleared = {"cleared_at": row["at"], "cleared_by": row["by_whom"], "clear_reason": row["reason"]}
    return Drain(drain_id=row["id"], **told, **cleared)
