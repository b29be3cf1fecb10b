"""Works out on which node a line of a log happened: torchelastic's failure tables, which rank and which task runs
where, which file and which address belongs to which node.

Rank, GPU and node are different things. One is turned into another only where the log itself says so; where it only
suggests it, the answer says how it was derived.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from recovery.faults.scanner import Hit
from recovery.records import Nodes

TABLE_LINES = 12
"""Farthest distance of host and exit code in one entry of a failure table; other nodes print in between."""

MOST_NAMES = 4_096
"""Most names that a host list in a log is taken for."""

_NUMBER = re.compile(r"\d+")
_BRACKETS = re.compile(r"([A-Za-z0-9._-]*)\[([0-9,-]+)\]")

Told = tuple[str, str]
"""A node, and how that is known."""


def number(fields: Mapping[str, str], name: str) -> int | None:
    """A captured number, None where there is none or it makes no sense."""
    text = fields.get(name, "")
    return int(text) if text.isdecimal() and len(text) <= 9 else None


def in_slurms_order(nodes: Iterable[str]) -> list[str]:
    """Nodes as Slurm sorts them: n9 before n10."""
    return sorted(nodes, key=lambda node: [(int(part) if part.isdigit() else -1, part) for part in _parts(node)])


def known_as(name: str | None, nodes: Nodes) -> str | None:
    """A host name as Slurm writes it: with or without its domain. Names of other nodes stay as they are."""
    if name is None:
        return name
    short = name.split(".", 1)[0]
    matching = _by_short_name(nodes).get(short, [])
    if name in matching:
        return name
    return matching[0] if len(matching) == 1 and not short.isdecimal() else name


@lru_cache(maxsize=64)
def _by_short_name(nodes: Nodes) -> dict[str, list[str]]:
    """Asked for each line that names a host: a hostile log names thousands."""
    found: dict[str, list[str]] = {}
    for node in nodes:
        found.setdefault(node.split(".", 1)[0], []).append(node)
    return found


def names_in(text: str) -> tuple[str, ...]:
    """The names of a simple host list such as `n01` or `n[01-03,07]`; of anything else the text itself."""
    match = _BRACKETS.fullmatch(text)
    if match is None:
        return (text,)
    names: list[str] = []
    for part in match[2].split(","):
        first, dash, last = part.partition("-")
        last = last if dash else first
        if not (first.isdecimal() and last.isdecimal() and len(first) <= 9 and len(last) <= 9):
            return (text,)
        numbers = range(int(first), min(int(last), int(first) + MOST_NAMES) + 1)
        names += [f"{match[1]}{one:0{len(first)}d}" for one in numbers]
    return tuple(names[:MOST_NAMES])


def task_list(text: str) -> tuple[int, ...]:
    """srun's list of tasks, e.g. `0-2,5`; at most 4,096 of them."""
    tasks: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not (first.isdecimal() and len(first) <= 9 and (not last or (last.isdecimal() and len(last) <= 9))):
            continue
        tasks += range(int(first), min(int(last or first), int(first) + MOST_NAMES) + 1)
    return tuple(tasks[:MOST_NAMES])


def with_tables(hits: Iterable[Hit]) -> list[Hit]:
    """The hits in order, with host and rank of failure tables carried over to the exit code they belong to.

    Tables of several nodes may be interleaved. Where two hosts were named before an exit code, nothing is carried.
    """
    done: list[Hit] = []
    hosts: defaultdict[str, list[Hit]] = defaultdict(list)
    ranks: defaultdict[str, list[Hit]] = defaultdict(list)
    for hit in sorted(hits, key=lambda one: one.offset):
        host, rank = hosts[hit.source], ranks[hit.source]
        if hit.signature.id == "torchelastic.host":
            host.append(hit)
        elif hit.signature.id == "torchelastic.rank":
            rank.append(hit)
        elif hit.signature.id.startswith("torchelastic.exit"):
            if len(host) == len(rank) == 1 and hit.line - host[0].line <= TABLE_LINES:
                hit = replace(hit, fields={**host[0].fields, **rank[0].fields, **hit.fields})
            host.clear()
            rank.clear()
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
        self._launchers = any(hit.signature.id.startswith("torchelastic.") for hit in hits)

    def node_of(self, rank: int | None, offset: int) -> Told | None:
        """The node a rank ran on at a place in the log, and how that is known."""
        if rank is None:
            return None
        if words := self._known.get(rank):
            before = [node for at, node in words if at <= offset]
            return (before[-1] if before else words[0][1]), f"rank {rank} ran there, as the log tells"
        if not self._launchers and (node := self._tasks.get(rank)) is not None:
            return node, f"task {rank} ran there, as srun tells, and is taken for rank {rank}"
        return None

    def node_of_task(self, task: int | None) -> Told | None:
        """The node of the task that a line is labelled with (`srun --label`)."""
        node = self._tasks.get(task) if task is not None else None
        return (node, f"task {task} ran there, as srun tells") if node is not None else None

    @property
    def ranks(self) -> Mapping[int, str]:
        """The last word of the ranks themselves."""
        return {rank: words[-1][1] for rank, words in self._known.items()}


