"""Compares the audit store with the workflows' histories, run by run, and inserts rows that got lost where asked to.

It remembers one run at a time, and of the runs it has seen only their ids. It never changes or removes a row.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import Field
from temporalio.api.history.v1 import HistoryEvent

from activities.audit.comparing import OF_WORKFLOWS, Discrepancy, Expected, Problem
from activities.audit.implied import Implication, Implied, implied
from activities.audit.records import Life
from activities.audit.store import AuditStore
from activities.audit.trouble import KeyTaken, UnknownLife
from activities.histories import PAGE, Histories, HistoryGone, Reading, Run, UnreadableHistory, job_of
from activities.kept_histories import KeptHistories
from recovery.records import Attempt, JobView, Record

Tell = Callable[[Discrepancy], None]


class Tally(Record):
    """What a verification has seen."""

    runs: int = Field(default=0, description="histories compared")
    rows: int = Field(default=0, description="rows that they tell")
    problems: dict[str, int] = Field(default_factory=dict, description="what is not right, by kind")
    repaired: int = 0
    past_jobs: int = Field(default=0, description="jobs with rows of runs that the namespace's retention has taken")
    past_rows: int = 0

    @property
    def clean(self) -> bool:
        return not self.problems


class _Told:
    """One run's history, digested."""

    def __init__(self) -> None:
        self.expected = Expected()
        self.attempts: dict[tuple[int, int], Attempt] = {}
        """The last word on each attempt, by life and number."""
        self.views: dict[int, JobView] = {}
        self.closed: dict[int, str] = {}
        self.standing: dict[int, dict[str, Any]] = {}
        self.lives: set[int] = set()
        self.last_at: datetime | None = None

    def take(self, told: Implication) -> None:
        self.expected.add(told.rows)
        if told.life is None:
            return
        self.lives.add(told.life)
        self.attempts |= {(told.life, one.number): one for one in told.attempts}
        if told.view is not None:
            self.views.setdefault(told.life, told.view)
        if told.standing:
            self.standing[told.life] = told.standing
        if told.closed:
            self.closed[told.life] = told.closed


