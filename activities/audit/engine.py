"""Makes the SQLAlchemy engine for a database URL, with time limits on everything that can hang.

SQLite, PostgreSQL (psycopg) and MariaDB/MySQL (PyMySQL). Nothing is connected here yet.
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError

IMMEDIATE = "relight_immediate"
"""Execution option of a connection: take SQLite's write lock when the transaction begins, not half-way."""

_DRIVERS = {
    "sqlite": "sqlite",
    "sqlite+pysqlite": "sqlite",
    "postgresql": "postgresql+psycopg",
    "postgres": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
    "mysql": "mysql+pymysql",
    "mysql+pymysql": "mysql+pymysql",
    "mariadb": "mysql+pymysql",
    "mariadb+pymysql": "mysql+pymysql",
}


def parse(url: str) -> URL:
    """The URL with relight's own driver in it. Raises ValueError with a sentence that does not repeat the password."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise ValueError(
            "the URL of the audit database cannot be read; expected something like sqlite:////var/lib/relight/audit.db "
            "or postgresql://user:password@host/database (special characters in the password as %XX)"
        ) from None
    driver = _DRIVERS.get(parsed.drivername)
    if driver is None:
        raise ValueError(
            f"the audit database cannot be of the kind {parsed.drivername!r}; "
            "expected sqlite, postgresql, mysql or mariadb"
        )
    if driver == "sqlite" and (
        not parsed.database or ":memory:" in parsed.database or parsed.query.get("mode") == "memory"
    ):
        raise ValueError("the audit database cannot live in memory, it would die with the process: give sqlite:///PATH")
    if driver != "sqlite" and not parsed.database:
        raise ValueError(f"the URL of the audit database names no database: {show(parsed)}/DATABASE is expected")
    return parsed.set(drivername=driver)


def show(url: URL) -> str:
    """The URL for messages: without password and options, which may hold one."""
    return url.set(query={}).render_as_string(hide_password=True)


def engine(url: URL, timeout_s: float, statement_s: float, *, existing: bool = False) -> Engine:
    """`timeout_s` bounds connecting and waiting for locks, `statement_s` one statement. `existing`: an SQLite file that
    is not there is not made, and one that is there keeps its settings."""
    backend = url.get_backend_name()
    options: dict[str, Any] = {
        "pool_size": 5,
        "max_overflow": 15,
        "pool_timeout": timeout_s,
        "hide_parameters": True,  # an error message must not carry what jobs printed
    }
    if backend == "sqlite":
        made = create_engine(_only_open(url) if existing else url, connect_args={"timeout": timeout_s}, **options)
        event.listen(made, "connect", _begin_by_hand if existing else _prepare_sqlite)
        event.listen(made, "begin", _begin_sqlite)
        return made
    # READ COMMITTED: MySQL's default would show a transaction the state from before it got its lock.
    options |= {"isolation_level": "READ COMMITTED", "pool_pre_ping": True, "pool_recycle": 1800}
    if backend == "postgresql":
        made = create_engine(url, connect_args=_unless_in(url, _postgresql(timeout_s, statement_s)), **options)
        event.listen(made, "do_connect", _impatient(statement_s + 2))  # the server's own limit comes first
        return made
    return create_engine(url, connect_args=_unless_in(url, _mysql(timeout_s, statement_s)), **options)


def _unless_in(url: URL, settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key not in url.query}  # what the URL says comes first


def _postgresql(timeout_s: float, statement_s: float) -> Mapping[str, Any]:
    settings = {
        "TimeZone": "UTC",
        "lock_timeout": f"{timeout_s * 1000:.0f}",
        "statement_timeout": f"{statement_s * 1000:.0f}",
        "idle_in_transaction_session_timeout": "60000",
    }
    return {
        "connect_timeout": max(2, round(timeout_s)),  # libpq takes whole seconds, at least 2
        "client_encoding": "utf8",
        "application_name": "relight",
        "options": " ".join(f"-c {key}={value}" for key, value in settings.items()),
        "tcp_user_timeout": f"{timeout_s * 1000:.0f}",
        "keepalives_idle": 10,
        "keepalives_interval": 3,
        "keepalives_count": 3,
    }


def _mysql(timeout_s: float, statement_s: float) -> Mapping[str, Any]:
    lock_s = max(1, round(timeout_s))
    return {
        "connect_timeout": max(1, round(timeout_s)),
        "read_timeout": max(statement_s, lock_s + 2),  # longer than a lock may last, so that the server's word arrives
        "write_timeout": max(statement_s, lock_s + 2),
        "charset": "utf8mb4",
        "init_command": (
            "SET time_zone = '+00:00', sql_mode = 'STRICT_TRANS_TABLES,NO_ENGINE_SUBSTITUTION', "
            f"innodb_lock_wait_timeout = {lock_s}"
        ),
    }


def _impatient(limit_s: float) -> Any:
    """Makes connections that give up when the server has said nothing for `limit_s`, which libpq never does by itself.

    A server that is frozen, or behind a firewall that has forgotten the connection, would hold the thread for ever.
    """

    class Impatient(psycopg.Connection[Any]):
        def wait(self, gen: Any, *args: Any, **kwargs: Any) -> Any:
            return super().wait(self._bounded(gen), *args, **kwargs)

        def _bounded(self, gen: Any) -> Generator[Any, Any, Any]:
            deadline = time.monotonic() + limit_s
            try:
                wanted = next(gen)
                while True:
                    ready = yield wanted
                    if ready:
                        deadline = time.monotonic() + limit_s
                    elif time.monotonic() > deadline:
                        self.pgconn.finish()
                        raise psycopg.OperationalError(f"no answer for {limit_s:g} s")
                    wanted = gen.send(ready)
            except StopIteration as end:
                return end.value

    def connect(dialect: object, record: object, args: Any, settings: Any) -> psycopg.Connection[Any]:
        return Impatient.connect(*args, **settings)

    return connect


def _only_open(url: URL) -> URL:
    if url.database is None or url.database.startswith("file:"):
        return url
    return url.set(database=f"file:{quote(url.database)}", query={**url.query, "mode": "rw", "uri": "true"})


def _begin_by_hand(connection: Any, record: object) -> None:
    connection.isolation_level = None  # transactions begin where _begin_sqlite says, not where the driver guesses
    cursor = connection.cursor()
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def _prepare_sqlite(connection: Any, record: object) -> None:
    _begin_by_hand(connection, record)
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode = WAL")  # readers and the writer do not wait for each other
    cursor.execute("PRAGMA synchronous = NORMAL")  # with WAL: a power cut may lose the last commits, never the file
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    immediate = connection.get_execution_options().get(IMMEDIATE, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")


def sqlite_file(url: URL) -> Path | None:
    """The file of an SQLite database; None for other databases."""
    if url.get_backend_name() != "sqlite" or not url.database or url.database.startswith("file:"):
        return None
    return Path(url.database)


def make_sqlite_file(url: URL) -> None:
    """Creates an SQLite file and its folder where they are missing; does nothing for other databases. Others may not
    read it: it holds lines of jobs' logs. SQLite gives the files beside it the same mode."""
    file = sqlite_file(url)
    if file is not None and not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
        os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640))
