"""Which of a permit's exclusions stand on a word that no user can write."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from activities.audit.migrations.pieces import TEXT

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    columns = {column["name"] for column in sa.inspect(op.get_bind()).get_columns("permits")}
    if "certain" not in columns:  # a server without transactions for tables may have been cut off half-way
        op.add_column("permits", sa.Column("certain", TEXT, nullable=True))
