"""What a running job gets before it is restarted: a signal to save a checkpoint, on many nodes the end of its steps.

Both waits are bounded and both may be in vain: the restart goes on. A repeated step sends no signal twice.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from activities import contracts as c
from activities.site import Site
from activities.slurm.client import SlurmClient
from activities.slurm.errors import Refused
from recovery.records import JobState, JobView

LOOK_EVERY_S = 1.0


class Farewell:
    """One job's last words before one restart."""

    def __init__(self, site: Site, client: SlurmClient, request: c.StepRequest) -> None:
        self.site, self.client, self.request = site, client, request

    async def say(self, view: JobView) -> None:
        before = self.request.before_restart
        if (
            before is not None
            and await self._send(before.signal, before.to.value, "before")
            and await self._wait("before", before.wait_s, for_checkpoint=True)
        ):
            return
        if self.request.end_steps_s and await self._send("KILL", "steps", "steps"):
            await self._wait("steps", self.request.end_steps_s, for_checkpoint=False)

    def _key(self, name: str) -> str:
        return f"{self.request.step_key}:signal:{name}"

    async def _send(self, signal: str, to: str, name: str) -> bool:
        """True when the signal is out, by this run of the step or by an earlier one."""
        store, request = self.site.store, self.request
        if await asyncio.to_thread(store.has, self._key(name)):
            return True
        told = f"signal {signal} to {to}"
        try:
            await self.client.signal(request.job_id, request.restart_count, signal, deadline=request.deadline, to=to)
        except Refused as refused:
            await self._tell(f"{told} refused ({refused.kind.value}): {refused.message}", f"{name}:refused", done=False)
            return False
        await self._tell(f"{told} before the restart", name, done=True)
        return True

    async def _wait(self, name: str, wait_s: int, *, for_checkpoint: bool) -> bool:
        """Waits for the job's end (True), or for a new checkpoint where one was asked for; else until time is up."""
        sent = await asyncio.to_thread(self.site.store.event, self._key(name))
        since = sent.at if sent is not None else _now()
        give_up = min(since + timedelta(seconds=wait_s), self.request.deadline - timedelta(seconds=10))
        while _now() < give_up:
            view = await self.client.job(self.request.job_id)
            if view is None or view.state is not JobState.RUNNING or view.completing:
                return True
            if for_checkpoint and await asyncio.to_thread(self._saved, since):
                await self._tell("a checkpoint was saved after the signal", f"{name}:saved", done=None)
                return False
            await asyncio.sleep(LOOK_EVERY_S)
        return False

    def _saved(self, since: datetime) -> bool:
        row = self.site.store.watched_job(self.request.cluster, self.request.job_id)
        return row is not None and row.checkpoint_at is not None and row.checkpoint_at >= since

    async def _tell(self, summary: str, name: str, *, done: bool | None) -> None:
        request = self.request
        event = c.NewEvent(
            key=self._key(name),
            kind=c.EventKind.WATCHDOG if done is None else c.EventKind.STEP,
            at=_now(),
            attempt=request.restart_count,
            summary=summary,
            body={} if done is None else {"action": "signal", "done": done},
        )
        await asyncio.to_thread(self.site.tell, request, event)


def _now() -> datetime:
    return datetime.now(UTC)
