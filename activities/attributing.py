"""The activity `attribute`: asks the configured providers about one fault and writes what they say to the audit log.

It never raises for anything a provider does. It decides nothing and touches no job.
"""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import UTC, datetime

from temporalio import activity

from activities import contracts as c
from activities.attribution.provider import ask
from activities.audit.store import AuditUnavailable
from activities.rows import attribution_rows
from activities.site import Site
from activities.telemetry.joblog import read_attempt
from recovery.attempts import with_attempts
from recovery.attribution import LINE_LENGTH, AskedPhase, Attribution, EvidenceLine, Question, refined
from recovery.grounding import plain
from recovery.records import Attempt, Verdict

log = logging.getLogger("relight.attribution")

TAIL_BYTES = 64 << 10
FAST_MARGIN_S = 0.25
"""Of the wait, kept for the way there and back and for the record."""


class AttributingActivities:
    """Asks services outside; changes nothing in Slurm."""

    def __init__(self, site: Site) -> None:
        self.site = site

    @activity.defn(name=c.ATTRIBUTE)
    async def attribute(self, request: c.AttributeJob) -> c.AttributionAnswers:
        """What every configured provider says within the deadline. On record when it answers, late answers too."""
        attributors = self.site.attributors
        if attributors is None:
            return c.AttributionAnswers()  # the configuration was changed meanwhile
        fast = request.phase is AskedPhase.FAST
        left = max(request.deadline_s - FAST_MARGIN_S, request.deadline_s / 2) if fast else request.deadline_s
        ends = time.monotonic() + left
        most = max(provider.terms.log_lines for provider in attributors.providers)
        question = question_of(request, await self._tail(request, most, left / 2))
        answers = await asyncio.gather(
            *(
                ask(one, question, request.phase, request.sessions.get(one.terms.name, ""), ends=ends)
                for one in attributors.providers
            )
        )
        try:
            await asyncio.to_thread(self._write, request, answers)
        except AuditUnavailable as away:
            log.warning("answers about job %s are not on record: %s", request.job_id, away)
        return c.AttributionAnswers(attributions=tuple(answers))

    async def _tail(self, request: c.AttributeJob, most: int, within_s: float) -> tuple[EvidenceLine, ...]:
        """The last lines of the attempt's log, where a provider is to get them and they can be read in time."""
        if not most:
            return ()
        try:
            async with asyncio.timeout(within_s):
                return await asyncio.to_thread(self._read_tail, request, most)
        except TimeoutError:
            return ()

    def _read_tail(self, request: c.AttributeJob, most: int) -> tuple[EvidenceLine, ...]:
        cursors = self.site.sweep_cursor(request.cluster, request.job_id).by_path
        parts = read_attempt(request.wanted.subject, max_bytes=TAIL_BYTES, cursors=cursors).parts
        known = {line.text for line in request.lines}
        texts: list[str] = []
        for part in parts:
            lines = (plain(line, LINE_LENGTH) for line in part.data.decode("utf-8", "replace").splitlines())
            texts += [line for line in lines if line and line not in known][-max(1, most // len(parts)) :]
        first = len(request.lines) + 1
        return tuple(EvidenceLine(ref=f"L{first + at}", source="tail", text=text) for at, text in enumerate(texts))

    def _write(self, request: c.AttributeJob, answers: list[Attribution]) -> None:
        store, now, attempt = self.site.store, datetime.now(UTC), request.wanted.subject.restarts
        events = attribution_rows(request, answers, now)
        attempts: tuple[Attempt, ...] = ()
        if request.verdict is not None and (named := _named_late(request.verdict, answers, request)):
            # Too late for this decision; weak suspects all the same, should the next attempt fail there too.
            known = store.attempts(request.life_id)
            before = next((one.suspects for one in known if one.number == attempt), ())
            told = Attempt(number=attempt, suspects=(*before, *named))
            attempts = tuple(one for one in with_attempts(known, [told]) if one.number == attempt)
        store.append(
            request.cluster,
            request.job_id,
            request.life_id,
            events,
            workflow_id=request.workflow_id,
            run_id=request.run_id,
            attempts=attempts,
        )


def question_of(request: c.AttributeJob, tail: tuple[EvidenceLine, ...] = ()) -> Question:
    """The question about the attempt, nothing masked yet."""
    subject = request.wanted.subject
    return Question(
        cluster=request.cluster,
        job_id=request.job_id,
        attempt=subject.restarts,
        about=request.wanted.about,
        signal=request.wanted.signal,
        detected_at=subject.looked_at,
        nodes=subject.nodes,
        start_time=subject.start_time,
        end_time=subject.end_time,
        user=subject.user,
        account=subject.account,
        lines=(*request.lines, *tail),
    )


def _named_late(verdict: Verdict, answers: list[Attribution], request: c.AttributeJob) -> tuple[str, ...]:
    """Suspects that the answers add to what was decided upon."""
    if not request.wanted.counts:
        return ()
    before = {one.node for one in verdict.suspects}
    after = refined(verdict, answers, (), request.wanted.subject)
    return tuple(one.node for one in after.suspects if one.node not in before)
