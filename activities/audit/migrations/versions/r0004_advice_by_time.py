"""An index by which recommendations of a month are found among millions of events."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

NAME = "ix_events_kind"


def upgrade() -> None:
    if NAME not in {index["name"] for index in sa.inspect(op.get_bind()).get_indexes("events")}:
        op.create_index(NAME, "events", ["cluster", "kind", "at", "id"])
