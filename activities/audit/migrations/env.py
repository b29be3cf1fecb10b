"""Alembic's entry: runs the revisions in versions/ on the connection that activities/audit/schema.py hands over.

A new revision is written by hand, never changes an old one, and must be harmless to run again after it was cut off
half-way: MariaDB and MySQL commit each statement by itself.
"""

from __future__ import annotations

from alembic import context

from activities.audit.schema import VERSION_TABLE
from activities.audit.tables import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    version_table=VERSION_TABLE,
    compare_type=True,
)
with context.begin_transaction():
    context.run_migrations()
