"""Notices who did not speak: a node or rank that fell silent while all others reported a loss.

A node that loses power prints nothing; the others only say that a connection is gone. Concluded only when everybody
else has spoken, since a log is read while it is being written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from recovery.faults.places import RankMap, number
from recovery.faults.scanner import PER_BLOCK, Hit
from recovery.records import Nodes, Role

MOST_RANKS = PER_BLOCK // 2
"""In larger jobs a rank may seem silent only because its line was not looked at any more."""


class Kind(StrEnum):
    """What the silence looks like; the word joins the signature `silence.<kind>`."""

    NODE = "node"  # a node and its launcher: it is gone
    HUNG = "hung"  # ranks of one node, while the others waited for them until the timeout
    LEFT = "left"  # one rank, whose launcher saw no error in it: it ended early by itself


@dataclass(frozen=True, slots=True)
class Silence:
    kind: Kind
    node: str
    ranks: tuple[int, ...]


def silence(hits: Sequence[Hit], ranks: RankMap, nodes: Nodes) -> Silence | None:
    """Who is silent among `nodes` and the known ranks, None where that cannot be told. `hits` are those that count."""
    where = ranks.ranks
    if len(where) > MOST_RANKS or len(nodes) < 2:
        return None
    waited = any(hit.signature.id in {"gloo.timeout", "nccl.watchdog_timeout"} for hit in hits)
    lost = any(hit.signature.role is Role.CASCADE for hit in hits)
    reported = {node for hit in hits for node in _reporters(hit)}
    mute = set(nodes) - reported
    spoke = {rank for hit in hits if (rank := number(hit.fields, "rank")) is not None and not _late(hit)}
    silent = tuple(sorted(set(where) - spoke))
    homes = {where[rank] for rank in silent}
    if lost and not waited and len(mute) == 1 and len(reported) > 1 and reported < set(nodes):
        node = next(iter(mute))
        if homes <= {node} and all(rank in silent for rank, home in where.items() if home == node):
            return Silence(Kind.NODE, node, silent)
    if not silent or len(homes) != 1 or len(set(where.values())) < 2:
        return None
    node = next(iter(homes))
    if waited:
        return Silence(Kind.HUNG, node, silent)
    if lost and len(silent) == 1 and node in reported:
        return Silence(Kind.LEFT, node, silent)
    return None


def _reporters(hit: Hit) -> Iterable[str]:
    """The node whose launcher printed this."""
    if hit.signature.id.startswith(("torchelastic.exit", "rendezvous.lost")) and "node" in hit.fields:
        yield hit.fields["node"]


def _late(hit: Hit) -> bool:
    """A rank that had to be killed says nothing by that."""
    return hit.signature.id.startswith("torchelastic.exit") and hit.fields.get("code") in {"-9", "-15"}
