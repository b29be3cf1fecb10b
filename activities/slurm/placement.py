"""How many exclusions a job can bear: a job that cannot be placed does not fail open. Pure arithmetic, no I/O.

It errs on the side of fewer exclusions, and never judges what it does not understand.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from recovery.records import JobView, Nodes, NodeView

_FEATURE = re.compile(r"[A-Za-z0-9_.:=-]+\Z")


class Exclusions(NamedTuple):
    """kept: what to write into ExcNodeList (a union); dropped: wanted, but left out; reason: why, empty when none."""

    kept: Nodes
    dropped: Nodes
    reason: str


def usable_exclusions(
    view: JobView,
    nodes: Sequence[NodeView],
    wanted: Sequence[str],
    keep: Iterable[str] = (),
    reservation_nodes: Iterable[str] | None = None,
) -> Exclusions:
    """The exclusions a job can bear.

    `wanted`: nodes to avoid, the most suspect first; kept only while enough usable nodes remain. `keep`: exclusions
    that stand already and are not ours to give up. Names that no node has are dropped from both.
    """
    known = {node.name for node in nodes}
    fixed = {name for name in keep if name in known}
    kept, dropped, reasons = set(fixed), set[str](), list[str]()
    unclear = _unclear(view, nodes, reservation_nodes)
    pool = _eligible(view, nodes, reservation_nodes) if not unclear else {}
    for name in dict.fromkeys(wanted):
        if name in fixed:
            continue
        why = ""
        if name not in known:
            why = f"{name} is no node of this cluster"
        elif name in view.required_nodes:
            why = f"{name} is required by the job itself (--nodelist)"
        elif unclear:
            why = unclear
        elif name in pool and not _fits(view, pool, kept | {name}):
            left = len(set(pool) - kept - {name})
            why = f"without {name} only {left} usable nodes would remain, the job needs {view.min_nodes}"
        if why:
            dropped.add(name)
            reasons.append(why)
        else:
            kept.add(name)
    return Exclusions(tuple(sorted(kept)), tuple(sorted(dropped)), "; ".join(dict.fromkeys(reasons)))


def usable_nodes(view: JobView, nodes: Sequence[NodeView]) -> Nodes:
    """Nodes on which Slurm may place the job, now or when they are free; none where that cannot be judged."""
    return () if _unclear(view, nodes, None) else tuple(sorted(_eligible(view, nodes, None)))


def eligible_nodes(view: JobView, nodes: Sequence[NodeView]) -> tuple[NodeView, ...]:
    """The same, as they were seen."""
    return () if _unclear(view, nodes, None) else tuple(_eligible(view, nodes, None).values())


def newest_first(nodes: Iterable[str], since: Mapping[str, datetime]) -> tuple[str, ...]:
    """Exclusions in the order in which they are worth keeping; one without a time is taken for the newest."""
    latest = datetime.max.replace(tzinfo=UTC)
    named = sorted(set(nodes))
    return tuple(sorted(named, key=lambda node: since.get(node, latest), reverse=True))


def as_if_heard(nodes: Sequence[NodeView]) -> tuple[NodeView, ...]:
    """The nodes, silent ones as if they had answered: for some seconds slurmctld knows none when it has started."""
    return tuple(
        node.model_copy(update={"state": "IDLE" if node.state == "UNKNOWN" else node.state, "flags": _heard(node)})
        if is_silent(node)
        else node
        for node in nodes
    )


def is_silent(node: NodeView) -> bool:
    """Neither up nor down: slurmctld has not heard from it (yet)."""
    return node.state == "UNKNOWN" or "NOT_RESPONDING" in node.flags


def nobody_is_heard(nodes: Sequence[NodeView]) -> bool:
    """When most nodes are silent at once, it is slurmctld that has just started; nothing is told about the nodes."""
    return 2 * sum(1 for node in nodes if is_silent(node)) > len(nodes)


def _heard(node: NodeView) -> tuple[str, ...]:
    return tuple(flag for flag in node.flags if flag != "NOT_RESPONDING")


def _unclear(view: JobView, nodes: Sequence[NodeView], reservation_nodes: Iterable[str] | None) -> str:
    """Why this job's choice of nodes cannot be judged, or nothing."""
    if not nodes:
        return "the cluster's nodes are not known"
    if view.reservation and reservation_nodes is None:
        return f"the nodes of reservation {view.reservation} are not known"
    if view.features and _feature_test(view.features) is None:
        return f"the constraint {view.features!r} is not understood"
    return ""


def _eligible(view: JobView, nodes: Sequence[NodeView], reservation_nodes: Iterable[str] | None) -> dict[str, NodeView]:
    """Nodes on which Slurm may place a node's share of the job, now or when they are free."""
    partitions = set(view.partition.split(","))
    reserved = None if reservation_nodes is None or not view.reservation else set(reservation_nodes)
    test = _feature_test(view.features) if view.features else None
    return {
        node.name: node
        for node in nodes
        if node.is_usable
        and partitions & set(node.partitions)
        and node.cpus >= view.min_cpus_node
        and node.memory_mb >= view.min_memory_mb
        and (test is None or test.matches(node.features))
        and (reserved is None or node.name in reserved)
    }


def _fits(view: JobView, pool: dict[str, NodeView], excluded: set[str]) -> bool:
    left = [node for name, node in pool.items() if name not in excluded]
    return len(left) >= max(1, view.min_nodes) and sum(node.cpus for node in left) >= view.num_cpus


class _FeatureTest(NamedTuple):
    names: tuple[str, ...]
    every: bool

    def matches(self, features: Sequence[str]) -> bool:
        found = [name in features for name in self.names]
        return all(found) if self.every else any(found)


def _feature_test(text: str) -> _FeatureTest | None:
    """`a`, `a&b` or `a|b`; None for anything richer (counts, brackets, mixtures)."""
    if "&" in text and "|" in text:
        return None
    names = tuple(re.split(r"[&,|]", text))
    if not all(_FEATURE.match(name) for name in names):
        return None
    return _FeatureTest(names, every="|" not in text)
