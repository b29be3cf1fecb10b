"""Reads recommendations and what became of their jobs, for the comparison of the two.

Reads in small pieces along indexes, the newest first, so that it stays quick in a log of millions; changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from pydantic import ValidationError
from sqlalchemy import Connection, RowMapping, and_, desc, or_, select

from activities.audit.database import Database
from activities.audit.tables import attempts, events, lives
from activities.contracts import EventKind
from recovery.hindsight import GRACE, submitted_again
from recovery.hindsight_records import Story, Submission, Told
from recovery.records import Advice, Attempt

PIECE = 500
"""Rows asked for at once: each statement stays well below the time one may take."""

MOST_ADVICE = 20_000
"""Recommendations read at most, the newest."""

MOST_LIVES = 200_000
"""Submissions looked through at most, the newest."""

ADVICE_COLUMNS = (events.c.id, events.c.life_id, events.c.at, events.c.body)
_L = lives.c
LIFE_COLUMNS = (_L.id, _L.cluster, _L.job_id, _L.user_name, _L.job_name, _L.partition_name, _L.first_submit,
                _L.first_seen, _L.stopped)  # fmt: skip


def stories(database: Database, cluster: str, since: datetime, most: int) -> tuple[list[Story], bool]:
    """Every life that was advised upon since then, and whether there were more than `most` recommendations."""
    told, truncated = _told(database, cluster, since, most)
    ids = sorted(told)
    found: list[Story] = []
    for piece in _pieces(ids):
        rows = {row["id"]: row for row in database.read(lambda c, piece=piece: _lives(c, piece))}  # type: ignore[misc]
        ran = database.read(lambda c, piece=piece: _attempts(c, piece))  # type: ignore[misc]
        said = database.read(lambda c, piece=piece: _answers(c, piece))  # type: ignore[misc]
        found += [
            Story(
                life=_submission(rows[life]),
                stopped=rows[life]["stopped"],
                attempts=tuple(ran.get(life, ())),
                told=tuple(_answered(one, said.get(life, [])) for one in told[life]),
            )
            for life in piece
            if life in rows
        ]
    return _with_copies(database, cluster, since, found), truncated


def _told(database: Database, cluster: str, since: datetime, most: int) -> tuple[dict[int, list[Told]], bool]:
    found: dict[int, list[Told]] = {}
    before: tuple[datetime, int] | None = None
    read = 0
    while read < most:
        limit = min(PIECE, most - read)
        rows = database.read(
            lambda c, before=before, limit=limit: _advice(c, cluster, since, before, limit)  # type: ignore[misc]
        )
        if not rows:
            return found, False
        read += len(rows)
        before = (rows[-1]["at"], rows[-1]["id"])
        for row in rows:
            if row["life_id"] is not None and (advice := _readable(row["body"])) is not None:
                found.setdefault(row["life_id"], []).append(Told(at=row["at"], advice=advice))
    assert before is not None
    return found, bool(database.read(lambda c: _advice(c, cluster, since, before, 1)))


def _advice(
    connection: Connection, cluster: str, since: datetime, before: tuple[datetime, int] | None, limit: int
) -> Sequence[RowMapping]:
    query = select(*ADVICE_COLUMNS).where(
        events.c.cluster == cluster, events.c.kind == EventKind.ADVICE, events.c.at >= since
    )
    if before is not None:
        moment, number = before
        query = query.where(
            events.c.at <= moment, or_(events.c.at < moment, and_(events.c.at == moment, events.c.id < number))
        )
    return connection.execute(query.order_by(desc(events.c.at), desc(events.c.id)).limit(limit)).mappings().all()


def _readable(body: object) -> Advice | None:
    """An advice as it was stored; None for one of a newer relight, or one that was too long to be kept whole."""
    try:
        return Advice.model_validate(body)
    except ValidationError:
        return None


def _lives(connection: Connection, ids: Sequence[int]) -> Sequence[RowMapping]:
    return connection.execute(select(*LIFE_COLUMNS).where(lives.c.id.in_(ids))).mappings().all()


def _attempts(connection: Connection, ids: Sequence[int]) -> dict[int, list[Attempt]]:
    query = select(attempts.c.life_id, attempts.c.record).where(attempts.c.life_id.in_(ids))
    found: dict[int, list[Attempt]] = {}
    for row in connection.execute(query.order_by(attempts.c.life_id, attempts.c.number)):
        found.setdefault(row.life_id, []).append(Attempt.model_validate(row.record))
    return found


def _answers(connection: Connection, ids: Sequence[int]) -> dict[int, list[tuple[datetime, int, bool]]]:
    """What people answered in approve mode: when, of which attempt, yes or no."""
    query = select(events.c.life_id, events.c.at, events.c.attempt, events.c.summary).where(
        events.c.life_id.in_(ids), events.c.kind == EventKind.OPERATOR
    )
    found: dict[int, list[tuple[datetime, int, bool]]] = {}
    for row in connection.execute(query.order_by(events.c.id)):
        word = row.summary.split(" ", 1)[0]
        if word in {"approved", "rejected"}:
            found.setdefault(row.life_id, []).append((row.at, row.attempt, word == "approved"))
    return found


def _answered(told: Told, answers: Sequence[tuple[datetime, int, bool]]) -> Told:
    """With the answer it got. A parked job is one restart further on when it is answered."""
    number = told.advice.restart_count
    yes = next((yes for at, attempt, yes in answers if at >= told.at and attempt in {number, number + 1}), None)
    return told.model_copy(update={"approved": yes}) if told.advice.needs_approval else told


def _with_copies(database: Database, cluster: str, since: datetime, found: Sequence[Story]) -> list[Story]:
    """The stories, each with the job that was submitted in its place."""
    users = {story.life.user for story in found}
    later = [one for one in _submissions(database, cluster, since - GRACE) if one.user in users]
    again = submitted_again(found, later)
    first: dict[int, Attempt] = {}
    for piece in _pieces(sorted({one.life_id for one in again.values()})):
        ran = database.read(lambda c, piece=piece: _attempts(c, piece))  # type: ignore[misc]
        first |= {life: each[0] for life, each in ran.items()}
    return [
        story.model_copy(update={"again": copy, "again_first": first.get(copy.life_id)})
        if (copy := again.get(story.life.life_id)) is not None
        else story
        for story in found
    ]


def _submissions(database: Database, cluster: str, since: datetime) -> list[Submission]:
    """Lives seen since then. Their ids rise with time: read backwards until one was seen before."""
    found: list[Submission] = []
    before: int | None = None
    while len(found) < MOST_LIVES:
        rows = database.read(lambda c, before=before: _newest_lives(c, cluster, before))  # type: ignore[misc]
        found += [_submission(row) for row in rows if row["first_seen"] >= since]
        if len(rows) < PIECE or rows[-1]["first_seen"] < since - timedelta(hours=1):
            break
        before = rows[-1]["id"]
    return found


def _newest_lives(connection: Connection, cluster: str, before: int | None) -> Sequence[RowMapping]:
    query = select(*LIFE_COLUMNS).where(lives.c.cluster == cluster)
    if before is not None:
        query = query.where(lives.c.id < before)
    return connection.execute(query.order_by(desc(lives.c.id)).limit(PIECE)).mappings().all()


def _submission(row: RowMapping) -> Submission:
    return Submission(
        life_id=row["id"],
        cluster=row["cluster"],
        job_id=row["job_id"],
        user=row["user_name"],
        name=row["job_name"],
        partition=row["partition_name"],
        submitted=row["first_submit"] or row["first_seen"],
    )


def _pieces(ids: Sequence[int]) -> Iterator[Sequence[int]]:
    for start in range(0, len(ids), PIECE):
        yield ids[start : start + PIECE]
