"""What is known of nodes: suspicions, clearings, drains."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from activities.audit.migrations.pieces import ID, MOMENT, OPTIONS, create_index

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "suspicions",
        sa.Column("id", ID, nullable=False),
        sa.Column("cluster", sa.String(64), nullable=False),
        sa.Column("node", sa.String(64), nullable=False),
        sa.Column("life_id", ID, nullable=False),
        sa.Column("job_id", sa.String(64), nullable=False),
        sa.Column("user_name", sa.String(64), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("fault_class", sa.String(32), nullable=False),
        sa.Column("signature", sa.String(255), nullable=False),
        sa.Column("confidence", sa.String(16), nullable=False),
        sa.Column("trusted", sa.Boolean(), nullable=False),
        sa.Column("how", sa.String(1000), nullable=False),
        sa.Column("at", MOMENT, nullable=False),
        sa.Column("expires_at", MOMENT, nullable=False),
        sa.ForeignKeyConstraint(["life_id"], ["lives.id"], name="fk_suspicions_life"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("life_id", "attempt", "node", name="uq_suspicions_attempt"),
        **OPTIONS,
    )
    create_index("ix_suspicions_node", "suspicions", ["cluster", "node", "expires_at"])
    op.create_table(
        "clearings",
        sa.Column("id", ID, nullable=False),
        sa.Column("cluster", sa.String(64), nullable=False),
        sa.Column("node", sa.String(64), nullable=False),
        sa.Column("at", MOMENT, nullable=False),
        sa.Column("by_whom", sa.String(255), nullable=False),
        sa.Column("reason", sa.String(500), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        **OPTIONS,
    )
    create_index("ix_clearings_node", "clearings", ["cluster", "node", "at"])
    op.create_table(
        "drains",
        sa.Column("id", ID, nullable=False),
        sa.Column("cluster", sa.String(64), nullable=False),
        sa.Column("node", sa.String(64), nullable=False),
        sa.Column("step_key", sa.String(191), nullable=False),
        sa.Column("life_id", ID, nullable=False),
        sa.Column("job_id", sa.String(64), nullable=False),
        sa.Column("signature", sa.String(255), nullable=False),
        sa.Column("how", sa.String(1000), nullable=False),
        sa.Column("granted_at", MOMENT, nullable=False),
        sa.Column("until", MOMENT, nullable=False),
        sa.Column("drained_at", MOMENT, nullable=True),
        sa.Column("ended_at", MOMENT, nullable=True),
        sa.Column("ended_by", sa.String(255), nullable=False),
        sa.Column("end_reason", sa.String(500), nullable=False),
        sa.ForeignKeyConstraint(["life_id"], ["lives.id"], name="fk_drains_life"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("step_key", "node", name="uq_drains_step"),
        **OPTIONS,
    )
    create_index("ix_drains_granted", "drains", ["cluster", "granted_at"])
    create_index("ix_drains_open", "drains", ["cluster", "ended_at"])
