"""Failures, as the sweep compares them, and the incidents found among them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from activities.audit.migrations.pieces import MOMENT, OPTIONS, TEXT, create_index

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "failures",
        sa.Column("cluster", sa.String(64), nullable=False),
        sa.Column("job_id", sa.String(64), nullable=False),
        sa.Column("life_id", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("attempt", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("seen_at", MOMENT, nullable=False),
        sa.Column("correlated_at", MOMENT, nullable=True),
        sa.Column("record", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("cluster", "job_id", "life_id", "attempt"),
        **OPTIONS,
    )
    op.create_table(
        "incidents",
        sa.Column("cluster", sa.String(64), nullable=False),
        sa.Column("incident_id", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("cause", sa.String(255), nullable=False),
        sa.Column("opened_at", MOMENT, nullable=False),
        sa.Column("last_at", MOMENT, nullable=False),
        sa.Column("closed_at", MOMENT, nullable=True),
        sa.Column("jobs", sa.Integer(), nullable=False),
        sa.Column("summary", sa.String(500), nullable=False),
        sa.Column("record", TEXT, nullable=False),
        sa.Column("turns", TEXT, nullable=False),
        sa.PrimaryKeyConstraint("cluster", "incident_id"),
        **OPTIONS,
    )
    create_index("ix_failures_seen", "failures", ["cluster", "seen_at"])
    create_index("ix_incidents_closed", "incidents", ["cluster", "closed_at"])
