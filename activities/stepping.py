"""Activities that change Slurm, one change each, through the gate; every one looks before and after.

A step may run twice: its intent is written first, and a repetition (the intent stands already) finds what the first
run did instead of doing it again. What the gate refuses is an answer, not an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from activities import contracts as c
from activities.farewell import Farewell
from activities.heartbeat import heartbeating
from activities.holding import hold_nodes, let_go
from activities.outages import outages_retried
from activities.rows import done_row, intent_row, refused_row
from activities.settling import Settling
from activities.site import Site
from activities.slurm.answers import Changed
from activities.slurm.client import SlurmClient
from activities.slurm.errors import RefusalKind, Refused
from activities.slurm.placement import as_if_heard, newest_first, usable_exclusions
from activities.sweep_cursor import read_cursor
from activities.telemetry.logwatch import LogWatch
from recovery.attempts import with_attempts
from recovery.records import Action, Attempt, JobState, JobView, Outcome, Progress

ASKED_BY_NAME = (JobState.TIMEOUT, JobState.PREEMPTED)
"""Endings the gate restarts only when they are named."""

NO_PROGRESS = dict.fromkeys(
    ("first_step", "first_step_at", "step", "step_at", "total_steps", "checkpoint", "checkpoint_at")
)

NODES_HEARD_WITHIN = timedelta(seconds=15)
"""A slurmctld that has just started knows no node for some seconds: none is then missing for good."""

TRY_AGAIN = (RefusalKind.BUSY, RefusalKind.CHANGED, RefusalKind.SLURM_ERROR)
"""Refusals that a moment later may be none."""


class SteppingActivities:
    """restart, guard, stop, release, arm, settle."""

    def __init__(self, site: Site) -> None:
        self.site = site

    @activity.defn(name=c.RESTART)
    async def restart(self, request: c.StepRequest) -> c.StepResult:
        """Requeue, and at once one update with the union of exclusions and the start time (the lease)."""
        return await self._step(Action.RESTART, request, self._restart)

    @activity.defn(name=c.GUARD)
    async def guard(self, request: c.StepRequest) -> c.StepResult:
        """Exclusions and start time for an attempt that Slurm requeued by itself, while it waits."""
        return await self._step(Action.GUARD, request, self._guard)

    @activity.defn(name=c.STOP)
    async def stop(self, request: c.StepRequest) -> c.StepResult:
        """scancel, also of an attempt that still waits."""

        async def change(client: SlurmClient, view: JobView, again: bool) -> tuple[Changed, tuple[str, ...]]:
            return await client.stop(request.job_id, request.restart_count, deadline=request.deadline), ()

        return await self._step(Action.STOP, request, change)

    @activity.defn(name=c.RELEASE)
    async def release(self, request: c.StepRequest) -> c.StepResult:
        """Releases a job that Slurm itself held after a failed launch."""

        async def change(client: SlurmClient, view: JobView, again: bool) -> tuple[Changed, tuple[str, ...]]:
            return await client.release(request.job_id, request.restart_count, deadline=request.deadline), ()

        return await self._step(Action.RELEASE, request, change)

    @activity.defn(name=c.ARM)
    async def arm(self, request: c.StepRequest) -> c.StepResult:
        """Requeue=1 while a --no-requeue job is alive."""

        async def change(client: SlurmClient, view: JobView, again: bool) -> tuple[Changed, tuple[str, ...]]:
            return await client.arm(request.job_id, request.restart_count, deadline=request.deadline), ()

        return await self._step(Action.ARM, request, change)

    @activity.defn(name=c.SETTLE)
    async def settle(self, request: c.SettleRequest) -> Outcome:
        """Watches a restart or guard until it is verified; see activities/settling.py."""
        async with heartbeating(), outages_retried():
            outcome = await Settling(self.site, request).watch()
            await let_go(self.site, request, outcome)
            await asyncio.to_thread(self.site.store.release_permit, request.step_key, _now())
            return outcome

    # -------------------------------------------------------------------------------------------- changes

    async def _restart(
        self, client: SlurmClient, view: JobView, request: c.StepRequest, again: bool
    ) -> tuple[Changed, tuple[str, ...]]:
        if view.state is JobState.RUNNING and not view.completing and view.restarts == request.restart_count:
            await Farewell(self.site, client, request).say(view)
            view = await client.job(request.job_id) or view
        exclude, dropped = await self._exclusions(client, view, request)
        cursor = await asyncio.to_thread(self.site.sweep_cursor, request.cluster, request.job_id)
        # Before the requeue, since freed nodes go to whoever waits.
        await hold_nodes(self.site, view, request, exclude)
        # The nodes of an attempt that ended are free: the start may be near. Otherwise the lease is the far start,
        # and `settle` moves it up once they are free.
        free = view.state.is_final and not view.completing
        changed = await client.restart(
            request.job_id,
            request.restart_count,
            deadline=request.deadline,
            start_in_s=request.start_delay_s if free else request.lease_s,
            exclude=exclude,
            again=again,
            states=(request.state,) if request.state in ASKED_BY_NAME else (),
            children=cursor.children,
            failed_at=request.failed_at,
        )
        return changed, dropped

    async def _guard(
        self, client: SlurmClient, view: JobView, request: c.StepRequest, again: bool
    ) -> tuple[Changed, tuple[str, ...]]:
        exclude, dropped = await self._exclusions(client, view, request)
        changed = await client.lease(
            request.job_id,
            request.restart_count,
            deadline=request.deadline,
            exclude=exclude,
            start_in_s=self._start_in_s(view, request),
        )
        return changed, dropped

    @staticmethod
    def _start_in_s(view: JobView, request: c.StepRequest) -> int | None:
        if request.keep_start:
            return None
        return request.lease_s if view.completing else request.start_delay_s

    async def _exclusions(
        self, client: SlurmClient, view: JobView, request: c.StepRequest
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The union to stand in ExcNodeList, and what had to be left out so that the job can still be placed."""
        # An earlier run of this step may have set what is wanted now; that is ours as well.
        ours = {*request.exclude, *request.keep_excluded, *request.give_up}
        theirs = tuple(name for name in view.excluded if name not in ours)
        older = (name for name in request.keep_excluded if name not in request.exclude)
        wanted = (*request.exclude, *newest_first(older, request.excluded_at))
        if view.completing:
            view = view.model_copy(update={"min_nodes": max(view.min_nodes, request.min_nodes)})
        give_up_at = min(_now() + NODES_HEARD_WITHIN, request.deadline - NODES_HEARD_WITHIN)
        while True:
            nodes = await client.nodes()
            chosen = usable_exclusions(view, nodes, wanted, keep=theirs)
            hoped = usable_exclusions(view, as_if_heard(nodes), wanted, keep=theirs)
            if chosen.kept == hoped.kept or _now() >= give_up_at:
                return chosen.kept, chosen.dropped
            await asyncio.sleep(1)

    # -------------------------------------------------------------------------------------------- one step

    async def _step(
        self, action: Action, request: c.StepRequest, change: Callable[..., Awaitable[object]]
    ) -> c.StepResult:
        async with heartbeating(), outages_retried():
            return await self._look_act_look(action, request, change)

    async def _look_act_look(
        self, action: Action, request: c.StepRequest, change: Callable[..., Awaitable[object]]
    ) -> c.StepResult:
        client = self.site.client(request.cluster)
        again = not await asyncio.to_thread(self._write_intent, action, request)
        known = await asyncio.to_thread(self._on_record, request) if again else None
        if known is not None:
            return known
        view = await client.job(request.job_id)
        if view is None:
            return await self._refused(action, request, RefusalKind.UNKNOWN_JOB, "Slurm does not know the job any more")
        try:
            if action in {Action.RESTART, Action.GUARD}:
                answer = await change(client, view, request, again)
            else:
                answer = await change(client, view, again)
        except Refused as refused:
            if again and _was_made(action, request, view, refused.kind):
                moved = action in {Action.RESTART, Action.GUARD}
                left_out = (await self._exclusions(client, view, request))[1] if moved else ()
                return await self._done(action, request, view, already=True, dropped=left_out)
            unclear = again and action is Action.STOP and view.state is JobState.COMPLETING
            if (refused.kind in TRY_AGAIN or unclear) and _now() < request.deadline:
                raise ApplicationError(str(refused), type="Refused", category=ApplicationErrorCategory.BENIGN) from None
            return await self._refused(action, request, refused.kind, refused.message)
        assert isinstance(answer, tuple)
        changed, dropped = answer
        dropped = tuple(sorted({*dropped, *changed.unknown}))
        return await self._done(
            action,
            request,
            changed.view or view,
            already=changed.already,
            note=changed.note,
            acted_at=changed.acted_at,
            dropped=dropped,
        )

    def _on_record(self, request: c.StepRequest) -> c.StepResult | None:
        """The result of this step, where another run of it has written it down already."""
        event = self.site.store.event(f"{request.step_key}:done")
        if event is None:
            return None
        told = {name: event.body.get(name) for name in ("restarts", "excluded", "dropped", "acted_at")}
        return c.StepResult.model_validate({"done": True, "already": True, "message": event.summary, **told})

    def _write_intent(self, action: Action, request: c.StepRequest) -> bool:
        """True when this is the first run of the step. No audit, no action: it raises when it cannot be written."""
        event = intent_row(action, request, _now())
        return self._append(request, [event]) == 1

    async def _refused(self, action: Action, request: c.StepRequest, kind: RefusalKind, message: str) -> c.StepResult:
        made = await asyncio.to_thread(self._on_record, request)
        if made is not None:  # by another worker, while this one slept
            return made
        event = refused_row(action, request, kind.value, message, _now())
        await asyncio.to_thread(self._append, request, [event])
        await asyncio.to_thread(self.site.store.void_permit, request.step_key, _now())
        return c.StepResult(done=False, refused=kind.value, message=message)

    async def _done(
        self,
        action: Action,
        request: c.StepRequest,
        view: JobView,
        *,
        already: bool = False,
        note: str = "",
        acted_at: datetime | None = None,
        dropped: tuple[str, ...] = (),
    ) -> c.StepResult:
        acted_at = acted_at or _now()
        words = [f"{action.value} done{' (it had been done before)' if already else ''}"]
        if view.excluded:
            words.append(f"excluded: {', '.join(view.excluded)}")
        if dropped:
            words.append(f"not excluded, so that the job can be placed: {', '.join(dropped)}")
        if note:
            words.append(note)
        result = c.StepResult(
            done=True,
            already=already,
            message="; ".join(words),
            restarts=view.restarts,
            excluded=view.excluded,
            dropped=dropped,
            acted_at=acted_at,
        )
        event = done_row(action, request, result, acted_at, view.state.value)
        ended: tuple[Attempt, ...] = ()
        if action is Action.RESTART:
            running = request.state is not None and not request.state.is_final and not request.stuck
            ended = (Attempt(number=request.restart_count, restarted_by="relight", ended_by_us=running),)
        await asyncio.to_thread(self._append, request, [event], ended)
        if action is Action.RELEASE:  # the others are under way until `settle` has seen them through
            await asyncio.to_thread(self.site.store.release_permit, request.step_key, _now())
        await self._not_excluded(request, {*dropped, *request.give_up} - set(view.excluded))
        if action is Action.RESTART and not already:
            await asyncio.to_thread(self._take_down_log_ends, request, view)
        return result

    async def _not_excluded(self, request: c.StepRequest, nodes: set[str]) -> None:
        """Nodes that the job is not kept off after all take nothing from the shares of the policy."""
        if nodes:
            store = self.site.store
            await asyncio.to_thread(store.give_up_exclusions, request.cluster, request.job_id, sorted(nodes))

    def _take_down_log_ends(self, request: c.StepRequest, view: JobView) -> None:
        """With --open-mode=append the next attempt's log begins where the last one's ends."""
        row = self.site.store.watched_job(request.cluster, request.job_id)
        if row is None:
            return
        progress = Progress(attempt=view.restarts)
        look = LogWatch(self.site.catalogue).look(row, read_cursor(row.cursor), view.restarts, progress, waiting=True)
        cursor = look.cursor.model_dump_json()
        fresh = row.model_copy(update={"cursor": cursor, "attempt": view.restarts, **NO_PROGRESS})
        self.site.store.save_cursors(request.cluster, [fresh])

    def _append(self, request: c.StepRequest, events: list[c.NewEvent], attempts: tuple[Attempt, ...] = ()) -> int:
        store = self.site.store
        if attempts:
            numbers = {attempt.number for attempt in attempts}
            known = store.attempts(request.life_id)
            attempts = tuple(one for one in with_attempts(known, attempts) if one.number in numbers)
        return store.append(
            request.cluster,
            request.job_id,
            request.life_id,
            events,
            workflow_id=request.workflow_id,
            run_id=request.run_id,
            attempts=attempts,
        )


def _was_made(action: Action, request: c.StepRequest, view: JobView, refusal: RefusalKind) -> bool:
    """Whether an earlier run of this step has made the change already, so that its repetition is refused."""
    if action is Action.RESTART:
        return view.restarts == request.restart_count + 1 and view.state is not JobState.CANCELLED
    if view.restarts != request.restart_count:
        return False
    if action is Action.STOP:
        return view.state is JobState.CANCELLED or refusal is RefusalKind.CANCELLED
    if action is Action.RELEASE:
        return view.state is not JobState.CANCELLED and not view.held
    if action is Action.GUARD:
        return set(request.exclude) <= set(view.excluded)
    return action is Action.ARM and view.requeue


def _now() -> datetime:
    return datetime.now(UTC)
