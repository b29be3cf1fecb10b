"""Gives permits: the caps that hold for a whole cluster, whoever asks and from however many processes.

The caller holds a transaction in which the cluster's row is locked, so askers are answered one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, insert, select, update

from activities.audit import exclusions, incidents
from activities.audit.records import PermitRequest
from activities.audit.tables import CLUSTER, JOB_ID, clusters, permits
from activities.audit.text import name
from activities.audit.trouble import KeyTaken
from activities.contracts import PermitAnswer
from recovery.incident_effects import explaining
from recovery.incident_records import Incident
from recovery.records import Action

SLOT = timedelta(minutes=10)
"""A permit counts as one of the restarts at once until it is released, and never longer than this."""

ASK_AGAIN = timedelta(seconds=10)
"""Slots and exclusions may end early, so nobody who waits for one is sent away for longer."""

_HOUR = timedelta(hours=1)
_COMES_BACK = (Action.RESTART, Action.GUARD, Action.RELEASE)
"""Actions after which a job starts again; stopping or arming one takes no slot."""


def permit(connection: Connection, request: PermitRequest) -> PermitAnswer:
    lock_cluster(connection, request.cluster, request.now)
    held = connection.execute(
        select(permits.c.cluster, permits.c.job_id, permits.c.nodes).where(permits.c.step_key == request.step_key)
    ).first()
    if held is not None:
        if (held.cluster, held.job_id) != (name(request.cluster, CLUSTER), name(request.job_id, JOB_ID)):
            raise KeyTaken(
                f"step key {request.step_key!r} has a permit for job {held.job_id} on {held.cluster} already, "
                f"so job {request.job_id} on {request.cluster} cannot use it"
            )
        return _granted(request.nodes, held.nodes, "granted before")
    away = incidents.held_off(connection, request)
    if away:
        return _wait(request.now + ASK_AGAIN, away)
    asked, shared = request.nodes, _shared_fault(connection, request)
    if shared is not None:
        request = request.model_copy(update={"nodes": ()})
    paced = incidents.turn(connection, request)
    if paced is not None and paced[1] > request.now:
        return _wait(paced[1], f"takes its turn: {paced[0].summary} (incident {paced[0].id})")
    state = _situation(connection, request)
    room = exclusions.room(connection, request)
    answer = (
        _restarts_at_once(request, state)
        or _actions_per_hour(request, state)
        or _nodes_per_hour(request, state)
        or _excluded_share(request, room)
    )
    if answer is not None:
        return answer
    connection.execute(
        insert(permits).values(
            cluster=request.cluster,
            step_key=request.step_key,
            job_id=request.job_id,
            action=request.action.value,
            nodes=list(room.nodes),
            certain=sorted(set(room.nodes) & set(request.certain)),
            node_count=request.node_count,
            granted_at=request.now,
            slot_until=request.now + SLOT if request.action in _COMES_BACK else None,
            released_at=None,
            excluded_until=request.now + timedelta(seconds=request.exclusion_s) if room.nodes else None,
        )
    )
    if shared is None:
        return _granted(asked, room.nodes, room.reason)
    return _granted(asked, room.nodes, f"{shared.summary} (incident {shared.id})", incident=shared.id)


def _granted(asked: Sequence[str], given: Sequence[str], reason: str, *, incident: str = "") -> PermitAnswer:
    left_out = tuple(node for node in asked if node not in given)
    withheld = bool(asked) and not given
    return PermitAnswer(granted=True, withheld=withheld, left_out=left_out, reason=reason, incident=incident)


def _shared_fault(connection: Connection, request: PermitRequest) -> Incident | None:
    """The incident for which the step's exclusions are withheld: it opened after the step was decided."""
    if not request.nodes or request.forced or not request.withhold:
        return None
    return explaining(incidents.open_ones(connection, request.cluster), request.affected)


def release(connection: Connection, step_key: str, now: datetime) -> None:
    connection.execute(
        update(permits)
        .where(permits.c.step_key == step_key, permits.c.released_at.is_(None))
        .values(released_at=now, slot_until=None)
    )


