"""Activities that look at one job: opening its life, and examining everything a decision may know.

They change nothing in Slurm. What they find is written to the audit store before it is answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from temporalio import activity

from activities import contracts as c
from activities.attempt_log import LogWords, words_of_attempt
from activities.attribution.wanted import wanted
from activities.audit.records import Watched
from activities.blind_time import blind_summaries
from activities.heartbeat import heartbeating
from activities.judging import after_the_fact, judgements, just_ended
from activities.outages import outages_retried
from activities.rows import directive_row, finding_row, hash_of, opened_row, state_row
from activities.sharing import shared_faults
from activities.site import Site
from activities.slurm.answers import Relatives
from activities.slurm.client import SlurmClient
from activities.slurm.errors import Refused, SlurmdbdAway
from activities.slurm.placement import as_if_heard, nobody_is_heard, usable_nodes
from activities.sweep_cursor import SweepCursor, read_cursor
from activities.telemetry.checkpoints import newest_checkpoint
from activities.telemetry.joblog import AttemptLog
from recovery.attempts import (
    attempts_in_accounting,
    current_attempt,
    view_of_earlier,
    with_all_nodes,
    with_attempts,
    with_restarters,
)
from recovery.diagnose import LogReader
from recovery.directive import Directive, ParsedComment, parse_comment, what_to_do
from recovery.hang import Hang, absent_finding
from recovery.measured import MeasuredJob, with_survivals
from recovery.nearest import meant
from recovery.progress import Dialect, DialectError, own_dialect
from recovery.records import Attempt, AttemptRow, Finding, JobState, JobView, NodeView, Progress, Role, ToldCode
from recovery.recurrence import Suspicion, essential
from recovery.scheduler import scheduler_findings
from recovery.situation import split_rows

MAX_FINDINGS = 40
MAX_ROWS = 20
MAX_LEDGER = 2_000
MAX_SUSPICIONS = 60
UNDISTURBED = frozenset({JobState.COMPLETED, JobState.CANCELLED})
"""Nothing is asked about what ended like this."""

CHECKPOINTS_LIMIT_S = 15.0
"""Longest look into a job's folder of checkpoints: file systems hang."""

LONG_DEATH = timedelta(minutes=10)
"""An attempt's end follows its failure within this, as far as resubmitted copies are concerned."""

START_DEATH_S = 2.0
"""A restarted attempt that fails within this, with 1:0 and no output, died of the restart itself."""


