"""Host list expressions such as `n[01-04,07]`, parsed and folded in this one place by ClusterShell.

Text from outside is bounded before it is expanded, and node groups (`@name`, which run commands) are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

from activities.slurm.errors import SlurmError
from recovery.records import Nodes

MAX_TEXT = 65_536
MAX_NODES = 20_000
"""More than the largest known Slurm clusters have."""

_NONE = frozenset({"", "(null)", "None", "None assigned", "N/A"})
_ALLOWED = re.compile(r"[A-Za-z0-9._,\[\]-]+\Z")
_ITEM = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?\Z")


class BadHostlist(SlurmError):
    """The text is no host list, or a larger one than any cluster has."""


def expand(text: str, limit: int = MAX_NODES) -> Nodes:
    """The names in a host list, sorted. Slurm's words for none give none. Raises BadHostlist."""
    text = text.strip()
    if text in _NONE:
        return ()
    if len(text) > MAX_TEXT:
        raise BadHostlist(f"host list of {len(text)} characters: at most {MAX_TEXT} are read")
    if not _ALLOWED.match(text):
        raise BadHostlist(f"host list {text[:80]!r} holds characters that no node name has (groups are not read)")
    count = sum(_size(item) for item in _ITEM.findall(text))
    if count > limit:
        raise BadHostlist(f"host list {text[:80]!r} names {count} nodes: at most {limit} are read")
    try:
        return tuple(sorted(NodeSet(text, resolver=RESOLVER_NOGROUP)))
    except NodeSetException as error:
        raise BadHostlist(f"host list {text[:80]!r} cannot be read: {error}") from error


def fold(names: Iterable[str]) -> str:
    """The shortest host list for the names, for people to read."""
    return str(NodeSet.fromlist(list(names), resolver=RESOLVER_NOGROUP))


def _size(item: str) -> int:
    """How many names one comma-separated item stands for, without expanding it."""
    size = 1
    for ranges in _BRACKETS.findall(item):
        total = 0
        for part in ranges.split(","):
            match = _RANGE.match(part)
            if not match:
                raise BadHostlist(f"host list item {item[:80]!r} cannot be read: expected ranges such as [01-04,07]")
            low = int(match.group(1))
            total += max(0, int(match.group(2) or low) - low + 1)
        size *= total
    return size
