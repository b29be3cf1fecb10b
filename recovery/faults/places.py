"""Works out on which node a line of a log happened: torchelastic's failure tables, and which rank runs where.

Rank, GPU and node are different things. A rank is turned into a node only where the log itself says so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from recovery.faults.scanner import Hit

TABLE_LINES = 12
"""Farthest distance of host and exit code in one entry of a failure table; other nodes print in between."""


def number(fields: Mapping[str, str], name: str) -> int | None:
    """A captured number, None where there is none or it makes no sense."""
    text = fields.get(name, "")
    return int(text) if text.isdecimal() and len(text) <= 9 else None


def with_tables(hits: Iterable[Hit]) -> list[Hit]:
    """The hits in order, with host and rank of failure tables carried over to the exit code they belong to.

    Tables of several nodes may be interleaved. Where two hosts were named before an exit code, nothing is carried.
    """
    done: list[Hit] = []
    hosts: list[Hit] = []
    ranks: list[Hit] = []
    for hit in sorted(hits, key=lambda one: one.offset):
        if hit.signature.id == "torchelastic.host":
            hosts.append(hit)
        elif hit.signature.id == "torchelastic.rank":
            ranks.append(hit)
        elif hit.signature.id.startswith("torchelastic.exit"):
            if len(hosts) == len(ranks) == 1 and hit.line - hosts[0].line <= TABLE_LINES:
                hit = replace(hit, fields={**hosts[0].fields, **ranks[0].fields, **hit.fields})
            hosts, ranks = [], []
        done.append(hit)
    return done


class RankMap:
    """Which rank runs on which node, as the log tells. Later words replace earlier ones from there on.

    Where no launcher stands between srun and the ranks, srun's task numbers are taken for ranks: it names the node of
    a task that ended. That is the weakest word and counts only where there is no other.
    """

    def __init__(self, hits: Sequence[Hit]) -> None:
        self._known: defaultdict[int, list[tuple[int, str]]] = defaultdict(list)
        self._tasks: dict[int, str] = {}
        for hit in hits:
            name, node = hit.signature.id, hit.fields.get("node")
            if not node:
                continue
            rank = number(hit.fields, "rank")
            if rank is not None and (name == "where.rank_on_host" or name.startswith("torchelastic.exit")):
                self._known[rank].append((hit.offset, node))
            elif name.startswith("srun."):
                self._tasks.update((task, node) for task in task_list(hit.fields.get("task", "")))
        if any(hit.signature.id.startswith("torchelastic.") for hit in hits):
            self._tasks = {}

    def node_of(self, rank: int | None, offset: int) -> tuple[str, str] | None:
        """The node a rank ran on at a place in the log, and how that is known."""
        if rank is None:
            return None
        if words := self._known.get(rank):
            before = [node for at, node in words if at <= offset]
            return (before[-1] if before else words[0][1]), f"rank {rank} ran there, as the log tells"
        if (node := self._tasks.get(rank)) is not None:
            return node, f"task {rank} ran there, as srun tells, and is taken for rank {rank}"
        return None

    @property
    def ranks(self) -> Mapping[int, str]:
        """The last word of the ranks themselves."""
        return {rank: words[-1][1] for rank, words in self._known.items()}


def task_list(text: str) -> tuple[int, ...]:
    """srun's list of tasks, e.g. `0-2,5`; at most 4,096 of them."""
    tasks: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not (first.isdecimal() and len(first) <= 9 and (not last or (last.isdecimal() and len(last) <= 9))):
            continue
        tasks += range(int(first), min(int(last or first), int(first) + 4_096) + 1)
    return tuple(tasks[:4_096])