def void(connection: Connection, step_key: str, now: datetime) -> None:
    """Nothing was changed by the step: no job comes back and no node is avoided. It still was an action of the hour."""
    unused: dict[str, Any] = {"nodes": [], "node_count": 0, "excluded_until": None}
    mine = permits.c.step_key == step_key
    connection.execute(update(permits).where(mine).values(released_at=now, slot_until=None, **unused))


def lock_cluster(connection: Connection, cluster: str, now: datetime) -> dict[str, Any]:
    """The cluster's row, created when missing and locked until the transaction ends."""
    query = select(clusters).where(clusters.c.cluster == cluster).with_for_update()
    row = connection.execute(query).mappings().first()
    if row is None:  # two who find it missing collide on the key, and the loser's transaction starts again
        connection.execute(insert(clusters).values(cluster=cluster, facts={}, updated_at=now))
        row = connection.execute(query).mappings().one()
    return dict(row)


@dataclass(frozen=True)
class _Situation:
    """What counts now: ends of the slots, grants of the last hour (oldest first), nodes of the jobs that came back by
    them."""

    slots: Sequence[datetime]
    grants: Sequence[datetime]
    nodes: Sequence[tuple[datetime, int]]


def _situation(connection: Connection, request: PermitRequest) -> _Situation:
    now = request.now
    query = (
        select(
            permits.c.granted_at,
            permits.c.slot_until,
            permits.c.action,
            permits.c.node_count,
        )
        .where(permits.c.cluster == request.cluster, permits.c.granted_at > now - _HOUR)
        .order_by(permits.c.granted_at)
    )
    found = connection.execute(query).all()
    return _Situation(
        slots=sorted(row.slot_until for row in found if row.slot_until is not None and row.slot_until > now),
        grants=[row.granted_at for row in found],
        nodes=[
            (row.granted_at, row.node_count) for row in found if row.action in {action.value for action in _COMES_BACK}
        ],
    )


def _restarts_at_once(request: PermitRequest, state: _Situation) -> PermitAnswer | None:
    limit = request.max_restarts_at_once
    if limit is None or request.action not in _COMES_BACK or len(state.slots) < limit:
        return None
    if limit <= 0:
        return _denied("the policy allows no restarts (max_restarts_at_once is 0)")
    return _wait(
        min(request.now + ASK_AGAIN, state.slots[0]),
        f"{len(state.slots)} restarts are under way on {request.cluster}, as many as max_restarts_at_once allows",
    )


def _actions_per_hour(request: PermitRequest, state: _Situation) -> PermitAnswer | None:
    limit = request.max_actions_per_hour
    if limit is None or len(state.grants) < limit:
        return None
    if limit <= 0:
        return _denied("the policy allows no actions (max_actions_per_hour is 0)")
    return _wait(
        state.grants[len(state.grants) - limit] + _HOUR,
        f"{len(state.grants)} actions within an hour on {request.cluster}, as many as max_actions_per_hour allows",
    )


def _nodes_per_hour(request: PermitRequest, state: _Situation) -> PermitAnswer | None:
    """A job that is larger than the limit by itself is restarted when no other was within the hour."""
    limit = request.max_restarted_nodes_per_hour
    taken = sum(count for _, count in state.nodes)
    if limit is None or request.action not in _COMES_BACK or taken == 0 or taken + request.node_count <= limit:
        return None
    return _wait(
        min(granted for granted, count in state.nodes if count) + _HOUR,
        f"jobs of {taken} nodes were restarted within an hour on {request.cluster}; "
        f"{request.node_count} more would pass max_restarted_nodes_per_hour ({limit})",
    )


def _excluded_share(request: PermitRequest, room: exclusions.Room) -> PermitAnswer | None:
    if room.granted:
        return None
    if room.hopeless:
        return _denied(room.reason)
    again = request.now + ASK_AGAIN
    return _wait(min(again, room.next_end) if room.next_end is not None else again, room.reason)


def _wait(until: datetime, reason: str) -> PermitAnswer:
    return PermitAnswer(granted=False, until=until, reason=reason)


def _denied(reason: str) -> PermitAnswer:
    return PermitAnswer(granted=False, reason=reason)
