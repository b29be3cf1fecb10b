"""A client of the session's real Temporal server, and a cluster name of its own for each test."""

from __future__ import annotations

import pytest
from temporalio.client import Client

from tests.services import TemporalServer
from tests.workflows.scripted import unique_cluster


@pytest.fixture
async def client(temporal_server: TemporalServer) -> Client:
    return await temporal_server.client()


@pytest.fixture
def cluster() -> str:
    return unique_cluster()
