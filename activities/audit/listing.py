"""Reads the store across jobs, as lists, counts and reports need it: pages, sums, what is new. Changes nothing.

Pages are found by id and never by offset: the thousandth page costs what the first one does.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, and_, desc, false, func, or_, select

from activities.audit import lives as life_rows
from activities.audit.records import Event, Fault, JobCount, JobFilter, JobRow, Moved, NodeCount
from activities.audit.tables import attempts, events, lives, suspicions, watched
from activities.audit.timeline import event_of


def page(connection: Connection, wanted: JobFilter, before: int | None, limit: int) -> list[JobRow]:
    query = life_rows.listed().where(*_wanted(wanted)).limit(limit)
    if before is not None:
        query = query.where(lives.c.id < before)
    return [life_rows.job_row(row) for row in connection.execute(query).mappings()]


def count(connection: Connection, wanted: JobFilter) -> int:
    return connection.execute(select(func.count()).select_from(lives).where(*_wanted(wanted))).scalar() or 0


def counts(connection: Connection) -> list[JobCount]:
    kinds = (lives.c.cluster, lives.c.state, lives.c.phase, lives.c.mode, lives.c.paused)
    query = select(*kinds, func.count().label("jobs")).where(lives.c.closed_at.is_(None)).group_by(*kinds)
    return [JobCount(**row) for row in connection.execute(query).mappings()]


def _wanted(wanted: JobFilter) -> list[ColumnElement[bool]]:
    column = lives.c
    found: list[ColumnElement[bool]] = []
    exact = (
        (column.cluster, wanted.cluster),
        (column.user_name, wanted.user),
        (column.partition_name, wanted.partition),
        (column.mode, wanted.mode),
    )
    found += [where == value for where, value in exact if value]
    if not wanted.closed:
        found.append(column.closed_at.is_(None))
    if wanted.state:
        found.append(_in_state(wanted.state))
    if wanted.fault:
        any_one = attempts.alias("any_one")
        had = select(any_one.c.number).where(
            any_one.c.life_id == lives.c.id, any_one.c.fault_class == wanted.fault.lower()
        )
        found.append(had.exists())
    if wanted.text.strip():
        found.append(_says(wanted.text.strip()))
    return found


def _in_state(state: str) -> ColumnElement[bool]:
    if state.lower() == "paused":
        return lives.c.paused.is_(True)
    if state.lower() == "stopped":
        return or_(lives.c.stopped.is_(True), lives.c.state == "STOPPED")
    return or_(lives.c.state == state.upper(), lives.c.phase == state.lower())


def _says(text: str) -> ColumnElement[bool]:
    """Job ids and users are plain words; a name is searched for anywhere, whatever its capitals."""
    cluster, found, number = text.rpartition("-")
    whole = and_(lives.c.cluster == cluster, lives.c.job_id.startswith(number, autoescape=True)) if found else false()
    return or_(
        lives.c.job_id.startswith(text, autoescape=True),
        lives.c.user_name == text,
        func.lower(lives.c.job_name).contains(text.lower(), autoescape=True),
        whole,
    )


# ------------------------------------------------------------------------------------------------ the log


def newest_event(connection: Connection) -> int:
    return connection.execute(select(func.max(events.c.id))).scalar() or 0


def events_after(connection: Connection, after_id: int, limit: int) -> list[Event]:
    query = select(events).where(events.c.id > after_id).order_by(events.c.id).limit(limit)
    return [event_of(row) for row in connection.execute(query).mappings()]


def recent(
    connection: Connection, clusters: Sequence[str], kinds: Sequence[str], since: datetime, limit: int
) -> list[Event]:
    column = events.c
    found: list[Any] = []
    for cluster in clusters:  # by the index of cluster, kind and time
        for kind in kinds:
            query = select(events).where(column.cluster == cluster, column.kind == kind, column.at >= since)
            found += connection.execute(query.order_by(desc(column.at), desc(column.id)).limit(limit)).mappings()
    found.sort(key=lambda row: (row["at"], row["id"]), reverse=True)
    return [event_of(row) for row in found[:limit]]


def moved(connection: Connection, since: datetime | None, limit: int) -> list[Moved]:
    column = watched.c
    query = select(column.cluster, column.job_id, column.step_at).where(column.step_at.is_not(None))
    if since is not None:
        query = query.where(column.step_at > since)
    return [Moved(**row) for row in connection.execute(query.order_by(desc(column.step_at)).limit(limit)).mappings()]


# ------------------------------------------------------------------------------------------------ reports


def faults(connection: Connection, clusters: Sequence[str], since: datetime, limit: int) -> list[Fault]:
    query = (
        select(
            lives.c.cluster,
            lives.c.job_id,
            attempts.c.number.label("attempt"),
            attempts.c.fault_class,
            attempts.c.signature,
            attempts.c.end_time.label("at"),
            attempts.c.record,
        )
        .join(lives, lives.c.id == attempts.c.life_id)
        .where(
            lives.c.cluster.in_(clusters),
            attempts.c.end_time >= since,
            attempts.c.fault_class.not_in(("", "none")),
        )
        .order_by(desc(attempts.c.end_time), desc(lives.c.id))
        .limit(limit)
    )
    return [
        Fault(**{**row, "by_relight": row["record"].get("restarted_by") == "relight"})
        for row in connection.execute(query).mappings()
    ]


def suspected_nodes(connection: Connection, clusters: Sequence[str], since: datetime, limit: int) -> list[NodeCount]:
    column = suspicions.c
    query = (
        select(
            column.cluster,
            column.node,
            func.count().label("suspicions"),
            func.count(func.distinct(column.life_id)).label("jobs"),
        )
        .where(column.cluster.in_(clusters), column.at >= since)
        .group_by(column.cluster, column.node)
        .order_by(desc("suspicions"), column.cluster, column.node)
        .limit(limit)
    )
    return [NodeCount(**row) for row in connection.execute(query).mappings()]
