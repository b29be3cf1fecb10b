"""A database that is away, locked, full or read-only: told within seconds, and used again as soon as it is back."""

import os
import signal
import sqlite3
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread

import pytest
from sqlalchemy import Connection, event, text, update

from activities.audit.database import Database
from activities.audit.store import AuditStore, AuditUnavailable
from activities.audit.tables import METADATA, clusters
from recovery.records import ClusterFacts
from tests.activities.audit import samples
from tests.activities.audit.conftest import Server
from tests.activities.audit.samples import NOON, all_at_once, opened
from tests.services import MariaDBServer, PostgresServer

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "new folder" / "audit.db"


@pytest.fixture
def sqlite(file: Path) -> AuditStore:
    store = AuditStore(f"sqlite:///{file}", timeout_s=0.5)
    store.migrate()
    return store


def everything(store: AuditStore, cluster: str) -> list[Callable[[], object]]:
    """One call of each kind: reading, writing, asking."""
    return [
        store.ping,
        lambda: store.jobs(cluster),
        lambda: store.append(cluster, "", None, [samples.event(f"{cluster}/e")]),
        lambda: store.permit(samples.request(cluster, "1")),
    ]


def test_a_killed_server_is_told_and_used_again_when_it_is_back(own_server: Server, cluster: str) -> None:
    with AuditStore(own_server.url, timeout_s=3) as store:
        store.migrate()
        life = opened(store, cluster).life_id
        own_server.kill()
        for call in [*everything(store, cluster), store.migrate]:
            with pytest.raises(AuditUnavailable, match="audit database"):
                call()
        own_server.start()
        for call in everything(store, cluster):
            call()
        assert store.life(life).cluster == cluster
        assert len(store.events(cluster, "")) == 1


def test_a_server_that_was_restarted_between_two_calls_goes_unnoticed(own_server: Server, cluster: str) -> None:
    with AuditStore(own_server.url) as store:
        store.migrate()
        all_at_once([store.ping] * 5)
        own_server.kill()
        own_server.start()
        for call in everything(store, cluster):
            call()


def test_a_connection_lost_within_a_transaction_starts_it_again(own_server: Server, cluster: str) -> None:
    with AuditStore(own_server.url, timeout_s=20) as store:
        store.migrate()
        store.save_facts(cluster, ClusterFacts(min_job_age_s=1))
        database = store._database
        ids: list[int] = []

        def work(connection: Connection) -> None:
            postgres = database.dialect == "postgresql"
            ask = "select pg_backend_pid()" if postgres else "select connection_id()"
            number = connection.execute(text(ask)).scalar_one()
            connection.execute(update(clusters).where(clusters.c.cluster == cluster).values(facts={"min_job_age_s": 7}))
            ids.append(number)
            if len(ids) == 1:
                end = f"select pg_terminate_backend({number})" if postgres else f"kill {number}"
                other = Database(own_server.url)
                other.write(lambda c: c.execute(text(end)))
                other.close()
            connection.execute(text("select 1"))

        database.write(work)
        assert len(ids) == 2
        found = store.facts(cluster)
        assert found is not None
        assert found.min_job_age_s == 7


def test_a_frozen_server_does_not_hold_the_caller(own_server: Server, cluster: str) -> None:
    with AuditStore(own_server.url, timeout_s=2) as store:
        store.migrate()
        program = "postgres" if isinstance(own_server, PostgresServer) else "mariadbd"
        enclosure = own_server._started.enclosure
        enclosure.send_to(program, signal.SIGSTOP)
        try:
            with pytest.raises(AuditUnavailable):
                store.ping()
        finally:
            enclosure.send_to(program, signal.SIGCONT)
        store.ping()


def test_transactions_that_block_each_other_both_end(url: str, store: AuditStore, cluster: str) -> None:
    """Two transactions take two rows in opposite order; the database gives one up, which then starts again."""
    names = (f"{cluster}-a", f"{cluster}-b")
    for one in names:
        store.save_facts(one, ClusterFacts())
    waiting = [Event(), Event()]
    database = Database(url, timeout_s=20)

    def crossing(first: int) -> Callable[[], None]:
        def work(connection: Connection) -> None:
            for number in (first, 1 - first):
                age = {"min_job_age_s": first}
                connection.execute(update(clusters).where(clusters.c.cluster == names[number]).values(facts=age))
                waiting[first].set()
                waiting[1 - first].wait(timeout=1)  # SQLite lets only one in

        return lambda: database.write(work)

    all_at_once([crossing(0), crossing(1)])
    database.close()
    assert store.facts(names[0]) == store.facts(names[1])


