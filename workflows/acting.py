"""One Slurm change: plan and permit, the step itself, and watching it until it is verified.

The intent is part of the state from before the step until its outcome, so that a lost answer, a new worker or
continue-as-new finds an open change and finishes it instead of asking for it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from temporalio import workflow
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from activities import contracts as c
    from recovery.records import Action, Attempt, JobState, JobView, Mode, Outcome, OutcomeKind
    from workflows import telling, timings
    from workflows.ledger import Ledger, cause
    from workflows.state import Intent, PermitWait, Phase


KEEP_WATCH_S = 60
"""Longest watch over exclusions alone."""

_DEMANDED = (Action.RESTART, Action.RELEASE)
"""Steps that a person may demand."""


class Acting(Ledger):
    """Steps of JobRecovery."""

    async def _act(
        self,
        view: JobView,
        examination: c.Examination | None,
        decision: c.Decision,
        approved_by: str,
        *,
        park: bool = False,
    ) -> None:
        state, advice, info = self.state, decision.advice, workflow.info()
        if state.tries - state.tries_forgiven >= decision.max_tries:
            state.phase = Phase.LEFT_ALONE
            self._note(
                c.EventKind.WATCHDOG,
                f"{state.tries} steps were tried for this attempt and none held: left alone, a person should look",
                key=f"tries:{advice.restart_count}",
                attempt=advice.restart_count,
            )
            return
        step_key = self._step_key(advice)
        evidence = None
        if advice.action is Action.RESTART:
            evidence = workflow.start_activity(
                c.SAVE_EVIDENCE,
                c.SaveEvidence(
                    cluster=state.cluster,
                    job_id=state.job_id,
                    life_id=state.life_id or 0,
                    attempt=view.restarts,
                    stdout=view.stdout,
                    stderr=view.stderr,
                    uid=view.uid,
                    max_bytes=decision.evidence_bytes,
                ),
                task_queue=c.EVIDENCE_QUEUE,
                schedule_to_close_timeout=timings.EVIDENCE_TIMEOUT,
                retry_policy=timings.ONCE,
                result_type=c.Done,
                summary="keep the end of the log",
            )
        permit = await self._permit(step_key, decision, approved_by)
        if permit is None:
            return
        if permit.withheld:  # an incident explains the fault, or the policy's shares are taken
            advice = advice.model_copy(update={"exclude": ()})
        elif permit.left_out:
            left = tuple(node for node in advice.exclude if node not in permit.left_out)
            advice = advice.model_copy(update={"exclude": left})
        if evidence is not None:
            try:
                await evidence
            except ActivityError:
                state.tell(workflow.now(), "evidence", "the log could not be kept; the restart goes on")
        state.tries += 1
        now = workflow.now()
        lease_s = decision.park_s if park else decision.lease_s
        start_delay_s = decision.park_s if park else decision.start_delay_s
        delay_s = int((advice.not_before - now).total_seconds()) + 1 if advice.not_before is not None else 0
        if not park and delay_s > start_delay_s:
            # As a parked job: the late start is what is wanted, and Slurm itself ends it.
            lease_s = start_delay_s = delay_s
        patience_s = 0
        if advice.action is Action.RESTART and view.state is JobState.RUNNING and not view.completing:
            patience_s = decision.end_steps_s + (decision.before_restart.wait_s if decision.before_restart else 0)
        cleared = examination.nodes_cleared if examination is not None else {}
        over = self._expired(now, timedelta(seconds=decision.exclude_expiry_s), cleared)
        intent = Intent(
            action=advice.action,
            step_key=step_key,
            restart_count=advice.restart_count,
            exclude=tuple(sorted(set(advice.exclude) | set(state.exclusions))),
            at=now,
            rearm=examination.dependents_unsatisfied if examination is not None else (),
            lease_s=lease_s,
            start_delay_s=start_delay_s,
            settle_s=decision.settle_s,
        )
        state.intent, state.phase = intent, Phase.RECOVERING
        state.recovering_since = now
        self._show()
        request = c.StepRequest(
            cluster=state.cluster,
            job_id=state.job_id,
            life_id=state.life_id or 0,
            step_key=step_key,
            restart_count=advice.restart_count,
            deadline=now + timedelta(seconds=decision.step_deadline_s + patience_s),
            exclude=advice.exclude,
            keep_excluded=state.exclusions,
            give_up=over,
            lease_s=lease_s,
            start_delay_s=start_delay_s,
            reason=advice.reason[:500],
            force=advice.rule == "force",
            state=view.state,
            stuck=advice.rule in ("hang", "straggler"),
            keep_start=advice.rule == "blamed_late",
            min_nodes=view.min_nodes,
            excluded_at=state.excluded_at,
            hold=advice.keep_nodes,
            hold_s=decision.keep_nodes_s,
            max_held_share=decision.max_kept_share,
            failed_at=examination.failed_at if examination is not None else None,
            before_restart=decision.before_restart if patience_s else None,
            end_steps_s=decision.end_steps_s if patience_s else 0,
            workflow_id=info.workflow_id,
            run_id=info.run_id,
        )
        name = {
            Action.RESTART: c.RESTART,
            Action.STOP: c.STOP,
            Action.GUARD: c.GUARD,
            Action.RELEASE: c.RELEASE,
            Action.ARM: c.ARM,
        }[advice.action]
        try:
            result: c.StepResult = await workflow.execute_activity(
                name,
                request,
                task_queue=c.slurm_queue(state.cluster),
                result_type=c.StepResult,
                start_to_close_timeout=timings.CHANGE_TIMEOUT + timedelta(seconds=patience_s),
                heartbeat_timeout=timings.HEARTBEAT,
                schedule_to_close_timeout=timings.PATIENCE,
                retry_policy=timings.CHANGE_RETRY,
                summary=f"{advice.action.value} job {state.job_id} (restart count {advice.restart_count})",
            )
        except ActivityError as error:
            state.tell(workflow.now(), "step", f"{advice.action.value} gave no answer: {cause(error)}")
            state.look_again_at = workflow.now() + timedelta(seconds=2)
            return
        draining = self._start_drain(decision, step_key) if result.done and advice.drain else None
        await self._after_step(intent, result)
        if draining is not None:
            await self._finish_drain(draining)

    def _start_drain(self, decision: c.Decision, step_key: str) -> workflow.ActivityHandle[c.DrainResult]:
        """Bad nodes go out of service beside the restart, which never waits for it."""
        state, advice, info = self.state, decision.advice, workflow.info()
        how = next((one.how for one in decision.verdict.suspects if one.node in advice.drain), decision.verdict.reason)
        request = c.DrainRequest(
            cluster=state.cluster,
            job_id=state.job_id,
            life_id=state.life_id or 0,
            step_key=step_key,
            nodes=advice.drain,
            attempt=advice.restart_count,
            signature=advice.signature or advice.fault_class.value,
            how=how[:500],
            policy=advice.policy,
            deadline=workflow.now() + timings.DRAIN_LIMIT,
            workflow_id=info.workflow_id,
            run_id=info.run_id,
        )
        return workflow.start_activity(
            c.DRAIN,
            request,
            task_queue=c.slurm_queue(state.cluster),
            result_type=c.DrainResult,
            start_to_close_timeout=timings.CHANGE_TIMEOUT,
            heartbeat_timeout=timings.HEARTBEAT,
            schedule_to_close_timeout=timings.DRAIN_LIMIT,
            retry_policy=timings.CHANGE_RETRY,
            summary=f"drain {telling.names(advice.drain)}",
        )

    async def _finish_drain(self, draining: workflow.ActivityHandle[c.DrainResult]) -> None:
        try:
            result = await draining
        except ActivityError as error:
            self.state.tell(workflow.now(), "drain", f"gave no answer: {cause(error)}")
            return
        told = [f"drained {telling.names(result.drained)}"] if result.drained else []
        told += [f"{node} not drained: {why}"[:200] for node, why in sorted(result.refused.items())[:5]]
        self.state.tell(workflow.now(), "drain", "; ".join(told))

    def _expired(self, now: datetime, expiry: timedelta, cleared: Mapping[str, datetime]) -> tuple[str, ...]:
        """Takes exclusions whose time is over, or whose node was called well since, off the list, and gives them."""
        state = self.state
        since = {node: state.excluded_at.get(node, now) for node in state.exclusions}
        over = tuple(
            node for node in since if now - since[node] >= expiry or cleared.get(node, since[node]) > since[node]
        )
        state.exclusions = tuple(node for node in state.exclusions if node not in over)
        state.excluded_at = {node: since for node, since in state.excluded_at.items() if node not in over}
        if over:
            state.tell(now, "exclusion", f"no more: {telling.names(over)}")
        return over

    async def _permit(self, step_key: str, decision: c.Decision, approved_by: str) -> c.PermitAnswer | None:
        """Writes advice and plan, then waits for the permit, no longer than the policy's permit_wait_s, however often
        it is woken. An outage before the first answer is no such waiting."""
        state, info = self.state, workflow.info()
        if state.permit_wait is not None and state.permit_wait.step_key != step_key:
            state.permit_wait = None
        request = c.PlanStep(
            cluster=state.cluster,
            job_id=state.job_id,
            life_id=state.life_id or 0,
            step_key=step_key,
            verdict=decision.verdict,
            advice=decision.advice,
            approved_by=approved_by,
            workflow_id=info.workflow_id,
            run_id=info.run_id,
        )
        while True:
            waits = state.permit_wait
            last = decision.permit_wait_s == 0 or (waits is not None and workflow.now() >= waits.until)
            request = request.model_copy(update={"last_ask": last})
            answer: c.PermitAnswer = await self._look(
                c.PLAN, request, c.PermitAnswer, f"plan {decision.advice.action.value}, permit"
            )
            if answer.granted:
                state.permit_wait = None
                return answer
            now, known = workflow.now(), state.permit_wait
            since = known.since if known is not None else now
            give_up = known.until if known is not None else now + timedelta(seconds=decision.permit_wait_s)
            if answer.until is None or now >= give_up:
                state.permit_wait = None
                self._note(
                    c.EventKind.WATCHDOG,
                    self._without_permit(decision.advice.action, answer.reason),
                    key=f"no-permit:{step_key}",
                    attempt=decision.advice.restart_count,
                )
                state.phase = Phase.LEFT_ALONE
                return None
            state.phase = Phase.WAITING_PERMIT
            # The row of it is written by `plan`: one that is queued here would wake the wait.
            state.permit_wait = PermitWait(step_key=step_key, reason=answer.reason[:500], since=since, until=give_up)
            state.tell(now, "permit", f"waits: {answer.reason}")
            self._show()
            wait = max(min(answer.until, give_up) - now, timedelta(seconds=1))
            try:
                await workflow.wait_condition(
                    lambda: self._woken or bool(self._events), timeout=wait, timeout_summary="wait for the permit"
                )
            except TimeoutError:
                continue
            state.look_again_at = workflow.now() + timedelta(seconds=1)
            return None

    def _without_permit(self, action: Action, reason: str) -> str:
        job = f"{self.state.cluster}-{self.state.job_id}"
        again = f"; relight force {job} --action {action.value} asks again" if action in _DEMANDED else ""
        return f"no permit ({reason}): nothing is done, and the job stays as Slurm has it{again}"

    async def _after_step(self, intent: Intent, result: c.StepResult) -> None:
        state = self.state
        if not result.done:
            state.intent = None
            self._finish(Outcome(kind=OutcomeKind.REFUSED, step_key=intent.step_key, reason=result.message), intent)
            state.look_again_at = workflow.now() + timedelta(seconds=3)
            return
        state.tell(workflow.now(), "step", f"{intent.action.value}: {result.message or 'accepted by Slurm'}")
        if intent.action is Action.STOP:
            state.stopped = state.own_stop = True
        if intent.action is Action.RELEASE:
            state.expected_restart = state.waiting_first_step = intent.restart_count
        if intent.action not in {Action.RESTART, Action.GUARD}:
            kind = {
                Action.STOP: OutcomeKind.STOPPED,
                Action.RELEASE: OutcomeKind.RELEASED,
                Action.ARM: OutcomeKind.ARMED,
            }[intent.action]
            state.intent = None
            self._finish(
                Outcome(kind=kind, step_key=intent.step_key, restarts=result.restarts, acted_at=result.acted_at), intent
            )
            state.look_again_at = workflow.now() + timedelta(seconds=2)
            return
        if intent.action is Action.RESTART:
            state.stopped = False  # an operator may force a stopped job to start again
        before = state.declined if intent.action is Action.GUARD else ()
        state.declined = tuple(sorted({*before, *result.dropped}))
        state.exclusions = tuple(node for node in intent.exclude if node not in result.dropped)
        now = workflow.now()
        state.excluded_at = {node: state.excluded_at.get(node, now) for node in state.exclusions}
        # Not only what stands there: slurmctld may have died between the requeue and its update.
        excluded = tuple(sorted({*result.excluded, *state.exclusions}))
        await self._settle(intent, excluded, result.acted_at or now)

    async def _finish_intent(self, view: JobView) -> bool:
        """A change was asked for and its verification is still open: finish that first."""
        state, intent = self.state, self.state.intent
        assert intent is not None
        expected = intent.restart_count + (1 if intent.action is Action.RESTART else 0)
        if intent.action not in {Action.RESTART, Action.GUARD} or view.restarts != expected:
            state.intent = None
            return False
        if intent.action is Action.RESTART:
            state.exclusions = intent.exclude
        await self._settle(intent, tuple(sorted(set(view.excluded) | set(state.exclusions))), intent.at)
        return True

    async def _settle(self, intent: Intent, excluded: tuple[str, ...], acted_at: datetime) -> None:
        state, info = self.state, workflow.info()
        restarts = intent.restart_count + (1 if intent.action is Action.RESTART else 0)
        state.expected_restart = restarts
        deadline = workflow.now() + timedelta(seconds=intent.settle_s)
        request = c.SettleRequest(
            cluster=state.cluster,
            job_id=state.job_id,
            life_id=state.life_id or 0,
            step_key=intent.step_key,
            restarts=restarts,
            excluded=excluded,
            ours=state.exclusions,
            excluded_at=state.excluded_at,
            start_delay_s=intent.start_delay_s,
            lease_s=intent.lease_s,
            acted_at=acted_at,
            deadline=deadline,
            rearm=intent.rearm,
            declined=state.declined,
            workflow_id=info.workflow_id,
            run_id=info.run_id,
        )
        try:
            outcome: Outcome = await workflow.execute_activity(
                c.SETTLE,
                request,
                task_queue=c.slurm_queue(state.cluster),
                result_type=Outcome,
                start_to_close_timeout=timedelta(seconds=intent.settle_s) + timings.SETTLE_GRACE,
                heartbeat_timeout=timings.HEARTBEAT,
                schedule_to_close_timeout=timings.PATIENCE,
                retry_policy=timings.PATIENT,
                summary=f"verify {intent.action.value}: restart count {restarts}",
            )
        except ActivityError as error:
            state.tell(workflow.now(), "step", f"the restart could not be verified: {cause(error)}")
            state.look_again_at = workflow.now() + timedelta(seconds=5)
            return
        state.intent = None
        if outcome.kind is OutcomeKind.UNDONE:
            state.expected_restart = None  # the next requeue is somebody else's, unless it is asked for again
        if outcome.relaxed:
            state.declined = tuple(sorted({*state.declined, *outcome.relaxed}))
            state.exclusions = tuple(node for node in state.exclusions if node not in outcome.relaxed)
        if outcome.kind in {OutcomeKind.RESTARTED, OutcomeKind.WAITING}:
            state.waiting_first_step = restarts
            state.approval = state.approval if state.approval is not None and state.approval.parked else None
        if outcome.kind is OutcomeKind.DIED_AT_START:
            await self._own_fault(Attempt(number=restarts, own_fault=True, state=JobState.FAILED, nodes=outcome.nodes))
        self._finish(outcome, intent)
        state.look_again_at = workflow.now() + timedelta(milliseconds=200)

    async def _own_fault(self, attempt: Attempt) -> None:
        """Counts an attempt that died of our own doing against us, once; it costs the job nothing."""
        if self.state.own_fault_of != attempt.number:
            self.state.own_fault_of = attempt.number
            self.state.own_faults += 1
        await self._record_heard(attempts=(attempt,))

    async def _keep_exclusions(self, view: JobView) -> bool:
        """Watches a waiting job again, long after its restart was verified: where exclusions of ours strand it by now
        (a node was drained), and where slurmctld has lost them (applied again once for an attempt, since a person may
        have taken them away)."""
        state, now = self.state, workflow.now()
        ours, there = set(state.exclusions), set(view.excluded)
        stranded = view.unplaceable and bool(ours & there)
        lost = not ours <= there and state.kept_of != view.restarts
        waits = view.state is JobState.PENDING and not view.held
        if not waits or not (stranded or lost) or state.paused or state.mode is not Mode.ACT:
            return False
        state.kept_of = view.restarts
        state.sequence += 1
        intent = Intent(
            action=Action.GUARD,
            step_key=f"{state.cluster}-{state.job_id}:{state.life_id}:{view.restarts}:kept:{state.sequence}",
            restart_count=view.restarts,
            exclude=state.exclusions,
            at=now,
            settle_s=KEEP_WATCH_S,
        )
        expected = state.expected_restart
        await self._settle(intent, tuple(sorted(ours | there)), now)
        state.expected_restart = expected  # somebody else's requeue stays somebody else's
        return True

    def _finish(self, outcome: Outcome, intent: Intent) -> None:
        self.state.outcome = outcome
        text = f"{outcome.kind.value} {outcome.reason}".strip()
        if outcome.nodes:
            text += f" on {telling.names(outcome.nodes)}"
        if outcome.excluded:
            text += f", without {telling.names(outcome.excluded)}"
        if outcome.relaxed:
            text += f"; gave up excluding {telling.names(outcome.relaxed)}"
        self._note(
            c.EventKind.OUTCOME,
            f"{intent.action.value}: {text}",
            key=f"outcome:{outcome.step_key}:{outcome.kind.value}",
            attempt=intent.restart_count,
            body=outcome.model_dump(mode="json"),
        )