class LookingActivities:
    """Reads scheduler, accounting, nodes, relatives and log of one job."""

    def __init__(self, site: Site) -> None:
        self.site = site

    # -------------------------------------------------------------------------------------------- opening

    @activity.defn(name=c.OPEN_JOB)
    async def open_job(self, request: c.OpenJob) -> c.JobOpening:
        """Finds the job's life in the audit store, or begins one; puts the job on the sweep's table."""
        async with heartbeating(), outages_retried():
            return await self._open(request)

    async def _open(self, request: c.OpenJob) -> c.JobOpening:
        client = self.site.client(request.cluster)
        policy, policies = request.overrides.policy, self.site.policies.current()
        if request.by_hand and policy is not None and policy not in policies.names:
            near = meant(policy, policies.names)
            return c.JobOpening(refused=f"policy {policy!r:.80} is not in the policy file{near}")
        try:
            view = await client.job(request.job_id)
        except Refused as refused:
            return c.JobOpening(refused=refused.message)
        if view is None:
            return c.JobOpening(refused=await self._unknown(client, request))
        if view.job_id != request.job_id:
            return c.JobOpening(
                refused=f"Slurm calls job {request.job_id} {view.job_id}: start {request.cluster}-{view.job_id} instead"
            )
        rows, _ = await _accounting(client, view)
        store = self.site.store
        life = await asyncio.to_thread(
            lambda: store.open_life(
                view, accounting=rows, workflow_id=request.workflow_id, run_id=request.run_id, now=_now()
            )
        )
        await asyncio.to_thread(
            self.site.store.watch, _watched(view, life.life_id, request.workflow_id, paused=life.paused)
        )
        await asyncio.to_thread(self._tell_opened, request, view, life.life_id, life.reopened)
        return c.JobOpening(
            life_id=life.life_id,
            reopened=life.reopened,
            view=view,
            paused=life.paused,
            paused_by=life.paused_by,
            stopped=life.stopped,
        )

    async def _unknown(self, client: SlurmClient, request: c.OpenJob) -> str:
        said = f"Slurm on {request.cluster} does not know job {request.job_id}"
        rows, accounting = await _accounting(client, None, request.job_id)
        if rows:
            return f"{said} any more: it ended {rows[-1].state.value} and was purged (MinJobAge)"
        return f"{said}: check the number{'' if accounting else ' (accounting is off, so its past cannot be told)'}"

    def _tell_opened(self, request: c.OpenJob, view: JobView, life_id: int, reopened: bool) -> None:
        event = opened_row(request, view, life_id, reopened, _now())
        self.site.store.append(
            request.cluster,
            request.job_id,
            life_id,
            [event],
            workflow_id=request.workflow_id,
            run_id=request.run_id,
            state=view.state.value,
            attempts=self._as_seen(view, life_id),
        )

    def _as_seen(self, view: JobView, life_id: int) -> tuple[Attempt, ...]:
        """The attempt that runs, with all its nodes: should it end before the next look, Slurm tells fewer of them."""
        if view.completing or not view.nodes:
            return ()
        known = self.site.store.attempts(life_id)
        return tuple(
            one for one in with_attempts(known, [current_attempt(view, Progress())]) if one.number == view.restarts
        )

    # -------------------------------------------------------------------------------------------- examining

    @activity.defn(name=c.EXAMINE)
    async def examine(self, request: c.ExamineJob) -> c.Examination:
        """A fresh look at everything about one job; its findings are on record when it answers."""
        async with heartbeating(), outages_retried():
            return await self._examine(request)

    async def _examine(self, request: c.ExamineJob) -> c.Examination:
        client = self.site.client(request.cluster)
        view = await client.job(request.job_id)
        facts = await self.site.facts(request.cluster)
        rows, accounting = await _accounting(client, view, request.job_id)
        if view is None:
            return c.Examination(rows=rows, accounting=accounting, min_job_age_s=facts.min_job_age_s)
        known, watched = await asyncio.to_thread(self._known, request)
        own_row, row_before = split_rows(view, rows)
        view = with_all_nodes(view, known, row_before if view.state is JobState.PENDING else own_row)
        nodes = await self.site.nodes(request.cluster)
        nodes = as_if_heard(nodes) if nobody_is_heard(nodes) else nodes
        frozen = await self.site.frozen(request.cluster)
        cursor = read_cursor(watched.cursor if watched is not None else "")
        expected = request.expected_restarts == view.restarts
        in_question = _in_question(view, rows, known, nodes, expected)
        stuck = _stuck(view, cursor)
        parsed = parse_comment(view.comment)
        now = _now()
        reads = in_question is not None or request.read_log or stuck
        subject, row = in_question or (view, None)
        findings: tuple[Finding, ...] = ()
        log_progress, has_output = Progress(), True
        notes: tuple[str, ...] = ()
        told_codes: tuple[ToldCode, ...] = ()
        if in_question is not None:
            findings = scheduler_findings(view, row, now, own_stop=request.own_stop)
        if reads and subject.state is not JobState.COMPLETED:
            own = _own_dialect(parsed.directive)

            def understood(log: AttemptLog) -> LogWords:
                return self._understood(log, subject, own, now)

            told, log_progress, has_output, notes, told_codes = await words_of_attempt(
                self.site, subject, cursor, understood
            )
            findings = (*findings, *told)[:MAX_FINDINGS]
        if reads and parsed.directive.checkpoint_dir is not None and subject.start_time is not None:
            saved, note = await _read_checkpoints(parsed.directive.checkpoint_dir, subject, now)
            log_progress = _best(log_progress, saved)
            notes = (*notes, note) if note else notes
        failed_at = _failed_at(subject, findings, cursor if stuck else None)
        relatives: Relatives | None = None
        if view.state.is_final or view.completing or stuck:
            try:
                relatives = await client.relatives(view.job_id, cursor.children, failed_at=failed_at)
            except Refused:
                relatives = None  # purged meanwhile, or an array as a whole: the next look tells
        progress = _progress(view, watched)
        attempts = with_attempts(known, _from_accounting(view, rows))
        attempts = with_attempts(attempts, [_with_progress(subject, log_progress, told_codes)])
        if subject.restarts == view.restarts:
            progress = _best(progress, log_progress)
        hang, lag, more = judgements(view, cursor, nodes, progress, now, told_step=_progress(view, watched).step)
        if in_question is not None:
            more = after_the_fact(subject, nodes, findings, now)
        if view.state is JobState.RUNNING or (in_question is not None and subject.state not in UNDISTURBED):
            newer = progress.step != _progress(view, watched).step
            step_at = cursor.pace.went_on_at(subject.restarts, newer=newer)
            over = in_question is not None
            more = (*more, *await self._measured(request.cluster, subject, step_at, hang, over=over))
        elif view.state is JobState.PENDING and expected and (before := just_ended(view, attempts, now)) is not None:
            # What a GPU reported right before the end is scraped up to a minute later: there is time while it waits.
            more = (*more, *await self._measured(request.cluster, before, None, None, over=True))
        findings = (*more, *findings)[:MAX_FINDINGS]
        current = current_attempt(view, progress)
        if expected and not has_output and _died_at_start(view):
            current = current.model_copy(update={"own_fault": True})
        attempts = with_attempts(attempts, [current])
        attempts = with_restarters(attempts, view.restarts, ours=expected, requeue_exit=facts.requeue_exit)
        await asyncio.to_thread(self._write, request, view, parsed, watched, cursor, findings, attempts, notes)
        ledger, cleared = await asyncio.to_thread(self._ledger, request, view, attempts, subject, findings)
        acts = hang is not None and hang.stage.acts
        failing = subject if in_question is not None else view
        incidents = await shared_faults(self.site, request, failing, findings, nodes, stuck=acts)
        seen = c.Examination(
            view=view,
            rows=rows[-MAX_ROWS:],
            accounting=accounting,
            attempts=attempts[-100:],
            findings=findings,
            progress=progress,
            hang=hang,
            straggler=lag,
            directive=parsed.directive,
            directive_error=parsed.error,
            opted_in=parsed.opted_in,
            opted_out=parsed.opted_out,
            dependents_started=relatives.started if relatives is not None else (),
            dependents_unsatisfied=relatives.unsatisfied if relatives is not None else (),
            twins=tuple(twin.job_id for twin in relatives.twins) if relatives is not None else (),
            nodes_usable=usable_nodes(view, as_if_heard(nodes)),
            nodes_known=tuple(node.name for node in nodes),
            nodes_up=tuple(node.name for node in nodes if _is_up(node)),
            life_id=request.life_id,
            ledger=ledger,
            nodes_cleared=cleared,
            failed_at=failed_at,
            maintenance=await self.site.maintenance(request.cluster) if in_question is not None or stuck else (),
            min_job_age_s=facts.min_job_age_s,
            accounting_lag=view.state is JobState.COMPLETING,
            frozen=frozen,
            incidents=incidents,
        )
        asked = wanted(self.site.attributors, seen, paused=request.paused)
        return seen.model_copy(update={"attribution": asked}) if asked is not None else seen

    async def _measured(
        self, cluster: str, subject: JobView, step_at: datetime | None, hang: Hang | None, *, over: bool
    ) -> tuple[Finding, ...]:
        """What metrics found about the attempt; in a round that begins now, where it is over or about to be ended.
        `step_at`: its latest step was completed later than this."""
        job = MeasuredJob(
            job_id=subject.job_id,
            raw_id=subject.raw_id,
            nodes=subject.nodes,
            start_time=subject.start_time,
            end_time=subject.end_time if over else None,
            attempt=subject.restarts,
        )
        told = (await self.site.measured(cluster, [job], fresh=over or hang is not None)).get(subject.job_id)
        if told is None:
            return ()
        absent = absent_finding(subject, hang, told.absent_nodes, _now()) if hang is not None else None
        return (*with_survivals(told.findings, step_at), *((absent,) if absent is not None else ()))

    def _ledger(
        self,
        request: c.ExamineJob,
        view: JobView,
        attempts: Sequence[Attempt],
        subject: JobView,
        findings: Sequence[Finding],
    ) -> tuple[tuple[Suspicion, ...], dict[str, datetime]]:
        """What is known of the job's own nodes, and of no others; of a job that runs well only which were cleared."""
        cluster, life_id = request.cluster, request.life_id
        own = {*view.nodes, *subject.nodes, *view.excluded, *(node for one in attempts[-20:] for node in one.suspects)}
        cleared = {node: one.at for node, one in self.site.store.cleared(cluster, sorted(own)).items()} if own else {}
        known = self.site.store.suspicions(cluster, subject.nodes, limit=MAX_LEDGER) if findings else ()
        return essential(known, life_id)[:MAX_SUSPICIONS], cleared

    def _known(self, request: c.ExamineJob) -> tuple[tuple[Attempt, ...], Watched | None]:
        store = self.site.store
        return store.attempts(request.life_id), store.watched_job(request.cluster, request.job_id)

    def _understood(self, log: AttemptLog, view: JobView, own: Dialect | None, now: datetime) -> LogWords:
        """Findings and progress of an attempt's log, whether it printed anything, and what was in the way."""
        reader = LogReader(self.site.catalogue, own=own)
        for part in log.parts:
            reader.next_file(part.path, offset=part.offset)
            for chunk in part.chunks():
                reader.feed(chunk)
        reader.finish()
        return LogWords(
            findings=reader.findings(view.restarts, view, now),
            progress=reader.progress.progress(view.restarts, at=now),
            has_output=log.blind or any(part.data for part in log.parts),
            notes=log.notes,
            told_codes=reader.told_codes(now),
        )

    def _write(
        self,
        request: c.ExamineJob,
        view: JobView,
        parsed: ParsedComment,
        watched: Watched | None,
        cursor: SweepCursor,
        findings: Sequence[Finding],
        attempts: Sequence[Attempt],
        notes: Sequence[str],
    ) -> None:
        events = [state_row(request, view, parsed.directive, _now())]
        events += [finding_row(request.life_id, finding) for finding in findings]
        over = cursor.over
        if over is not None and over.attempt == view.restarts:
            events.append(
                c.NewEvent(
                    key=f"{request.life_id}:hang-over:{over.attempt}:{over.step}",
                    kind=c.EventKind.WATCHDOG,
                    at=_now(),
                    attempt=view.restarts,
                    summary=f"steps go on after all ({over.summary})"[:900],
                )
            )
        for key, summary in blind_summaries(cursor.blind, view.restarts, over=not view.state.is_alive).items():
            events.append(
                c.NewEvent(
                    key=f"{request.life_id}:blind-time:{key}",
                    kind=c.EventKind.WATCHDOG,
                    at=_now(),
                    attempt=view.restarts,
                    summary=summary[:900],
                )
            )
        if notes:
            events.append(
                c.NewEvent(
                    key=f"{request.life_id}:blind:{view.restarts}:{view.state.value}",
                    kind=c.EventKind.WATCHDOG,
                    at=_now(),
                    attempt=view.restarts,
                    summary="; ".join(notes)[:900],
                )
            )
        if parsed.error:
            events.append(directive_row(request.life_id, view, f"{parsed.error}; {what_to_do(view)}", _now()))
        started = request.overrides
        effective = self.site.policies.current().of_job(
            request.cluster, view, parsed.directive, mode=started.mode, policy=started.policy
        )
        for refused in (effective.refused, *effective.cut):
            if refused:
                events.append(
                    c.NewEvent(
                        key=f"{request.life_id}:limit:{hash_of(view.comment)}:{hash_of(refused)}",
                        kind=c.EventKind.DIRECTIVE,
                        at=_now(),
                        attempt=view.restarts,
                        summary=f"refused of the job's comment: {refused}"[:900],
                        body={"comment": view.comment},
                    )
                )
        self.site.store.append(
            request.cluster,
            request.job_id,
            request.life_id,
            events,
            workflow_id=request.workflow_id,
            run_id=request.run_id,
            state=view.state.value,
            attempts=attempts,
        )
        row = _watched(view, request.life_id, request.workflow_id, paused=request.paused)
        if watched is None or (watched.restarts, watched.stdout, watched.stderr, watched.paused) != (
            row.restarts,
            row.stdout,
            row.stderr,
            row.paused,
        ):
            self.site.store.watch(row)


