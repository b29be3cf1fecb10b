"""The suspect ledger: which attempts of which jobs had which of their own nodes among the suspects.

Entries are kept for ever and count until they expire or the node is cleared. Nothing is decided here; what a
repetition means stands in `recovery/recurrence.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, and_, func, insert, or_, select, update

from activities.audit import lives as life_rows
from activities.audit.records import Cleared
from activities.audit.tables import NODE, attempts, clearings, drains, suspicions
from activities.audit.text import name
from recovery.records import Attempt, Nodes, Verdict
from recovery.recurrence import Suspicion

MOST = 100
"""Entries that one look at a job is told, the newest first."""

_PIECE = 500  # names in one query: SQLite takes at most 32,766 values, older ones 999


def enter(
    connection: Connection, life_id: int, attempt: int, verdict: Verdict, now: datetime, until: datetime
) -> Nodes:
    """Enters the verdict's suspects; those that are no nodes of that attempt are left out. Again: updates them."""
    suspects = {suspect.node: suspect for suspect in verdict.suspects}
    life = life_rows.lock(connection, life_id)
    query = select(attempts.c.record).where(attempts.c.life_id == life_id, attempts.c.number == attempt)
    record = connection.execute(query).scalar()
    own = set(Attempt.model_validate(record).nodes) if record else set[str]()
    entered = sorted(own & set(suspects))
    for node in entered:
        suspect = suspects[node]
        told: dict[str, Any] = {
            "fault_class": verdict.fault_class.value,
            "signature": verdict.signature,
            "confidence": suspect.confidence.value,
            "trusted": suspect.trusted,
            "how": suspect.how,
        }
        this = and_(suspicions.c.life_id == life_id, suspicions.c.attempt == attempt, suspicions.c.node == node)
        if connection.execute(select(suspicions.c.id).where(this)).first() is not None:
            connection.execute(update(suspicions).where(this).values(**told))
            continue
        key = {"cluster": life["cluster"], "node": node, "life_id": life_id, "attempt": attempt}
        who = {"job_id": life["job_id"], "user_name": life["user_name"], "at": now, "expires_at": until}
        connection.execute(insert(suspicions).values(**key, **who, **told))
    return tuple(entered)


def standing(
    connection: Connection, cluster: str, nodes: Collection[str] | None, now: datetime, limit: int = MOST
) -> tuple[Suspicion, ...]:
    """Entries that count now, newest first: neither expired nor older than the node's last clearing."""
    last = (
        select(clearings.c.node.label("node"), func.max(clearings.c.at).label("at"))
        .where(clearings.c.cluster == cluster)
        .group_by(clearings.c.node)
        .subquery()
    )
    base = (
        select(suspicions)
        .outerjoin(last, last.c.node == suspicions.c.node)
        .where(
            suspicions.c.cluster == cluster,
            suspicions.c.expires_at > now,
            or_(last.c.at.is_(None), suspicions.c.at > last.c.at),
        )
        .order_by(suspicions.c.at.desc(), suspicions.c.id.desc())
        .limit(limit)
    )
    found: list[Mapping[str, Any]] = []
    for piece in _pieces(nodes):
        query = base if piece is None else base.where(suspicions.c.node.in_(piece))
        found += [dict(row) for row in connection.execute(query).mappings()]
    found.sort(key=lambda row: (row["at"], row["id"]), reverse=True)
    return tuple(
        Suspicion(user=row["user_name"], **{key: row[key] for key in Suspicion.model_fields if key in row})
        for row in found[:limit]
    )


def clear(connection: Connection, cluster: str, node: str, by: str, reason: str, now: datetime) -> None:
    """It is later than everything that is on record of the node, whatever this host's clock says."""
    known = [
        connection.execute(select(func.max(moment)).where(table.c.cluster == cluster, table.c.node == node)).scalar()
        for table, moment in ((suspicions, suspicions.c.at), (drains, drains.c.granted_at))
    ]
    at = max([now, *(moment + timedelta(milliseconds=1) for moment in known if moment is not None)])
    connection.execute(insert(clearings).values(cluster=cluster, node=node, at=at, by_whom=by, reason=reason))


def cleared(connection: Connection, cluster: str, nodes: Collection[str] | None) -> dict[str, Cleared]:
    """The last clearing of each of the nodes (None: of all) that were ever cleared."""
    found: dict[str, Cleared] = {}
    for piece in _pieces(nodes):
        query = select(clearings).where(clearings.c.cluster == cluster)
        if piece is not None:
            query = query.where(clearings.c.node.in_(piece))
        for row in connection.execute(query.order_by(clearings.c.at, clearings.c.id)).mappings():
            found[row["node"]] = Cleared(node=row["node"], at=row["at"], by=row["by_whom"], reason=row["reason"])
    return found


def _pieces(nodes: Collection[str] | None) -> list[list[str] | None]:
    if nodes is None:
        return [None]
    names = sorted({name(node, NODE) for node in nodes})
    return [names[start : start + _PIECE] for start in range(0, len(names), _PIECE)]
