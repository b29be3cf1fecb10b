"""An index by which recommendations of a month are found among millions of events."""

from __future__ import annotations

from activities.audit.migrations.pieces import create_index

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    create_index("ix_events_kind", "events", ["cluster", "kind", "at", "id"])
