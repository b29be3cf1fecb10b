"""Activities that write to the audit store: plan and permit, rows of the log, and keeping the end of a job's log.

No audit, no action: `plan` has written verdict, advice and plan before any step may start.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from temporalio import activity

from activities import contracts as c
from activities.audit.records import Event, PermitRequest
from activities.heartbeat import heartbeating
from activities.outages import outages_retried
from activities.rows import left_out_row, plan_rows
from activities.site import Site
from activities.telemetry.joblog import save_tail
from recovery.attempts import with_attempts
from recovery.incident_effects import Affected
from recovery.policy_numbers import Policy
from recovery.records import Action, Advice, Attempt, Nodes, NodeView, Verdict
from recovery.recurrence import INCIDENT, worth_remembering

BY_PEOPLE = frozenset({"force", "parked"})
"""Rules of advice that a person demanded: incidents do not bind it."""

WAITING, RECOVERING = "waiting_permit", "recovering"
"""Phases, as the job's list shows them."""

SHORTLY_S = 10
"""A turn comes this long before its job would have waited in vain."""


class RecordingActivities:
    """Writes; never touches Slurm beyond reading how many nodes the cluster has."""

    def __init__(self, site: Site) -> None:
        self.site = site

    @activity.defn(name=c.PLAN)
    async def plan(self, request: c.PlanStep) -> c.PermitAnswer:
        """Writes verdict, advice and plan, then asks for the permit in one short SQL transaction."""
        async with heartbeating(), outages_retried():
            first = await asyncio.to_thread(self.site.store.event, _wait_key(request))
            await asyncio.to_thread(self._write_plan, request, waited=first is not None)
            advice = request.advice
            if advice.action not in {Action.RESTART, Action.GUARD, Action.RELEASE}:
                return c.PermitAnswer(granted=True)
            nodes = await self.site.client(request.cluster).nodes()
            life = await asyncio.to_thread(self.site.store.attempts, request.life_id)
            current = next((attempt for attempt in life if attempt.number == advice.restart_count), None)
            policies = self.site.policies.current()
            policy = policies.policy(advice.policy)
            affected, last_call, purged_at = await self._for_incidents(request, life, policy)
            now = datetime.now(UTC)
            permit = PermitRequest(
                cluster=request.cluster,
                step_key=request.step_key,
                job_id=request.job_id,
                action=advice.action,
                nodes=advice.exclude,
                certain=_known_bad(request.verdict, nodes),
                node_count=len(current.nodes) if current is not None else 0,
                max_restarts_at_once=policy.max_restarts_at_once,
                max_actions_per_hour=policy.max_actions_per_hour,
                max_restarted_nodes_per_hour=policy.max_restarted_nodes_per_hour,
                max_excluded_share=policy.max_excluded_share,
                max_excluded_per_user=policy.max_excluded_per_user,
                last_ask=request.last_ask or (purged_at is not None and now >= purged_at),
                cluster_nodes=len(nodes),
                exclusion_s=policy.exclude_expiry_s,
                affected=affected,
                withhold=advice.rule != INCIDENT,
                forced=advice.rule in BY_PEOPLE,
                pace_s=policies.policy("").incident_pace_s,
                last_call=last_call,
                now=now,
            )
            answer = await asyncio.to_thread(self.site.store.permit, permit)
            if answer.left_out:
                await asyncio.to_thread(self._tell_left_out, request, answer)
            if answer.until is not None:
                await asyncio.to_thread(self._tell_waiting, request, answer, first, policy.permit_wait_s)
            elif answer.granted and first is not None:
                await asyncio.to_thread(self._tell_granted, request, first)
            return answer

    async def _for_incidents(
        self, request: c.PlanStep, attempts: Sequence[Attempt], policy: Policy
    ) -> tuple[Affected, datetime, datetime | None]:
        """What open incidents are compared with, until when the job can wait for its turn, and when Slurm is about to
        forget it."""
        advice, now = request.advice, datetime.now(UTC)
        life = await asyncio.to_thread(self.site.store.life, request.life_id)
        ran = [one for one in attempts if one.number <= advice.restart_count and one.nodes]
        affected = Affected(
            user=life.user,
            nodes=ran[-1].nodes if ran else (),
            signature=request.verdict.signature,
            fault_class=request.verdict.fault_class,
        )
        last_call = now + timedelta(seconds=max(0, policy.permit_wait_s - SHORTLY_S))
        purged_at: datetime | None = None
        if ran and ran[-1].number == advice.restart_count and ran[-1].end_time is not None:
            facts = await self.site.facts(request.cluster)
            purged_at = ran[-1].end_time + timedelta(seconds=max(0, facts.min_job_age_s - policy.purge_margin_s))
            last_call = min(last_call, purged_at)
        return affected, last_call, purged_at

    def _tell_left_out(self, request: c.PlanStep, answer: c.PermitAnswer) -> None:
        self.site.tell(request, left_out_row(request, answer, datetime.now(UTC)))

    def _tell_waiting(self, request: c.PlanStep, answer: c.PermitAnswer, first: Event | None, wait_s: int) -> None:
        """One row for each reason, however often it is asked: figures in it change from one answer to the next."""
        about = f"{zlib.crc32(re.sub(r'[0-9]+', '#', answer.reason).encode()):08x}"
        now = datetime.now(UTC)
        since = first.at if first is not None else now
        until = since + timedelta(seconds=wait_s)
        key = _wait_key(request)
        if first is not None and first.body.get("about") != about:
            key = f"{key}:{about}"
        event = c.NewEvent(
            key=key,
            kind=c.EventKind.WAITS,
            at=now,
            attempt=request.advice.restart_count,
            summary=f"for a permit: {answer.reason} (since {_clock(since)}, at most until {_clock(until)})",
            body={
                "step_key": request.step_key,
                "reason": answer.reason,
                "about": about,
                "since": since.isoformat(),
                "until": until.isoformat(),
            },
        )
        self._tell(request, event, WAITING)

    def _tell_granted(self, request: c.PlanStep, first: Event) -> None:
        now = datetime.now(UTC)
        event = c.NewEvent(
            key=f"{_wait_key(request)}:granted",
            kind=c.EventKind.WAITS,
            at=now,
            attempt=request.advice.restart_count,
            summary=f"no more: the permit was granted after {(now - first.at).total_seconds():.0f} s",
            body={"step_key": request.step_key, "granted": True},
        )
        self._tell(request, event, RECOVERING)

    def _tell(self, request: c.PlanStep, event: c.NewEvent, phase: str) -> None:
        names = (request.cluster, request.job_id, request.life_id)
        self._append(*names, (event,), request.workflow_id, request.run_id, phase=phase)

    def _write_plan(self, request: c.PlanStep, *, waited: bool) -> None:
        advice, verdict = request.advice, request.verdict
        events = plan_rows(request, datetime.now(UTC))
        self._append(
            request.cluster,
            request.job_id,
            request.life_id,
            events,
            request.workflow_id,
            request.run_id,
            attempts=(attempt_of_decision(advice.restart_count, verdict),),
            phase=RECOVERING if advice.action in {Action.RESTART, Action.GUARD} and not waited else None,
            mode=advice.mode.value,
        )
        self._suspect(request.life_id, advice.restart_count, verdict, advice)

    def _suspect(self, life_id: int, attempt: int, verdict: Verdict, advice: Advice | None) -> None:
        """Enters the suspects of a decision in the ledger of the cluster."""
        now = datetime.now(UTC)
        policy, rule = (advice.policy, advice.rule) if advice is not None else ("", "")
        window = timedelta(seconds=self.site.policies.current().policy(policy).suspect_window_s)
        about = attempt if verdict.attempt is None else verdict.attempt
        verdict = worth_remembering(verdict, rule, advice.exclude if advice is not None else ())
        self.site.store.suspect(life_id, about, verdict, now, now + window)

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
        verdicts = [
            (event.attempt, Verdict.model_validate(event.body))
            for event in request.events
            if event.kind == c.EventKind.VERDICT
        ]
        decided = [attempt_of_decision(number, verdict) for number, verdict in verdicts]
        advised = [Advice.model_validate(one.body) for one in request.events if one.kind == c.EventKind.ADVICE]
        advice = advised[0] if advised else None
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
            for number, verdict in verdicts:
                await asyncio.to_thread(self._suspect, request.life_id, number, verdict, advice)
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


def _wait_key(request: c.PlanStep) -> str:
    """Of the first row that tells of a step's waiting."""
    return f"waits:{request.step_key}"


def _clock(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M:%SZ}"


def _known_bad(verdict: Verdict, nodes: Sequence[NodeView]) -> Nodes:
    """Nodes that are bad on a word that no user can write: a trusted witness's, or Slurm's own at this moment."""
    told = {suspect.node for suspect in verdict.suspects if suspect.trusted}
    return tuple(sorted(told | {node.name for node in nodes if node.state in {"DOWN", "ERROR"}}))


def attempt_of_decision(number: int, verdict: Verdict) -> Attempt:
    """What a decision adds to the record of an attempt: its cause, and all suspects, also those not excluded."""
    return Attempt(
        number=number if verdict.attempt is None else verdict.attempt,
        fault_class=verdict.fault_class,
        signature=verdict.signature,
        suspects=tuple(suspect.node for suspect in verdict.suspects),
    )
