"""Tells why a database call failed: may be tried again at once, cannot be served now, or is an error in the program.

The three families of drivers speak in numbers of their own; only this file knows them.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

import psycopg
import pymysql
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from activities.audit.text import words


class AuditUnavailable(Exception):
    """The audit store cannot be used now. No audit, no action: whoever sees this changes nothing in Slurm."""


class SchemaTooNew(Exception):
    """A newer relight has changed the tables; this one would write them wrongly."""


class UnfitDatabase(Exception):
    """The database is reachable and can never serve as audit store as it is set up."""


class KeyTaken(ValueError):
    """An idempotency key is used by somebody else: the caller's keys are not unique."""


class UnknownLife(LookupError):
    """There is no such life of that job."""


@dataclass(frozen=True)
class Trouble:
    reason: str
    advice: str
    again: bool = False
    """True: the same transaction, started again, is likely to pass."""


_AWAY = "Check that the server runs and can be reached from this host; nothing is done to any job meanwhile."
_BUSY = "Another process holds it for long: look for a stuck transaction, a backup or a slow disk."
_FULL = "Make room on the disk of the database."
_READ_ONLY = "Let the user of the URL write there: check file rights, mount options and the server's read-only switch."
_LOGIN = "Check user, password and database name of the URL, and the server's access rules."
_TABLES = "The tables are missing: start a worker, which creates them, or check that the URL names the right database."

_SQLITE = {
    sqlite3.SQLITE_BUSY: Trouble("it is locked by another process", _BUSY, again=True),
    sqlite3.SQLITE_LOCKED: Trouble("it is locked by another connection", _BUSY, again=True),
    sqlite3.SQLITE_FULL: Trouble("the disk is full", _FULL),
    sqlite3.SQLITE_READONLY: Trouble("it is read-only", _READ_ONLY),
    sqlite3.SQLITE_PERM: Trouble("access is denied", _READ_ONLY),
    sqlite3.SQLITE_AUTH: Trouble("access is denied", _READ_ONLY),
    sqlite3.SQLITE_IOERR: Trouble("reading or writing the file failed", "Check the disk and its free space."),
    sqlite3.SQLITE_CANTOPEN: Trouble("the file cannot be opened", "Check that its folder exists and can be written."),
    sqlite3.SQLITE_PROTOCOL: Trouble("its file system cannot share it", "Put the file on a local disk."),
    sqlite3.SQLITE_CORRUPT: Trouble("the file is damaged", "Restore it from a backup."),
    sqlite3.SQLITE_NOTADB: Trouble("the file is not an SQLite database", "Let the URL name another file."),
}

# SQLSTATE, longest prefix first.
_POSTGRESQL = {
    "40001": Trouble("transactions got in each other's way", _BUSY, again=True),
    "40P01": Trouble("transactions blocked each other", _BUSY, again=True),
    "55P03": Trouble("a row stayed locked", _BUSY, again=True),
    "57014": Trouble("a statement took too long", _BUSY),
    "25006": Trouble("it is read-only", _READ_ONLY),
    "42P01": Trouble("a table is missing", _TABLES),
    "42501": Trouble("access is denied", _READ_ONLY),
    "3D000": Trouble("there is no such database", _LOGIN),
    "53100": Trouble("the disk is full", _FULL),
    "53300": Trouble("it has no connection left", "Raise max_connections or stop what holds them."),
    "53": Trouble("it has run out of a resource", _FULL),
    "28": Trouble("the login was refused", _LOGIN),
    "08": Trouble("the connection was lost", _AWAY, again=True),
    "57P": Trouble("it is shutting down or starting", _AWAY, again=True),
    "58": Trouble("reading or writing its files failed", "Check the disk of the server."),
}

_MYSQL = {
    1213: Trouble("transactions blocked each other", _BUSY, again=True),
    1205: Trouble("a row stayed locked", _BUSY, again=True),
    1020: Trouble("transactions got in each other's way", _BUSY, again=True),
    1969: Trouble("a statement took too long", _BUSY),
    3024: Trouble("a statement took too long", _BUSY),
    1040: Trouble("it has no connection left", "Raise max_connections or stop what holds them."),
    1203: Trouble("its user has no connection left", "Raise max_user_connections or stop what holds them."),
    1044: Trouble("access to the database is denied", _LOGIN),
    1045: Trouble("the login was refused", _LOGIN),
    1049: Trouble("there is no such database", _LOGIN),
    1142: Trouble("access to a table is denied", _LOGIN),
    1146: Trouble("a table is missing", _TABLES),
    1021: Trouble("the disk is full", _FULL),
    1114: Trouble("a table is full", _FULL),
    1290: Trouble("it is read-only", _READ_ONLY),
    1792: Trouble("it is read-only", _READ_ONLY),
    1836: Trouble("it is read-only", _READ_ONLY),
    1053: Trouble("it is shutting down", _AWAY, again=True),
    1927: Trouble("the connection was killed", _AWAY, again=True),
    2002: Trouble("it does not answer", _AWAY),
    2003: Trouble("it does not answer", _AWAY),
    2005: Trouble("its host name is not known", _AWAY),
    2006: Trouble("the connection was lost", _AWAY, again=True),
    2013: Trouble("the connection was lost or too slow", _AWAY, again=True),
}


def diagnose(error: DBAPIError | PoolTimeout) -> Trouble | None:
    """What is wrong with the database, or None when the program is to blame (then the error should be seen)."""
    if isinstance(error, PoolTimeout):
        return Trouble("all connections of this process are busy", _BUSY)
    original = error.orig
    said = f": {' '.join(words(original, 300).split())}" if original is not None else ""
    known = _look_up(original)
    if known is not None:
        return Trouble(known.reason + said, known.advice, known.again)
    if error.connection_invalidated:
        return Trouble("the connection was lost" + said, _AWAY, again=True)
    if isinstance(original, sqlite3.Error):
        return Trouble("a table is missing" + said, _TABLES) if "no such table" in str(original) else None
    if isinstance(original, psycopg.OperationalError) and "FATAL" in str(original):  # a login has no SQLSTATE
        return Trouble("it refused the connection" + said, _LOGIN)
    if isinstance(error, OperationalError | InterfaceError):
        return Trouble("it does not answer" + said, _AWAY)
    return None


def _look_up(original: BaseException | None) -> Trouble | None:
    if isinstance(original, sqlite3.Error):
        code = getattr(original, "sqlite_errorcode", None)
        return None if code is None else _SQLITE.get(code & 0xFF)  # extended codes carry the basic one in front
    if isinstance(original, psycopg.Error):
        state = original.sqlstate or ""
        return next((_POSTGRESQL[state[:size]] for size in (5, 3, 2) if state[:size] in _POSTGRESQL), None)
    if isinstance(original, pymysql.Error) and original.args:
        return _MYSQL.get(original.args[0])
    return None
