"""The table `watched`: which jobs the sweep looks at, what it saw last and how far it has read.

Workflows add and remove rows, the sweep only updates them: a row that was removed meanwhile stays removed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Update, bindparam, delete, insert, select, update
from sqlalchemy.dialects.mysql import insert as mysql_insert

from activities.audit.records import Watched
from activities.audit.tables import JOB_ID, watched
from activities.audit.text import name

_RENAMED = {"user": "user_name", "cursor": "position"}  # field of the record → column
_FIELDS = {column: field for field, column in _RENAMED.items()}
_SWEEPS = ("seen", "position", "attempt", "first_step", "first_step_at", "step", "step_at", "total_steps",
           "checkpoint", "checkpoint_at")  # fmt: skip
_THIS_ROW = ("cluster", "job_id", "life_id")


def _values(row: Watched) -> dict[str, Any]:
    return {_RENAMED.get(key, key): getattr(row, key) for key in Watched.model_fields}


def one(connection: Connection, cluster: str, job_id: str) -> Watched | None:
    found = rows(connection, cluster, job_id)
    return found[0] if found else None


def rows(connection: Connection, cluster: str, job_id: str | None = None) -> list[Watched]:
    query = select(watched).where(watched.c.cluster == cluster)
    if job_id is not None:
        query = query.where(watched.c.job_id == job_id)
    found = connection.execute(query.order_by(watched.c.job_id))
    return [
        Watched.model_validate({key: row[_RENAMED.get(key, key)] for key in Watched.model_fields})
        for row in found.mappings()
    ]


def watch(connection: Connection, row: Watched) -> None:
    this = (watched.c.cluster == row.cluster) & (watched.c.job_id == row.job_id)
    stored = connection.execute(select(watched.c.life_id).where(this).with_for_update()).first()
    values = _values(row)
    if stored is None:
        connection.execute(insert(watched).values(**values))
        return
    if stored.life_id == row.life_id:  # then what the sweep has written stays, unless the caller knows it
        values = {key: value for key, value in values.items() if key not in _SWEEPS or value not in (None, "")}
    connection.execute(update(watched).where(this).values(**values))


def unwatch(connection: Connection, cluster: str, job_id: str, life_id: int | None) -> None:
    query = delete(watched).where(watched.c.cluster == cluster, watched.c.job_id == job_id)
    connection.execute(query if life_id is None else query.where(watched.c.life_id == life_id))


def save_cursors(connection: Connection, cluster: str, changed: Sequence[Watched]) -> None:
    """Writes the sweep's part of the rows that are still there and still of the same life."""
    if connection.dialect.name == "mysql":
        _save_in_one_statement(connection, cluster, changed)
        return
    connection.execute(
        _UPDATE, [{to: getattr(row, field) for field, to in _PARAMETERS} | {"to_cluster": cluster} for row in changed]
    )


_PARAMETERS = [(_FIELDS.get(column, column), f"to_{column}") for column in (*_THIS_ROW, *_SWEEPS)]


def _update() -> Update:
    where = [watched.c[key] == bindparam(f"to_{key}", type_=watched.c[key].type) for key in _THIS_ROW]
    return update(watched).where(*where).values({key: bindparam(f"to_{key}") for key in _SWEEPS})


_UPDATE = _update()


def _save_in_one_statement(connection: Connection, cluster: str, changed: Sequence[Watched]) -> None:
    """MySQL's driver sends single updates one by one, and an upsert in one piece.

    The upsert must not bring a removed row back, so the rows that exist are locked first and others left out.
    """
    ids = [row.job_id for row in changed]
    here = select(watched.c.job_id, watched.c.life_id).where(watched.c.cluster == cluster, watched.c.job_id.in_(ids))
    alive = {(row.job_id, row.life_id) for row in connection.execute(here.with_for_update())}
    values = [
        _values(row) | {"cluster": cluster} for row in changed if (name(row.job_id, JOB_ID), row.life_id) in alive
    ]
    if values:
        upsert = mysql_insert(watched)
        connection.execute(upsert.on_duplicate_key_update({key: upsert.inserted[key] for key in _SWEEPS}), values)
