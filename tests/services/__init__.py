"""Real servers on free ports for tests and demos: Temporal, PostgreSQL, MariaDB, Prometheus with fake exporters."""

from tests.services.databases import MariaDBServer, PostgresServer
from tests.services.exporter import FakeExporter
from tests.services.prometheus import PrometheusServer
from tests.services.temporal import SEARCH_ATTRIBUTES, TemporalServer

__all__ = [
    "SEARCH_ATTRIBUTES",
    "FakeExporter",
    "MariaDBServer",
    "PostgresServer",
    "PrometheusServer",
    "TemporalServer",
]
