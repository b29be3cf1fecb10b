"""The tables of the audit store, as sqlmodel declares them. Queries live beside what they are for, never here.

Column names avoid words that SQL keeps for itself (`user` is the database's user in PostgreSQL), so that a person can
query the tables by hand. A change here needs a migration; a test compares the two on every database.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, cast

from sqlalchemy import BigInteger, Boolean, Column, ForeignKey, Index, Integer, Table, UniqueConstraint
from sqlalchemy.orm import registry
from sqlmodel import Field, SQLModel

from activities.audit.columns import BigId, Count, Exact, Json, Name, Utc, Words

CLUSTER = 64
JOB_ID = 64
KEY = 191  # × 4 bytes of utf8mb4 stays under the 767 bytes that old InnoDB row formats can index
WORKFLOW = 191
NODE = 64  # the longest host name
BODY = 262_144  # an event holds a few findings with 2 kB of evidence each
RECORD = 4_000_000  # lists of nodes must never be cut: 100,000 names fit, and MySQL's MEDIUMTEXT holds 16 MB

# Names and keys are told apart to the letter; MariaDB's default collations would not.
_MYSQL = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}


class AuditTable(SQLModel, registry=registry()):
    """Keeps the tables of the audit store apart from any other sqlmodel tables in the process."""


class LifeRow(AuditTable, table=True):
    """One life of a job id: from its submission until Slurm forgets it, through all its requeues."""

    __tablename__ = "lives"
    __table_args__ = (
        UniqueConstraint("cluster", "job_id", "number", name="uq_lives_job"),
        Index("ix_lives_open", "cluster", "closed_at", "id"),
        _MYSQL,
    )

    id: int | None = Field(sa_column=Column(BigId, primary_key=True))
    cluster: str = Field(sa_column=Column(Name(CLUSTER), nullable=False))
    job_id: str = Field(sa_column=Column(Name(JOB_ID), nullable=False))
    number: int = Field(sa_column=Column(Integer, nullable=False))
    raw_id: int = Field(sa_column=Column(BigInteger, nullable=False))
    uid: int = Field(sa_column=Column(BigInteger, nullable=False))
    user_name: str = Field(sa_column=Column(Words(64), nullable=False))
    account: str = Field(sa_column=Column(Words(128), nullable=False))
    job_name: str = Field(sa_column=Column(Words(255), nullable=False))
    partition_name: str = Field(sa_column=Column(Words(255), nullable=False))
    first_seen: datetime = Field(sa_column=Column(Utc, nullable=False))
    first_submit: datetime | None = Field(sa_column=Column(Utc))
    submit_time: datetime | None = Field(sa_column=Column(Utc))
    submit_settled: bool = Field(sa_column=Column(Boolean, nullable=False))
    restarts: int = Field(sa_column=Column(Integer, nullable=False))
    state: str = Field(sa_column=Column(Words(32), nullable=False))
    phase: str = Field(sa_column=Column(Words(64), nullable=False))
    mode: str = Field(sa_column=Column(Words(16), nullable=False))
    paused: bool = Field(sa_column=Column(Boolean, nullable=False))
    paused_by: str = Field(sa_column=Column(Words(255), nullable=False))
    stopped: bool = Field(sa_column=Column(Boolean, nullable=False))
    last_finding: str = Field(sa_column=Column(Words(500), nullable=False))
    last_advice: str = Field(sa_column=Column(Words(500), nullable=False))
    workflow_id: str = Field(sa_column=Column(Name(WORKFLOW), nullable=False))
    run_id: str = Field(sa_column=Column(Name(64), nullable=False))
    opened_runs: int = Field(sa_column=Column(Integer, nullable=False))
    updated_at: datetime = Field(sa_column=Column(Utc, nullable=False))
    closed_at: datetime | None = Field(sa_column=Column(Utc))
    close_reason: str = Field(sa_column=Column(Words(500), nullable=False))


class AttemptRecord(AuditTable, table=True):
    """One attempt of a life; `record` is the whole Attempt, the other columns are there to be queried."""

    __tablename__ = "attempts"
    __table_args__ = (_MYSQL,)

    life_id: int = Field(
        sa_column=Column(BigId, ForeignKey("lives.id", name="fk_attempts_life"), primary_key=True, autoincrement=False)
    )
    number: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False))
    state: str = Field(sa_column=Column(Words(32), nullable=False))
    submit_time: datetime | None = Field(sa_column=Column(Utc))
    start_time: datetime | None = Field(sa_column=Column(Utc))
    end_time: datetime | None = Field(sa_column=Column(Utc))
    last_step: int | None = Field(sa_column=Column(Count))
    last_checkpoint: int | None = Field(sa_column=Column(Count))
    fault_class: str = Field(sa_column=Column(Words(32), nullable=False))
    signature: str = Field(sa_column=Column(Words(255), nullable=False))
    record: dict[str, Any] = Field(sa_column=Column(Json(RECORD), nullable=False))
    updated_at: datetime = Field(sa_column=Column(Utc, nullable=False))


class EventRow(AuditTable, table=True):
    """One line of the log. Rows are added and never changed; they go only with their whole job, when it is pruned."""

    __tablename__ = "events"
    __table_args__ = (
        UniqueConstraint("event_key", name="uq_events_key"),
        Index("ix_events_life", "life_id", "id"),
        Index("ix_events_job", "cluster", "job_id", "id"),
        Index("ix_events_kind", "cluster", "kind", "at", "id"),
        _MYSQL,
    )

    id: int | None = Field(sa_column=Column(BigId, primary_key=True))
    cluster: str = Field(sa_column=Column(Name(CLUSTER), nullable=False))
    job_id: str = Field(sa_column=Column(Name(JOB_ID), nullable=False))
    life_id: int | None = Field(sa_column=Column(BigId, ForeignKey("lives.id", name="fk_events_life")))
    event_key: str = Field(sa_column=Column(Name(KEY), nullable=False))
    kind: str = Field(sa_column=Column(Words(32), nullable=False))
    at: datetime = Field(sa_column=Column(Utc, nullable=False))
    recorded_at: datetime = Field(sa_column=Column(Utc, nullable=False))
    by_whom: str = Field(sa_column=Column(Words(255), nullable=False))
    summary: str = Field(sa_column=Column(Words(2000), nullable=False))
    attempt: int = Field(sa_column=Column(Integer, nullable=False))
    body: dict[str, Any] = Field(sa_column=Column(Json(BODY), nullable=False))
    workflow_id: str = Field(sa_column=Column(Name(WORKFLOW), nullable=False))
    run_id: str = Field(sa_column=Column(Name(64), nullable=False))


class WatchedRow(AuditTable, table=True):
    """One job that the sweep looks at, with what it last saw, how far it read and how far the job is."""

    __tablename__ = "watched"
    __table_args__ = (_MYSQL,)

    cluster: str = Field(sa_column=Column(Name(CLUSTER), primary_key=True))
    job_id: str = Field(sa_column=Column(Name(JOB_ID), primary_key=True))
    life_id: int = Field(sa_column=Column(BigInteger, nullable=False))
    workflow_id: str = Field(sa_column=Column(Name(WORKFLOW), nullable=False))
    uid: int = Field(sa_column=Column(BigInteger, nullable=False))
    user_name: str = Field(sa_column=Column(Words(64), nullable=False))
    restarts: int = Field(sa_column=Column(Integer, nullable=False))
    stdout: str = Field(sa_column=Column(Exact, nullable=False))
    stderr: str = Field(sa_column=Column(Exact, nullable=False))
    paused: bool = Field(sa_column=Column(Boolean, nullable=False))
    seen: str = Field(sa_column=Column(Exact, nullable=False))
    position: str = Field(sa_column=Column(Exact, nullable=False))  # `cursor` is a word of SQL
    attempt: int | None = Field(sa_column=Column(Integer))
    first_step: int | None = Field(sa_column=Column(Count))
    first_step_at: datetime | None = Field(sa_column=Column(Utc))
    step: int | None = Field(sa_column=Column(Count))
    step_at: datetime | None = Field(sa_column=Column(Utc))
    total_steps: int | None = Field(sa_column=Column(Count))
    checkpoint: int | None = Field(sa_column=Column(Count))
    checkpoint_at: datetime | None = Field(sa_column=Column(Utc))


class ClusterRow(AuditTable, table=True):
    """One cluster. Its row is the lock under which permits are given."""

    __tablename__ = "clusters"
    __table_args__ = (_MYSQL,)

    cluster: str = Field(sa_column=Column(Name(CLUSTER), primary_key=True))
    facts: dict[str, Any] = Field(sa_column=Column(Json(RECORD), nullable=False))
    updated_at: datetime = Field(sa_column=Column(Utc, nullable=False))


class PermitRow(AuditTable, table=True):
    """One permit that was granted."""

    __tablename__ = "permits"
    __table_args__ = (
        UniqueConstraint("step_key", name="uq_permits_step"),
        Index("ix_permits_granted", "cluster", "granted_at"),
        Index("ix_permits_excluded", "cluster", "excluded_until"),
        _MYSQL,
    )

    id: int | None = Field(sa_column=Column(BigId, primary_key=True))
    cluster: str = Field(sa_column=Column(Name(CLUSTER), nullable=False))
    step_key: str = Field(sa_column=Column(Name(KEY), nullable=False))
    job_id: str = Field(sa_column=Column(Name(JOB_ID), nullable=False))
    action: str = Field(sa_column=Column(Words(32), nullable=False))
    nodes: list[str] = Field(sa_column=Column(Json(RECORD), nullable=False))
    certain: list[str] | None = Field(sa_column=Column(Json(RECORD)))  # of them, on a word that no user can write
    node_count: int = Field(sa_column=Column(Integer, nullable=False))
    granted_at: datetime = Field(sa_column=Column(Utc, nullable=False))
    slot_until: datetime | None = Field(sa_column=Column(Utc))  # holds one of the restarts at once until then
    released_at: datetime | None = Field(sa_column=Column(Utc))
    excluded_until: datetime | None = Field(sa_column=Column(Utc))


class SuspicionRow(AuditTable, table=True):
    """One attempt of a job had one of its own nodes among the suspects."""

    __tablename__ = "suspicions"
    __table_args__ = (
        UniqueConstraint("life_id", "attempt", "node", name="uq_suspicions_attempt"),
        Index("ix_suspicions_node", "cluster", "node", "expires_at"),
        _MYSQL,
    )

    id: int | None = Field(sa_column=Column(BigId, primary_key=True))
    cluster: str = Field(sa_column=Column(Name(CLUSTER), nullable=False))
    node: str = Field(sa_column=Column(Name(NODE), nullable=False))
    life_id: int = Field(sa_column=Column(BigId, ForeignKey("lives.id", name="fk_suspicions_life"), nullable=False))
    job_id: str = Field(sa_column=Column(Name(JOB_ID), nullable=False))
    user_name: str = Field(sa_column=Column(Words(64), nullable=False))
    attempt: int = Field(sa_column=Column(Integer, nullable=False))
    fault_class: str = Field(sa_column=Column(Words(32), nullable=False))
    signature: str = Field(sa_column=Column(Words(255), nullable=False))
    confidence: str = Field(sa_column=Column(Words(16), nullable=False))
    trusted: bool = Field(sa_column=Column(Boolean, nullable=False))
    how: str = Field(sa_column=Column(Words(1000), nullable=False))
    at: datetime = Field(sa_column=Column(Utc, nullable=False))
    expires_at: datetime = Field(sa_column=Column(Utc, nullable=False))


class ClearingRow(AuditTable, table=True):
    """A person, a check or the clock said that a node is well: what was suspected before counts no more."""

    __tablename__ = "clearings"
    __table_args__ = (Index("ix_clearings_node", "cluster", "node", "at"), _MYSQL)

    id: int | None = Field(sa_column=Column(BigId, primary_key=True))
    cluster: str = Field(sa_column=Column(Name(CLUSTER), nullable=False))
    node: str = Field(sa_column=Column(Name(NODE), nullable=False))
    at: datetime = Field(sa_column=Column(Utc, nullable=False))
    by_whom: str = Field(sa_column=Column(Words(255), nullable=False))
    reason: str = Field(sa_column=Column(Words(500), nullable=False))


class DrainRow(AuditTable, table=True):
    """One node that relight took out of service, or was allowed to. It counts until it has ended."""

    __tablename__ = "drains"
    __table_args__ = (
        UniqueConstraint("step_key", "node", name="uq_drains_step"),
        Index("ix_drains_open", "cluster", "ended_at"),
        Index("ix_drains_granted", "cluster", "granted_at"),
        _MYSQL,
    )

    id: int | None = Field(sa_column=Column(BigId, primary_key=True))
    cluster: str = Field(sa_column=Column(Name(CLUSTER), nullable=False))
    node: str = Field(sa_column=Column(Name(NODE), nullable=False))
    step_key: str = Field(sa_column=Column(Name(KEY), nullable=False))
    life_id: int = Field(sa_column=Column(BigId, ForeignKey("lives.id", name="fk_drains_life"), nullable=False))
    job_id: str = Field(sa_column=Column(Name(JOB_ID), nullable=False))
    signature: str = Field(sa_column=Column(Words(255), nullable=False))
    how: str = Field(sa_column=Column(Words(1000), nullable=False))
    granted_at: datetime = Field(sa_column=Column(Utc, nullable=False))
    until: datetime = Field(sa_column=Column(Utc, nullable=False))
    drained_at: datetime | None = Field(sa_column=Column(Utc))
    ended_at: datetime | None = Field(sa_column=Column(Utc))
    ended_by: str = Field(sa_column=Column(Words(255), nullable=False))
    end_reason: str = Field(sa_column=Column(Words(500), nullable=False))


class FailureRow(AuditTable, table=True):
    """One attempt that failed, kept for hours so that failures of other jobs can be compared with it."""

    __tablename__ = "failures"
    __table_args__ = (Index("ix_failures_seen", "cluster", "seen_at"), _MYSQL)

    cluster: str = Field(sa_column=Column(Name(CLUSTER), primary_key=True))
    job_id: str = Field(sa_column=Column(Name(JOB_ID), primary_key=True))
    life_id: int = Field(sa_column=Column(BigInteger, primary_key=True, autoincrement=False))
    attempt: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False))
    seen_at: datetime = Field(sa_column=Column(Utc, nullable=False))
    correlated_at: datetime | None = Field(sa_column=Column(Utc))  # a sweep that began after seen_at has compared it
    record: dict[str, Any] = Field(sa_column=Column(Json(RECORD), nullable=False))


class IncidentRow(AuditTable, table=True):
    """One fault that several jobs share; `record` is the whole Incident, `turns` who may restart when."""

    __tablename__ = "incidents"
    __table_args__ = (Index("ix_incidents_closed", "cluster", "closed_at"), _MYSQL)

    cluster: str = Field(sa_column=Column(Name(CLUSTER), primary_key=True))
    incident_id: str = Field(sa_column=Column(Name(64), primary_key=True))
    kind: str = Field(sa_column=Column(Words(32), nullable=False))
    cause: str = Field(sa_column=Column(Words(255), nullable=False))
    opened_at: datetime = Field(sa_column=Column(Utc, nullable=False))
    last_at: datetime = Field(sa_column=Column(Utc, nullable=False))
    closed_at: datetime | None = Field(sa_column=Column(Utc))
    jobs: int = Field(sa_column=Column(Integer, nullable=False))
    summary: str = Field(sa_column=Column(Words(500), nullable=False))
    record: dict[str, Any] = Field(sa_column=Column(Json(RECORD), nullable=False))
    turns: dict[str, Any] = Field(sa_column=Column(Json(RECORD), nullable=False))


def _table(model: type[AuditTable]) -> Table:
    return cast(Table, model.__table__)  # type: ignore[attr-defined]


lives = _table(LifeRow)
attempts = _table(AttemptRecord)
events = _table(EventRow)
watched = _table(WatchedRow)
clusters = _table(ClusterRow)
permits = _table(PermitRow)
suspicions = _table(SuspicionRow)
clearings = _table(ClearingRow)
drains = _table(DrainRow)
failures = _table(FailureRow)
incidents = _table(IncidentRow)
METADATA = lives.metadata
