"""Failures, as the sweep compares them, and the incidents found among them."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0003"
down_revision = "0001"
branch_labels = None
depends_on = None

_MOMENT = sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql").with_variant(sa.DateTime(), "sqlite")
_TEXT = sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql")
_OPTIONS: dict[str, Any] = {
    "if_not_exists": True,  # a server without transactions for tables may have been cut off half-way
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
}


def _create_index(name: str, table: str, columns: list[str]) -> None:
    if name not in {index["name"] for index in sa.inspect(op.get_bind()).get_indexes(table)}:
        op.create_index(name, table, columns)


def upgrade() -> None:
    op.create_table(
        "failures",
        sa.Column("cluster", sa.String(64), nullable=False),
        sa.Column("job_id", sa.String(64), nullable=False),
        sa.Column("life_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("seen_at", _MOMENT, nullable=False),
        sa.Column("correlated_at", _MOMENT, nullable=True),
        sa.Column("record", _TEXT, nullable=False),
        sa.PrimaryKeyConstraint("cluster", "job_id", "life_id", "attempt"),
        **_OPTIONS,
    )
    op.create_table(
        "incidents",
        sa.Column("cluster", sa.String(64), nullable=False),
        sa.Column("incident_id", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("cause", sa.String(255), nullable=False),
        sa.Column("opened_at", _MOMENT, nullable=False),
        sa.Column("last_at", _MOMENT, nullable=False),
        sa.Column("closed_at", _MOMENT, nullable=True),
        sa.Column("jobs", sa.Integer(), nullable=False),
        sa.Column("summary", sa.String(500), nullable=False),
        sa.Column("record", _TEXT, nullable=False),
        sa.Column("turns", _TEXT, nullable=False),
        sa.PrimaryKeyConstraint("cluster", "incident_id"),
        **_OPTIONS,
    )
    _create_index("ix_failures_seen", "failures", ["cluster", "seen_at"])
    _create_index("ix_incidents_closed", "incidents", ["cluster", "closed_at"])