# ------------------------------------------------------------------------------------------------ pieces


async def _accounting(
    client: SlurmClient, view: JobView | None, job_id: str = ""
) -> tuple[tuple[AttemptRow, ...], bool]:
    """Accounting's rows where they can matter, and whether there is accounting."""
    if view is not None and view.restarts == 0 and view.state.is_alive and not view.completing:
        return (), True
    try:
        rows = await client.attempts(view.job_id if view is not None else job_id)
    except (SlurmdbdAway, Refused):
        return (), True
    return (rows, True) if rows is not None else ((), False)


def _in_question(
    view: JobView, rows: Sequence[AttemptRow], known: Sequence[Attempt], nodes: Sequence[NodeView], expected: bool
) -> tuple[JobView, AttemptRow | None] | None:
    """The attempt that has something to explain, and its row in accounting; None while nothing has ended."""
    current, previous = split_rows(view, rows)
    if view.state is not JobState.PENDING:
        over = view.state.is_final or view.completing or view.state is JobState.SPECIAL_EXIT
        return (view, current) if over else None
    if view.restarts == 0 or expected:
        return (view, None) if view.held else None
    earlier = next((one for one in known if one.number == view.restarts - 1), None)
    if earlier is None:
        completing = view.nodes if view.completing else ()
        earlier = Attempt(number=view.restarts - 1, nodes=previous.nodes if previous is not None else completing)
    if previous is None:
        # Without accounting: Slurm requeues a job by itself when one of its nodes is gone.
        gone = {node.name for node in nodes if not _is_up(node)}
        if set(earlier.nodes) & gone:
            previous = AttemptRow(raw_id=view.raw_id, state=JobState.NODE_FAIL, nodes=earlier.nodes)
    return view_of_earlier(view, earlier, previous), previous


