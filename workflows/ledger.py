"""What every part of a job's workflow stands on: its state, its audit rows, its patient activities, its details.

Rows are queued by `_note` and written by `_record_heard`; nothing is acted on before its rows are written.
"""

from __future__ import annotations

from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from activities import contracts as c
    from recovery.records import Advice, Attempt, Mode
    from workflows import telling, timings
    from workflows.messages import StartRecovery, parse_start
    from workflows.state import INBOX_LENGTH, RecoveryState


FORCE = "force"
"""The rule of advice that an operator demanded."""


class Ledger:
    """State and records of one job's workflow."""

    def __init__(self, raw: Any = None) -> None:
        self._start, self._start_problem = parse_start(raw)
        start = self._start or StartRecovery(cluster="unknown", job_id="1")
        if start.state is not None:
            self.state = RecoveryState.model_validate(start.state)
        else:
            overrides = c.JobOverrides(mode=start.mode, policy=start.policy, paused=start.paused)
            self.state = RecoveryState(
                cluster=start.cluster, job_id=start.job_id, overrides=overrides, by_hand=start.by != "watch"
            )
        self._events: list[c.NewEvent] = []
        self._woken = False
        self._shown: tuple[str, ...] = ()
        self._recorded: tuple[object, ...] = ()

    async def _look(self, name: str, request: Any, answer: type[Any], summary: str) -> Any:
        """A patient activity on the cluster's queue: it changes nothing in Slurm and may be repeated at will."""
        return await workflow.execute_activity(
            name,
            request,
            task_queue=c.slurm_queue(self.state.cluster),
            result_type=answer,
            start_to_close_timeout=timings.LOOK_TIMEOUT,
            heartbeat_timeout=timings.HEARTBEAT,
            schedule_to_close_timeout=timings.PATIENCE,
            retry_policy=timings.PATIENT,
            summary=summary,
        )

    def _step_key(self, advice: Advice) -> str:
        """Stable over activity attempts and continue-as-new; another one for each try in the same attempt."""
        state = self.state
        return (
            f"{state.cluster}-{state.job_id}:{state.life_id}:{advice.restart_count}:{advice.action.value}:{state.tries}"
        )

    def _note(
        self,
        kind: str,
        summary: str,
        *,
        key: str = "",
        attempt: int | None = None,
        by: str = "relight",
        body: dict[str, Any] | None = None,
    ) -> None:
        """Queues an audit row and tells it in the timeline; `_record_heard` writes it."""
        state = self.state
        now = workflow.now()
        state.sequence += 1
        unique = key or f"{kind}:{workflow.info().run_id}:{state.sequence}"
        state.tell(now, kind, summary)
        event = c.NewEvent(
            key=f"{state.cluster}-{state.job_id}:{state.life_id}:{unique}",
            kind=kind,
            at=now,
            summary=summary[:1_000],
            attempt=attempt if attempt is not None else (state.seen.restarts if state.seen else 0),
            by=by,
            body=body or {},
        )
        if len(self._events) < INBOX_LENGTH:
            self._events.append(event)

    def _note_decision(self, decision: c.Decision, *, stopped: bool = False) -> None:
        verdict, advice = decision.verdict, decision.advice
        key = (
            f"{advice.restart_count}:{advice.action.value}:{advice.rule}:{self.state.tries}:{'+'.join(advice.exclude)}"
        )
        if advice.rule == FORCE:
            key += f":{workflow.now().timestamp():.3f}"  # demands are told apart, however alike
        self._note(
            c.EventKind.VERDICT,
            f"{verdict.fault_class.value}: {verdict.reason}",
            key=f"verdict:{key}",
            attempt=advice.restart_count,
            body=verdict.model_dump(mode="json"),
        )
        without = f" without {telling.names(advice.exclude)}" if advice.exclude else ""
        only = " (monitor mode: advice only)" if decision.mode is Mode.MONITOR and advice.acts else ""
        self._note(
            c.EventKind.ADVICE,
            f"{advice.action.value}{without} by rule {advice.rule}: {advice.reason}{only}",
            key=f"advice:{key}",
            attempt=advice.restart_count,
            body=advice.model_dump(mode="json") | {"stopped": stopped},
        )

    async def _record_heard(self, attempts: tuple[Attempt, ...] = ()) -> None:
        """Writes the queued rows and the shown state to the audit store."""
        shown = self._standing()
        if self.state.life_id is None or (not self._events and not attempts and shown == self._recorded):
            return
        self._recorded = shown
        events, self._events = tuple(self._events), []
        try:
            await self._write(events, attempts)
        except ActivityError:
            self._events, self._recorded = [*events, *self._events], ()
            raise

    def _standing(self) -> tuple[object, ...]:
        """What lists show of the job beside its rows."""
        state = self.state
        return (state.phase, state.mode, state.paused, state.paused_by, state.stopped)

    async def _write(self, events: tuple[c.NewEvent, ...], attempts: tuple[Attempt, ...]) -> None:
        state, info = self.state, workflow.info()
        assert state.life_id is not None
        request = c.RecordEvents(
            cluster=state.cluster,
            job_id=state.job_id,
            life_id=state.life_id,
            events=events,
            workflow_id=info.workflow_id,
            run_id=info.run_id,
            phase=state.phase.value,
            mode=state.mode.value,
            paused=state.paused,
            paused_by=state.paused_by,
            stopped=state.stopped,
            attempts=attempts,
        )
        await self._look(c.RECORD, request, c.Done, f"record {len(events)} rows")

    def _show(self) -> None:
        """Live details, and the search attributes where they changed."""
        state = self.state
        workflow.set_current_details(telling.details(state, workflow.now()))
        shown = (
            state.cluster,
            state.job_id,
            state.seen.user if state.seen else "",
            state.phase.value,
            state.mode.value,
            state.verdict.signature or state.verdict.fault_class.value if state.verdict else "",
        )
        if shown != self._shown:
            keys = telling.SEARCH_ATTRIBUTES
            old = self._shown or ("",) * len(keys)
            changes = [key.value_set(new) for key, new, was in zip(keys, shown, old, strict=True) if new and new != was]
            self._shown = shown
            if changes:
                workflow.upsert_search_attributes(changes)


def cause(error: ActivityError) -> str:
    return str(error.cause or error)[:200]
