"""Reads what is compared with histories, and inserts rows that got lost, under their own keys and moments.

Nothing that stands there is ever changed or removed: what is there already stays as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, func, insert, select, text

from activities.audit import lives as life_rows
from activities.audit import timeline
from activities.audit.records import Event, Life, RunOnRecord
from activities.audit.tables import events, lives
from activities.contracts import NewEvent
from recovery.records import Attempt, JobView


def by_keys(connection: Connection, keys: Collection[str]) -> dict[str, Event]:
    """Rows by their keys, as the store names them."""
    if not keys:
        return {}
    found = connection.execute(select(events).where(events.c.event_key.in_(keys))).mappings()
    return {row["event_key"]: timeline.event_of(row) for row in found}


def of_run(
    connection: Connection, cluster: str, job_id: str, run_id: str, kinds: Collection[str], after_id: int, limit: int
) -> list[Event]:
    query = select(events).where(
        events.c.cluster == cluster,
        events.c.job_id == job_id,
        events.c.run_id == run_id,
        events.c.kind.in_(kinds),
        events.c.id > after_id,
    )
    return [timeline.event_of(row) for row in connection.execute(query.order_by(events.c.id).limit(limit)).mappings()]


def lives_since(
    connection: Connection, cluster: str, job_id: str | None, since: datetime, after_id: int, limit: int
) -> list[Life]:
    """Lives about which something was written since then, by their ids."""
    query = select(lives).where(lives.c.cluster == cluster, lives.c.updated_at >= since, lives.c.id > after_id)
    if job_id is not None:
        query = query.where(lives.c.job_id == job_id)
    return [life_rows.life_of(row) for row in connection.execute(query.order_by(lives.c.id).limit(limit)).mappings()]


def runs_of(connection: Connection, life: Life) -> list[RunOnRecord]:
    """Workflow runs that wrote about the life."""
    query = (
        select(events.c.workflow_id, events.c.run_id, func.count().label("rows"), func.max(events.c.at).label("newest"))
        .where(events.c.life_id == life.life_id, events.c.run_id != "")
        .group_by(events.c.workflow_id, events.c.run_id)
    )
    found = connection.execute(query).all()
    return [RunOnRecord(workflow_id=row[0], run_id=row[1], rows=row[2], newest=row[3]) for row in found]


def restore(
    connection: Connection,
    cluster: str,
    job_id: str,
    life_id: int,
    lost: Sequence[NewEvent],
    attempts_lost: Sequence[Attempt],
    workflow_id: str,
    run_id: str,
) -> tuple[int, int]:
    """Inserts what is not there; tells how many rows and how many attempts that were. Raises UnknownLife, KeyTaken."""
    life_rows.lock(connection, life_id)
    now = datetime.now(UTC)
    fresh = timeline.unwritten(connection, life_id, lost)
    timeline.insert_rows(connection, cluster, job_id, life_id, fresh, workflow_id, run_id, now)
    known = {one.number for one in timeline.attempts_of(connection, life_id)}
    missing = [one for one in attempts_lost if one.number not in known]
    for attempt in missing:
        timeline.save_attempt(connection, life_id, attempt, now)
    return len(fresh), len(missing)


def restore_life(
    connection: Connection,
    life_id: int,
    view: JobView,
    workflow_id: str,
    run_id: str,
    opened_at: datetime,
    standing: Mapping[str, Any],
    closed: tuple[datetime, str] | None,
) -> bool:
    """Inserts a life that is missing, under its own id; False: that cannot be, other lives of the job leave no room."""
    if connection.execute(select(lives.c.id).where(lives.c.id == life_id).with_for_update()).first() is not None:
        return True
    rows = connection.execute(
        select(lives.c.id, lives.c.number).where(lives.c.cluster == view.cluster, lives.c.job_id == view.job_id)
    ).all()
    later = [row.number for row in rows if row.id > life_id]
    earlier = [row.number for row in rows if row.id < life_id]
    number = min(later) - 1 if later else max(earlier, default=0) + 1
    if number in earlier:
        return False
    values = life_rows.new_values(number, view, workflow_id, run_id, opened_at)
    ended = {"closed_at": closed[0], "close_reason": closed[1]} if closed is not None else {}
    connection.execute(insert(lives).values(id=life_id, **values | dict(standing) | ended))
    if connection.dialect.name == "postgresql":  # its counter does not notice ids that it has not given out
        counter = "pg_get_serial_sequence('lives', 'id')"
        connection.execute(text(f"SELECT setval({counter}, GREATEST(:id, nextval({counter})))"), {"id": life_id})
    return True
