"""Creates and upgrades the tables of the audit store, by Alembic, when a worker starts.

Any number of workers may start at once: one upgrades, the others wait and find nothing to do. A schema that a newer
relight has left is refused and never touched.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from activities.audit.database import Database
from activities.audit.engine import make_sqlite_file
from activities.audit.trouble import AuditUnavailable, SchemaTooNew, UnfitDatabase

VERSION_TABLE = "relight_schema"
"""Not Alembic's own name: the database may be shared with another program that uses Alembic."""

PATIENCE_S = 60.0
"""Longest wait for another worker's upgrade."""

_ONE_AT_A_TIME = threading.Lock()  # Alembic's context belongs to the process
_LOCK_NAME = "relight_schema"
_LOCK_NUMBER = 7_235_419_876_001  # any number that nobody else uses


def migrate(database: Database) -> None:
    try:
        make_sqlite_file(database.url)
    except OSError as error:
        raise AuditUnavailable(
            f"audit database {database.name}: its file cannot be created: {error}. "
            "Let relight write in that folder, or give another one in database.url."
        ) from error
    if database.read(lambda connection: _is_current(connection, database.name)):
        return
    patient = Database(database.url.render_as_string(hide_password=False), timeout_s=database.timeout_s,
                       statement_s=PATIENCE_S)  # fmt: skip
    try:
        with _ONE_AT_A_TIME:
            patient.write(lambda connection: _upgrade(connection, database.name))
    finally:
        patient.close()


def _config() -> Config:
    config = Config()
    folder = str(Path(__file__).parent / "migrations")
    config.set_main_option("script_location", folder.replace("%", "%%"))
    return config


def _is_current(connection: Connection, shown: str) -> bool:
    """True when nothing is to be done. Raises SchemaTooNew."""
    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    stored = set(context.get_current_heads())
    script = ScriptDirectory.from_config(_config())
    known = {revision.revision for revision in script.walk_revisions()}
    if stored - known:
        raise SchemaTooNew(
            f"the tables in {shown} are of version {', '.join(sorted(stored - known))}, "
            "which a newer relight has made; "
            f"this one knows versions up to {', '.join(script.get_heads())}. Upgrade relight on this host, "
            "or give it another database."
        )
    return stored == set(script.get_heads())


def _upgrade(connection: Connection, shown: str) -> None:
    _keep_others_out(connection, shown)
    _check_server(connection, shown)
    if _is_current(connection, shown):
        return
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _keep_others_out(connection: Connection, shown: str) -> None:
    """Waits until no other worker upgrades. In SQLite the transaction itself keeps others out."""
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"SET LOCAL lock_timeout = {PATIENCE_S * 1000:.0f}"))
        connection.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": _LOCK_NUMBER})
    elif connection.dialect.name == "mysql":
        # Ends with the session, which migrate() closes after the commit.
        name = f"{_LOCK_NAME}.{connection.engine.url.database}"[:64]  # the longest name; locks are the server's
        deadline = time.monotonic() + PATIENCE_S
        while connection.execute(text("SELECT GET_LOCK(:name, 1)"), {"name": name}).scalar() != 1:
            if time.monotonic() > deadline:
                raise AuditUnavailable(
                    f"audit database {shown}: another worker has been upgrading its tables for {PATIENCE_S:.0f} s. "
                    "Wait for it, or see what it hangs on."
                )


def _check_server(connection: Connection, shown: str) -> None:
    if connection.dialect.name == "postgresql":
        encoding = connection.execute(text("SHOW server_encoding")).scalar()
        if encoding != "UTF8":
            raise UnfitDatabase(
                f"audit database {shown} has the encoding {encoding}, but what jobs print needs UTF8: create it with "
                "CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0"
            )
