"""Migrations: they run by themselves, agree with the models, survive being cut off, and respect a newer relight."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, inspect, text
from sqlalchemy.exc import DBAPIError

from activities.audit.database import Database
from activities.audit.schema import VERSION_TABLE
from activities.audit.store import AuditStore, SchemaTooNew, UnfitDatabase
from activities.audit.tables import METADATA
from recovery.records import ClusterFacts
from tests.activities.audit.askers import in_processes, migrate
from tests.activities.audit.samples import all_at_once, opened
from tests.activities.audit.test_outage import drop_tables
from tests.services import MariaDBServer, PostgresServer

TABLES = {*METADATA.tables, VERSION_TABLE}
NEWEST = "0005"


@pytest.fixture(params=["sqlite", "own_postgres", "own_mariadb"])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of a database of each kind without any table of relight."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/audit.db"
    server: PostgresServer | MariaDBServer = request.getfixturevalue(request.param)
    database = Database(server.url)
    drop_tables(database)
    database.close()
    return server.url


@pytest.fixture
def database(empty: str) -> Iterator[Database]:
    made = Database(empty)
    yield made
    made.close()


def tables(database: Database) -> set[str]:
    return database.read(lambda connection: set(inspect(connection).get_table_names()))


def versions(database: Database, table: str) -> list[str]:
    query = text(f"select version_num from {table}")
    return database.read(lambda connection: list(connection.execute(query).scalars()))


def test_the_tables_are_made_once(empty: str, database: Database, cluster: str) -> None:
    migrate(empty)
    assert tables(database) >= TABLES
    with AuditStore(empty) as store:
        life = opened(store, cluster).life_id
        store.migrate()
        assert store.life(life).life_id == life


def test_models_and_migrations_agree(empty: str, database: Database) -> None:
    migrate(empty)

    def differences(connection: Connection) -> list[object]:
        options = {
            "compare_type": True,
            "compare_server_default": True,
            "include_name": lambda name, kind, parents: kind != "table" or name in METADATA.tables,
        }
        return list(compare_metadata(MigrationContext.configure(connection, opts=options), METADATA))

    assert database.read(differences) == []
    database.write(lambda connection: connection.execute(text("alter table lives add column surplus int")))
    assert database.read(differences) != [], "the comparison sees nothing"


def test_workers_that_start_at_once_do_not_break_each_other(empty: str, database: Database) -> None:
    in_processes(migrate, [(empty,)] * 4)
    assert tables(database) >= TABLES
    assert versions(database, VERSION_TABLE) == [NEWEST]


def test_threads_that_migrate_at_once_do_not_break_each_other(empty: str, database: Database) -> None:
    all_at_once([lambda: migrate(empty)] * 6)
    assert tables(database) >= TABLES


def test_a_newer_schema_is_refused_and_left_alone(empty: str, database: Database, cluster: str) -> None:
    migrate(empty)
    database.write(lambda connection: connection.execute(text(f"update {VERSION_TABLE} set version_num = '9999'")))
    with AuditStore(empty) as store:
        store.save_facts(cluster, ClusterFacts(min_job_age_s=5))
        with pytest.raises(SchemaTooNew, match=rf"(?s)9999.*newer relight.*{NEWEST}.*Upgrade relight"):
            store.migrate()
        assert store.facts(cluster) == ClusterFacts(min_job_age_s=5)
    assert versions(database, VERSION_TABLE) == ["9999"]


def test_a_migration_that_was_cut_off_is_completed(empty: str, database: Database, cluster: str) -> None:
    migrate(empty)

    def as_if_cut_off(connection: Connection) -> None:
        on = " on lives" if connection.dialect.name == "mysql" else ""
        for statement in (f"delete from {VERSION_TABLE}", "drop table permits", f"drop index ix_lives_open{on}"):
            connection.execute(text(statement))

    database.write(as_if_cut_off)
    migrate(empty)
    assert "permits" in tables(database)
    indexes = database.read(lambda connection: inspect(connection).get_indexes("lives"))
    assert "ix_lives_open" in {index["name"] for index in indexes}


def test_a_migration_that_fails_leaves_nothing_behind_where_tables_are_transactional(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/audit.db"
    database = Database(url)
    database.write(lambda connection: connection.execute(text("create view permits as select 1")))
    with pytest.raises(DBAPIError, match="views may not be indexed"):
        migrate(url)
    assert tables(database) == set()
    database.close()


def test_another_program_that_uses_alembic_in_the_same_database_is_left_alone(empty: str, database: Database) -> None:
    def others(connection: Connection) -> None:
        for statement in ("create table alembic_version (version_num varchar(32))",
                          "insert into alembic_version values ('theirs')"):  # fmt: skip
            connection.execute(text(statement))

    database.write(others)
    try:
        migrate(empty)
        assert versions(database, "alembic_version") == ["theirs"]
    finally:
        database.write(lambda connection: connection.execute(text("drop table alembic_version")))


def test_a_mariadb_database_of_another_character_set_serves(own_mariadb: MariaDBServer) -> None:
    database = Database(own_mariadb.url)
    drop_tables(database)
    database.write(lambda connection: connection.execute(text("alter database relight character set latin1")))
    migrate(own_mariadb.url)
    query = text(
        "select distinct character_set_name, collation_name from information_schema.columns "
        "where table_schema = 'relight' and table_name = 'events' and character_set_name is not null"
    )
    charsets = database.read(lambda connection: connection.execute(query).all())
    assert [tuple(row) for row in charsets] == [("utf8mb4", "utf8mb4_bin")]
    database.close()


def test_a_postgresql_database_without_utf8_is_refused(own_postgres: PostgresServer) -> None:
    admin = Database(own_postgres.url)
    with admin.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        locale = "lc_collate 'C' lc_ctype 'C' template template0"
        connection.execute(text(f"create database latin encoding 'LATIN1' {locale}"))
    admin.close()
    with pytest.raises(UnfitDatabase, match="LATIN1"):
        migrate(own_postgres.url.replace("/relight", "/latin"))