class Verifier:
    """One verification of one cluster."""

    def __init__(
        self,
        store: AuditStore,
        histories: Histories,
        kept: KeptHistories,
        cluster: str,
        tell: Tell,
        *,
        repair: bool,
    ) -> None:
        """`tell` is called with each discrepancy, as it is found."""
        self.store, self.histories, self.kept = store, histories, kept
        self.cluster, self.repair = cluster, repair
        self.tally = Tally()
        self._tell = tell
        self._seen: set[str] = set()
        self._again: list[Run] = []
        self._problems: Counter[str] = Counter()

    async def verify(self, since: datetime, job_id: str | None = None) -> Tally:
        """Everything that is open or has happened since then. Raises RPCError, AuditUnavailable."""
        async for run in self.histories.runs(self.cluster, since, job_id):
            if run.run_id not in self._seen:
                await self._one(run, last=False)
        # The history of the run that opened a missing life may have come after those that went on with it.
        again, self._again = self._again, []
        for run in again:
            await self._one(run, last=True)
        await self._without_history(since, job_id)
        return self.tally

    def _count(self, **changes: object) -> None:
        self.tally = self.tally.model_copy(update=changes)

    # -------------------------------------------------------------------------------------------- one run

    async def _one(self, run: Run, *, last: bool) -> bool:
        """False: there is no such history any more."""
        try:
            told = await self._digest(run)
        except HistoryGone:
            return False
        except UnreadableHistory as error:
            self._seen.add(run.run_id)
            self._found(self._about(run, Problem.UNREADABLE, detail=str(error)))
            return True
        if await asyncio.to_thread(self._compare, run, told, last):
            self._seen.add(run.run_id)
            self._count(runs=self.tally.runs + 1, rows=self.tally.rows + len(told.expected.by_key))
        else:
            self._again.append(run)
        return True

    async def _digest(self, run: Run) -> _Told:
        """From Temporal, else from the file that was kept. Raises HistoryGone, UnreadableHistory."""
        try:
            return await digest(self.histories.pages(run.workflow_id, run.run_id))
        except HistoryGone:
            events = (await asyncio.to_thread(self.kept.read, self._job(run), run.run_id)).events
            return await digest(_pages(events))

    def _compare(self, run: Run, told: _Told, last: bool) -> bool:
        """False: a life is missing, and this history does not tell how it began. Not again in the `last` try."""
        known: dict[int, Life] = {}
        if not last and any(life not in told.views and self._is_missing(life) for life in told.lives):
            return False
        for life_id in sorted(told.lives):
            life = self._life(run, life_id, told)
            if life is not None:
                known[life_id] = life
        rows = self.store.upkeep.by_keys(list(told.expected.by_key))
        for row, how in told.expected.different(rows, run.run_id):
            self._found(self._about(run, Problem.DIFFERENT, row.life_id, row.key, row.kind, row.at, how))
        missing = told.expected.missing(rows)
        for life_id in sorted(told.lives):
            own = [one for one in missing if one.life_id == life_id]
            ran = [attempt for (life, _), attempt in told.attempts.items() if life == life_id]
            self._gaps(run, life_id, known.get(life_id), own, ran)
        until = told.last_at if run.closed is None else None
        for page in self.store.upkeep.of_run(self.cluster, self._job(run), run.run_id, OF_WORKFLOWS):
            for row in told.expected.untold(page, until):
                self._found(self._about(run, Problem.UNTOLD, row.life_id, row.key, row.kind, row.at, row.summary[:200]))
        return True

    def _job(self, run: Run) -> str:
        return job_of(self.cluster, run.workflow_id) or ""

    def _is_missing(self, life_id: int) -> bool:
        try:
            self.store.life(life_id)
        except UnknownLife:
            return True
        return False

    def _life(self, run: Run, life_id: int, told: _Told) -> Life | None:
        """The life on record, put back where it was missing; None: it is not there, or it is another job's."""
        try:
            life = self.store.life(life_id)
        except UnknownLife:
            return self._missing_life(run, life_id, told)
        if (life.cluster, life.job_id) == (self.cluster, self._job(run)):
            return life
        other = f"life {life_id} is of job {life.cluster}-{life.job_id} in this database"
        self._found(self._about(run, Problem.LIFE, life_id, detail=f"{other}: was it restored from a backup?"))
        return None

    def _missing_life(self, run: Run, life_id: int, told: _Told) -> Life | None:
        view = told.views.get(life_id)
        if view is None:
            why = "the life is missing, and no history tells how it began"
            self._found(self._about(run, Problem.LIFE, life_id, detail=why))
            return None
        closed = told.closed.get(life_id)
        put_back = self.repair and self.store.upkeep.restore_life(
            life_id,
            view,
            workflow_id=run.workflow_id,
            run_id=run.run_id,
            opened_at=run.started,
            standing=told.standing.get(life_id, {}),
            closed=(run.closed or datetime.now(UTC), closed) if closed is not None else None,
        )
        self._found(self._about(run, Problem.LIFE, life_id, detail="the life is missing", repaired=put_back))
        return self.store.life(life_id) if put_back else None

    def _gaps(
        self, run: Run, life_id: int, life: Life | None, missing: Sequence[Implied], attempts: Sequence[Attempt]
    ) -> None:
        there = {one.number for one in self.store.attempts(life_id)} if life is not None else set[int]()
        lost = [one for one in attempts if one.number not in there]
        repaired = False
        if self.repair and life is not None and (missing or lost):
            try:
                events = [one.event for one in missing]
                upkeep = self.store.upkeep
                upkeep.restore(life, events, lost, workflow_id=run.workflow_id, run_id=run.run_id)
                repaired = True
            except (KeyTaken, UnknownLife) as error:
                self._found(self._about(run, Problem.LIFE, life_id, detail=str(error)))
        for one in missing:
            event = one.event
            about = self._about(run, Problem.GAP, life_id, event.key, event.kind, event.at, event.summary[:200])
            self._found(about.model_copy(update={"repaired": repaired}))
        for attempt in lost:
            detail = f"attempt {attempt.number}, {attempt.state.value}"
            about = self._about(run, Problem.ATTEMPT, life_id, detail=detail)
            self._found(about.model_copy(update={"repaired": repaired}))

    # -------------------------------------------------------------------------------------------- rows alone

    async def _without_history(self, since: datetime, job_id: str | None) -> None:
        """Rows of runs that were not listed: just begun, over before that time, or gone."""
        kept_s = await self.histories.retention_s()
        oldest = datetime.now(UTC) - timedelta(seconds=kept_s) if kept_s else None
        lives = self.store.upkeep.lives_since(self.cluster, since, job_id)
        while (life := await asyncio.to_thread(next, lives, None)) is not None:
            past = 0
            for one in await asyncio.to_thread(self.store.upkeep.runs_of, life):
                if one.run_id in self._seen:
                    continue
                run = Run(one.workflow_id, one.run_id, life.first_seen, None)
                over = oldest is not None and one.newest < oldest
                if over and not self.kept.has(life.job_id, one.run_id):
                    past += one.rows
                elif not await self._one(run, last=True):
                    why = (
                        f"{one.rows} rows up to {one.newest:%Y-%m-%d %H:%M}Z, and no history although the namespace "
                        f"keeps them for {kept_s / 86_400:g} days: was it deleted, or Temporal set up anew?"
                    )
                    self._found(self._about(run, Problem.NO_HISTORY, life.life_id, detail=why))
            if past:
                self._count(past_jobs=self.tally.past_jobs + 1, past_rows=self.tally.past_rows + past)

    # -------------------------------------------------------------------------------------------- telling

    def _about(
        self,
        run: Run,
        problem: Problem,
        life_id: int | None = None,
        key: str = "",
        kind: str = "",
        at: datetime | None = None,
        detail: str = "",
        repaired: bool = False,
    ) -> Discrepancy:
        return Discrepancy(
            problem=problem,
            cluster=self.cluster,
            job_id=self._job(run),
            life_id=life_id,
            workflow_id=run.workflow_id,
            run_id=run.run_id,
            key=key,
            kind=kind,
            at=at,
            detail=detail,
            repaired=repaired,
        )

    def _found(self, one: Discrepancy) -> None:
        if one.repaired:
            self._count(repaired=self.tally.repaired + 1)
        else:
            self._problems[one.problem.value] += 1
            self._count(problems=dict(self._problems))
        self._tell(one)


async def _pages(events: Sequence[HistoryEvent]) -> AsyncIterator[Sequence[HistoryEvent]]:
    for start in range(0, len(events), PAGE):
        yield events[start : start + PAGE]


async def digest(pages: AsyncIterable[Sequence[HistoryEvent]]) -> _Told:
    """What one run's history implies. Raises HistoryGone, UnreadableHistory."""
    reading, told = Reading(), _Told()
    async for page in pages:
        for call in await reading.calls(page):
            told.take(implied(call))
    for call in reading.rest():
        told.take(implied(call))
    told.last_at = reading.last_at
    return told
