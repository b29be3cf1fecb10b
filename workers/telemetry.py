"""Builds what watches telemetry from the configuration."""

from __future__ import annotations

from activities.telemetry.hostnames import HOST_LABELS
from activities.telemetry.http_logs import LogAccess
from activities.telemetry.loki import loki_source
from activities.telemetry.metric_queries import QueryShape
from activities.telemetry.metrics import MetricsSource, MetricsWatch
from activities.telemetry.prometheus import PrometheusAccess
from activities.telemetry.store_follow import LogStore
from activities.telemetry.store_reader import StoreReader, StoreTiming
from activities.telemetry.store_shape import StoreShape
from activities.telemetry.victorialogs import victorialogs_source
from recovery.faults.catalogue import Catalogue
from workers.settings import Settings


def metrics_source(settings: Settings, cluster: str) -> MetricsSource | None:
    """Where the metrics of a cluster come from; None where no server is configured."""
    given = settings.telemetry.prometheus
    if given is None:
        return None
    return MetricsSource(
        access=PrometheusAccess(
            url=given.url,
            token_file=given.token_file,
            headers={name: value.get_secret_value() for name, value in given.headers.items()},
            headers_file=given.headers_file,
            verify=given.verify,
            server_ca=given.server_ca,
            client_cert=given.client_cert,
            client_key=given.client_key,
            deadline_s=given.deadline_s,
            max_answer_bytes=given.max_answer_mb << 20,
        ),
        shape=QueryShape(
            selector=given.selector.replace("{cluster}", cluster),
            host_labels=given.host_labels or HOST_LABELS,
            idle_s=given.idle_s,
            lookback_s=given.lookback_s,
        ),
        interval_s=given.interval_s,
    )


def metrics_watch(settings: Settings, cluster: str, catalogue: Catalogue) -> MetricsWatch:
    """Watches the metrics of a cluster; where no server is configured it says nothing and costs nothing."""
    return MetricsWatch(metrics_source(settings, cluster), catalogue)


def log_store(settings: Settings, cluster: str) -> LogStore | None:
    """The log store of a cluster, and when it counts; None where jobs' files are read."""
    given, source = settings.telemetry.logs, log_source(settings, cluster)
    if given is None or source is None:
        return None
    return LogStore(source, files_first=given.prefer == "files", settle_s=given.settle_s)


def log_source(settings: Settings, cluster: str) -> StoreReader | None:
    """Where the logs of a cluster's jobs come from; None where they are read as files."""
    given = settings.telemetry.logs
    if given is None:
        return None
    access = LogAccess(
        url=given.url,
        token_file=given.token_file,
        login_file=given.login_file,
        headers={name: value.get_secret_value() for name, value in given.headers.items()},
        headers_file=given.headers_file,
        verify=given.verify,
        server_ca=given.server_ca,
        client_cert=given.client_cert,
        client_key=given.client_key,
        deadline_s=given.deadline_s,
        max_answer_bytes=given.max_answer_mb << 20,
    )
    shape = StoreShape(
        job_field=given.job_field,
        job_is_label=given.job_is_label,
        node_fields=given.node_fields,
        rank_fields=given.rank_fields,
        file_fields=given.file_fields,
        selector=given.selector.replace("{cluster}", cluster),
        tenant=given.tenant,
    )
    timing = StoreTiming(interval_s=given.interval_s, late_s=given.late_s, backlog_s=given.backlog_s)
    make = loki_source if given.kind == "loki" else victorialogs_source
    return make(access, shape, timing)
