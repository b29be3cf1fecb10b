"""The audit store on each of the three kinds of database; every test has cluster names of its own."""

import uuid
from collections.abc import Iterator

import pytest

from activities.audit.store import AuditStore
from tests.services import MariaDBServer, PostgresServer

Server = PostgresServer | MariaDBServer


@pytest.fixture(scope="session", params=["sqlite", "postgresql", "mariadb"])
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """URL of a database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path_factory.mktemp('audit')}/audit.db"
    found: str = request.getfixturevalue({"postgresql": "postgres_url", "mariadb": "mariadb_url"}[request.param])
    return found


@pytest.fixture(scope="session")
def store(url: str) -> Iterator[AuditStore]:
    # 30 s: these tests are about what the store does; test_outage.py is about how soon it gives up.
    with AuditStore(url, timeout_s=30) as made:
        made.migrate()
        yield made


@pytest.fixture
def cluster() -> str:
    """A name that no other test uses."""
    return f"lab-{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def own_postgres() -> Iterator[PostgresServer]:
    """A server for tests that break it or empty it; they leave it running."""
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def own_mariadb() -> Iterator[MariaDBServer]:
    with MariaDBServer() as server:
        yield server


@pytest.fixture(params=["own_postgres", "own_mariadb"])
def own_server(request: pytest.FixtureRequest) -> Server:
    server: Server = request.getfixturevalue(request.param)
    return server
