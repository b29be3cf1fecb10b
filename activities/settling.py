"""Watching one restart until it is verified.

When PENDING, ten seconds later and at the start: the exclusions stand, the start time is near, and the reason the job
waits for is an ordinary one. What slurmctld forgot is applied again; exclusions that strand the job are given up;
dependents that Slurm gave up on are re-armed. It ends with an outcome, at the latest at the deadline.
"""

from __future__ import annotations

import asyncio
import hashlib
from datetime import UTC, datetime, timedelta

from activities import contracts as c
from activities.site import Site
from activities.slurm.errors import RefusalKind, Refused
from activities.slurm.placement import newest_first, nobody_is_heard, usable_exclusions
from activities.telemetry.joblog import AttemptLog, read_attempt
from recovery.records import JobState, JobView, Outcome, OutcomeKind

LOOK_EVERY_S = 1.0
SEEN_AGAIN = timedelta(seconds=10)
"""A change is provisional until it was seen again this much later: slurmctld saves its state every few seconds."""

START_SEEN = timedelta(seconds=3)
"""A start is believed after this; a restart that dies of a revoked credential dies within two seconds."""

START_DEATH = timedelta(seconds=2)
NEAR_ENOUGH = timedelta(seconds=3)
PATIENCE_WITH_SILENCE = timedelta(seconds=60)
"""The same while slurmctld has not heard from most nodes: it has just started."""

PATIENCE_WITH_REASON = timedelta(seconds=4)
"""A reason that would mean stuck is believed after this: it may be an old one, until the scheduler's next pass."""