def nodes_of_files(files: Iterable[str], hits: Sequence[Hit], nodes: Nodes) -> dict[str, Told]:
    """Which node wrote which of several files: by the file's name, or since only that node speaks in it."""
    sources = sorted(set(files))
    if len(sources) < 2:
        return {}  # the only file is everybody's, whatever its name
    found: dict[str, Told] = {}
    for source in sources:
        name = source.replace("\\", "/").rsplit("/", 1)[-1]
        named = [node for node in nodes if re.search(rf"(?<![A-Za-z0-9]){re.escape(node)}(?![A-Za-z0-9])", name)]
        own = {
            known_as(hit.fields["node"], nodes) or ""
            for hit in hits
            if hit.source == source and hit.signature.id in {"where.rank_on_host", "torchelastic.host"}
            and "node" in hit.fields
        }  # fmt: skip
        if len(named) == 1:
            found[source] = named[0], "it stands in that node's file"
        elif len(own) == 1:
            found[source] = own.pop(), "it stands in a file in which only that node speaks"
    if len({node for node, _ in found.values()}) < len(found):
        return {}  # two files of one node: then file names do not tell nodes apart
    return found


class AddressMap:
    """Which address belongs to which node: as a node says itself, else as names and addresses fit together."""

    def __init__(self, hits: Sequence[Hit], nodes: Nodes) -> None:
        self._said: dict[str, str] = {}
        self._nodes = len(nodes)
        seen: set[str] = set()
        for hit in hits:
            node, address = known_as(hit.fields.get("node"), nodes), hit.fields.get("address")
            if hit.signature.id == "where.address" and node in nodes and address:
                self._said[address] = node
            if (peer := hit.fields.get("peer")) and _octets(peer):
                seen.add(peer)
        self._spelled = {address: node for node in nodes if (address := _spelled(node))}
        self._numbered = {} if self._said else _numbered(seen, nodes)

    def node_of(self, address: str | None) -> Told | None:
        """The node of an address, where a node or its name says so, or all numbers fit."""
        return self._node_of(address, self._numbered if len(self._numbered) >= max(3, self._nodes - 1) else {})

    def likely_node_of(self, address: str | None) -> Told | None:
        """The same, also where only few addresses are seen that fit the nodes' numbers: worth nothing by itself."""
        return self._node_of(address, self._numbered)

    def _node_of(self, address: str | None, numbered: Mapping[str, str]) -> Told | None:
        if not address:
            return None
        if (node := self._said.get(address)) is not None:
            return node, f"{address} is its address, as it says itself"
        if (node := self._spelled.get(address)) is not None:
            return node, f"{address} stands in its name"
        if (node := numbered.get(address)) is not None:
            return node, f"{address} ends in its number, and all addresses in the log fit the nodes' numbers"
        return None


def _numbered(addresses: Iterable[str], nodes: Nodes) -> dict[str, str]:
    """Addresses by the last number in the names of nodes, where that fits for all of them; else nothing."""
    by_number: dict[int, str] = {}
    for node in nodes:
        numbers = _NUMBER.findall(node.split(".", 1)[0])
        if not numbers or int(numbers[-1]) in by_number:
            return {}
        by_number[int(numbers[-1])] = node
    found: dict[str, str] = {}
    networks = set()
    for address in addresses:
        *network, last = _octets(address)
        networks.add(tuple(network))
        if last not in by_number:
            return {}
        found[address] = by_number[last]
    return found if len(networks) == 1 and len(nodes) > 1 else {}


def _octets(address: str) -> tuple[int, ...]:
    parts = address.split(".")
    fits = len(parts) == 4 and all(part.isdecimal() and len(part) <= 3 for part in parts)
    return tuple(int(part) for part in parts) if fits else ()


def _spelled(node: str) -> str:
    """10.0.3.17 of ip-10-0-3-17."""
    match = re.fullmatch(r"[A-Za-z]*-?(\d{1,3})-(\d{1,3})-(\d{1,3})-(\d{1,3})", node.split(".", 1)[0])
    return ".".join(match.groups()) if match else ""


def _parts(node: str) -> list[str]:
    return [part for part in re.split(r"(\d+)", node) if part]
