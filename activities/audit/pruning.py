"""Deletes lives that ended long ago, with everything that belongs to them. The only place where rows of the log go.

Every statement here is small; a life goes last, so that what was interrupted is found again and finished.
"""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ColumnElement, Connection, Select, Table, delete, func, select

from activities.audit import incidents as incident_rows
from activities.audit import lives as life_rows
from activities.audit.records import Life
from activities.audit.tables import (
    attempts,
    drains,
    events,
    failures,
    incidents,
    lives,
    permits,
    suspicions,
    watched,
)
from recovery.records import Record


class Belongings(Record):
    """What belongs to one life."""

    events: int = 0
    attempts: int = 0
    others: int = 0
    """Suspicions, drains, permits and told failures."""
    text_bytes: int = 0
    run_ids: tuple[str, ...] = ()
    shares_id: bool = False
    """Another life of the same job id is on record."""


def ended(connection: Connection, cluster: str, before: datetime, after_id: int, limit: int) -> list[Life]:
    """Lives that ended before that time, by their ids."""
    query = select(lives).where(lives.c.cluster == cluster, lives.c.closed_at < before, lives.c.id > after_id)
    return [life_rows.life_of(row) for row in connection.execute(query.order_by(lives.c.id).limit(limit)).mappings()]


def still_needed(connection: Connection, life: Life, now: datetime) -> str:
    """Why the life must stay; empty: it may go."""
    if connection.execute(select(func.max(lives.c.id))).scalar() == life.life_id:
        return "it is the newest of all, and ids are counted from it"
    counts = (suspicions.c.life_id == life.life_id) & (suspicions.c.expires_at > now)
    if _there(connection, select(suspicions.c.id).where(counts)):
        return "its suspicions of nodes still count"
    if _there(connection, select(drains.c.id).where(drains.c.life_id == life.life_id, drains.c.ended_at.is_(None))):
        return "a node that was drained for it is not back yet"
    own = (watched.c.cluster == life.cluster) & (watched.c.job_id == life.job_id) & (watched.c.life_id == life.life_id)
    if _there(connection, select(watched.c.life_id).where(own)):
        return "it is watched"
    members = (member for one in incident_rows.open_ones(connection, life.cluster) for member in one.members)
    if any(member.partition(":")[0] == life.job_id for member in members):
        return "it is part of an open incident"
    return ""


def belongings(connection: Connection, life: Life) -> Belongings:
    own = events.c.life_id == life.life_id
    count, size = connection.execute(
        select(func.count(), func.coalesce(func.sum(func.length(events.c.body) + func.length(events.c.summary)), 0))
        .select_from(events)
        .where(own)
    ).one()
    runs = connection.execute(select(events.c.run_id).where(own, events.c.run_id != "").distinct()).scalars()
    same = (lives.c.cluster == life.cluster) & (lives.c.job_id == life.job_id) & (lives.c.id != life.life_id)
    return Belongings(
        events=count,
        attempts=_count(connection, attempts, attempts.c.life_id == life.life_id),
        others=sum(_count(connection, table, condition) for table, condition in _others(life)),
        text_bytes=int(size),
        run_ids=tuple(sorted(runs)),
        shares_id=_there(connection, select(lives.c.id).where(same)),
    )


def delete_events(connection: Connection, life: Life, before: datetime, limit: int) -> int:
    """Deletes some of its rows; how many it were. None goes of a life that was opened again meanwhile."""
    if not _may_go(connection, life, before):
        return 0
    query = select(events.c.id).where(events.c.life_id == life.life_id).order_by(events.c.id).limit(limit)
    ids = list(connection.execute(query).scalars())
    if ids:
        connection.execute(delete(events).where(events.c.id.in_(ids)))
    return len(ids)


def delete_life(connection: Connection, life: Life, before: datetime) -> bool:
    """Deletes the life itself and all that is left of it; False: it has rows again, or was opened again."""
    if not _may_go(connection, life, before) or _there(
        connection, select(events.c.id).where(events.c.life_id == life.life_id)
    ):
        return False
    own = ((attempts, attempts.c.life_id == life.life_id), (lives, lives.c.id == life.life_id))
    for table, condition in (*_others(life), *own):
        connection.execute(delete(table).where(condition))
    return True


def delete_of_cluster(connection: Connection, cluster: str, before: datetime, limit: int, *, dry: bool) -> int:
    """Deletes (or, dry, counts) closed incidents and some of the cluster's own rows that are older; how many."""
    newest = select(func.max(events.c.id)).where(events.c.cluster == cluster, events.c.job_id == "")
    last_ones = list(connection.execute(newest.group_by(events.c.kind)).scalars())
    rows = (events.c.cluster == cluster) & (events.c.job_id == "") & (events.c.at < before) & events.c.life_id.is_(None)
    over = (incidents.c.cluster == cluster) & (incidents.c.closed_at < before)
    old = rows & events.c.id.not_in(last_ones)
    if dry:
        return _count(connection, events, old) + _count(connection, incidents, over)
    ids = list(connection.execute(select(events.c.id).where(old).limit(limit)).scalars())
    if ids:
        connection.execute(delete(events).where(events.c.id.in_(ids)))
    return len(ids) + connection.execute(delete(incidents).where(over)).rowcount


def _others(life: Life) -> tuple[tuple[Table, ColumnElement[bool]], ...]:
    steps = permits.c.step_key.startswith(f"{life.cluster}-{life.job_id}:{life.life_id}:", autoescape=True)
    return (
        (suspicions, suspicions.c.life_id == life.life_id),
        (drains, drains.c.life_id == life.life_id),
        (permits, (permits.c.cluster == life.cluster) & (permits.c.job_id == life.job_id) & steps),
        (
            failures,
            (failures.c.cluster == life.cluster)
            & (failures.c.job_id == life.job_id)
            & (failures.c.life_id == life.life_id),
        ),
    )


def _may_go(connection: Connection, life: Life, before: datetime) -> bool:
    query = select(lives.c.closed_at).where(lives.c.id == life.life_id).with_for_update()
    closed_at = connection.execute(query).scalar()
    return closed_at is not None and closed_at < before


def _count(connection: Connection, table: Table, condition: ColumnElement[bool]) -> int:
    return int(connection.execute(select(func.count()).select_from(table).where(condition)).scalar_one())


def _there(connection: Connection, query: Select[tuple[int]]) -> bool:
    return connection.execute(query.limit(1)).first() is not None
