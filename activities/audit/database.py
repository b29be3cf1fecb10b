"""Opens the database of the audit store and runs transactions on it, each as a whole and again when that helps.

Every transaction given to `read` or `write` must be harmless to repeat: it is started again after a deadlock, a lost
connection or a race for a unique key. What stays wrong becomes AuditUnavailable within seconds.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from activities.audit.engine import IMMEDIATE, engine, parse, show
from activities.audit.trouble import AuditUnavailable, diagnose

T = TypeVar("T")

MAX_TRIES = 8


class Database:
    """One database by URL, with a small pool of connections; safe to use from many threads."""

    def __init__(
        self, url: str, *, timeout_s: float = 5, statement_s: float | None = None, existing: bool = False
    ) -> None:
        """`timeout_s` bounds connecting and waiting for locks, `statement_s` (default: the same) one statement;
        `existing`: an SQLite file is opened where it is there, and not made."""
        self.url = parse(url)
        self.timeout_s = timeout_s
        self.name = show(self.url)
        self.dialect = self.url.get_backend_name()
        self.engine = engine(self.url, timeout_s, statement_s or timeout_s, existing=existing)

    def read(self, work: Callable[[Connection], T]) -> T:
        """Runs `work` in a transaction that changes nothing."""
        return self._run(work, immediate=False)

    def write(self, work: Callable[[Connection], T]) -> T:
        """Runs `work` in a transaction and commits it; SQLite's write lock is taken at its beginning."""
        return self._run(work, immediate=True)

    def close(self) -> None:
        self.engine.dispose()

    def _run(self, work: Callable[[Connection], T], *, immediate: bool) -> T:
        deadline = time.monotonic() + self.timeout_s
        for tries in range(1, MAX_TRIES + 1):
            last = tries == MAX_TRIES or time.monotonic() >= deadline
            try:
                with self.engine.connect() as connection:
                    connection.execution_options(**{IMMEDIATE: immediate})
                    with connection.begin():
                        return work(connection)
            except IntegrityError:
                if last:  # not a race for a key, then: a key of the caller's own making
                    raise
            except (DBAPIError, PoolTimeout) as error:
                trouble = diagnose(error)
                if trouble is None:
                    raise
                if last or not trouble.again or time.monotonic() >= deadline:
                    raise AuditUnavailable(f"audit database {self.name}: {trouble.reason}. {trouble.advice}") from error
            time.sleep(random.uniform(0, 0.02 * 2 ** min(tries, 5)))  # noqa: S311 - spreads those who collided
        raise AssertionError("the last try returns or raises")
