"""Real servers on free ports for tests and demos: Temporal, PostgreSQL, MariaDB."""

from tests.services.databases import MariaDBServer, PostgresServer
from tests.services.temporal import SEARCH_ATTRIBUTES, TemporalServer

__all__ = ["SEARCH_ATTRIBUTES", "MariaDBServer", "PostgresServer", "TemporalServer"]
