"""Metrics out of the audit store: gauges as it is when asked, counters of what was written since this console began.

Labels are words of relight's own, never text of a job: what is not known is counted as `other`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST as CONTENT_TYPE
from prometheus_client.registry import Collector

from activities.audit.records import Event
from activities.contracts import EventKind
from activities.sweep_cursor import read_cursor
from recovery.records import Action, FaultClass, OutcomeKind
from workers.console.reading import Source, is_blind

__all__ = ["CONTENT_TYPE", "Counted", "exposition"]

BUCKETS = (1, 2, 3, 5, 8, 13, 20, 30, 60, 90, 120, 300, 600, 1800)
REMEMBERED = 20_000
LONGEST_S = 7 * 86_400

disable_created_metrics()  # type: ignore[no-untyped-call]


class Counted:
    """Counts rows of the log as they appear."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        r = self.registry
        self._findings = Counter(
            "relight_findings", "Findings written down.", ("cluster", "fault_class", "certainty"), registry=r
        )
        self._advice = Counter("relight_advice", "Advice given.", ("cluster", "action", "mode"), registry=r)
        self._steps = Counter("relight_steps", "Changes asked of Slurm.", ("cluster", "action", "result"), registry=r)
        self._outcomes = Counter("relight_outcomes", "What came of the steps.", ("cluster", "kind"), registry=r)
        self._words = Counter("relight_operator_words", "What people asked for.", ("cluster",), registry=r)
        self._detection = Histogram(
            "relight_detection_seconds", "From a fault, as its source dates it, until its finding was recorded.",
            ("cluster",), buckets=BUCKETS, registry=r,
        )  # fmt: skip
        self._action = Histogram(
            "relight_action_seconds", "From an attempt's first finding until Slurm accepted the change.",
            ("cluster",), buckets=BUCKETS, registry=r,
        )  # fmt: skip
        self._first: OrderedDict[tuple[int | None, int], datetime] = OrderedDict()

    def count(self, events: Sequence[Event]) -> None:
        for event in sorted(events, key=lambda one: one.id):
            self._one(event)

    def _one(self, event: Event) -> None:
        cluster, body = event.cluster, event.body
        match event.kind:
            case EventKind.FINDING:
                certainty = _word(body.get("certainty"), ("suspected", "confirmed"))
                self._findings.labels(cluster, _word(body.get("fault_class"), FaultClass), certainty).inc()
                self._found(event)
            case EventKind.ADVICE:
                mode = _word(body.get("mode"), ("monitor", "approve", "act"))
                self._advice.labels(cluster, _word(body.get("action"), Action), mode).inc()
            case EventKind.STEP if "done" in body:
                if body["done"] is None:
                    return
                result = "done" if body["done"] else "refused"
                self._steps.labels(cluster, _word(body.get("action"), Action), result).inc()
                first = self._first.get((event.life_id, event.attempt))
                if body["done"] and first is not None:
                    self._observe(self._action, cluster, first, event.at)
            case EventKind.OUTCOME:
                self._outcomes.labels(cluster, _word(body.get("kind"), OutcomeKind)).inc()
            case EventKind.OPERATOR:
                self._words.labels(cluster).inc()

    def _found(self, event: Event) -> None:
        key = (event.life_id, event.attempt)
        self._first.setdefault(key, event.recorded_at)
        while len(self._first) > REMEMBERED:
            self._first.popitem(last=False)
        if event.body.get("at") is not None:  # otherwise its source gives no time, and its row bears that of the look
            self._observe(self._detection, event.cluster, event.at, event.recorded_at)

    @staticmethod
    def _observe(histogram: Histogram, cluster: str, begin: datetime, end: datetime) -> None:
        seconds = (end - begin).total_seconds()
        if 0 <= seconds < LONGEST_S:  # a clock that is wrong, or an old log, says nothing of speed
            histogram.labels(cluster).observe(seconds)


def _word(value: object, known: Iterable[str]) -> str:
    return value if isinstance(value, str) and value in set(known) else "other"


class _Store(Collector):
    """Gauges of one moment."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = tuple(families)

    def collect(self) -> Iterable[Metric]:
        return self._families


def exposition(source: Source, counted: Counted) -> bytes:
    """All metrics as text."""
    registry = CollectorRegistry()
    registry.register(_Store(_gauges(source)))
    return generate_latest(registry) + generate_latest(counted.registry)


def _gauges(source: Source) -> list[Metric]:
    store, now = source.store, datetime.now(UTC)
    jobs = GaugeMetricFamily("relight_jobs", "Jobs that are watched, by phase.", labels=("cluster", "phase"))
    waiting = GaugeMetricFamily("relight_incidents_open", "Open incidents.", labels=("cluster",))
    drained = GaugeMetricFamily("relight_nodes_drained", "Nodes that relight took out of service.", labels=("cluster",))
    excluded = GaugeMetricFamily("relight_nodes_excluded", "Nodes some job is kept away from.", labels=("cluster",))
    blind = GaugeMetricFamily(
        "relight_blind_jobs", "Running jobs whose source cannot be read.", labels=("cluster", "source")
    )
    seconds = GaugeMetricFamily(
        "relight_blind_seconds", "How long the source has been unreadable, longest first; 0: it is read.",
        labels=("cluster", "source"),
    )  # fmt: skip
    swept = GaugeMetricFamily(
        "relight_sweep_age_seconds", "Since the last sweep of the cluster that read the scheduler.", labels=("cluster",)
    )
    counts = store.counts()
    for cluster in source.clusters():
        by_phase: dict[str, int] = {}
        for one in counts:
            if one.cluster == cluster:
                phase = "paused" if one.paused else one.phase or "opening"
                by_phase[phase] = by_phase.get(phase, 0) + one.jobs
        for phase, number in sorted(by_phase.items()):
            jobs.add_metric((cluster, phase), number)
        waiting.add_metric((cluster,), len(store.open_incidents(cluster)))
        drained.add_metric((cluster,), len(store.drains(cluster)))
        excluded.add_metric((cluster,), len({one.node for one in store.exclusions(cluster)}))
        since = [
            (now - cursor.blind[-1].begin).total_seconds()
            for cursor in (read_cursor(row.cursor) for row in store.watched(cluster))
            if is_blind(cursor)
        ]
        blind.add_metric((cluster, "log"), len(since))
        seconds.add_metric((cluster, "log"), max(since, default=0.0))
        last = store.swept_at(cluster)
        if last is not None:
            age = max(0.0, (now - last).total_seconds())
            swept.add_metric((cluster,), age)
            seconds.add_metric((cluster, "scheduler"), age if age > STALE_S else 0.0)
    return [jobs, waiting, drained, excluded, blind, seconds, swept]


STALE_S = 30.0
"""A scheduler that was read within this counts as read now."""
