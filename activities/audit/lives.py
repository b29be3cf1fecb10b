"""Tells the lives of a job id apart and keeps their state.

Slurm gives ids out again: after its state was lost, or when the numbers run over. A life must not inherit the budgets
of another, nor lose its own when the job is requeued. Nothing in here decides anything about a job.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, RowMapping, Select, delete, desc, func, insert, select, update

from activities.audit.records import JobRow, Life
from activities.audit.tables import attempts, lives, permits, watched
from activities.audit.text import words
from activities.audit.trouble import UnknownLife
from recovery.records import AttemptRow, JobView


def is_same_life(
    stored: Mapping[str, Any] | RowMapping,
    submits: Collection[datetime],
    view: JobView,
    accounting: Sequence[AttemptRow] = (),
) -> bool:
    """True when `view` shows the job of the stored life, False when its id was given to another job.

    `submits` are all submit times known of the stored life. Slurm raises the restart count at the beginning of a
    requeue and sets a new submit time at its end, when the nodes are free: between the two, the new count is seen
    with the old time, and such a time is stored as not settled.
    """
    if view.uid >= 0 and stored["uid"] >= 0 and view.uid != stored["uid"]:
        return False
    if view.submit_time is not None and view.submit_time in submits:
        return True  # one id is never given out twice within a second
    if view.restarts < stored["restarts"] or words(view.name, 255) != stored["job_name"]:
        return False
    if view.submit_time is None or stored["submit_time"] is None:
        return True
    if view.restarts == stored["restarts"]:
        return not stored["submit_settled"] and stored["closed_at"] is None
    if view.submit_time < stored["submit_time"]:
        return False
    # Requeued since we last saw it. Accounting, where there is one, holds a row for each of its attempts, so one of
    # the last restarts+1 rows must be known; earlier rows may belong to an earlier life.
    own = [row.submit_time for row in accounting[-(view.restarts + 1) :]]
    complete = len(own) == view.restarts + 1
    return not complete or any(submit in submits for submit in own)


def open_life(
    connection: Connection,
    view: JobView,
    accounting: Sequence[AttemptRow],
    workflow_id: str,
    run_id: str,
    now: datetime,
) -> Life:
    stored = _latest(connection, view.cluster, view.job_id, lock=True)
    if stored is None or not is_same_life(stored, _submits(connection, stored), view, accounting):
        if stored is not None and stored["closed_at"] is None:
            close_life(connection, stored["id"], "its id was given to another job", now)
        number = 1 if stored is None else stored["number"] + 1
        return _new_life(connection, number, view, workflow_id, run_id, now)
    settled = not view.completing
    same_count = view.restarts == stored["restarts"]
    changes: dict[str, Any] = {
        "restarts": view.restarts,
        "submit_time": view.submit_time or stored["submit_time"],
        "submit_settled": settled or (same_count and stored["submit_settled"]),
        "state": view.state.value,
        "job_name": view.name,
        "account": view.account,
        "partition_name": view.partition,
        "updated_at": now,
        "closed_at": None,
        "close_reason": "",
    }
    if run_id != stored["run_id"]:  # not a repetition of the same activity
        changes |= {"workflow_id": workflow_id, "run_id": run_id, "opened_runs": stored["opened_runs"] + 1}
    connection.execute(update(lives).where(lives.c.id == stored["id"]).values(**changes))
    return get(connection, stored["id"])


def _new_life(connection: Connection, number: int, view: JobView, workflow_id: str, run_id: str, now: datetime) -> Life:
    result = connection.execute(insert(lives).values(**new_values(number, view, workflow_id, run_id, now)))
    created = result.inserted_primary_key
    assert created is not None
    return get(connection, created[0])


def new_values(number: int, view: JobView, workflow_id: str, run_id: str, now: datetime) -> dict[str, Any]:
    """The columns of a life that begins."""
    return {
        "cluster": view.cluster,
        "job_id": view.job_id,
        "number": number,
        "raw_id": view.raw_id,
        "uid": view.uid,
        "user_name": view.user,
        "account": view.account,
        "job_name": view.name,
        "partition_name": view.partition,
        "first_seen": now,
        "first_submit": view.submit_time,
        "submit_time": view.submit_time,
        "submit_settled": not view.completing,
        "restarts": view.restarts,
        "state": view.state.value,
        "phase": "",
        "mode": "",
        "paused": False,
        "paused_by": "",
        "stopped": False,
        "last_finding": "",
        "last_advice": "",
        "workflow_id": workflow_id,
        "run_id": run_id,
        "opened_runs": 1,
        "updated_at": now,
        "closed_at": None,
        "close_reason": "",
    }


def close_life(connection: Connection, life_id: int, reason: str, now: datetime) -> None:
    """Closes the life, stops watching it and ends the exclusions it had permits for. Closing twice changes nothing."""
    row = lock(connection, life_id)
    if row["closed_at"] is None:
        connection.execute(
            update(lives).where(lives.c.id == life_id).values(closed_at=now, close_reason=reason, updated_at=now)
        )
    connection.execute(
        delete(watched).where(
            watched.c.cluster == row["cluster"], watched.c.job_id == row["job_id"], watched.c.life_id == life_id
        )
    )
    connection.execute(
        update(permits)
        .where(
            permits.c.cluster == row["cluster"],
            permits.c.job_id == row["job_id"],
            permits.c.granted_at <= now,
            permits.c.excluded_until > now,
        )
        .values(excluded_until=now)
    )


def lock(connection: Connection, life_id: int) -> RowMapping:
    """The row of a life, locked until the transaction ends."""
    row = connection.execute(select(lives).where(lives.c.id == life_id).with_for_update()).mappings().first()
    if row is None:
        raise UnknownLife(f"the audit store has no life {life_id}: open the job first, in this database")
    return row


def get(connection: Connection, life_id: int) -> Life:
    row = connection.execute(select(lives).where(lives.c.id == life_id)).mappings().first()
    if row is None:
        raise UnknownLife(f"the audit store has no life {life_id}: open the job first, in this database")
    return life_of(row)


def latest(connection: Connection, cluster: str, job_id: str) -> Life | None:
    row = _latest(connection, cluster, job_id, lock=False)
    return None if row is None else life_of(row)


def jobs(
    connection: Connection,
    cluster: str | None,
    user: str | None,
    phase: str | None,
    include_closed: bool,
    limit: int,
    offset: int,
) -> list[JobRow]:
    query = listed().limit(limit).offset(offset)
    if cluster is not None:
        query = query.where(lives.c.cluster == cluster)
    if user is not None:
        query = query.where(lives.c.user_name == user)
    if phase is not None:
        query = query.where(lives.c.phase == phase)
    if not include_closed:
        query = query.where(lives.c.closed_at.is_(None))
    return [job_row(row) for row in connection.execute(query).mappings()]


def listed() -> Select[Any]:
    """Lives as a list shows them, the newest first."""
    watch = watched.c
    last = attempts.alias("last")
    fault = (
        select(last.c.fault_class)
        .where(last.c.life_id == lives.c.id, last.c.fault_class != "")
        .order_by(desc(last.c.number))
        .limit(1)
        .scalar_subquery()
    )
    return (
        select(
            lives,
            func.coalesce(watch.step, attempts.c.last_step).label("step"),
            func.coalesce(watch.checkpoint, attempts.c.last_checkpoint).label("checkpoint"),
            watch.step_at,
            watch.total_steps,
            watch.checkpoint_at,
            func.coalesce(fault, "").label("fault_class"),
        )
        .outerjoin(
            watched,
            (watch.cluster == lives.c.cluster) & (watch.job_id == lives.c.job_id) & (watch.life_id == lives.c.id),
        )
        .outerjoin(attempts, (attempts.c.life_id == lives.c.id) & (attempts.c.number == lives.c.restarts))
        .order_by(desc(lives.c.id))
    )


def job_row(row: RowMapping) -> JobRow:
    return JobRow(
        life_id=row["id"],
        user=row["user_name"],
        name=row["job_name"],
        partition=row["partition_name"],
        attempt=row["restarts"],
        **{key: row[key] for key in JobRow.model_fields if key in row},
    )


def _latest(connection: Connection, cluster: str, job_id: str, *, lock: bool) -> RowMapping | None:
    query = (
        select(lives)
        .where(lives.c.cluster == cluster, lives.c.job_id == job_id)
        .order_by(desc(lives.c.number))
        .limit(1)
    )
    return connection.execute(query.with_for_update() if lock else query).mappings().first()


def _submits(connection: Connection, life: RowMapping) -> set[datetime]:
    rows = connection.execute(select(attempts.c.submit_time).where(attempts.c.life_id == life["id"])).scalars()
    return {submit for submit in (life["first_submit"], life["submit_time"], *rows) if submit is not None}


def life_of(row: RowMapping) -> Life:
    return Life(
        life_id=row["id"],
        user=row["user_name"],
        name=row["job_name"],
        reopened=row["opened_runs"] > 1,
        **{key: row[key] for key in Life.model_fields if key in row},
    )
