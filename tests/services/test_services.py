"""The servers that other tests stand on: they start, crash, come back with their data, and leave nothing behind."""

import pytest
from sqlalchemy import create_engine, text

from tests.cluster import ports
from tests.services import SEARCH_ATTRIBUTES, MariaDBServer, PostgresServer, TemporalServer


@pytest.mark.parametrize("kind", [PostgresServer, MariaDBServer])
def test_a_killed_database_comes_back_with_what_was_committed(kind: type[PostgresServer | MariaDBServer]) -> None:
    with kind() as server:
        engine = create_engine(server.url, pool_pre_ping=True)
        with engine.begin() as connection:
            connection.execute(text("create table t (word varchar(20))"))
            connection.execute(text("insert into t values ('naïve')"))
        server.kill()
        assert not ports.answers(server.port)
        server.start()
        with engine.connect() as connection:
            assert connection.execute(text("select word from t")).scalar() == "naïve"
        server.stop()
        server.start()
        with engine.connect() as connection:
            assert connection.execute(text("select count(*) from t")).scalar() == 1
        engine.dispose()
        folder = server._started.folder
    assert not folder.exists()


def test_a_killed_temporal_server_comes_back_with_its_workflows() -> None:
    with TemporalServer(ui=True) as server:
        listed = server.run("operator", "search-attribute", "list").stdout
        assert all(name in listed for name in SEARCH_ATTRIBUTES)
        assert ports.answers(server.ui_port)
        started = server.run(
            "workflow", "start", "--type", "Nobody", "--task-queue", "nobody", "--workflow-id", "still-there"
        )
        assert started.returncode == 0, started.stderr
        server.kill()
        assert not ports.answers(server.port)
        server.start()
        assert server.run("workflow", "describe", "--workflow-id", "still-there").returncode == 0
