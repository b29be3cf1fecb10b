"""Activities that write to the audit store: plan and permit, rows of the log, and keeping the end of a job's log.

No audit, no action: `plan` has written verdict, advice and plan before any step may start.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from temporalio import activity

from activities import contracts as c
from activities.audit.records import PermitRequest
from activities.heartbeat import heartbeating
from activities.outages import outages_retried
from activities.site import Site
from activities.telemetry.joblog import save_tail
from recovery.attempts import with_attempts
from recovery.records import Action, Attempt, Verdict


class RecordingActivities:
    """Writes; never touches Slurm beyond reading how many nodes the cluster has."""

    def __init__(self, site: Site) -> None:
        self.site = site

    @activity.defn(name=c.PLAN)
    async def plan(self, request: c.PlanStep) -> c.PermitAnswer:
        """Writes verdict, advice and plan, then asks for the permit in one short SQL transaction."""
        async with heartbeating(), outages_retried():
            await asyncio.to_thread(self._write_plan, request)
            advice = request.advice
            if advice.action not in {Action.RESTART, Action.GUARD, Action.RELEASE}:
                return c.PermitAnswer(granted=True)
            nodes = await self.site.client(request.cluster).nodes()
            life = await asyncio.to_thread(self.site.store.attempts, request.life_id)
            current = next((attempt for attempt in life if attempt.number == advice.restart_count), None)
            policy = self.site.policies.current().policy(advice.policy)
            permit = PermitRequest(
                cluster=request.cluster,
                step_key=request.step_key,
                job_id=request.job_id,
                action=advice.action,
                nodes=advice.exclude,
                node_count=len(current.nodes) if current is not None else 0,
                max_restarts_at_once=policy.max_restarts_at_once,
                max_actions_per_hour=policy.max_actions_per_hour,
                max_restarted_nodes_per_hour=policy.max_restarted_nodes_per_hour,
                max_excluded_share=policy.max_excluded_share,
                cluster_nodes=len(nodes),
                exclusion_s=policy.exclude_expiry_s,
                now=datetime.now(UTC),
            )
            return await asyncio.to_thread(self.site.store.permit, permit)

    def _write_plan(self, request: c.PlanStep) -> None:
        advice, verdict, now = request.advice, request.verdict, datetime.now(UTC)
        without = f" without {', '.join(advice.exclude)}" if advice.exclude else ""
        approved = f", approved by {request.approved_by}" if request.approved_by else ""
        events = (
            c.NewEvent(
                key=f"verdict:{request.step_key}",
                kind=c.EventKind.VERDICT,
                at=now,
                attempt=advice.restart_count,
                summary=f"{verdict.fault_class.value}: {verdict.reason}",
                body=verdict.model_dump(mode="json"),
            ),
            c.NewEvent(
                key=f"advice:{request.step_key}",
                kind=c.EventKind.ADVICE,
                at=now,
                attempt=advice.restart_count,
                summary=f"{advice.action.value}{without} by rule {advice.rule}: {advice.reason}",
                body=advice.model_dump(mode="json"),
            ),
            c.NewEvent(
                key=f"plan:{request.step_key}",
                kind=c.EventKind.PLAN,
                at=now,
                attempt=advice.restart_count,
                summary=f"{advice.action.value}{without} for restart count {advice.restart_count}{approved}",
                body={"step_key": request.step_key, "approved_by": request.approved_by},
            ),
        )
        self._append(
            request.cluster,
            request.job_id,
            request.life_id,
            events,
            request.workflow_id,
            request.run_id,
            attempts=(attempt_of_decision(advice.restart_count, verdict),),
            phase="recovering" if advice.action in {Action.RESTART, Action.GUARD} else None,
        )

    def _append(
        self,
        cluster: str,
        job_id: str,
        life_id: int,
        events: tuple[c.NewEvent, ...],
        workflow_id: str,
        run_id: str,
        *,
        attempts: tuple[Attempt, ...] = (),
        phase: str | None = None,
        mode: str | None = None,
        paused: bool | None = None,
        paused_by: str | None = None,
        stopped: bool | None = None,
    ) -> None:
        store = self.site.store
        if attempts:
            known = store.attempts(life_id)
            numbers = {attempt.number for attempt in attempts}
            attempts = tuple(attempt for attempt in with_attempts(known, attempts) if attempt.number in numbers)
        store.append(
            cluster,
            job_id,
            life_id,
            events,
            workflow_id=workflow_id,
            run_id=run_id,
            phase=phase,
            mode=mode,
            paused=paused,
            paused_by=paused_by,
            stopped=stopped,
            attempts=attempts,
        )

    @activity.defn(name=c.RECORD)
    async def record(self, request: c.RecordEvents) -> c.Done:
        """Appends rows; rows that are there already stay as they are."""
        decided = [
            attempt_of_decision(event.attempt, Verdict.model_validate(event.body))
            for event in request.events
            if event.kind == c.EventKind.VERDICT
        ]
        async with heartbeating(), outages_retried():
            await asyncio.to_thread(
                self._append,
                request.cluster,
                request.job_id,
                request.life_id,
                request.events,
                request.workflow_id,
                request.run_id,
                attempts=with_attempts((), (*decided, *request.attempts)),
                phase=request.phase,
                mode=request.mode,
                paused=request.paused,
                paused_by=request.paused_by,
                stopped=request.stopped,
            )
        return c.Done()

    @activity.defn(name=c.CLOSE_JOB)
    async def close_job(self, request: c.CloseJob) -> c.Done:
        """Marks the life as closed and takes the job off the sweep's table."""
        async with heartbeating(), outages_retried():
            if request.life_id is not None:
                await asyncio.to_thread(self.site.store.close_life, request.life_id, request.reason, datetime.now(UTC))
            await asyncio.to_thread(self.site.store.unwatch, request.cluster, request.job_id)
        return c.Done()

    @activity.defn(name=c.SAVE_EVIDENCE)
    async def save_evidence(self, request: c.SaveEvidence) -> c.Done:
        """Keeps the end of the job's log: a restart truncates it unless the job asked for --open-mode=append."""
        folder = self.site.evidence_dir / request.cluster / request.job_id / f"attempt-{request.attempt}"
        paths = [path for path in (request.stdout, request.stderr) if path]
        await asyncio.to_thread(save_tail, paths, folder, uid=request.uid, max_bytes=request.max_bytes)
        return c.Done()


def attempt_of_decision(number: int, verdict: Verdict) -> Attempt:
    """What a decision adds to the record of an attempt: its cause, and all suspects, also those not excluded."""
    return Attempt(
        number=number,
        fault_class=verdict.fault_class,
        signature=verdict.signature,
        suspects=tuple(suspect.node for suspect in verdict.suspects),
    )
