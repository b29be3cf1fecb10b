"""Notices who did not speak, or stayed behind: a node or rank that fell silent while all others reported a loss.

A node that loses power prints nothing; the others only say that a connection is gone. Concluded only when everybody
else has spoken, since a log is read while it is being written.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from recovery.faults.places import RankMap, known_as, number
from recovery.faults.scanner import PER_BLOCK, Hit
from recovery.records import Nodes, Role

MOST_RANKS = PER_BLOCK // 2
"""In larger jobs a rank may seem silent only because its line was not looked at any more."""

WAITING = frozenset({"gloo.timeout", "nccl.watchdog_timeout"})
"""Signatures of ranks that waited for others."""


class Kind(StrEnum):
    """What the silence looks like; the word joins the signature `silence.<kind>`."""

    NODE = "node"  # a node and its launcher: it is gone
    HUNG = "hung"  # ranks of one node, while the others waited for them until the timeout
    BEHIND = "behind"  # ranks of one node had not come to the operation that the others waited in
    CUT = "cut"  # a launcher that did not come to its end, while ranks of every node waited in vain
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
    waited = any(hit.signature.id in WAITING for hit in hits)
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
        if where.get(0, node) == node and _only_the_store_was_lost(hits):
            return Silence(Kind.NODE, node, tuple(sorted(rank for rank, home in where.items() if home == node)))
    if waited and not silent:
        if (behind := _behind(hits, ranks)) is not None:
            return behind
        if len(mute) == 1 and len(reported) > 1 and reported < set(nodes):
            node = next(iter(mute))
            return Silence(Kind.CUT, node, tuple(sorted(rank for rank, home in where.items() if home == node)))
    if not silent or len(homes) != 1 or len(set(where.values())) < 2:
        return None
    node = next(iter(homes))
    if waited:
        return Silence(Kind.HUNG, node, silent)
    ended = {number(hit.fields, "rank") for hit in hits if hit.signature.id.startswith("torchelastic.exit")}
    if lost and len(silent) == 1 and node in reported and silent[0] not in ended:
        return Silence(Kind.LEFT, node, silent)
    return None


def never_came(hits: Sequence[Hit], nodes: Nodes, head: str) -> Nodes:
    """The nodes that did not come to a rendezvous that timed out; nothing where that cannot be told.

    A launcher that loses the rendezvous says its node's name. The one that notices the timeout does not; when it is the
    only one without a name, and the others lost their store by its leaving, it sits on the first node.
    """
    timeouts = [hit for hit in hits if hit.signature.id == "rendezvous.timeout"]
    named = {known_as(hit.fields["node"], nodes) for hit in hits if "node" in hit.fields}
    came = {node for node in named if node in nodes}
    unnamed = sum("node" not in hit.fields for hit in timeouts)
    if unnamed == 1 and head in nodes and head not in came and came:
        came.add(head)
        unnamed = 0
    missing = set(nodes) - came
    return tuple(sorted(missing)) if not unnamed and len(missing) < len(came) else ()


def _behind(hits: Sequence[Hit], ranks: RankMap) -> Silence | None:
    """Everybody spoke: who had not yet come to the operation that most waited in, of one process group."""
    by_group: defaultdict[str, dict[int, int]] = defaultdict(dict)
    for hit in hits:
        rank, operation = number(hit.fields, "rank"), number(hit.fields, "seq")
        if hit.signature.id == "nccl.watchdog_timeout" and rank is not None and operation is not None:
            by_group[hit.fields.get("group", "")].setdefault(rank, operation)
    where = ranks.ranks
    for group in by_group.values():
        usual, count = Counter(group.values()).most_common(1)[0]
        late = tuple(sorted(rank for rank, operation in group.items() if operation < usual))
        homes = {where.get(rank, "") for rank in late}
        if late and len(homes) == 1 and "" not in homes and count > len(group) // 2:
            return Silence(Kind.BEHIND, homes.pop(), late)
    return None


def _only_the_store_was_lost(hits: Sequence[Hit]) -> bool:
    """The store's node went, so that the other launchers ended their ranks before one of these could say anything."""
    failed = ("torchelastic.", "srun.", "process.")
    return not any("rank" in hit.fields or hit.signature.id.startswith(failed) for hit in hits)


def _reporters(hit: Hit) -> Iterable[str]:
    """The node whose launcher printed this."""
    if hit.signature.id.startswith(("torchelastic.exit", "rendezvous.lost")) and "node" in hit.fields:
        yield hit.fields["node"]


def _late(hit: Hit) -> bool:
    """A rank that had to be killed says nothing by that."""
    return hit.signature.id.startswith("torchelastic.exit") and hit.fields.get("code") in {"-9", "-15"}
