"""The first tables."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from activities.audit.migrations.pieces import ID, MOMENT, OPTIONS, TEXT, create_index

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "clusters",
        sa.Column("cluster", sa.String(64), nullable=False),
        sa.Column("facts", TEXT, nullable=False),
        sa.Column("updated_at", MOMENT, nullable=False),
        sa.PrimaryKeyConstraint("cluster"),
        **OPTIONS,
    )
    op.create_table(
        "lives",
        sa.Column("id", ID, nullable=False),
        sa.Column("cluster", sa.String(64), nullable=False),
        sa.Column("job_id", sa.String(64), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("raw_id", sa.BigInteger(), nullable=False),
        sa.Column("uid", sa.BigInteger(), nullable=False),
        sa.Column("user_name", sa.String(64), nullable=False),
        sa.Column("account", sa.String(128), nullable=False),
        sa.Column("job_name", sa.String(255), nullable=False),
        sa.Column("partition_name", sa.String(255), nullable=False),
        sa.Column("first_seen", MOMENT, nullable=False),
        sa.Column("first_submit", MOMENT, nullable=True),
        sa.Column("submit_time", MOMENT, nullable=True),
        sa.Column("submit_settled", sa.Boolean(), nullable=False),
        sa.Column("restarts", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("phase", sa.String(64), nullable=False),
        sa.Column("mode", sa.String(16), nullable=False),
        sa.Column("paused", sa.Boolean(), nullable=False),
        sa.Column("paused_by", sa.String(255), nullable=False),
        sa.Column("stopped", sa.Boolean(), nullable=False),
        sa.Column("last_finding", sa.String(500), nullable=False),
        sa.Column("last_advice", sa.String(500), nullable=False),
        sa.Column("workflow_id", sa.String(191), nullable=False),
        sa.Column("run_id", sa.String(64), nullable=False),
        sa.Column("opened_runs", sa.Integer(), nullable=False),
        sa.Column("updated_at", MOMENT, nullable=False),
        sa.Column("closed_at", MOMENT, nullable=True),
        sa.Column("close_reason", sa.String(500), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("cluster", "job_id", "number", name="uq_lives_job"),
        **OPTIONS,
    )
    create_index("ix_lives_open", "lives", ["cluster", "closed_at", "id"])
    op.create_table(
        "permits",
        sa.Column("id", ID, nullable=False),
        sa.Column("cluster", sa.String(64), nullable=False),
        sa.Column("step_key", sa.String(191), nullable=False),
        sa.Column("job_id", sa.String(64), nullable=False),
        sa.Column("action", sa.String(32), nullable=False),
        sa.Column("nodes", TEXT, nullable=False),
        sa.Column("node_count", sa.Integer(), nullable=False),
        sa.Column("granted_at", MOMENT, nullable=False),
        sa.Column("slot_until", MOMENT, nullable=True),
        sa.Column("released_at", MOMENT, nullable=True),
        sa.Column("excluded_until", MOMENT, nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("step_key", name="uq_permits_step"),
        **OPTIONS,
    )
    create_index("ix_permits_excluded", "permits", ["cluster", "excluded_until"])
    create_index("ix_permits_granted", "permits", ["cluster", "granted_at"])
    op.create_table(
        "watched",
        sa.Column("cluster", sa.String(64), nullable=False),
        sa.Column("job_id", sa.String(64), nullable=False),
        sa.Column("life_id", sa.BigInteger(), nullable=False),
        sa.Column("workflow_id", sa.String(191), nullable=False),
        sa.Column("uid", sa.BigInteger(), nullable=False),
        sa.Column("user_name", sa.String(64), nullable=False),
        sa.Column("restarts", sa.Integer(), nullable=False),
        sa.Column("stdout", TEXT, nullable=False),
        sa.Column("stderr", TEXT, nullable=False),
        sa.Column("paused", sa.Boolean(), nullable=False),
        sa.Column("seen", TEXT, nullable=False),
        sa.Column("position", TEXT, nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=True),
        sa.Column("first_step", sa.BigInteger(), nullable=True),
        sa.Column("first_step_at", MOMENT, nullable=True),
        sa.Column("step", sa.BigInteger(), nullable=True),
        sa.Column("step_at", MOMENT, nullable=True),
        sa.Column("total_steps", sa.BigInteger(), nullable=True),
        sa.Column("checkpoint", sa.BigInteger(), nullable=True),
        sa.Column("checkpoint_at", MOMENT, nullable=True),
        sa.PrimaryKeyConstraint("cluster", "job_id"),
        **OPTIONS,
    )
    op.create_table(
        "attempts",
        sa.Column("life_id", ID, autoincrement=False, nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("submit_time", MOMENT, nullable=True),
        sa.Column("start_time", MOMENT, nullable=True),
        sa.Column("end_time", MOMENT, nullable=True),
        sa.Column("last_step", sa.BigInteger(), nullable=True),
        sa.Column("last_checkpoint", sa.BigInteger(), nullable=True),
        sa.Column("fault_class", sa.String(32), nullable=False),
        sa.Column("signature", sa.String(255), nullable=False),
        sa.Column("record", TEXT, nullable=False),
        sa.Column("updated_at", MOMENT, nullable=False),
        sa.ForeignKeyConstraint(["life_id"], ["lives.id"], name="fk_attempts_life"),
        sa.PrimaryKeyConstraint("life_id", "number"),
        **OPTIONS,
    )
    op.create_table(
        "events",
        sa.Column("id", ID, nullable=False),
        sa.Column("cluster", sa.String(64), nullable=False),
        sa.Column("job_id", sa.String(64), nullable=False),
        sa.Column("life_id", ID, nullable=True),
        sa.Column("event_key", sa.String(191), nullable=False),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("at", MOMENT, nullable=False),
        sa.Column("recorded_at", MOMENT, nullable=False),
        sa.Column("by_whom", sa.String(255), nullable=False),
        sa.Column("summary", sa.String(2000), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("body", TEXT, nullable=False),
        sa.Column("workflow_id", sa.String(191), nullable=False),
        sa.Column("run_id", sa.String(64), nullable=False),
        sa.ForeignKeyConstraint(["life_id"], ["lives.id"], name="fk_events_life"),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("event_key", name="uq_events_key"),
        **OPTIONS,
    )
    create_index("ix_events_job", "events", ["cluster", "job_id", "id"])
    create_index("ix_events_life", "events", ["life_id", "id"])