def _stuck(view: JobView, cursor: SweepCursor) -> bool:
    """Whether the sweep says that the running attempt gets nowhere."""
    mine = cursor.pace.attempt == view.restarts and view.state is JobState.RUNNING and not view.completing
    return mine and (cursor.hang is not None or cursor.straggler is not None)


def _is_up(node: NodeView) -> bool:
    return node.state not in {"DOWN", "ERROR", "FUTURE", "UNKNOWN"} and "NOT_RESPONDING" not in node.flags


def _from_accounting(view: JobView, rows: Sequence[AttemptRow]) -> tuple[Attempt, ...]:
    current, _ = split_rows(view, rows)
    newest = view.restarts if current is not None and rows and rows[-1] == current else view.restarts - 1
    return attempts_in_accounting(rows[-MAX_ROWS:], newest)


def _with_progress(view: JobView, progress: Progress, told_codes: tuple[ToldCode, ...]) -> Attempt:
    return Attempt(
        number=view.restarts,
        told_codes=told_codes,
        nodes=view.nodes,
        first_step=progress.first_step,
        last_step=progress.step,
        last_checkpoint=progress.checkpoint,
    )


def _failed_at(subject: JobView, findings: Sequence[Finding], cursor: SweepCursor | None) -> datetime | None:
    """When the attempt failed, where that was before its end: copies submitted since then are resubmissions."""
    if cursor is not None:
        stuck = cursor.hang or cursor.straggler
        return stuck.since if stuck is not None else None
    if subject.end_time is None:
        return None
    began = max(subject.start_time or subject.end_time, subject.end_time - LONG_DEATH)
    told = [one.at for one in findings if one.at is not None and one.role is Role.ROOT]
    return min((at for at in told if began <= at <= subject.end_time), default=None)


