"""Takes bad nodes out of service, and returns them: after their time, when a person clears them, or when they pass the
site's own check.

A drain is asked for by a job's workflow, as a step of its restart; it is granted in SQL, made by the gate and written
down, in this order. Bringing nodes back is the sweep's business, from the table `drains`, so that it survives
everything. Nodes that others took out of service are never touched.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from temporalio import activity

from activities import contracts as c
from activities.audit.records import Drain, DrainGrant
from activities.audit.trouble import AuditUnavailable
from activities.heartbeat import heartbeating
from activities.outages import outages_retried
from activities.rows import drain_row
from activities.site import NodeCheck, Site
from activities.slurm.errors import RefusalKind, Refused, SlurmError
from recovery.records import Mode

log = logging.getLogger("relight.nodes")

TEND_EVERY_S = 2.0
CLOSE_S = 5.0
CHANGE_S = 60
"""Deadline of one change of a node."""

AGAIN = frozenset({RefusalKind.BUSY, RefusalKind.CHANGED, RefusalKind.SLURM_ERROR, RefusalKind.CEILING,
                   RefusalKind.STOPPED, RefusalKind.LATE, RefusalKind.DENIED, RefusalKind.BAD_CONFIG,
                   RefusalKind.GATE_ERROR})  # fmt: skip
"""Refusals after which a node that is to come back is tried again later."""

OVER = {
    RefusalKind.NOT_DRAINED: "somebody else has returned it to service",
    RefusalKind.NODE_TAKEN: "somebody else has taken it over: theirs to return",
    RefusalKind.UNKNOWN_NODE: "Slurm does not know the node any more",
}


class DrainingActivities:
    """drain."""

    def __init__(self, site: Site) -> None:
        self.site = site

    @activity.defn(name=c.DRAIN)
    async def drain(self, request: c.DrainRequest) -> c.DrainResult:
        """Drains each of the nodes that the caps allow. A refusal is an answer; a repetition drains nothing twice."""
        drained: list[str] = []
        refused: dict[str, str] = {}
        async with heartbeating(), outages_retried():
            for node in request.nodes:
                why = await self._one(request, node)
                if why:
                    refused[node] = why
                else:
                    drained.append(node)
        return c.DrainResult(drained=tuple(drained), refused=refused)

    async def _one(self, request: c.DrainRequest, node: str) -> str:
        """Why not; empty: it is drained."""
        policy = self.site.policies.current().policy(request.policy)
        client, store = self.site.client(request.cluster), self.site.store
        grant = DrainGrant(
            cluster=request.cluster,
            node=node,
            step_key=request.step_key,
            life_id=request.life_id,
            job_id=request.job_id,
            signature=request.signature,
            how=request.how,
            expiry_s=policy.drain_expiry_s,
            max_share=policy.max_drained_share,
            max_per_hour=policy.max_drains_per_hour,
            cluster_nodes=len(await client.nodes()),
            now=_now(),
        )
        drain, why = await asyncio.to_thread(store.grant_drain, grant)
        if drain is None or drain.ended_at is not None:
            why = why or drain.end_reason if drain is not None else why
            await self._tell(request, node, f"{node} not drained: {why}", done=False)
            return why
        try:
            changed = await client.drain(
                node,
                drain.job_id,
                why=drain.signature,
                until=drain.until,
                leave=policy.drain_leaves,
                deadline=request.deadline,
            )
        except Refused as refused:
            await asyncio.to_thread(store.end_drain, drain.drain_id, "relight", f"not drained: {refused}", _now())
            await self._tell(request, node, f"{node} not drained: {refused}", done=False)
            return str(refused)
        await asyncio.to_thread(store.drain_carried_out, drain.drain_id, changed.acted_at or _now())
        until = f"{drain.until:%Y-%m-%d %H:%MZ}"
        await self._tell(request, node, f"{node} drained until {until}: {request.how or drain.signature}", done=True)
        return ""

    async def _tell(self, request: c.DrainRequest, node: str, summary: str, *, done: bool) -> None:
        event = drain_row(request, node, summary, done, _now())
        await asyncio.to_thread(self.site.tell, request, event)


class NodeCare:
    """Looks after the nodes that relight holds drained, beside the sweep and never in its way."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._looked: dict[str, float] = {}
        self._checked: dict[int, float] = {}
        self._told: dict[int, str] = {}

    def tend(self, cluster: str) -> None:
        """Begins one look at the cluster's drains, unless one is under way or was just made. Returns at once."""
        task = self._tasks.get(cluster)
        if (task is not None and not task.done()) or time.monotonic() - self._looked.get(cluster, -1e9) < TEND_EVERY_S:
            return
        self._looked[cluster] = time.monotonic()
        self._tasks[cluster] = asyncio.create_task(self._tend(cluster))

    async def close(self) -> None:
        """Ends what is under way; what it was about is taken up again by the next sweep."""
        tasks = [task for task in self._tasks.values() if not task.done()]
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_S)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _tend(self, cluster: str) -> None:
        try:
            for drain in await asyncio.to_thread(self.site.store.drains, cluster):
                await self._look_after(drain)
        except (SlurmError, AuditUnavailable) as problem:
            log.warning("drained nodes of %s are looked after later: %s", cluster, problem)

    async def _look_after(self, drain: Drain) -> None:
        now = _now()
        if drain.drained_at is None and now < drain.granted_at + timedelta(seconds=2 * CHANGE_S):
            return  # the step that asked for it is still at work
        if drain.cleared_at is not None:
            said = f" ({drain.clear_reason})" if drain.clear_reason else ""
            await self._return(drain, drain.cleared_by, f"cleared by {drain.cleared_by}{said}")
        elif self.site.policies.current().mode_of(drain.cluster) is Mode.MONITOR:
            return  # nothing is touched there but what a person asks for
        elif now >= drain.until:
            await self._return(drain, "relight", "its time is over")
        elif await self._passes_its_check(drain):
            # As if a person had cleared it: what was suspected before counts no more.
            why = "it passes the site's node check"
            await asyncio.to_thread(self.site.store.clear_node, drain.cluster, drain.node, "node check", why, _now())
            await self._return(drain, "node check", why)

    async def _passes_its_check(self, drain: Drain) -> bool:
        check = self.site.node_checks.get(drain.cluster)
        since = time.monotonic() - self._checked.get(drain.drain_id, -1e9)
        if check is None or drain.drained_at is None or since < check.every_s:
            return False
        self._checked[drain.drain_id] = time.monotonic()
        passed, said = await run_check(check, drain.node)
        log.info("node check of %s: %s", drain.node, "passed" if passed else f"failed: {said}")
        return passed

    async def _return(self, drain: Drain, by: str, why: str) -> None:
        try:
            await self.site.client(drain.cluster).undrain(
                drain.node,
                drain.job_id,
                why=drain.signature,
                until=drain.until,
                deadline=_now() + timedelta(seconds=CHANGE_S),
            )
            told = f"{drain.node} is back in service: {why}"
        except Refused as refused:
            if refused.kind not in OVER:
                if self._told.get(drain.drain_id) != refused.kind.value:
                    self._told[drain.drain_id] = refused.kind.value
                    log.warning("%s is not returned to service yet: %s", drain.node, refused)
                    await self._tell(drain, f"{drain.node} is not returned to service yet: {refused}", "waits")
                return
            by, why = "others", OVER[refused.kind]
            told = f"{drain.node} is no longer drained by relight: {why}"
        if await asyncio.to_thread(self.site.store.end_drain, drain.drain_id, by, why, _now()):
            await self._tell(drain, told, "ended")

    async def _tell(self, drain: Drain, summary: str, name: str) -> None:
        event = c.NewEvent(
            key=f"{drain.step_key}:drain:{drain.node}:{name}",
            kind=c.EventKind.OUTCOME if name == "ended" else c.EventKind.WATCHDOG,
            at=_now(),
            summary=summary,
            body={"action": c.DRAIN, "node": drain.node},
        )
        await asyncio.to_thread(self.site.store.append, drain.cluster, drain.job_id, drain.life_id, [event])


async def run_check(check: NodeCheck, node: str) -> tuple[bool, str]:
    """Runs the site's command with the node's name as its last word; exit status 0 in time means that it passes."""
    argv: Sequence[str] = (*check.command, node)
    try:
        child = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
    except OSError as problem:
        return False, f"{argv[0]} cannot be run: {problem.strerror}"
    try:
        out, _ = await asyncio.wait_for(child.communicate(), check.timeout_s)
        said = out.decode("utf-8", "replace").strip()[-300:]
    except TimeoutError:
        said = f"no answer within {check.timeout_s:g} s"
    finally:
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            await child.wait()
    return child.returncode == 0, said


def _now() -> datetime:
    return datetime.now(UTC)
