"""`relight doctor …`: looks at what relight depends on and says what to mend. Changes nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

from activities.telemetry.logs_check import LogsReport, check_logs
from activities.telemetry.metric_queries import Queries
from activities.telemetry.metrics_check import MetricsReport, check_metrics
from workers.naming import check_cluster, nodes_of, settings_of
from workers.screen import REFUSED, Trouble, print_json, say, table
from workers.settings import Settings
from workers.telemetry import log_source, metrics_source

NOT_CONFIGURED = (
    "telemetry.prometheus is not configured: jobs are watched by Slurm and their logs alone. Not seen: GPU errors that "
    "no log tells, idle tensor cores and fabric as second witness of a hang, which host is slow"
)


def doctor_telemetry(config: Path | None, *, cluster: str | None, nodes: str, as_json: bool) -> None:
    """Ends with exit code 1 when something is missing that relight needs to see faults."""
    settings = settings_of(config)
    if cluster is not None:
        check_cluster(cluster, settings)
    expected = nodes_of(nodes)
    logs = _logs_reports(settings, cluster)
    metrics = settings.telemetry.prometheus
    if not as_json:
        _print_logs(settings, logs)
    if metrics is None:
        if as_json:
            print_json({"ok": False, "server": None, "clusters": {}, "logs": logs, "problems": [NOT_CONFIGURED]})
            raise SystemExit(REFUSED)
        raise Trouble(NOT_CONFIGURED, REFUSED)
    reports = {name: _report(settings, name, expected) for name in _clusters(settings, cluster, metrics.selector)}
    ok = all(one.ok for one in reports.values()) and all(one.ok for one in logs.values())
    if as_json:
        print_json({"ok": ok, "server": metrics.url, "clusters": reports, "logs": logs})
    else:
        for name, report in reports.items():
            _print(name, metrics.url, report)
    if not ok:
        raise SystemExit(REFUSED)


def _clusters(settings: Settings, cluster: str | None, selector: str) -> list[str]:
    """All clusters, where they are told apart in the queries; else one stands for all."""
    names = sorted(settings.clusters)
    if cluster is not None:
        return [cluster]
    return names if "{cluster}" in selector else names[:1]


def _logs_reports(settings: Settings, cluster: str | None) -> dict[str, LogsReport]:
    given = settings.telemetry.logs
    names = _clusters(settings, cluster, given.selector) if given is not None else []
    sources = {name: source for name in names if (source := log_source(settings, name)) is not None}
    return {name: asyncio.run(check_logs(source.store)) for name, source in sources.items()}


def logs_in_words(settings: Settings) -> str:
    """Where job logs come from and which source counts, in one line."""
    given = settings.telemetry.logs
    if given is None:
        return "job logs: the jobs' own output files (telemetry.logs is not configured)"
    both = "files where relight can read them, else" if given.prefer == "files" else "only"
    return f"job logs: {both} {given.kind} at {given.url} (telemetry.logs.prefer: {given.prefer})"


def _print_logs(settings: Settings, reports: dict[str, LogsReport]) -> None:
    say(logs_in_words(settings))
    for name, report in reports.items():
        if report.trouble:
            say(f"cluster {name}: {report.store} {report.trouble}")
            continue
        age = f", the newest {report.newest_age_s:g} s old" if report.newest_age_s is not None else ""
        seen = f"{report.lines} lines of {report.jobs} jobs from {len(report.nodes)} nodes in the last 15 minutes{age}"
        say(f"cluster {name}: {report.store} answers within {report.answered_in_s:g} s; {seen}")
        if report.example:
            say(f"a line is read as: {report.example}")
        for kind, lines in (("problem", report.problems), ("note", report.notes)):
            for line in lines:
                say(f"{kind}: {line}")
    say("")


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