def test_a_server_that_refuses_writes_is_told(own_postgres: PostgresServer, cluster: str) -> None:
    with AuditStore(own_postgres.url) as store:
        store.migrate()
    read_only = f"{own_postgres.url}?options=-c%20default_transaction_read_only%3Don"
    with AuditStore(read_only, timeout_s=1) as store:
        store.ping()
        with pytest.raises(AuditUnavailable, match="read-only"):
            opened(store, cluster)


def test_a_login_that_is_refused_is_told(own_mariadb: MariaDBServer) -> None:
    url = own_mariadb.url.replace("only-on-loopback", "wrong-s3cret")
    with AuditStore(url, timeout_s=1) as store, pytest.raises(AuditUnavailable, match="the login was refused") as told:
        store.ping()
    assert "s3cret" not in str(told.value)


def test_a_database_that_does_not_exist_is_told_without_the_password(own_server: Server) -> None:
    url = own_server.url.replace("postgres@", "postgres:s3cret@").replace(":only-on-loopback@", ":s3cret@")
    with AuditStore(url.replace("/relight", "/elsewhere"), timeout_s=1) as store:
        with pytest.raises(AuditUnavailable, match="Check user, password and database name") as told:
            store.ping()
        assert "s3cret" not in str(told.value)
        assert "elsewhere" in str(told.value)


def test_tables_that_nobody_made_are_told(own_server: Server, tmp_path: Path) -> None:
    for url in (f"sqlite:///{tmp_path}/empty.db", own_server.url):
        database = Database(url)
        if database.dialect != "sqlite":
            drop_tables(database)
        database.close()
        with AuditStore(url) as store:
            with pytest.raises(AuditUnavailable, match="start a worker"):
                store.ping()
            store.migrate()
            store.ping()


def drop_tables(database: Database) -> None:
    """Leaves the database as it was before relight knew it."""

    def work(connection: Connection) -> None:
        for table in (*(table.name for table in reversed(METADATA.sorted_tables)), "relight_schema"):
            connection.execute(text(f"drop table if exists {table}"))

    database.write(work)


def test_a_file_locked_for_a_moment_is_waited_for(file: Path, cluster: str) -> None:
    store = AuditStore(f"sqlite:///{file}", timeout_s=30)
    store.migrate()
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    writer = Thread(target=lambda: opened(store, cluster))
    writer.start()
    assert store.jobs(cluster) == [], "reading does not wait for a writer"
    other.execute("COMMIT")
    writer.join(timeout=60)
    assert len(store.jobs(cluster)) == 1
    other.close()
    store.close()


def test_a_file_that_stays_locked_is_told(sqlite: AuditStore, file: Path, cluster: str) -> None:
    other = sqlite3.connect(file, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(AuditUnavailable, match="locked by another process"):
        opened(sqlite, cluster)
    other.execute("ROLLBACK")
    opened(sqlite, cluster)
    other.close()


def test_a_full_disk_is_told_and_what_was_begun_is_undone(sqlite: AuditStore, cluster: str) -> None:
    life = opened(sqlite, cluster).life_id
    sqlite.close()

    def keep_small(connection: sqlite3.Connection, record: object) -> None:
        connection.execute("PRAGMA max_page_count = 60")

    event.listen(sqlite._database.engine, "connect", keep_small)
    big = [samples.event(f"{life}/{n}", body={"text": "x" * 100_000}) for n in range(10)]
    with pytest.raises(AuditUnavailable, match="disk is full"):
        sqlite.append(cluster, "12345", life, big, phase="recovering")
    assert sqlite.events(cluster, "12345") == []
    assert sqlite.life(life).phase == ""
    event.remove(sqlite._database.engine, "connect", keep_small)
    sqlite.close()
    assert sqlite.append(cluster, "12345", life, big) == 10


def test_a_read_only_file_is_told(sqlite: AuditStore, file: Path, cluster: str) -> None:
    opened(sqlite, cluster)
    with AuditStore(f"sqlite:///file:{file}?mode=ro&uri=true") as reader:
        assert len(reader.jobs(cluster)) == 1
        with pytest.raises(AuditUnavailable, match="read-only"):
            reader.close_life(1, "done", NOON)
    sqlite.close()


def test_a_file_that_is_none_of_ours_is_told(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.db"
    wrong.write_bytes(os.urandom(8192))
    with pytest.raises(AuditUnavailable, match="not an SQLite database"):
        AuditStore(f"sqlite:///{wrong}", timeout_s=0.2).migrate()


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(AuditUnavailable, match="folder"):
        AuditStore(f"sqlite:///{tmp_path}/file/audit.db").migrate()
    with pytest.raises(AuditUnavailable, match="cannot be opened"):
        AuditStore(f"sqlite:///{tmp_path}/nowhere/audit.db").ping()
