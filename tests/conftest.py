"""Fixtures that the test suites share: real servers, started when the first test asks for them."""

from collections.abc import Iterator

import pytest

from tests.cluster import SlurmCluster
from tests.services import MariaDBServer, PostgresServer, TemporalServer


@pytest.fixture(scope="module")
def slurm() -> Iterator[SlurmCluster]:
    """Four nodes without accounting, fresh for each test file."""
    with SlurmCluster(nodes=4) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def slurm_accounting() -> Iterator[SlurmCluster]:
    """Four nodes with accounting, shared by all: leave its nodes up and take no job id for granted."""
    with SlurmCluster(nodes=4, accounting=True) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def temporal_server() -> Iterator[TemporalServer]:
    """A Temporal server shared by all; use your own workflow ids and task queues. To kill one, start your own."""
    with TemporalServer() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """URL of an empty PostgreSQL database, shared by all."""
    with PostgresServer() as server:
        yield server.url


@pytest.fixture(scope="session")
def mariadb_url() -> Iterator[str]:
    """URL of an empty MariaDB database, shared by all."""
    with MariaDBServer() as server:
        yield server.url
