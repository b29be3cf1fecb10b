"""Whether a job's failure is one of many: told to the sweep, waited for, and answered with the incidents that are open.

Part of examining a job. The wait is for one sweep, since only the sweep sees all jobs; without a sweep it ends by
itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from activities import contracts as c
from activities.failing import examined
from activities.site import Site
from recovery.blame import attribute
from recovery.incident_effects import Affected, explaining
from recovery.incident_records import Failure, Incident
from recovery.records import Finding, JobView, NodeView, Role

LOOK_EVERY_S = 0.2
LATE_S = 1.0
"""A sweep may take this long; a later one is not waited for."""


async def shared_faults(
    site: Site,
    request: c.ExamineJob,
    view: JobView,
    findings: Sequence[Finding],
    nodes: Sequence[NodeView],
    *,
    stuck: bool,
) -> tuple[Incident, ...]:
    """The open incidents, when the attempt that `view` shows has failed (or hangs) and was compared with others."""
    down = tuple(sorted({node.name for node in nodes if node.state in {"DOWN", "ERROR"}} & set(view.nodes)))
    verdict = attribute(view, findings, nodes_down=down)
    root = any(one.id == verdict.first_cause and one.role is Role.ROOT for one in findings)
    failure = None if request.own_stop else examined(view, request.life_id, verdict, _now(), root=root, stuck=stuck)
    if failure is None:
        return ()
    await asyncio.to_thread(site.store.tell_failures, request.cluster, [failure])
    await _compared(site, request.cluster, failure)
    incidents = await asyncio.to_thread(site.store.open_incidents, request.cluster)
    job = Affected(user=view.user, nodes=view.nodes, signature=verdict.signature, fault_class=verdict.fault_class)
    mine = explaining(incidents, job)
    if mine is not None:
        await asyncio.to_thread(_tell, site, request, failure, mine)
    return tuple(one.without_members() for one in incidents)


async def _compared(site: Site, cluster: str, failure: Failure) -> None:
    """Returns when a sweep that began after the failure was first seen has compared it, or one should have."""
    while True:
        told = await asyncio.to_thread(site.store.failure, cluster, failure.job_id, failure.life_id, failure.attempt)
        seen_at = told.seen_at if told is not None else failure.seen_at
        if told is None or told.correlated or _now() > seen_at + timedelta(seconds=site.sweep_interval_s + LATE_S):
            return
        await asyncio.sleep(LOOK_EVERY_S)


def _tell(site: Site, request: c.ExamineJob, failure: Failure, incident: Incident) -> None:
    event = c.NewEvent(
        key=f"{request.life_id}:incident:{incident.id}:{failure.attempt}",
        kind=c.EventKind.INCIDENT,
        at=_now(),
        attempt=failure.attempt,
        summary=f"part of incident {incident.id}: {incident.summary}",
        body={"incident": incident.id, "kind": incident.kind.value},
    )
    site.tell(request, event)


def _now() -> datetime:
    return datetime.now(UTC)
