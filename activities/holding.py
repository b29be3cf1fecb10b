"""Holds healthy nodes for a job that is being restarted: a requeued job goes to the back of the queue.

A short reservation for the job's user, which the job finds by itself and which ends by itself. It is a favour: whatever
goes wrong with it is written down and never keeps a restart away.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from activities import contracts as c
from activities.audit.trouble import AuditUnavailable
from activities.site import Site
from activities.slurm.errors import Refused, SlurmError
from activities.slurm.placement import eligible_nodes
from recovery.policy_numbers import nodes_of_share
from recovery.records import JobView, NodeView, Outcome, OutcomeKind

log = logging.getLogger("relight.nodes")

DEADLINE_S = 30
_RESTS = ("IDLE", "MIXED")


def chosen_to_hold(
    view: JobView, nodes: Sequence[NodeView], hold: Sequence[str], avoid: Sequence[str], needed: int
) -> tuple[str, ...]:
    """The healthy old nodes, and others in the place of the bad ones: idle ones first. As many as the job needs."""
    bad = set(avoid)
    fit = [node for node in eligible_nodes(view, nodes) if node.name not in bad]
    old = [node.name for node in fit if node.name in hold]
    others = sorted(
        (node for node in fit if node.name not in hold),
        key=lambda node: (_RESTS.index(node.state) if node.state in _RESTS else len(_RESTS), node.name),
    )
    return tuple(sorted((old + [node.name for node in others])[:needed]))


async def hold_nodes(site: Site, view: JobView, request: c.StepRequest, avoid: Sequence[str]) -> None:
    """Reserves the nodes of the request, where there are any. Never raises what concerns only this."""
    if not request.hold:
        return
    client = site.client(request.cluster)
    try:
        nodes = await client.nodes()
        needed = max(view.min_nodes, request.min_nodes)
        chosen = chosen_to_hold(view, nodes, request.hold, avoid, needed)
        if not chosen:
            return
        changed = await client.hold(
            request.job_id,
            request.restart_count,
            nodes=chosen,
            minutes=max(1, math.ceil(request.hold_s / 60)),
            most=max(1, nodes_of_share(request.max_held_share, len(nodes))),
            deadline=request.deadline,
        )
        said = f"holds {', '.join(changed.held)} for the restarted job, {request.hold_s} s at most"
        await _tell(site, request, said, "done", held=list(changed.held))
    except Refused as refused:
        await _tell(site, request, f"holds no nodes for the restarted job: {refused}", refused.kind.value)


async def let_go(site: Site, request: c.SettleRequest, outcome: Outcome) -> None:
    """Ends the reservation once the job has started, or will not: nobody else shall wait for its end."""
    key = f"{request.step_key}:hold:done"
    if outcome.kind is OutcomeKind.WAITING or await asyncio.to_thread(site.store.event, key) is None:
        return
    try:
        deadline = datetime.now(UTC) + timedelta(seconds=DEADLINE_S)
        await site.client(request.cluster).unhold(request.job_id, request.restarts - 1, deadline=deadline)
    except (SlurmError, AuditUnavailable) as problem:
        log.info("the reservation for job %s ends by itself: %s", request.job_id, problem)


async def _tell(site: Site, request: c.StepRequest, summary: str, name: str, **body: object) -> None:
    event = c.NewEvent(
        key=f"{request.step_key}:hold:{name}",
        kind=c.EventKind.STEP,
        at=datetime.now(UTC),
        attempt=request.restart_count,
        summary=summary,
        body={"action": "hold", **body},
    )
    await asyncio.to_thread(site.tell, request, event)
