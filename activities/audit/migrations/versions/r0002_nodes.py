"""What is known of nodes: suspicions, clearings, drains."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_MOMENT = sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql").with_variant(sa.DateTime(), "sqlite")
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
        "suspicions",
        sa.Column("id", _ID, nullable=False),
        sa.Column("cluster", sa.String(64), nullable=False),
        sa.Column("node", sa.String(64), nullable=False),
        sa.Column("life_id", _ID, nullable=False),
        sa.Column("job_id", sa.String(64), nullable=False),
        sa.Column("user_name", sa.String(64), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("fault_class", sa.String(32), nullable=False),
        sa.Column("signature", sa.String(255), nullable=False),
        sa.Column("confidence", sa.String(16), nullable=False),
        sa.Column("trusted", sa.Boolean(), nullable=False),
        sa.Column("how", sa.String(1000), nullable=False),
        sa.Column("at", _MOMENT, nullable=False),
        sa.Column("expires_at", _MOMENT, nullable=False),
        sa.ForeignKeyConstraint(["life_id"], ["lives.id"], name="fk_suspicions_life"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("life_id", "attempt", "node", name="uq_suspicions_attempt"),
        **_OPTIONS,
    )
    _create_index("ix_suspicions_node", "suspicions", ["cluster", "node", "expires_at"])
    op.create_table(
        "clearings",
        sa.Column("id", _ID, nullable=False),
        sa.Column("cluster", sa.String(64), nullable=False),
        sa.Column("node", sa.String(64), nullable=False),
        sa.Column("at", _MOMENT, nullable=False),
        sa.Column("by_whom", sa.String(255), nullable=False),
        sa.Column("reason", sa.String(500), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        **_OPTIONS,
    )
    _create_index("ix_clearings_node", "clearings", ["cluster", "node", "at"])
    op.create_table(
        "drains",
        sa.Column("id", _ID, nullable=False),
        sa.Column("cluster", sa.String(64), nullable=False),
        sa.Column("node", sa.String(64), nullable=False),
        sa.Column("step_key", sa.String(191), nullable=False),
        sa.Column("life_id", _ID, nullable=False),
        sa.Column("job_id", sa.String(64), nullable=False),
        sa.Column("signature", sa.String(255), nullable=False),
        sa.Column("how", sa.String(1000), nullable=False),
        sa.Column("granted_at", _MOMENT, nullable=False),
        sa.Column("until", _MOMENT, nullable=False),
        sa.Column("drained_at", _MOMENT, nullable=True),
        sa.Column("ended_at", _MOMENT, nullable=True),
        sa.Column("ended_by", sa.String(255), nullable=False),
        sa.Column("end_reason", sa.String(500), nullable=False),
        sa.ForeignKeyConstraint(["life_id"], ["lives.id"], name="fk_drains_life"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("step_key", "node", name="uq_drains_step"),
        **_OPTIONS,
    )
    _create_index("ix_drains_granted", "drains", ["cluster", "granted_at"])
    _create_index("ix_drains_open", "drains", ["cluster", "ended_at"])