async def _read_checkpoints(folder: str, subject: JobView, now: datetime) -> tuple[Progress, str]:
    """The newest completed checkpoint of the attempt in its own folder, and what was in the way. Never waits long."""
    over = subject.end_time if subject.state.is_final and subject.end_time is not None else now
    began = subject.start_time
    assert began is not None
    look = asyncio.to_thread(lambda: newest_checkpoint(folder, subject.uid, since=began, until=over))
    try:
        found = await asyncio.wait_for(look, CHECKPOINTS_LIMIT_S)
    except TimeoutError:
        return Progress(attempt=subject.restarts), f"blind: checkpoint_dir {folder} did not answer in time"
    return Progress(attempt=subject.restarts, checkpoint=found.step, checkpoint_at=found.at), found.note


def _died_at_start(view: JobView) -> bool:
    if view.state is not JobState.FAILED or (view.exit_code, view.exit_signal) != (1, 0):
        return False
    if view.start_time is None or view.end_time is None:
        return False
    return view.end_time - view.start_time <= timedelta(seconds=START_DEATH_S)


def _progress(view: JobView, watched: Watched | None) -> Progress:
    return watched.progress_of(view.restarts) if watched is not None else Progress(attempt=view.restarts)


def _best(known: Progress, newer: Progress) -> Progress:
    """Both looks at one attempt together: the first look at the first step, the highest step and checkpoint."""
    update: dict[str, object] = {"attempt": max(known.attempt, newer.attempt)}
    if known.first_step is None:
        update |= {"first_step": newer.first_step, "first_step_at": newer.first_step_at}
    if newer.step is not None and (known.step is None or newer.step > known.step):
        update |= {"step": newer.step, "step_at": newer.step_at}
    if newer.checkpoint is not None and (known.checkpoint is None or newer.checkpoint > known.checkpoint):
        update |= {"checkpoint": newer.checkpoint, "checkpoint_at": newer.checkpoint_at}
    if newer.total_steps is not None:
        update["total_steps"] = newer.total_steps
    return known.model_copy(update=update)


def _own_dialect(directive: Directive) -> Dialect | None:
    if directive.progress is None:
        return None
    try:
        return own_dialect(directive.progress)
    except DialectError:
        return None


def _watched(view: JobView, life_id: int, workflow_id: str, *, paused: bool) -> Watched:
    return Watched(
        cluster=view.cluster,
        job_id=view.job_id,
        life_id=life_id,
        workflow_id=workflow_id,
        uid=view.uid,
        user=view.user,
        restarts=view.restarts,
        stdout=view.stdout,
        stderr=view.stderr,
        paused=paused,
    )


def _now() -> datetime:
    return datetime.now(UTC)
