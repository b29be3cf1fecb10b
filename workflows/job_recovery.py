"""One durable workflow per opted-in job: look, attribute, decide, act, verify; then sleep until told.

Deterministic orchestration only: every fact comes from an activity, every decision from the local activity `decide`,
and the branches here follow recorded results. The state is one model that continue-as-new carries over.
"""

from __future__ import annotations

import contextlib
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError

with workflow.unsafe.imports_passed_through():
    from activities import contracts as c
    from recovery.records import FAILURES, Action, Advice, Attempt, JobState, JobView, Mode
    from workflows import telling, timings
    from workflows.acting import Acting
    from workflows.attributing import Attributing
    from workflows.conversation import Conversation
    from workflows.ledger import cause
    from workflows.messages import StartRecovery
    from workflows.state import Approval, LastSeen, Phase, clock


@workflow.defn(name="JobRecovery")
class JobRecovery(Acting, Attributing, Conversation):
    """Recovery of one job; the workflow id is `<cluster>-<job id>`, so a job never has two minds."""

    @workflow.init
    def __init__(self, raw: Any = None) -> None:
        super().__init__(raw)

    # -------------------------------------------------------------------------------------------- the story

    @workflow.run
    async def run(self, raw: Any = None) -> str:
        self._refuse_bad_start()
        while self.state.life_id is None:
            with contextlib.suppress(ActivityError):
                await self._open()
        while not self.state.closed:
            self._woken = False
            try:
                if self._events:
                    await self._record_heard()
                await self._turn()
                await self._record_heard()
            except ActivityError as error:
                # Slurm or the database stayed away for longer than PATIENCE: begin again with a fresh look.
                state = self.state
                state.tell(workflow.now(), "blind", f"no answer for {timings.PATIENCE}: {cause(error)}")
                state.look_again_at = workflow.now() + timings.AFTER_PATIENCE
            self._show()
            if self.state.closed:
                break
            if workflow.info().is_continue_as_new_suggested():
                await workflow.wait_condition(workflow.all_handlers_finished)
                # Being woken needs no carrying: the next run begins with a look. Unwritten rows would be lost.
                if not self._events:
                    workflow.continue_as_new(self._carried())
            await self._sleep()
        await workflow.wait_condition(workflow.all_handlers_finished)
        return self.state.timeline[-1].text if self.state.timeline else "closed"

    async def _turn(self) -> None:
        """One pass of the story: look, then decide and act on what was seen."""
        state = self.state
        state.look_again_at = None
        examination = await self._examine()
        view = examination.view
        if view is None:
            await self._close(examination)
            return
        self._remember(view, examination)
        if state.intent is not None and await self._finish_intent(view):
            return
        if state.approval is not None and state.approval.parked and await self._answer_parked(view):
            return
        if self._started_where_it_must_not(view):
            await self._restart_our_own_fault(view, examination)
            return
        if self._died_where_it_must_not(view):
            await self._count_our_own_fault(view)
            return
        wanted = self._wanted(examination)
        if wanted is not None:
            await self._ask_before_deciding(wanted, examination)
        decision = await self._decide(examination)
        if wanted is not None:
            self._ask_beside(wanted, examination, decision.verdict)
        if not decision.advice.acts and await self._keep_exclusions(view):
            return
        await self._follow(view, examination, decision)

    async def _sleep(self) -> None:
        state, now = self.state, workflow.now()
        deadlines = [now + timings.BACKSTOP]
        if state.look_again_at is not None:
            deadlines.append(state.look_again_at)
        if state.approval is not None and state.approval.answer is None:
            deadlines.append(state.approval.deadline)
        wait = max(min(deadlines) - now, timedelta(milliseconds=200))
        with contextlib.suppress(TimeoutError):
            await workflow.wait_condition(
                lambda: self._woken or bool(self._events),
                timeout=wait,
                timeout_summary=f"{state.phase.value}: look again at the latest",
            )

    # -------------------------------------------------------------------------------------------- opening and closing

    def _refuse_bad_start(self) -> None:
        start = self._start
        if start is None:
            raise ApplicationError(self._start_problem, type="BadInput", non_retryable=True)
        info = workflow.info()
        if info.workflow_id != start.workflow_id:
            raise ApplicationError(
                f"the workflow of job {start.job_id} on cluster {start.cluster} must have the id "
                f"{start.workflow_id!r}, not {info.workflow_id!r}: start it with --workflow-id {start.workflow_id}",
                type="WrongWorkflowId",
                non_retryable=True,
            )
        queue = c.workflow_queue(start.cluster)
        # A replayer has a task queue of its own; a run that this refused has no later task to replay.
        if info.task_queue != queue and not workflow.unsafe.is_replaying():
            raise ApplicationError(
                f"cluster {start.cluster!r} is not served on task queue {info.task_queue!r}: "
                f"check the cluster's name, or start it again with --task-queue {queue}",
                type="UnknownCluster",
                non_retryable=True,
            )

    async def _open(self) -> None:
        state, info = self.state, workflow.info()
        request = c.OpenJob(
            cluster=state.cluster,
            job_id=state.job_id,
            overrides=state.overrides,
            workflow_id=info.workflow_id,
            run_id=info.run_id,
            by_hand=state.by_hand,
        )
        opening = await self._look(c.OPEN_JOB, request, c.JobOpening, f"open job {state.job_id}")
        if opening.refused:
            raise ApplicationError(opening.refused, type="Refused", non_retryable=True)
        state.life_id = opening.life_id
        state.paused = opening.paused or bool(state.overrides.paused)
        state.paused_by = opening.paused_by
        state.stopped = opening.stopped
        if opening.reopened:
            state.tell(workflow.now(), "opened", "attempts and budgets loaded from the audit store")

    async def _close(self, examination: c.Examination) -> None:
        state = self.state
        seen, rows = state.seen, examination.rows
        ended = rows[-1].state if rows else None
        unseen_end = seen is not None and seen.state.is_alive
        if unseen_end and (ended is None or ended not in {JobState.COMPLETED, JobState.CANCELLED}):
            self._note(
                c.EventKind.MISSED,
                f"the job ended ({ended.value if ended else 'no accounting to tell how'}) and was purged by Slurm "
                f"before it could be looked at: raise MinJobAge (now {examination.min_job_age_s} s; 3600 is advised)",
            )
        reason = f"Slurm has purged the job{f' ({ended.value})' if ended else ''}"
        self._note(c.EventKind.CLOSED, reason)
        await self._record_heard()
        info = workflow.info()
        request = c.CloseJob(
            cluster=state.cluster,
            job_id=state.job_id,
            life_id=state.life_id,
            reason=reason,
            workflow_id=info.workflow_id,
            run_id=info.run_id,
        )
        await self._look(c.CLOSE_JOB, request, c.Done, "close")
        state.phase = Phase.CLOSED
        state.closed = True

    def _carried(self) -> dict[str, Any]:
        state = self.state
        start = StartRecovery(
            cluster=state.cluster,
            job_id=state.job_id,
            by="" if state.by_hand else "watch",
            state=state.model_dump(mode="json"),
        )
        return start.model_dump(mode="json")

    # -------------------------------------------------------------------------------------------- look and decide

    async def _examine(self) -> c.Examination:
        state, info = self.state, workflow.info()
        read_log, state.read_log = state.read_log, False
        request = c.ExamineJob(
            cluster=state.cluster,
            job_id=state.job_id,
            life_id=state.life_id or 0,
            overrides=state.overrides,
            paused=state.paused,
            own_stop=state.own_stop,
            expected_restarts=state.expected_restart,
            read_log=read_log,
            by_hand=state.by_hand,
            workflow_id=info.workflow_id,
            run_id=info.run_id,
        )
        examination: c.Examination = await self._look(c.EXAMINE, request, c.Examination, f"look at job {state.job_id}")
        return examination

    def _remember(self, view: JobView, examination: c.Examination) -> None:
        state, now = self.state, workflow.now()
        before = state.seen
        state.seen = LastSeen(
            at=view.looked_at,
            state=view.state,
            completing=view.completing,
            reason=view.reason,
            restarts=view.restarts,
            nodes=view.nodes,
            excluded=view.excluded,
            user=view.user,
            name=view.name[:100],
            partition=view.partition,
            stdout=view.stdout[:500],
        )
        if before is None or (before.state, before.restarts) != (view.state, view.restarts):
            state.tell(now, "state", f"{view.state.value}, restart count {view.restarts}")
        if view.restarts != state.tries_of:
            state.tries, state.tries_of, state.tries_forgiven = 0, view.restarts, 0
            state.own_stop = False
        state.attempts = max(state.attempts, view.restarts + 1)
        state.progress = examination.progress
        if examination.findings:
            newest = max(examination.findings, key=lambda finding: finding.seen_at)
            if state.last_finding is None or state.last_finding.id != newest.id:
                state.last_finding = newest
                state.tell(now, "finding", newest.summary)
        if (
            state.waiting_first_step == view.restarts
            and view.state is not JobState.PENDING
            and examination.progress.attempt == view.restarts
            and examination.progress.first_step is not None
        ):
            self._note(
                c.EventKind.OUTCOME,
                f"recovered: first new completed step is {examination.progress.first_step}",
                key=f"first-step:{view.restarts}",
                attempt=view.restarts,
                body={
                    "kind": "first_step",
                    "step": examination.progress.first_step,
                    "at": examination.progress.first_step_at.isoformat()
                    if examination.progress.first_step_at
                    else None,
                },
            )
            state.waiting_first_step = None
            state.own_faults = 0

    async def _decide(self, examination: c.Examination) -> c.Decision:
        state = self.state
        assert examination.view is not None
        request = c.DecideJob(
            cluster=state.cluster,
            examination=examination,
            overrides=state.overrides,
            paused=state.paused,
            paused_by=state.paused_by,
            stopped=state.stopped,
            own_faults=state.own_faults,
            expected_restart=state.expected_restart == examination.view.restarts,
            declined=state.declined,
            force=state.force,
            by_hand=state.by_hand,
            now=workflow.now(),
            attributions=state.attributions,
        )
        decision: c.Decision = await workflow.execute_local_activity(
            c.DECIDE,
            request,
            result_type=c.Decision,
            start_to_close_timeout=timedelta(seconds=10),
            summary="decide",
        )
        if examination.findings or state.verdict is None:
            state.verdict = decision.verdict  # a quiet look does not wipe out what is known of the last fault
        state.advice = decision.advice
        state.mode, state.policy = decision.mode, decision.policy
        return decision

    # -------------------------------------------------------------------------------------------- follow the advice

    async def _follow(self, view: JobView, examination: c.Examination, decision: c.Decision) -> None:
        state, advice = self.state, decision.advice
        forced, state.force = state.force, None
        if forced is not None:
            state.tries_forgiven = state.tries
        about = (str(advice.restart_count), advice.action.value, advice.rule, *advice.exclude, str(forced is not None))
        key = "|".join(about)
        is_new = key != state.advice_key or forced is not None  # each demand gets its answer on record
        state.phase = self._resting_phase(view, advice)
        if advice.look_again_at is not None:
            state.look_again_at = advice.look_again_at
        elif examination.accounting_lag or view.completing:
            state.look_again_at = workflow.now() + timedelta(seconds=2)
        elif forced is not None and not advice.acts:
            state.look_again_at = workflow.now() + timedelta(seconds=1)  # a refused demand must not end another wait
        if not advice.acts or decision.mode is Mode.MONITOR:
            state.permit_wait = None
            if is_new and not advice.routine:
                state.advice_key = key
                self._note_decision(decision)
            if advice.action is Action.STOP and decision.mode is not Mode.MONITOR:
                state.stopped = True
            return
        if advice.action is Action.STOP and view.state.is_final and not view.completing:
            # Nothing lives that could be cancelled: the job stays as it ended, and will not be retried.
            if is_new:
                self._note_decision(decision, stopped=True)
            state.stopped, state.advice_key = True, key
            return
        state.advice_key = key
        if advice.needs_approval and forced is None:
            approved_by = await self._approval(view, decision)
            if approved_by is None:
                return
        else:
            approved_by = forced.by if forced is not None else ""
        tries = state.tries
        await self._act(view, examination, decision, approved_by)
        if forced is not None and state.tries == tries and state.phase is Phase.WAITING_PERMIT:
            self._still_demanded(forced)

    def _still_demanded(self, forced: c.Force) -> None:
        """A demand that was woken while it waited for its permit holds, unless a newer one takes its place."""
        if self.state.force is None:
            self.state.force = forced
            return
        by = f" of {forced.by}" if forced.by else ""
        self._note(c.EventKind.WATCHDOG, f"the demand{by} to {forced.action} gives way to a newer one")

    def _resting_phase(self, view: JobView, advice: Advice) -> Phase:
        state = self.state
        if view.state is JobState.COMPLETED:
            return Phase.FINISHED
        if advice.action is Action.STOP:
            return Phase.STOPPED
        if state.paused:
            return Phase.PAUSED
        if view.state.is_alive or view.completing:
            return Phase.RECOVERING if state.waiting_first_step == view.restarts else Phase.WATCHING
        return Phase.STOPPED if state.stopped else Phase.LEFT_ALONE

    async def _approval(self, view: JobView, decision: c.Decision) -> str | None:
        """Who said yes; None while nobody did, or somebody said no."""
        state, advice, now = self.state, decision.advice, workflow.now()
        waiting = state.approval
        asked = (advice.restart_count, advice.action)
        is_question = waiting is None or (waiting.restart_count, waiting.action) != asked
        if waiting is None or is_question:
            within = advice.approve_within_s if advice.approve_within_s is not None else 240
            waiting = Approval(
                step_key=self._step_key(advice),
                restart_count=advice.restart_count,
                action=advice.action,
                rule=advice.rule,
                deadline=now + timedelta(seconds=max(0, within)),
            )
            state.approval = waiting
            self._note_decision(decision)
        # The question may be asked while the job is still completing: it is parked as soon as it can be.
        can_park = advice.action is Action.RESTART and view.state.is_final and not view.completing
        if decision.park and can_park and waiting.answer is None and not waiting.parked:
            state.approval = waiting.model_copy(
                update={"parked": True, "deadline": now + timedelta(seconds=decision.park_s)}
            )
            await self._act(view, None, decision, "nobody yet: parked until somebody answers", park=True)
            self._note_waits(state.approval)
            state.phase = Phase.WAITING_APPROVAL
            return None
        if is_question:
            self._note_waits(waiting)
        if waiting.answer is True:
            return waiting.by or "somebody"
        if waiting.answer is False:
            state.phase = Phase.LEFT_ALONE
            return None
        if now >= waiting.deadline:
            acts = advice.on_silence is not Action.LEAVE_ALONE
            state.approval = waiting.model_copy(update={"answer": acts, "by": "nobody: the policy's on_silence"})
            self._note(
                c.EventKind.WATCHDOG,
                f"nobody answered in time; the policy says {advice.on_silence.value}",
                key=f"silence:{waiting.step_key}",
                attempt=advice.restart_count,
            )
            state.phase = Phase.LEFT_ALONE
            return "nobody: the policy's on_silence" if acts else None
        state.phase = Phase.WAITING_APPROVAL
        return None

    def _note_waits(self, approval: Approval | None) -> None:
        if approval is None:  # the parked job may be answered while it is being parked
            return
        parked = "; the job is parked meanwhile" if approval.parked else ""
        self._note(
            c.EventKind.WAITS,
            f"for a yes to {approval.action.value} (at most until {clock(approval.deadline)}{parked}): "
            f"relight approve {self.state.cluster}-{self.state.job_id} --yes, or --no",
            key=f"waits:{approval.step_key}{':parked' if approval.parked else ''}",
            attempt=approval.restart_count,
            body={"step_key": approval.step_key, "until": approval.deadline.isoformat()},
        )

    async def _answer_parked(self, view: JobView) -> bool:
        """A parked job waits in the queue: yes moves it up, no cancels it, silence lets Slurm start it."""
        state, approval = self.state, self.state.approval
        assert approval is not None
        if view.restarts != approval.restart_count + 1 or view.state is not JobState.PENDING:
            state.approval = None
            return False
        if approval.answer is None and workflow.now() < approval.deadline:
            state.phase = Phase.WAITING_APPROVAL
            return True
        if approval.answer is None:
            state.approval = None
            return False
        state.approval = None
        action = Action.GUARD if approval.answer else Action.STOP
        advice = Advice(
            action=action,
            rule="parked",
            reason=f"parked job, answered by {approval.by or 'somebody'}",
            restart_count=view.restarts,
            exclude=state.exclusions,
            mode=state.mode,
        )
        assert state.verdict is not None
        decision = c.Decision(verdict=state.verdict, advice=advice, mode=state.mode, policy=state.policy)
        await self._act(view, None, decision, approval.by)
        return True

    def _is_where_it_must_not(self, view: JobView) -> bool:
        state = self.state
        return state.expected_restart == view.restarts and bool(set(view.nodes) & set(state.exclusions))

    def _started_where_it_must_not(self, view: JobView) -> bool:
        return view.state is JobState.RUNNING and self._is_where_it_must_not(view) and not self.state.paused

    def _died_where_it_must_not(self, view: JobView) -> bool:
        counted = self.state.own_fault_of == view.restarts
        return view.state in FAILURES and self._is_where_it_must_not(view) and not counted

    async def _count_our_own_fault(self, view: JobView) -> None:
        """slurmctld lost the exclusions and the job died on a node it was to avoid, before it could be restarted."""
        wrong = tuple(sorted(set(view.nodes) & set(self.state.exclusions)))
        self._note(
            c.EventKind.WATCHDOG,
            f"the attempt died on {telling.names(wrong)}, which it was to avoid: it costs the job nothing",
            key=f"died-on-excluded:{view.restarts}",
            attempt=view.restarts,
        )
        await self._own_fault(Attempt(number=view.restarts, own_fault=True, nodes=view.nodes))
        self.state.look_again_at = workflow.now() + timedelta(milliseconds=200)

    async def _restart_our_own_fault(self, view: JobView, examination: c.Examination) -> None:
        """slurmctld lost the exclusions and the job started on a node it was to avoid: again, at no cost to the job."""
        state = self.state
        wrong = tuple(sorted(set(view.nodes) & set(state.exclusions)))
        decision = await self._decide(examination)
        too_often = state.own_faults >= decision.own_fault_limit and state.own_fault_of != view.restarts
        if decision.mode is not Mode.ACT or too_often or state.verdict is None:
            state.exclusions = tuple(node for node in state.exclusions if node not in wrong)
            state.phase = self._resting_phase(view, decision.advice)
            self._note(
                c.EventKind.WATCHDOG,
                f"the attempt runs on {telling.names(wrong)}, which it was to avoid; it is left alone there",
                key=f"on-excluded:{view.restarts}",
                attempt=view.restarts,
            )
            return
        advice = Advice(
            action=Action.RESTART,
            rule="own_fault",
            reason=f"it started on {telling.names(wrong)}, which it was to avoid: slurmctld lost the exclusions",
            restart_count=view.restarts,
            exclude=state.exclusions,
            mode=decision.mode,
            policy=decision.policy,
        )
        self._note(
            c.EventKind.WATCHDOG, advice.reason, key=f"lost:{view.restarts}:{state.tries}", attempt=view.restarts
        )
        await self._own_fault(Attempt(number=view.restarts, own_fault=True, nodes=view.nodes))
        await self._act(view, examination, decision.model_copy(update={"advice": advice}), "")
