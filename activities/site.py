"""What the activities of one worker share: the audit store, one Slurm client per cluster, policy and catalogue.

Built by the worker; nothing here decides or acts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from temporalio.exceptions import ApplicationError

from activities.attribution.provider import Attributors
from activities.audit.store import AuditStore, AuditUnavailable
from activities.contracts import NewEvent
from activities.slurm.client import SlurmClient
from activities.slurm.errors import Refused
from activities.sweep_cursor import SweepCursor, read_cursor
from activities.telemetry.metrics import MetricsWatch
from activities.telemetry.store_follow import LogStore
from recovery.faults.catalogue import Catalogue
from recovery.maintenance import Window
from recovery.measured import JobMetrics, MeasuredJob
from recovery.policy_file import PolicyFile, PolicyFileError
from recovery.policy_file import parse as parse_policy
from recovery.records import ClusterFacts, Nodes, NodeView

log = logging.getLogger("relight.site")

FACTS_AGE_S = 60.0
NODES_AGE_S = 3.0


class PolicySource:
    """The policy file, read again when it changes. A bad new version is told and the last good one kept."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.problem = ""
        """Why the file as it is now cannot be used; empty: it is in force."""
        self._stamp: tuple[int, int] | None = None
        self._current = parse_policy("", "built-in defaults")
        if path is not None:
            # A worker must not start on a policy that its operator cannot have meant.
            self._current = parse_policy(path.read_text(encoding="utf-8"), str(path))
            self._stamp = self._look()

    def _look(self) -> tuple[int, int] | None:
        if self.path is None:
            return None
        found = self.path.stat()
        return (found.st_mtime_ns, found.st_size)

    def current(self) -> PolicyFile:
        """The newest good policy file."""
        if self.path is None:
            return self._current
        try:
            stamp = self._look()
            if stamp == self._stamp:
                return self._current
            self._stamp = stamp
            self._current = parse_policy(self.path.read_text(encoding="utf-8"), str(self.path))
            self.problem = ""
            log.info("policy file %s taken up", self.path)
        except (OSError, UnicodeDecodeError, PolicyFileError) as error:
            if str(error) != self.problem:
                log.error("policy file %s cannot be used, the last good one is kept: %s", self.path, error)
            self.problem = str(error)
        return self._current


@dataclass(frozen=True)
class NodeCheck:
    """The site's own command that tells whether a node is well: exit status 0, with the node's name as last word."""

    command: tuple[str, ...]
    timeout_s: float
    every_s: float


class Asked(Protocol):
    """A request about one life of a job, with the workflow run that made it."""

    @property
    def cluster(self) -> str: ...
    @property
    def job_id(self) -> str: ...
    @property
    def life_id(self) -> int: ...
    @property
    def workflow_id(self) -> str: ...
    @property
    def run_id(self) -> str: ...


@dataclass
class Site:
    """Everything the activities need, injected once."""

    store: AuditStore
    clients: Mapping[str, SlurmClient]
    policies: PolicySource
    catalogue: Catalogue
    evidence_dir: Path
    sweep_interval_s: float = 2.0
    metrics: Mapping[str, MetricsWatch] = field(default_factory=dict)
    """By cluster."""
    logs: Mapping[str, LogStore] = field(default_factory=dict)
    """By cluster; where there is none the jobs' own files are read."""
    attributors: Attributors | None = None
    """Who outside is asked about a fault; None: nobody."""
    node_checks: Mapping[str, NodeCheck] = field(default_factory=dict)
    """By cluster, where one is configured."""
    _nodes: dict[str, tuple[float, tuple[NodeView, ...]]] = field(default_factory=dict)
    _node_names: dict[str, Nodes] = field(default_factory=dict)
    _facts: dict[str, tuple[float, ClusterFacts]] = field(default_factory=dict)
    _maintenance: dict[str, tuple[float, tuple[Window, ...]]] = field(default_factory=dict)
    _frozen: dict[str, tuple[float, str]] = field(default_factory=dict)

    def client(self, cluster: str) -> SlurmClient:
        """The cluster's client; an unknown cluster fails the workflow with the names that exist."""
        try:
            return self.clients[cluster]
        except KeyError:
            known = ", ".join(sorted(self.clients)) or "none"
            raise ApplicationError(
                f"cluster {cluster!r} is not configured here (configured: {known})",
                type="UnknownCluster",
                non_retryable=True,
            ) from None

    async def facts(self, cluster: str) -> ClusterFacts:
        """The cluster's settings, at most a minute old."""
        known = self._facts.get(cluster)
        if known is not None and time.monotonic() - known[0] < FACTS_AGE_S:
            return known[1]
        facts = await self.client(cluster).config()
        self._facts[cluster] = (time.monotonic(), facts)
        return facts

    async def nodes(self, cluster: str) -> tuple[NodeView, ...]:
        """All nodes of the cluster, at most a few seconds old; steps read them anew."""
        known = self._nodes.get(cluster)
        if known is not None and time.monotonic() - known[0] < NODES_AGE_S:
            return known[1]
        nodes = await self.client(cluster).nodes()
        self._nodes[cluster] = (time.monotonic(), nodes)
        names = tuple(node.name for node in nodes)
        if names and names != self._node_names.get(cluster):
            with contextlib.suppress(AuditUnavailable):  # it only helps people who misspell one
                await asyncio.to_thread(self.store.save_nodes, cluster, names)
                self._node_names[cluster] = names
        return nodes

    async def maintenance(self, cluster: str) -> tuple[Window, ...]:
        """Reservations for maintenance, at most a minute old; none where the gate cannot tell them."""
        known = self._maintenance.get(cluster)
        if known is not None and time.monotonic() - known[0] < FACTS_AGE_S:
            return known[1]
        try:
            windows = await self.client(cluster).maintenance()
        except Refused as refused:
            log.warning("reservations of %s cannot be read: %s", cluster, refused)
            windows = ()
        self._maintenance[cluster] = (time.monotonic(), windows)
        return windows

    async def frozen(self, cluster: str) -> str:
        """Why nothing may be changed in the cluster now (empty: it may), at most a few seconds old. The gate checks
        its STOP file again right before each change."""
        known = self._frozen.get(cluster)
        if known is not None and time.monotonic() - known[0] < NODES_AGE_S:
            return known[1]
        why = await self.client(cluster).stop_sign()
        self._frozen[cluster] = (time.monotonic(), why)
        return why

    async def measured(
        self, cluster: str, jobs: Sequence[MeasuredJob], *, fresh: bool = False
    ) -> Mapping[str, JobMetrics]:
        """What metrics tell of these jobs, by job id; nothing where none are configured. Never raises."""
        return await self.metrics[cluster].look(jobs, fresh=fresh) if self.is_measured(cluster) else {}

    def is_measured(self, cluster: str) -> bool:
        watch = self.metrics.get(cluster)
        return watch is not None and watch.configured

    def tell(self, request: Asked, event: NewEvent) -> None:
        """Writes one row of the job's log, for the workflow run that asked."""
        self.store.append(
            request.cluster,
            request.job_id,
            request.life_id,
            [event],
            workflow_id=request.workflow_id,
            run_id=request.run_id,
        )

    def reads_files(self, cluster: str) -> bool:
        """Whether jobs' own output files count at all."""
        store = self.logs.get(cluster)
        return store is None or store.files_first

    def sweep_cursor(self, cluster: str, job_id: str) -> SweepCursor:
        """What the sweep remembers of the job."""
        row = self.store.watched_job(cluster, job_id)
        return read_cursor(row.cursor if row is not None else "")
