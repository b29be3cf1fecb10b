"""The sweep's look over all failures of a cluster: which of them are one fault. Decides about no job.

It reads nothing on a quiet cluster but one row of the database. Topology is read rarely, nodes only when something
failed and now and then for those that Slurm drained after our own restarts.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

from activities.audit.trouble import AuditUnavailable
from activities.failing import nodes_of
from activities.site import Site
from activities.slurm.answers import SweepRow
from activities.slurm.errors import SlurmError
from recovery.incident_records import ClusterLook, Failure, Incident
from recovery.records import JobState, Nodes, NodeView

log = logging.getLogger("relight.incidents")

TOPOLOGY_EVERY_S = 600.0
KILLS_EVERY_S = 15.0
CLOSE_EVERY_S = 30.0
"""Without news, so often it is seen whether an incident is to be closed."""

OURS_FOR = timedelta(minutes=30)
"""So long after a restart of ours a drained node counts as our doing."""

KILL_TASK_FAILED = "kill task failed"
_SWITCH_FEATURE = re.compile(r"(?:switch|leaf|rack|block)[-_=.]?\w+\Z", re.IGNORECASE)


class Correlating:
    """What one sweeping process remembers of its clusters between sweeps."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._away_since: dict[str, datetime] = {}
        self._switches: dict[str, tuple[float, Mapping[str, Nodes]]] = {}
        self._kills_at: dict[str, float] = {}
        self._known_kills: dict[str, Nodes] = {}
        self._told: set[str] = set()
        self._compared_at: dict[str, float] = {}

    async def blind(self, cluster: str, since: datetime) -> None:
        """slurmctld did not answer this sweep. An outage that lasts is an incident, should the database be there."""
        since = self._away_since.setdefault(cluster, since)
        try:
            await self._correlate(cluster, datetime.now(UTC), ClusterLook(away_since=since), ())
        except AuditUnavailable:
            log.debug("the outage of slurmctld on %s could not be written down yet", cluster)

    async def after_sweep(
        self, cluster: str, began: datetime, rows: Sequence[SweepRow], failures: Sequence[Failure]
    ) -> None:
        """Compares what failed. It is on record before any job's workflow is told."""
        away_since = self._away_since.get(cluster)
        kills = await self._own_kills(cluster) if rows else ()
        waits = bool(failures) or await asyncio.to_thread(self._site.store.failures_wait, cluster)
        late = time.monotonic() - self._compared_at.get(cluster, -CLOSE_EVERY_S) >= CLOSE_EVERY_S
        if not (waits or kills or away_since or late):
            return
        self._compared_at[cluster] = time.monotonic()
        look = await self._look(cluster, rows) if waits else ClusterLook()
        look = look.model_copy(
            update={"own_kills": kills, "was_away": (away_since, began) if away_since is not None else None}
        )
        await self._correlate(cluster, began, look, failures)
        self._away_since.pop(cluster, None)

    async def _correlate(
        self, cluster: str, began: datetime, look: ClusterLook, failures: Sequence[Failure]
    ) -> tuple[Incident, ...]:
        store, numbers = self._site.store, self._site.policies.current().policy("")
        changed = await asyncio.to_thread(
            lambda: store.correlate(cluster, look, numbers, began=began, failures=failures)
        )
        for incident in changed:
            if not incident.is_open:
                log.info("incident %s of %s is closed: %s", incident.id, cluster, incident.close_reason)
            elif incident.id not in self._told:
                log.warning("incident %s of %s: %s", incident.id, cluster, incident.summary)
            self._told.add(incident.id)
        return changed

    async def _look(self, cluster: str, rows: Sequence[SweepRow]) -> ClusterLook:
        try:
            nodes = await self._site.nodes(cluster)
        except SlurmError:
            nodes = ()
        return ClusterLook(
            switches=await self._topology(cluster, nodes),
            running=tuple(nodes_of(row) for row in rows if row.state is JobState.RUNNING),
            maintenance=tuple(node.name for node in nodes if {"MAINTENANCE", "MAINT"} & set(node.flags)),
        )

    async def _topology(self, cluster: str, nodes: Sequence[NodeView]) -> Mapping[str, Nodes]:
        """Nodes by leaf switch, as Slurm tells them; else by a feature that names a switch, rack or block."""
        known = self._switches.get(cluster)
        if known is not None and time.monotonic() - known[0] < TOPOLOGY_EVERY_S:
            return known[1]
        try:
            switches: Mapping[str, Nodes] = await self._site.client(cluster).topology()
        except SlurmError:
            switches = known[1] if known is not None else {}
        switches = switches or by_feature(nodes)
        self._switches[cluster] = (time.monotonic(), switches)
        return switches

    async def _own_kills(self, cluster: str) -> Nodes:
        """Nodes that Slurm drained because our restarts left processes it could not kill; news only."""
        if time.monotonic() - self._kills_at.get(cluster, -KILLS_EVERY_S) < KILLS_EVERY_S:
            return ()
        self._kills_at[cluster] = time.monotonic()
        try:
            nodes = await self._site.nodes(cluster)
        except SlurmError:
            return ()
        drained = {node.name for node in nodes if node.reason.lower().startswith(KILL_TASK_FAILED)}
        if not drained:
            return ()
        since = datetime.now(UTC) - OURS_FOR
        ours = await asyncio.to_thread(self._site.store.restarted_nodes, cluster, since)
        found = tuple(sorted(drained & ours))
        news = () if found == self._known_kills.get(cluster, ()) else found
        self._known_kills[cluster] = found
        return news


def by_feature(nodes: Sequence[NodeView]) -> dict[str, Nodes]:
    """Features that name a switch, rack or block, and their nodes."""
    found: dict[str, list[str]] = {}
    for node in nodes:
        for feature in node.features:
            if _SWITCH_FEATURE.match(feature):
                found.setdefault(feature, []).append(node.name)
    return {name: tuple(sorted(members)) for name, members in found.items()}
