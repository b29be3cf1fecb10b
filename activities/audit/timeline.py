"""The append-only log of a job's life, and its attempts.

Events are inserted once, by their key, and never touched again: no statement here changes or removes one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, RowMapping, func, insert, select, update

from activities.audit import lives as life_rows
from activities.audit.records import Event, JobRow
from activities.audit.tables import CLUSTER, JOB_ID, KEY, attempts, events, lives
from activities.audit.text import name
from activities.audit.trouble import KeyTaken, UnknownLife
from activities.contracts import EventKind, NewEvent
from recovery.records import Attempt, JobState

_WAITING = ("waiting_permit", "waiting_approval")
"""Phases in which a row says what is waited for."""


def append(
    connection: Connection,
    cluster: str,
    job_id: str,
    life_id: int | None,
    new: Sequence[NewEvent],
    workflow_id: str,
    run_id: str,
    changes: Mapping[str, Any],
    attempts_now: Sequence[Attempt],
) -> int:
    now = datetime.now(UTC)
    life: RowMapping | None = None
    if life_id is not None:
        # The lock keeps one life's events in the order of their ids, so that reading on by id misses none.
        life = life_rows.lock(connection, life_id)
        if (life["cluster"], life["job_id"]) != (name(cluster, CLUSTER), name(job_id, JOB_ID)):
            raise UnknownLife(f"life {life_id} is of job {life['cluster']}/{life['job_id']}, not of {cluster}/{job_id}")
    fresh = unwritten(connection, life_id, new)
    insert_rows(connection, cluster, job_id, life_id, fresh, workflow_id, run_id, now)
    if life is not None:
        values = {**changes, "updated_at": now}
        for kind, column in ((EventKind.FINDING, "last_finding"), (EventKind.ADVICE, "last_advice")):
            summaries = [event.summary for event in fresh if event.kind == kind]
            if summaries:
                values[column] = summaries[-1]
        for attempt in sorted(attempts_now, key=lambda one: one.number):
            save_attempt(connection, life["id"], attempt, now)
            values |= _of_latest(attempt, values.get("restarts", life["restarts"]))
        connection.execute(update(lives).where(lives.c.id == life["id"]).values(**values))
    return len(fresh)


def insert_rows(
    connection: Connection,
    cluster: str,
    job_id: str,
    life_id: int | None,
    fresh: Sequence[NewEvent],
    workflow_id: str,
    run_id: str,
    now: datetime,
) -> None:
    if not fresh:
        return
    common = {"cluster": cluster, "job_id": job_id, "life_id": life_id, "recorded_at": now,
              "workflow_id": workflow_id, "run_id": run_id}  # fmt: skip
    connection.execute(
        insert(events),
        [
            {
                **common,
                "event_key": event.key,
                "kind": event.kind,
                "at": event.at,
                "by_whom": event.by,
                "summary": event.summary,
                "attempt": event.attempt,
                "body": event.body,
            }
            for event in fresh
        ],
    )


def unwritten(connection: Connection, life_id: int | None, new: Sequence[NewEvent]) -> list[NewEvent]:
    """Those of the events whose key is new, each key once."""
    by_key = {name(event.key, KEY): event for event in reversed(new)}
    if not by_key:
        return []
    rows = connection.execute(select(events.c.event_key, events.c.life_id).where(events.c.event_key.in_(by_key)))
    owners: dict[str, int | None] = {row.event_key: row.life_id for row in rows}
    for key, owner in owners.items():
        if owner != life_id:
            raise KeyTaken(f"event key {key!r} stands in the log of life {owner}, so life {life_id} cannot use it")
    return [by_key[key] for key in dict.fromkeys(name(event.key, KEY) for event in new) if key not in owners]


def save_attempt(connection: Connection, life_id: int, attempt: Attempt, now: datetime) -> None:
    values = {
        "state": attempt.state.value,
        "submit_time": attempt.submit_time,
        "start_time": attempt.start_time,
        "end_time": attempt.end_time,
        "last_step": attempt.last_step,
        "last_checkpoint": attempt.last_checkpoint,
        "fault_class": attempt.fault_class.value if attempt.fault_class else "",
        "signature": attempt.signature,
        "record": attempt.model_dump(mode="json"),
        "updated_at": now,
    }
    this = (attempts.c.life_id == life_id) & (attempts.c.number == attempt.number)
    if connection.execute(select(attempts.c.number).where(this)).first() is None:
        connection.execute(insert(attempts).values(life_id=life_id, number=attempt.number, **values))
    else:
        connection.execute(update(attempts).where(this).values(**values))


def _of_latest(attempt: Attempt, restarts: int) -> dict[str, Any]:
    """What the newest attempt tells of its life. Its submit time is accounting's word: not settled."""
    if attempt.number < restarts:
        return {}
    told: dict[str, Any] = {}
    if attempt.state is not JobState.UNKNOWN:
        told["state"] = attempt.state.value
    if attempt.number > restarts:
        told["restarts"] = attempt.number
        told["submit_settled"] = False
    return told


def read(
    connection: Connection, cluster: str, job_id: str, life_id: int | None, after_id: int, limit: int
) -> list[Event]:
    query = select(events).where(events.c.cluster == cluster, events.c.job_id == job_id, events.c.id > after_id)
    if life_id is not None:
        query = query.where(events.c.life_id == life_id)
    return [event_of(row) for row in connection.execute(query.order_by(events.c.id).limit(limit)).mappings()]


def last_of_kind(connection: Connection, cluster: str, kind: str) -> Event | None:
    """The newest row of the kind that belongs to the cluster and to no job."""
    query = select(events).where(events.c.cluster == cluster, events.c.kind == kind, events.c.job_id == "")
    row = connection.execute(query.order_by(events.c.id.desc()).limit(1)).mappings().first()
    return None if row is None else event_of(row)


def with_waits(connection: Connection, rows: Sequence[JobRow]) -> list[JobRow]:
    """The rows, with what those jobs wait for that wait for a permit or a yes."""
    waiting = [row.life_id for row in rows if row.phase in _WAITING]
    if not waiting:
        return list(rows)
    mine = events.c.life_id.in_(waiting) & (events.c.kind == EventKind.WAITS)
    newest = select(func.max(events.c.id)).where(mine).group_by(events.c.life_id)
    query = select(events.c.life_id, events.c.summary).where(events.c.id.in_(newest))
    told = {row.life_id: row.summary for row in connection.execute(query)}
    return [
        row.model_copy(update={"waits": told.get(row.life_id, "")}) if row.phase in _WAITING else row for row in rows
    ]


def by_key(connection: Connection, key: str) -> Event | None:
    row = connection.execute(select(events).where(events.c.event_key == key)).mappings().first()
    return None if row is None else event_of(row)


def attempts_of(connection: Connection, life_id: int) -> tuple[Attempt, ...]:
    query = select(attempts.c.record).where(attempts.c.life_id == life_id).order_by(attempts.c.number)
    return tuple(Attempt.model_validate(record) for record in connection.execute(query).scalars())


def event_of(row: RowMapping) -> Event:
    return Event(key=row["event_key"], by=row["by_whom"], **{key: row[key] for key in Event.model_fields if key in row})