class Settling:
    """One watch over one restart (or guard). Safe to begin again: it only ever looks and repairs."""

    def __init__(self, site: Site, request: c.SettleRequest) -> None:
        self.site, self.request = site, request
        self.client = site.client(request.cluster)
        self.reapplied = 0
        self.relaxed: tuple[str, ...] = ()
        self.rearmed: list[str] = []
        self.armed = False
        self.excluded = request.excluded
        self.pending_at: datetime | None = None
        self.stuck_since: datetime | None = None

    async def watch(self) -> Outcome:
        request = self.request
        await asyncio.to_thread(self._remember)
        while True:
            view = await self.client.job(request.job_id)
            outcome = await self._judge(view)
            if outcome is not None:
                return outcome
            if _now() >= request.deadline:
                return self._outcome(OutcomeKind.WAITING, view, "not yet started at the end of the watch")
            await asyncio.sleep(LOOK_EVERY_S)

    def _remember(self) -> None:
        """What an earlier run of this watch gave up is not wanted back."""
        while (event := self.site.store.event(self._key(f"relaxed:{len(self.relaxed)}"))) is not None:
            self._give_up(event.body.get("relaxed"))

    def _give_up(self, names: object) -> None:
        given = {name for name in names if isinstance(name, str)} if isinstance(names, list | tuple) else set()
        self.relaxed = tuple(sorted({*self.relaxed, *given}))
        self.excluded = tuple(name for name in self.excluded if name not in given)

    async def _judge(self, view: JobView | None) -> Outcome | None:
        request = self.request
        if view is None:
            return self._outcome(OutcomeKind.GONE, None, "Slurm does not know the job any more")
        if view.restarts < request.restarts:
            return self._outcome(OutcomeKind.UNDONE, view, "slurmctld has forgotten the requeue")
        if view.restarts > request.restarts:
            return self._outcome(OutcomeKind.REFUSED, view, "somebody else has requeued the job meanwhile")
        if view.state is JobState.CANCELLED:
            return self._outcome(OutcomeKind.REFUSED, view, "the job was cancelled after its restart")
        if view.state is JobState.COMPLETING:
            return None  # how this attempt ended is not known yet
        if view.state is JobState.PENDING:
            return await self._pending(view)
        return await self._started(view)

    # -------------------------------------------------------------------------------------------- while it waits

    async def _pending(self, view: JobView) -> Outcome | None:
        if view.held:
            return self._outcome(OutcomeKind.REFUSED, view, f"the job is held ({view.reason})")
        if not set(self.excluded) <= set(view.excluded) or set(self.relaxed) & set(view.excluded):
            await self._apply(view, "the exclusions were not there")
            return None
        if view.completing:
            return None
        now = _now()
        if self.pending_at is None:
            self.pending_at = now
            await self._rearm()
        if self._parked and view.eligible_time is not None and view.eligible_time + NEAR_ENOUGH < self._parked_until:
            await self._apply(view, "the late start was not there")
            return None
        await self._move_up(view, now)
        if view.unplaceable:
            return await self._stuck(view, now)
        self.stuck_since = None
        queued = view.reason.lower().strip("()") not in {"begintime", "none", ""}
        seen_again = now >= max(self.request.acted_at, self.pending_at) + SEEN_AGAIN
        late = () if queued or self._parked or not seen_again else await asyncio.to_thread(self._blamed_late)
        if late:
            return self._outcome(OutcomeKind.WAITING, view, f"verified; metrics blame {', '.join(late)} only now")
        if (queued or self._parked) and seen_again:
            return self._outcome(OutcomeKind.WAITING, view, f"verified; waits in the queue ({view.reason})")
        return None

    def _blamed_late(self) -> tuple[str, ...]:
        """Nodes that are to blame for the last attempt's end as is known only now: it is to be decided anew."""
        cursor = self.site.sweep_cursor(self.request.cluster, self.request.job_id)
        return tuple(sorted(set(cursor.late) - set(self.excluded) - set(self.relaxed) - set(self.request.declined)))

    @property
    def _parked(self) -> bool:
        """The job was given a late start on purpose: it waits there for a person's answer."""
        return self.request.lease_s == self.request.start_delay_s

    @property
    def _parked_until(self) -> datetime:
        return self.request.acted_at + timedelta(seconds=self.request.start_delay_s)

    async def _move_up(self, view: JobView, now: datetime) -> None:
        """The nodes are free: the start need not wait for the end of the lease (or of the credential's life)."""
        request = self.request
        if self._parked or view.eligible_time is None:
            return
        wanted = max(request.acted_at, self.pending_at or now) + timedelta(seconds=request.start_delay_s)
        if view.eligible_time > wanted + NEAR_ENOUGH and view.eligible_time > now + NEAR_ENOUGH:
            await self._lease(view, start_in_s=request.start_delay_s)

    async def _apply(self, view: JobView, why: str) -> None:
        """Exclusions and start time once more: slurmctld died before it had saved them."""
        self.reapplied += 1
        start_in_s = self.request.lease_s if view.completing else self.request.start_delay_s
        if await self._lease(view, start_in_s=start_in_s, exclude=self._wanted(view)):
            await self._tell(c.EventKind.WATCHDOG, f"{why}: applied again", f"reapplied:{_now().isoformat()}")

    def _wanted(self, view: JobView) -> tuple[str, ...]:
        """What shall stand in ExcNodeList: an update replaces all of it, also what others have added."""
        return tuple(sorted({*self.excluded, *view.excluded} - set(self.relaxed)))

    async def _stuck(self, view: JobView, now: datetime) -> Outcome | None:
        """Exclusions that strand the job are given up: a job that cannot be placed does not fail open."""
        if self.stuck_since is None:
            self.stuck_since = now
        if now < self.stuck_since + PATIENCE_WITH_REASON:
            return None
        ours = tuple(
            name
            for name in newest_first(self.request.ours, self.request.excluded_at)
            if name in view.excluded and name not in self.relaxed
        )
        if not ours:
            return self._outcome(OutcomeKind.STUCK, view, f"it cannot be placed ({view.reason}), and not because of us")
        nodes = await self.client.nodes()
        if nobody_is_heard(nodes) and now < self.stuck_since + PATIENCE_WITH_SILENCE:
            return None
        theirs = tuple(name for name in view.excluded if name not in ours)
        # As few as must be, where arithmetic tells; half of them at a time where Slurm sees something that it does
        # not. The oldest go first: what they were set for is the longest ago.
        given_up = usable_exclusions(view, nodes, ours, keep=theirs).dropped or ours[len(ours) // 2 :]
        # Written first: another run of this watch must not take it for something that slurmctld forgot.
        await self._tell(
            c.EventKind.WATCHDOG,
            f"the job cannot be placed ({view.reason}): gives up excluding {', '.join(given_up)}",
            f"relaxed:{len(self.relaxed)}",
            relaxed=list(given_up),
        )
        self._give_up(given_up)
        await asyncio.to_thread(
            self.site.store.give_up_exclusions, self.request.cluster, self.request.job_id, self.relaxed
        )
        self.stuck_since = None
        await self._lease(view, start_in_s=self.request.start_delay_s, exclude=self._wanted(view))
        return None

    async def _lease(self, view: JobView, *, start_in_s: int, exclude: tuple[str, ...] | None = None) -> bool:
        try:
            await self.client.lease(
                self.request.job_id,
                self.request.restarts,
                deadline=_now() + timedelta(seconds=30),
                exclude=exclude,
                start_in_s=start_in_s,
            )
        except Refused as refused:
            # It started, or changed, between look and act: the next look tells.
            if refused.kind not in {RefusalKind.NOT_PENDING, RefusalKind.STALE, RefusalKind.BUSY}:
                await self._tell(
                    c.EventKind.WATCHDOG, f"not applied again: {refused}", f"unleased:{refused.kind.value}"
                )
            return False
        return True

    async def _rearm(self) -> None:
        """Dependents that Slurm gave up on wait for this job again, those given up since the last look too."""
        self.armed = True
        for child in sorted({*self.request.rearm, *await self._given_up()}):
            try:
                await self.client.rearm(child, self.request.job_id, deadline=_now() + timedelta(seconds=30))
            except Refused as refused:
                await self._tell(c.EventKind.WATCHDOG, f"dependent {child} not re-armed: {refused}", f"unarmed:{child}")
            else:
                self.rearmed.append(child)
                await self._tell(c.EventKind.STEP, f"dependent {child} waits for the job again", f"rearmed:{child}")

    async def _given_up(self) -> tuple[str, ...]:
        cursor = self.site.sweep_cursor(self.request.cluster, self.request.job_id)
        try:
            return (await self.client.relatives(self.request.job_id, cursor.children)).unsatisfied
        except Refused:
            return ()  # purged meanwhile, or an array as a whole: the next look tells

    # -------------------------------------------------------------------------------------------- once it started

    async def _started(self, view: JobView) -> Outcome | None:
        now = _now()
        if not self.armed:
            await self._rearm()
        wrong = set(view.nodes) & set(self.request.ours) - set(self.relaxed)
        if view.state is JobState.FAILED and await self._died_at_start(view):
            return self._outcome(OutcomeKind.DIED_AT_START, view, "the start died of the restart itself")
        if wrong and view.state is not JobState.COMPLETED:
            return self._outcome(
                OutcomeKind.STARTED_ON_EXCLUDED, view, f"it started on {', '.join(sorted(wrong))} all the same"
            )
        if view.state.is_final:
            return self._outcome(OutcomeKind.RESTARTED, view, f"it ran and ended {view.state.value}")
        if view.state is JobState.CONFIGURING or view.start_time is None:
            return None
        if now < view.start_time + START_SEEN or now < self.request.acted_at + SEEN_AGAIN:
            return None
        return self._outcome(OutcomeKind.RESTARTED, view, "")

    async def _died_at_start(self, view: JobView) -> bool:
        if (view.exit_code, view.exit_signal) != (1, 0) or view.start_time is None or view.end_time is None:
            return False
        if view.end_time - view.start_time > START_DEATH:
            return False
        log = await asyncio.to_thread(self._log, view)
        return not log.blind and not any(part.data for part in log.parts)

    def _log(self, view: JobView) -> AttemptLog:
        cursor = self.site.sweep_cursor(self.request.cluster, self.request.job_id)
        return read_attempt(view, cursors=cursor.by_path)

    # -------------------------------------------------------------------------------------------- records

    def _outcome(self, kind: OutcomeKind, view: JobView | None, reason: str) -> Outcome:
        running = view is not None and view.start_time is not None and view.state is not JobState.PENDING
        return Outcome(
            kind=kind,
            step_key=self.request.step_key,
            reason=reason,
            restarts=view.restarts if view is not None else None,
            excluded=view.excluded if view is not None else (),
            relaxed=self.relaxed,
            reapplied=self.reapplied,
            rearmed=tuple(self.rearmed),
            acted_at=self.request.acted_at,
            pending_at=self.pending_at,
            started_at=view.start_time if running and view is not None else None,
            nodes=view.nodes if running and view is not None else (),
        )

    def _key(self, name: str) -> str:
        return f"{self.request.step_key}:settle:{hashlib.sha256(name.encode()).hexdigest()[:12]}"

    async def _tell(self, kind: str, summary: str, key: str, **body: object) -> None:
        request = self.request
        event = c.NewEvent(
            key=self._key(key), kind=kind, at=_now(), attempt=request.restarts, summary=summary, body=body
        )
        await asyncio.to_thread(self.site.tell, request, event)


def _now() -> datetime:
    return datetime.now(UTC)
