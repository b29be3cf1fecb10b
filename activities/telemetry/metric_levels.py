"""Compares what the hosts of one job do: whether all of them are idle, and whether one falls out of line. Pure.

Nothing is concluded from what was not measured.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from statistics import median

from activities.telemetry.hostnames import HostNames
from activities.telemetry.metric_queries import ANSWERS, THROTTLES, Level
from activities.telemetry.prometheus import Series
from recovery.records import Nodes

TENSOR_IDLE = 0.001
"""Share of time; below it the tensor cores do nothing (DLRover uses the same)."""

FABRIC_IDLE = 1e6
"""Bytes per second and host, both ways: what the fabric's own management and mounted file systems may cause."""

FEWEST = 3
"""Hosts that must be measured before one can fall out of line."""

SHARE = 4
"""More than one slow host in so many is no outlier: then the job is like that."""

BELOW: Mapping[Level, tuple[float, str, str]] = {
    Level.CLOCK: (0.9, "SM clock", "MHz"),
    Level.POWER: (0.7, "power", "W"),
    Level.TENSOR: (0.5, "tensor-core activity", ""),
}
"""By measure: a host below this share of the job's median falls out of line."""

SPREAD = 5.0
"""And by so many (scaled) median deviations: where hosts differ by nature, none of them is an outlier."""

ABSENT, WAITING = 10.0, 90.0
"""Percent of use: ranks that wait in a collective operation keep their GPUs busy by spinning; one that never came to it
leaves its own idle."""

PER_NODE: Mapping[str, Callable[[float, float], float]] = {Level.CLOCK: min, Level.POWER: min, Level.USED: min}
"""How several rows of one host are put together; all others by their maximum."""

Levels = Mapping[str, Mapping[str, float]]
"""By Level (throttling also by `throttled/METRIC`), then by node."""


def levels_by_node(rows: Iterable[Series], names: HostNames) -> Levels:
    """The answers of level queries, joined to the nodes. Rows of other hosts are left out."""
    found: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for row in rows:
        node, value = names.node_of(row.labels), row.value
        if node is None or value != value or abs(value) == float("inf"):
            continue
        level = row.labels.get(ANSWERS, "")
        if why := row.labels.get("why"):
            level = f"{level}/{why}"
        here = found[level]
        put = PER_NODE.get(level, max)
        here[node] = put(here[node], value) if node in here else value
    return found


def all_idle(values: Mapping[str, float], nodes: Nodes, limit: float) -> bool | None:
    """True when every node was measured and none is above the limit; False when one is; else None."""
    if any(values.get(node, 0.0) > limit for node in nodes):
        return False
    return True if nodes and all(node in values for node in nodes) else None


def slow_nodes(levels: Levels, nodes: Nodes) -> tuple[Nodes, str]:
    """Hosts that fall out of what the others of the job do, and by which measures."""
    told: dict[str, list[str]] = {}
    for level, (share, title, unit) in BELOW.items():
        measured = {node: levels[level][node] for node in nodes if node in levels.get(level, {})}
        for node in _outliers(measured, share):
            middle = median(measured.values())
            told.setdefault(node, []).append(
                f"{title} {_number(measured[node], unit)}, the job's {_number(middle, unit)}"
            )
    for node, words in told.items():
        words += _throttling(levels, node, nodes)
    how = "; ".join(f"{node}: {', '.join(words)}" for node, words in sorted(told.items()))
    return tuple(sorted(told)), how


def absent_node(levels: Levels, nodes: Nodes) -> str | None:
    """Of a job whose tensor cores are all idle: the one host that does not wait as all its others do."""
    used = levels.get(Level.USED, {})
    if len(nodes) < 2 or any(node not in used for node in nodes):
        return None
    absent = [node for node in nodes if used[node] < ABSENT]
    waiting = [node for node in nodes if used[node] > WAITING]
    return absent[0] if len(absent) == 1 and len(waiting) == len(nodes) - 1 else None


def _outliers(measured: Mapping[str, float], share: float) -> list[str]:
    if len(measured) < FEWEST:
        return []
    middle = median(measured.values())
    deviation = 1.4826 * median(abs(value - middle) for value in measured.values())
    limit = min(share * middle, middle - SPREAD * deviation)
    found = [node for node, value in measured.items() if value < limit]
    return found if len(found) <= max(1, len(measured) // SHARE) else []


def _throttling(levels: Levels, node: str, nodes: Nodes) -> list[str]:
    """Why its GPUs are slow, where the exporter tells: throttled far longer than those of its peers."""
    why = []
    for metric in THROTTLES:
        values = levels.get(f"{Level.THROTTLED}/{metric}", {})
        others = [values[other] for other in nodes if other != node and other in values]
        if values.get(node, 0.0) > 0 and others and values[node] > 10 * median(others):
            why.append(metric.removeprefix("DCGM_FI_DEV_").removesuffix("_VIOLATION").replace("_", " ").lower())
    return [f"throttled ({' and '.join(why)})"] if why else []


def _number(value: float, unit: str) -> str:
    return f"{value:.3g}" if not unit else f"{value:.0f} {unit}"
