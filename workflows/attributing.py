"""Asks attribution providers about a fault: quickly before deciding, thoroughly beside. Only where one is configured.

Their absence, lateness or error costs no more than the wait the configuration allows, and blocks nothing. The activity
itself writes what they say to the audit log, also when it comes too late to count.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ActivityError

with workflow.unsafe.imports_passed_through():
    from activities import contracts as c
    from recovery.attribution import AskedPhase, evidence_lines
    from recovery.records import Verdict
    from workflows import timings
    from workflows.ledger import Ledger, cause


class Attributing(Ledger):
    """Questions of JobRecovery to services outside."""

    def _wanted(self, examination: c.Examination) -> c.AttributionWanted | None:
        """The question to ask now; None where there is none, it was asked before, or a person has decided already."""
        wanted = examination.attribution
        if wanted is None or wanted.key == self.state.asked or self.state.force is not None:
            return None
        return wanted

    async def _ask_before_deciding(self, wanted: c.AttributionWanted, examination: c.Examination) -> None:
        state = self.state
        state.asked, state.attributions = wanted.key, ()
        if wanted.wait_s <= 0:
            return
        try:
            answers: c.AttributionAnswers = await self._ask(
                AskedPhase.FAST, wanted, examination, wanted.wait_s, schedule_to_close=timedelta(seconds=wanted.wait_s)
            )
        except ActivityError as error:
            state.tell(workflow.now(), c.EventKind.ATTRIBUTION, f"no answer in time, decided without: {cause(error)}")
            return
        state.attributions = answers.attributions
        for one in answers.attributions:
            state.tell(workflow.now(), c.EventKind.ATTRIBUTION, one.summary)

    def _ask_beside(self, wanted: c.AttributionWanted, examination: c.Examination, verdict: Verdict) -> None:
        """Nothing waits for this one: it is recorded, and its suspects count as weak ones in later attempts."""
        if wanted.slow_s <= 0:
            return
        patience = timedelta(seconds=wanted.slow_s) + timings.ATTRIBUTION_GRACE
        handle = self._ask(
            AskedPhase.SLOW, wanted, examination, wanted.slow_s, schedule_to_close=patience, verdict=verdict
        )
        handle.add_done_callback(self._hear_slow)

    def _hear_slow(self, handle: asyncio.Task[Any]) -> None:
        if handle.cancelled() or handle.exception() is not None:
            return
        for one in handle.result().attributions:
            self.state.tell(workflow.now(), c.EventKind.ATTRIBUTION, one.summary)

    def _ask(
        self,
        phase: AskedPhase,
        wanted: c.AttributionWanted,
        examination: c.Examination,
        deadline_s: float,
        *,
        schedule_to_close: timedelta,
        verdict: Verdict | None = None,
    ) -> workflow.ActivityHandle[c.AttributionAnswers]:
        state, info = self.state, workflow.info()
        request = c.AttributeJob(
            cluster=state.cluster,
            job_id=state.job_id,
            life_id=state.life_id or 0,
            phase=phase,
            wanted=wanted,
            lines=evidence_lines(examination.findings),
            deadline_s=deadline_s,
            verdict=verdict,
            sessions={one.provider: one.session for one in state.attributions if one.session},
            workflow_id=info.workflow_id,
            run_id=info.run_id,
        )
        return workflow.start_activity(
            c.ATTRIBUTE,
            request,
            task_queue=c.ATTRIBUTION_QUEUE,
            schedule_to_close_timeout=schedule_to_close,
            retry_policy=timings.ONCE,
            result_type=c.AttributionAnswers,
            summary=f"ask about attempt {wanted.subject.restarts}: {phase.value}",
        )
