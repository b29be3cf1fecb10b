"""Failures and incidents of a cluster: what the sweep compares, what it found, and whose turn it is while one is open.

Comparing and permits lock the same row, the cluster's: no permit is given between a failure and the incident it opens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, RowMapping, delete, insert, or_, select, update

from activities.audit import timeline
from activities.audit.records import PermitRequest, ToldFailure
from activities.audit.tables import KEY, failures, incidents, permits
from activities.audit.text import name
from activities.contracts import EventKind, NewEvent
from recovery.incident_effects import holds_off, paces
from recovery.incident_records import ClusterLook, Failure, Incident
from recovery.incidents import REMEMBERED, correlate
from recovery.policy_numbers import Policy
from recovery.records import Action

STALE_TURN = timedelta(minutes=2)
"""Whoever did not come for its turn so long ago will not come any more."""


# ------------------------------------------------------------------------------------------------ failures


def tell(connection: Connection, cluster: str, found: Iterable[Failure]) -> None:
    """Writes failures down. Of one that stands there already, what is new is added; when it was first seen stays."""
    for failure in found:
        this = (
            (failures.c.cluster == cluster)
            & (failures.c.job_id == failure.job_id)
            & (failures.c.life_id == failure.life_id)
            & (failures.c.attempt == failure.attempt)
        )
        stored = connection.execute(select(failures.c.record).where(this)).scalar()
        if stored is None:
            connection.execute(
                insert(failures).values(
                    cluster=cluster,
                    job_id=failure.job_id,
                    life_id=failure.life_id,
                    attempt=failure.attempt,
                    seen_at=failure.seen_at,
                    correlated_at=None,
                    record=failure.model_dump(mode="json"),
                )
            )
            continue
        known = Failure.model_validate(stored)
        merged = failure.model_copy(
            update={
                "seen_at": known.seen_at,
                "nodes": failure.nodes or known.nodes,
                "signs": failure.signs or known.signs,
                "user": failure.user or known.user,
            }
        )
        if merged != known:
            connection.execute(update(failures).where(this).values(record=merged.model_dump(mode="json")))


def told(connection: Connection, cluster: str, job_id: str, life_id: int, attempt: int) -> ToldFailure | None:
    row = connection.execute(
        select(failures.c.seen_at, failures.c.correlated_at).where(
            failures.c.cluster == cluster,
            failures.c.job_id == job_id,
            failures.c.life_id == life_id,
            failures.c.attempt == attempt,
        )
    ).first()
    return None if row is None else ToldFailure(seen_at=row.seen_at, correlated=row.correlated_at is not None)


def waits(connection: Connection, cluster: str) -> bool:
    """Whether a failure waits to be compared."""
    query = select(failures.c.job_id).where(failures.c.cluster == cluster, failures.c.correlated_at.is_(None))
    return connection.execute(query.limit(1)).first() is not None


def restarted_nodes(connection: Connection, cluster: str, since: datetime) -> set[str]:
    """Nodes of running attempts that relight ended by its own restart since then."""
    query = (
        select(failures.c.record)
        .join(permits, (permits.c.cluster == failures.c.cluster) & (permits.c.job_id == failures.c.job_id))
        .where(
            failures.c.cluster == cluster,
            permits.c.action == Action.RESTART.value,
            permits.c.granted_at > since,
            permits.c.granted_at >= failures.c.seen_at,
        )
    )
    found = [Failure.model_validate(record) for record in connection.execute(query).scalars()]
    return {node for failure in found if not failure.state.is_final for node in failure.nodes}


# ------------------------------------------------------------------------------------------------ the sweep's part


def compare(
    connection: Connection, cluster: str, began: datetime, look: ClusterLook, now: datetime, numbers: Policy
) -> tuple[Incident, ...]:
    """Compares the failures of the last hour, writes what changed, and gives it. The cluster's row is locked.

    `began`: when this sweep began to look; what was seen before that has now been compared.
    """
    recent = now - REMEMBERED
    rows = connection.execute(
        select(failures.c.record).where(failures.c.cluster == cluster, failures.c.seen_at > recent)
    ).scalars()
    known = _read(connection, cluster, or_(incidents.c.closed_at.is_(None), incidents.c.closed_at > recent))
    found = [Failure.model_validate(record) for record in rows]
    changed = correlate([one for one in found if one.at > recent], look, known, now, numbers)
    before = {one.id: one for one in known}
    for incident in changed:
        _save(connection, cluster, incident, is_new=incident.id not in before)
    _tell_people(connection, cluster, changed, before, now)
    connection.execute(
        update(failures)
        .where(failures.c.cluster == cluster, failures.c.correlated_at.is_(None), failures.c.seen_at < began)
        .values(correlated_at=now)
    )
    connection.execute(delete(failures).where(failures.c.cluster == cluster, failures.c.seen_at < now - 2 * REMEMBERED))
    return changed


def _save(connection: Connection, cluster: str, incident: Incident, *, is_new: bool) -> None:
    values: dict[str, Any] = {
        "kind": incident.kind.value,
        "cause": incident.cause,
        "opened_at": incident.opened_at,
        "last_at": incident.last_at,
        "closed_at": incident.closed_at,
        "jobs": incident.jobs,
        "summary": incident.summary,
        "record": incident.model_dump(mode="json"),
    }
    if is_new:
        connection.execute(insert(incidents).values(cluster=cluster, incident_id=incident.id, turns={}, **values))
        return
    this = (incidents.c.cluster == cluster) & (incidents.c.incident_id == incident.id)
    connection.execute(update(incidents).where(this).values(**values))


def _tell_people(
    connection: Connection, cluster: str, changed: Sequence[Incident], before: dict[str, Incident], now: datetime
) -> None:
    """One row of the cluster's log when an incident opens, one when it closes."""
    events = []
    for incident in changed:
        if incident.id not in before:
            events.append(_event(cluster, incident, "opened", incident.summary, now))
        if not incident.is_open:
            why = f"closed by {incident.closed_by}: {incident.close_reason} ({incident.summary})"
            events.append(_event(cluster, incident, "closed", why, now))
    if events:
        timeline.append(connection, cluster, "", None, events, "", "", {}, ())


