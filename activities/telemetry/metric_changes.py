"""Finds when a metric changed, in its samples. Pure.

A gauge that keeps its last value says nothing by its level: only a change between two samples is an event, and a gap
between them is told along, because within it nobody knows when it was.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from activities.telemetry.metric_queries import CLOCK, EVENTS, IB_ACTIVE, SOURCE_LABELS, Event, Kind
from activities.telemetry.prometheus import Series

CODES = range(1, 1_000)
"""What can be an Xid; exporters write enormous numbers for "not known"."""

CODE_LABELS = ("xid", "err_code")

JOB_LABEL = "hpc_job"
"""The job a GPU belongs to, where prolog and epilog tell the exporter. It is gone once the epilog has run."""

Samples = list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Change:
    """One event of one source: between `since` and `at` the value went from `old` to `new`."""

    event: Event
    labels: Mapping[str, str]
    since: float
    at: float
    old: float
    new: float
    code: int | None = None
    jobs: frozenset[str] = frozenset()
    """Slurm's numbers of the jobs that used this GPU then, where the exporter tells; empty: not known."""

    @property
    def rise(self) -> float:
        return self.new - self.old


@dataclass(slots=True)
class _Source:
    """All samples of one metric of one thing that is measured, whatever its passing labels were."""

    labels: Mapping[str, str]
    samples: dict[float, float] = field(default_factory=dict)
    jobs: defaultdict[float, set[str]] = field(default_factory=lambda: defaultdict(set))

    def add(self, series: Series) -> None:
        self.labels = series.labels
        user = series.labels.get(JOB_LABEL)
        for at, value in series.samples:
            if user:
                self.jobs[at].add(user)
            known = self.samples.get(at)
            self.samples[at] = value if known is None else max(known, value)


def changes(rows: Iterable[Series], host_labels: Sequence[str]) -> list[Change]:
    """All events in the answer to Queries.samples, earliest first."""
    kept = (*host_labels, *SOURCE_LABELS)
    seen_at: defaultdict[tuple[str, ...], set[float]] = defaultdict(set)
    sources: dict[tuple[str, ...], _Source] = {}
    for series in rows:
        name, labels = series.labels.get("__name__", ""), series.labels
        key = tuple(labels.get(label, "") for label in kept)
        if name == CLOCK:
            seen_at[key].update(at for at, _ in series.samples)
            continue
        event = _EVENT_OF.get(name)
        if event is None:
            continue
        code = _code_in(labels) if event.kind is Kind.COUNT_OF_CODE else ""
        if event.kind is Kind.COUNT_OF_CODE and not code:
            continue  # the row that says that there was none
        sources.setdefault((name, code, *key), _Source(labels)).add(series)
    found: list[Change] = []
    for (name, code, *rest), source in sources.items():
        event = _EVENT_OF[name]
        line = _with_absences(source.samples, seen_at[tuple(rest)], event)
        found += _events(event, source, line, code)
    return sorted(found, key=lambda change: change.at)


_EVENT_OF = {event.metric: event for event in EVENTS}


def _events(event: Event, source: _Source, line: Samples, code: str) -> Iterable[Change]:
    for (since, old), (at, new) in pairwise(line):
        number: int | None = None
        if event.kind is Kind.LAST_CODE:
            happened = new != old and new in CODES
            number = int(new) if happened else None
        elif event.kind is Kind.PORT_STATE:
            happened = old == IB_ACTIVE and new < IB_ACTIVE
        else:
            happened = new > old
            number = int(code) if code else None
        if happened:
            jobs = frozenset(source.jobs.get(since, set()) | source.jobs.get(at, set()))
            yield Change(event, source.labels, since, at, old, new, code=number, jobs=jobs)


def _with_absences(samples: Mapping[float, float], seen_at: set[float], event: Event) -> Samples:
    """Samples in order, with a 0 wherever the exporter spoke of that GPU and had no code to tell.

    A single scrape without the code may be a slip, except before the first one there is.
    """
    line = dict(samples)
    if event.kind in {Kind.LAST_CODE, Kind.COUNT_OF_CODE} and seen_at:
        scrapes = sorted(seen_at | samples.keys())
        silent: list[float] = []
        first = True
        for at in [*scrapes, None]:
            if at is not None and at not in samples:
                silent.append(at)
                continue
            if len(silent) > 1 or first:
                line.update(dict.fromkeys(silent, 0.0))
            silent, first = [], False
    return [(at, value) for at, value in sorted(line.items()) if value == value]  # NaN says nothing


def _code_in(labels: Mapping[str, str]) -> str:
    for label in CODE_LABELS:
        text = labels.get(label, "")
        if text.isdecimal() and len(text) <= 3 and int(text) in CODES:
            return text
    return ""
