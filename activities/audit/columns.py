"""Column types that mean the same in SQLite, PostgreSQL and MariaDB/MySQL.

Whatever a job wrote can be stored in them: text is cleaned, cut or escaped on its way in (text.py), times are aware
UTC on both ways. No column here ever refuses a value for its content or its length.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import BigInteger, DateTime, Dialect, Integer, String, Text
from sqlalchemy.dialects import mysql
from sqlalchemy.types import TypeDecorator

from activities.audit import text

EXACT_LIMIT = 65_536

BigId = BigInteger().with_variant(Integer(), "sqlite")  # only INTEGER counts up by itself in SQLite
UtcMoment = DateTime(timezone=True).with_variant(mysql.DATETIME(fsp=6), "mysql").with_variant(DateTime(), "sqlite")
BigText = Text().with_variant(mysql.MEDIUMTEXT(), "mysql")  # MySQL's TEXT ends at 64 kB


class Utc(TypeDecorator[datetime]):
    """An aware UTC time, to the microsecond. MariaDB and SQLite know no zones: they hold the UTC reading."""

    impl = UtcMoment
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        aware = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
        return aware if dialect.name == "postgresql" else aware.replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Words(TypeDecorator[str]):
    """Text for people, at most `length` characters: cleaned and cut with a mark."""

    impl = String
    cache_ok = True

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.limit = length

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else text.words(value, self.limit)


class Name(TypeDecorator[str]):
    """Text that identifies something; compared exactly, whatever its characters and length."""

    impl = String
    cache_ok = True

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.limit = length

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else text.name(value, self.limit)


class Exact(TypeDecorator[str]):
    """Text that must come back unchanged, such as a path. More than EXACT_LIMIT characters are forgotten ("")."""

    impl = BigText
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        if value is None:
            return None
        return text.escape(value) if len(value) <= EXACT_LIMIT else ""

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else text.unescape(value)


class Count(TypeDecorator[int]):
    """A number that a job printed; beyond 64 bits it becomes the largest there is."""

    impl = BigInteger
    cache_ok = True

    def process_bind_param(self, value: int | None, dialect: Dialect) -> int | None:
        return None if value is None else max(-(2**63), min(2**63 - 1, value))


class Json(TypeDecorator[Any]):
    """A JSON document of at most `limit` characters as portable text."""

    impl = BigText
    cache_ok = True

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        return None if value is None else text.to_json(value, self.limit)

    def process_result_value(self, value: str | None, dialect: Dialect) -> Any:
        return None if value is None else json.loads(value)
