"""Looks at a Prometheus server as an operator would: which metrics exist, which host names they carry, what is missing.

For `relight doctor telemetry`. It judges no job and changes nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from pydantic import Field

from activities.telemetry.hostnames import HostNames, bare_host, is_address
from activities.telemetry.metric_queries import METRICS, Exporter, Queries
from activities.telemetry.metric_round import SKEW_S
from activities.telemetry.prometheus import Answer, Prometheus, PrometheusAccess, Series
from recovery.records import Nodes, Record


class MetricState(Record):
    """One metric that relight reads."""

    name: str
    exporter: str
    series: int = 0
    core: bool
    blinds: str = Field(description="what cannot be seen without it")
    hint: str = ""


class HostLabel(Record):
    """A label by which an exporter's series name their hosts."""

    exporter: str
    label: str
    hosts: int
    example: str
    addresses: int = Field(default=0, description="how many of the values are IP addresses, which name no node")


class Coverage(Record):
    """Which of the given nodes an exporter's series are joined to."""

    exporter: str
    covered: Nodes = ()
    missing: Nodes = ()


class MetricsReport(Record):
    """What was found. `problems` are what an operator should mend, most important first."""

    ok: bool
    trouble: str = Field(default="", description="why nothing could be asked")
    clock_ahead_s: float | None = Field(default=None, description="the server's clock against ours")
    metrics: tuple[MetricState, ...] = ()
    labels: tuple[HostLabel, ...] = ()
    coverage: tuple[Coverage, ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = Field(default=(), description="what is missing and may stay so")


async def check_metrics(access: PrometheusAccess, queries: Queries, nodes: Nodes = ()) -> MetricsReport:
    """Asks the server about everything relight would read. `nodes`: those whose metrics are expected. Never raises."""
    server = Prometheus(access)
    try:
        listed = (await server.ask({"inventory": queries.inventory()}))["inventory"]
        if listed.trouble:
            return MetricsReport(ok=False, trouble=listed.trouble, problems=(f"Prometheus {listed.trouble}",))
        counts = {row.labels.get("__name__", ""): row.count for row in listed.rows}
        asked = {exporter: name for exporter in Exporter if (name := _most_common(exporter, counts))}
        answers = await server.ask(
            {
                "names": queries.names(),
                "down": queries.down(),
                "clock": "vector(time())",
                **{f"labels of {exporter}": queries.labels_of(name) for exporter, name in asked.items()},
            }
        )
    finally:
        server.close()
    return _report(counts, answers, queries.shape.host_labels, nodes)


def _report(
    counts: Mapping[str, int], answers: Mapping[str, Answer], host_labels: Sequence[str], nodes: Nodes
) -> MetricsReport:
    metrics = tuple(
        MetricState(
            name=metric.name,
            exporter=metric.exporter.value,
            series=counts.get(metric.name, 0),
            core=metric.core,
            blinds=metric.blinds,
            hint=metric.hint,
        )
        for metric in METRICS
    )
    problems, notes = _missing(metrics)
    names = {row.labels.get("instance", ""): row.labels.get("nodename", "") for row in answers["names"].rows}
    hosts = HostNames(nodes, labels=host_labels, names={key: name for key, name in names.items() if key and name})
    labels: list[HostLabel] = []
    coverage: list[Coverage] = []
    for exporter in Exporter:
        answer = answers.get(f"labels of {exporter}", Answer())
        carried = _labels(exporter, answer.rows, host_labels)
        labels += carried
        if answer.rows and not carried:
            problems.append(f"{exporter.value}: its series carry no host label ({', '.join(host_labels)})")
        if nodes:
            covered = {node for row in answer.rows if (node := hosts.node_of(row.labels)) is not None}
            lost = tuple(sorted(set(nodes) - covered))
            coverage.append(Coverage(exporter=exporter.value, covered=tuple(covered), missing=lost))
            if lost and answer.rows:
                problems.append(f"{exporter.value}: no series of {_some(lost)} (of {len(nodes)} nodes)")
        if carried and all(label.addresses == label.hosts for label in carried) and not names:
            problems.append(
                f"{exporter.value}: hosts are known by address only, as {carried[0].example}: scrape by name, add a "
                "label such as hostname, or scrape node_exporter's node_uname_info at the same addresses"
            )
    down = sorted({f"{row.labels.get('instance', '?')} ({row.labels.get('job', '?')})" for row in answers["down"].rows})
    if down:
        notes.append(f"{len(down)} targets do not answer: {_some(down)}")
    problems += [f"{name}: {answer.trouble}" for name, answer in answers.items() if answer.trouble]
    clock = answers["clock"]
    ahead = round(clock.server_time - clock.asked_at, 1) if clock.server_time is not None else None
    if ahead is not None and abs(ahead) > SKEW_S:
        problems.append(f"the server's clock differs from this machine's by {ahead:g} s")
    return MetricsReport(
        ok=not problems,
        clock_ahead_s=ahead,
        metrics=metrics,
        labels=tuple(labels),
        coverage=tuple(coverage),
        problems=tuple(problems),
        notes=tuple(notes),
    )


def _missing(metrics: Sequence[MetricState]) -> tuple[list[str], list[str]]:
    """What is missing: an exporter that is not there at all is told once, else one line per metric."""
    problems: list[str] = []
    notes: list[str] = []
    for exporter in Exporter:
        own = [metric for metric in metrics if metric.exporter == exporter.value]
        gone = [metric for metric in own if not metric.series]
        if len(gone) == len(own):
            blinds = "; ".join(dict.fromkeys(metric.blinds for metric in own))
            problems.append(
                f"{exporter.value}: none of its {len(own)} metrics exists, is it scraped? Not seen: {blinds}"
            )
            continue
        for metric in gone:
            hint = f" ({metric.hint})" if metric.hint else ""
            (problems if metric.core else notes).append(f"{metric.name} is missing{hint}. Not seen: {metric.blinds}")
    return problems, notes


def _most_common(exporter: Exporter, counts: Mapping[str, int]) -> str | None:
    """The metric of an exporter with most series, to learn how its hosts are named."""
    own = [metric.name for metric in METRICS if metric.exporter is exporter and counts.get(metric.name)]
    return max(own, key=lambda name: counts[name], default=None)


def _labels(exporter: Exporter, rows: Sequence[Series], host_labels: Sequence[str]) -> list[HostLabel]:
    values: defaultdict[str, set[str]] = defaultdict(set)
    for row in rows:
        for label in host_labels:
            if row.labels.get(label):
                values[label].add(row.labels[label])
    return [
        HostLabel(
            exporter=exporter.value,
            label=label,
            hosts=len({bare_host(value) for value in values[label]}),
            example=min(values[label]),
            addresses=len({host for value in values[label] if is_address(host := bare_host(value))}),
        )
        for label in host_labels
        if label in values
    ]


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(names[:8]) + more
