"""What all migrations are made of: the types that mean the same on each database, and what makes a step repeatable.

A migration that was released says the same for ever: what is here may be added to and never changed.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
MOMENT = sa.DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql").with_variant(sa.DateTime(), "sqlite")
TEXT = sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql")
OPTIONS: dict[str, Any] = {
    "if_not_exists": True,  # a server without transactions for tables may have been cut off half-way
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
}


def create_index(name: str, table: str, columns: list[str]) -> None:
    if name not in {index["name"] for index in sa.inspect(op.get_bind()).get_indexes(table)}:
        op.create_index(name, table, columns)
