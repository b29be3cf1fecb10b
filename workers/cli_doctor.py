"""`relight doctor …`: looks at what relight depends on and says what to mend. Changes nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

from activities.telemetry.metric_queries import Queries
from activities.telemetry.metrics_check import MetricsReport, check_metrics
from workers.naming import check_cluster, nodes_of, settings_of
from workers.screen import REFUSED, Trouble, print_json, say, table
from workers.settings import Settings
from workers.telemetry import metrics_source

NOT_CONFIGURED = (
    "telemetry.prometheus is not configured: jobs are watched by Slurm and their logs alone. Not seen: GPU errors that "
    "no log tells, idle tensor cores and fabric as second witness of a hang, which host is slow"
)


def doctor_telemetry(config: Path | None, *, cluster: str | None, nodes: str, as_json: bool) -> None:
    """Ends with exit code 1 when something is missing that relight needs to see faults."""
    settings = settings_of(config)
    if cluster is not None:
        check_cluster(cluster, settings)
    if settings.telemetry.prometheus is None:
        raise Trouble(NOT_CONFIGURED, REFUSED)
    expected = nodes_of(nodes)
    reports = {name: _report(settings, name, expected) for name in _clusters(settings, cluster)}
    ok = all(report.ok for report in reports.values())
    if as_json:
        print_json({"ok": ok, "server": settings.telemetry.prometheus.url, "clusters": reports})
    else:
        for name, report in reports.items():
            _print(name, settings.telemetry.prometheus.url, report)
    if not ok:
        raise SystemExit(REFUSED)


def _clusters(settings: Settings, cluster: str | None) -> list[str]:
    """All clusters, where they are told apart in the queries; else one stands for all."""
    names = sorted(settings.clusters)
    if cluster is not None:
        return [cluster]
    apart = settings.telemetry.prometheus is not None and "{cluster}" in settings.telemetry.prometheus.selector
    return names if apart else names[:1]


def _report(settings: Settings, cluster: str, nodes: tuple[str, ...]) -> MetricsReport:
    source = metrics_source(settings, cluster)
    assert source is not None
    return asyncio.run(check_metrics(source.access, Queries(source.shape), nodes))


def _print(cluster: str, url: str, report: MetricsReport) -> None:
    if report.trouble:
        say(f"cluster {cluster}: {url}: {report.trouble}")
        return
    ahead = f", its clock is {report.clock_ahead_s:+g} s" if report.clock_ahead_s is not None else ""
    say(f"cluster {cluster}: {url} answers{ahead}")
    say("")
    rows = [
        [metric.name, metric.exporter, str(metric.series) if metric.series else "missing", metric.blinds]
        for metric in report.metrics
    ]
    table(["METRIC", "EXPORTER", "SERIES", "FOR"], rows)
    if report.labels:
        say("")
        table(
            ["EXPORTER", "HOST LABEL", "HOSTS", "EXAMPLE"],
            [[label.exporter, label.label, str(label.hosts), label.example] for label in report.labels],
        )
    for one in report.coverage:
        say(f"{one.exporter}: {len(one.covered)} of {len(one.covered) + len(one.missing)} given nodes have metrics")
    for kind, lines in (("problem", report.problems), ("note", report.notes)):
        if lines:
            say("")
        for line in lines:
            say(f"{kind}: {line}")
    if report.ok:
        say("")
        say("all that relight needs is there")
