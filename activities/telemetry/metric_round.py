"""One round of questions to Prometheus: a few fleet-wide queries, then the samples of the few sources that changed.

It only fetches. What could not be fetched is listed in words; nothing raises and the round ends at its deadline.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from activities.telemetry.hostnames import HostNames
from activities.telemetry.metric_changes import Change, changes
from activities.telemetry.metric_queries import ANSWERS, METRICS, Level, Queries
from activities.telemetry.prometheus import Answer, Prometheus, Series
from recovery.records import Nodes

INVENTORY_S = 600.0
"""How often it is asked which metrics exist at all; ten times as often while something important does not."""

AT_ONCE = 25
"""Sources whose samples are fetched by one query."""

MOST_SOURCES = 200
"""Most sources whose samples are fetched in a round; more of them changing at once is told as blind."""

SKEW_S = 45.0
"""The server's clock counts as ours within this; some servers answer for a moment 30 s ago on purpose."""

Source = tuple[str, str]
"""A label and its value that pick the series of one host."""


@dataclass(frozen=True)
class Round:
    """What one round brought."""

    began: float
    """Our monotonic clock, as `ended`."""
    ended: float
    levels: tuple[Series, ...] = ()
    changes: tuple[Change, ...] = ()
    down: tuple[Series, ...] = ()
    names: Mapping[str, str] = field(default_factory=dict)
    """The name a host gives itself, by the address it is scraped at."""
    existing: Mapping[str, int] | None = None
    """Number of series by metric; None: not known."""
    skew_s: float = 0.0
    """How far the server's clock is ahead of ours."""
    blind: tuple[str, ...] = ()

    @property
    def failed(self) -> bool:
        """Whether it brought nothing at all."""
        return bool(self.blind) and not (self.levels or self.names or self.changes or self.down)


class Rounds:
    """Asks one server round after round, one at a time."""

    def __init__(self, server: Prometheus, queries: Queries) -> None:
        self._server = server
        self._queries = queries
        self._existing: tuple[float, Mapping[str, int]] | None = None

    async def ask(self, nodes: Nodes) -> Round:
        """A round for the jobs on these nodes."""
        began = time.monotonic()
        ends = began + self._server.access.deadline_s
        queries = {
            "GPU levels": self._queries.gpu_levels(),
            "host levels": self._queries.node_levels(),
            "events": self._queries.events(),
            "targets": self._queries.down(),
            "host names": self._queries.names(),
        }
        if self._inventory_is_due(began):
            queries["inventory"] = self._queries.inventory()
        answers = await self._server.ask(queries, ends=ends)
        if (listed := answers.get("inventory")) is not None and not listed.trouble:
            self._existing = (began, {row.labels.get("__name__", ""): row.count for row in listed.rows})
        names = {row.labels.get("instance", ""): row.labels.get("nodename", "") for row in answers["host names"].rows}
        names = {address: name for address, name in names.items() if address and name}
        found, trouble = await self._events(nodes, answers["events"].rows, names, ends)
        return Round(
            began=began,
            ended=time.monotonic(),
            levels=(*answers["GPU levels"].rows, *answers["host levels"].rows),
            changes=tuple(found),
            down=answers["targets"].rows,
            names=names,
            existing=self._existing[1] if self._existing is not None else None,
            skew_s=_skew(answers.values()),
            blind=tuple(dict.fromkeys((*_troubles(answers), *trouble))),
        )

    def _inventory_is_due(self, now: float) -> bool:
        if self._existing is None:
            return True
        at, existing = self._existing
        complete = all(metric.name in existing for metric in METRICS if metric.core)
        return now - at > (INVENTORY_S if complete else INVENTORY_S / 10)

    async def worked(self, level: Level, sources: Iterable[Source], span_s: float) -> tuple[float, ...] | None:
        """What these hosts did at some time within the span; None where that could not be asked."""
        values = sorted(set(sources))[:MOST_SOURCES]
        labels = sorted({label for label, _ in values})
        answers = await self._server.ask(
            {
                label: self._queries.worked(
                    level, label, [value for name, value in values if name == label], int(span_s)
                )
                for label in labels
            }
        )
        if any(answer.trouble for answer in answers.values()):
            return None
        return tuple(row.value for answer in answers.values() for row in answer.rows)

    def source_of(self, labels: Mapping[str, str]) -> Source | None:
        """The label by which the host of a row can be asked for again."""
        wanted = ("instance", *self._queries.shape.host_labels)
        return next(((label, labels[label]) for label in wanted if labels.get(label)), None)

    async def _events(
        self, nodes: Nodes, rows: Sequence[Series], names: Mapping[str, str], ends: float
    ) -> tuple[list[Change], list[str]]:
        """The events themselves, for the few sources on these nodes where something changed."""
        hosts = HostNames(nodes, labels=self._queries.shape.host_labels, names=names)
        changed: dict[Source, set[str]] = {}
        for row in rows:
            source = self.source_of(row.labels)
            if source is not None and hosts.node_of(row.labels) is not None:
                changed.setdefault(source, set()).add(row.labels.get(ANSWERS, ""))
        trouble = []
        if len(changed) > MOST_SOURCES:
            trouble.append(f"metrics: {len(changed)} sources changed at once, {MOST_SOURCES} of them are read")
        queries: dict[str, str] = {}
        picked = sorted(changed)[:MOST_SOURCES]
        for label in sorted({label for label, _ in picked}):
            values = [value for name, value in picked if name == label]
            for at in range(0, len(values), AT_ONCE):
                some = values[at : at + AT_ONCE]
                metrics = {metric for value in some for metric in changed[label, value]}
                queries[f"samples by {label} from {at}"] = self._queries.samples(metrics, label, some)
        answers = await self._server.ask(queries, ends=ends)
        found = [row for answer in answers.values() for row in answer.rows]
        return changes(found, self._queries.shape.host_labels), [*trouble, *_troubles(answers)]


def _troubles(answers: Mapping[str, Answer]) -> list[str]:
    """What could not be asked; told once where it is the same for all."""
    told = {name: answer.trouble for name, answer in answers.items() if answer.trouble}
    if told and len(told) == len(answers) and len(set(told.values())) == 1:
        return [f"metrics: {next(iter(told.values()))}"]
    return [f"metrics: {name}: {trouble}" for name, trouble in told.items()]


def _skew(answers: Iterable[Answer]) -> float:
    known = [answer.server_time - answer.asked_at for answer in answers if answer.server_time is not None]
    smallest = min(known, key=abs, default=0.0)
    return smallest if abs(smallest) > SKEW_S else 0.0