def _event(cluster: str, incident: Incident, word: str, text: str, now: datetime) -> NewEvent:
    return NewEvent(
        key=f"{cluster}:incident:{incident.id}:{word}",
        kind=EventKind.INCIDENT,
        at=now,
        summary=f"incident {incident.id}: {text}",
        by=incident.closed_by or "relight",
        body=incident.without_members().model_dump(mode="json") | {"event": word},
    )


# ------------------------------------------------------------------------------------------------ reading, closing


def _read(connection: Connection, cluster: str, which: Any) -> list[Incident]:
    query = select(incidents.c.record).where(incidents.c.cluster == cluster, which)
    rows = connection.execute(query.order_by(incidents.c.opened_at, incidents.c.incident_id)).scalars()
    return [Incident.model_validate(record) for record in rows]


def open_ones(connection: Connection, cluster: str) -> tuple[Incident, ...]:
    return tuple(_read(connection, cluster, incidents.c.closed_at.is_(None)))


def listed(connection: Connection, cluster: str, include_closed: bool, limit: int) -> list[Incident]:
    """The newest first."""
    query = select(incidents.c.record).where(incidents.c.cluster == cluster)
    if not include_closed:
        query = query.where(incidents.c.closed_at.is_(None))
    query = query.order_by(incidents.c.opened_at.desc(), incidents.c.incident_id).limit(limit)
    return [Incident.model_validate(record) for record in connection.execute(query).scalars()]


def close(
    connection: Connection, cluster: str, incident_id: str, by: str, reason: str, now: datetime
) -> Incident | None:
    """Closes it by a person's word; one that is closed already stays as it is. None: there is none of that id."""
    found = _read(connection, cluster, incidents.c.incident_id == incident_id)
    if not found:
        return None
    incident = found[0]
    if not incident.is_open:
        return incident
    closed = incident.model_copy(
        update={"closed_at": now, "closed_by": by, "close_reason": reason or "no reason given"}
    )
    _save(connection, cluster, closed, is_new=False)
    _tell_people(connection, cluster, [closed], {incident.id: incident}, now)
    return closed


# ------------------------------------------------------------------------------------------------ turns


def held_off(connection: Connection, request: PermitRequest) -> str:
    """Why nothing is restarted now because of an incident; empty: it may be."""
    reasons = (
        [holds_off(one, request.now) for one in open_ones(connection, request.cluster)] if not request.forced else []
    )
    return next((reason for reason in reasons if reason), "")


def turn(connection: Connection, request: PermitRequest) -> tuple[Incident, datetime] | None:
    """When it is this step's turn, where an open incident paces it; asked again, it keeps its turn."""
    if request.forced or request.pace_s <= 0:
        return None
    rows = connection.execute(
        select(incidents).where(incidents.c.cluster == request.cluster, incidents.c.closed_at.is_(None))
    ).mappings()
    for row in rows.all():
        incident = Incident.model_validate(row["record"])
        if paces(incident, request.affected):
            return incident, _turn_of(connection, request, row)
    return None


def _turn_of(connection: Connection, request: PermitRequest, row: RowMapping) -> datetime:
    now = request.now
    stored = {key: datetime.fromisoformat(at) for key, at in row["turns"].items()}
    turns = {key: at for key, at in stored.items() if at > now - STALE_TURN}
    key = name(request.step_key, KEY)
    mine = turns.get(key)
    if mine is None:
        after_last = max(turns.values()) + timedelta(seconds=request.pace_s) if turns else now
        mine = max(now, after_last)
        if request.last_call is not None:
            mine = max(now, min(mine, request.last_call))
        turns[key] = mine
        this = (incidents.c.cluster == request.cluster) & (incidents.c.incident_id == row["incident_id"])
        values = {one: at.isoformat() for one, at in turns.items()}
        connection.execute(update(incidents).where(this).values(turns=values))
    return mine
