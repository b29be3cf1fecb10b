"""Finds the Slurm node that a metric's labels speak of, whatever the exporter calls it.

A label that names no node of ours is no evidence: a wrong node is worse than none. Nothing is looked up in DNS.
"""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

HOST_LABELS = (
    "Hostname",  # dcgm-exporter, older releases
    "hostname",  # dcgm-exporter, newer releases
    "exported_hostname",
    "nodename",
    "node",
    "host",
    "instance",  # host:port of what was scraped
    "exported_instance",
)
"""Labels that may hold a host, most telling first: an exporter's own word before the address it was scraped at."""


def bare_host(value: str) -> str:
    """The host in a label's value, without a port and in lower case: `N03.example.org:9100` → `n03.example.org`."""
    text = value.strip().lower().removeprefix("http://").removeprefix("https://").partition("/")[0]
    if text.startswith("["):
        return text[1:].partition("]")[0]
    host, colon, port = text.rpartition(":")
    if colon and port.isdecimal() and ":" not in host:
        text = host
    return text.rstrip(".")


def is_address(host: str) -> bool:
    """Whether it is an IP address, which has no short form."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


class HostNames:
    """Resolves labels to the given nodes. Names match in full, or by their first part where that is unambiguous."""

    def __init__(
        self, nodes: Iterable[str], *, labels: Sequence[str] = HOST_LABELS, names: Mapping[str, str] | None = None
    ) -> None:
        """`names` are the host names that machines themselves give, by the address they are scraped at."""
        self._labels = tuple(labels)
        self._names = {bare_host(address): bare_host(name) for address, name in (names or {}).items()}
        self._exact: dict[str, str] = {}
        short: defaultdict[str, set[str]] = defaultdict(set)
        for node in nodes:
            self._exact[node.lower()] = node
            short[_first_part(node.lower())].add(node)
        self._short = {name: next(iter(found)) for name, found in short.items() if len(found) == 1}
        self._known: dict[str, str | None] = {}

    def node_of(self, labels: Mapping[str, str]) -> str | None:
        """The node that labels speak of; None: of none of the given nodes, as far as can be told."""
        for label in self._labels:
            value = labels.get(label)
            if value and (node := self._node(value)) is not None:
                return node
        return None

    def _node(self, value: str) -> str | None:
        if value not in self._known:
            self._known[value] = self._resolve(bare_host(value))
        return self._known[value]

    def _resolve(self, host: str) -> str | None:
        host = self._names.get(host, host) if host not in self._exact else host
        if host in self._exact:
            return self._exact[host]
        if not host or is_address(host):
            return None
        node = self._short.get(_first_part(host))
        # n1.east and n1.west are two machines: one side must leave its domain out, or both must agree.
        return node if node is not None and ("." not in host or "." not in node) else None


def _first_part(host: str) -> str:
    return host if is_address(host) else host.partition(".")[0]
