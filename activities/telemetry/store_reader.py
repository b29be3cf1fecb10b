"""Reads on in the logs of many jobs in one log store: few questions for all, page by page, within a deadline.

Which store it is, is the Store's matter. Nothing raises for what a store does: it is told as trouble, what was missed
is read at the next time, and what will never be read is a gap.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from activities.telemetry.http_logs import AnswerTooLarge, LogTrouble
from activities.telemetry.joblog import BACKLOG_BYTES, BLIND, AttemptLog, LogPart
from activities.telemetry.logsource import (
    JOB_NAME,
    NS,
    Gap,
    JobCursor,
    Line,
    LogChunk,
    ReadJob,
    SourceRead,
    Span,
    moment,
    nanoseconds,
    text_of,
)
from activities.telemetry.store_memory import StoreMemory
from activities.telemetry.store_shape import StoreShape
from recovery.records import Record

MAX_PAGES = 200
"""A bound that only a store that answers badly reaches; deadline and size come first."""
READ_BYTES = 32 << 20
"""Most text of one read; the rest waits for the next."""
SMALLEST_PAGE = 10
NEAR_S = 10.0
"""Overlap of most reads; every now and then one reaches back as far as a line may be late."""
AHEAD_S = 300.0
"""Nodes' clocks may be ahead of ours."""
SKEW_S = 5.0
"""How much earlier than the attempt, by the nodes' clocks, its first lines may be."""
LOUD_SHARE = 0.25
"""A job with so much of a page that is full is read by itself, so that the others need not wait for it."""


class StoreTiming(Record):
    """How often and how far back a store is read."""

    interval_s: float = 5.0
    late_s: float = 60.0
    backlog_s: float = 3_600.0
    attempt_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Page:
    """Lines of a stretch of time, in the order asked for."""

    lines: tuple[Line, ...]
    whole: bool
    """False: there is more behind the last line."""
    note: str = ""
    """What was wrong with the answer, though it could be used."""
    broken: bool = False
    """The answer broke off: the same question may be answered better."""


class Store(Protocol):
    """One kind of log store."""

    page_lines: int
    jobs_at_once: int
    longest_span: int
    """Nanoseconds."""

    @property
    def name(self) -> str: ...

    @property
    def shape(self) -> StoreShape: ...

    @property
    def deadline_s(self) -> float: ...

    async def page(
        self, names: Sequence[str], begin: int, end: int, limit: int, *, newest_first: bool, ends: float
    ) -> Page:
        """Lines of these jobs with begin <= time < end. Raises LogTrouble."""
        ...

    async def sample(self, begin: int, end: int, limit: int, *, ends: float) -> Page:
        """The newest lines of any jobs. Raises LogTrouble."""
        ...

    async def close(self) -> None: ...


@dataclass
class _Group:
    """Jobs that are asked for in one question."""

    names: dict[str, str]
    """Job id by what the store calls it."""
    begin: int
    limit: int
    span: int
    """How long a stretch is asked for at once: a store sorts all of it, however small the page."""
    split: bool = False


@dataclass
class _Round:
    """What one read has found out so far."""

    end: int
    lines: dict[str, list[Line]] = field(default_factory=lambda: defaultdict(list))
    done_to: dict[str, int] = field(default_factory=dict)
    gaps: dict[str, list[Gap]] = field(default_factory=lambda: defaultdict(list))
    trouble: str = ""
    full: bool = False
    """There was more than could be read at once."""
    pages: int = 0
    bytes: int = 0


class StoreReader:
    """The LogSource of one cluster in one store. One read at a time."""

    def __init__(self, store: Store, timing: StoreTiming | None = None) -> None:
        self.store = store
        self.timing = timing or StoreTiming()
        self._memory = StoreMemory()
        self._reading = asyncio.Lock()
        self._read_at = float("-inf")
        self._far_at = 0
        self._full = False
        self._trouble = ""

    @property
    def name(self) -> str:
        return self.store.name

    async def close(self) -> None:
        await self.store.close()

    async def read(
        self, jobs: Sequence[ReadJob], cursors: Mapping[str, JobCursor], *, now: datetime | None = None
    ) -> SourceRead:
        """What is new in these jobs' logs. `now` is for tests."""
        async with self._reading:
            asked_at = time.monotonic()
            if asked_at - self._read_at < self.timing.interval_s:
                return SourceRead(cursors=dict(cursors), trouble=self._trouble, asked=False)
            self._read_at = asked_at
            present = time.time_ns() if now is None else nanoseconds(now)
            # While there is more than can be read, going on comes before looking for what was late.
            far = not self._full and abs(present - self._far_at) >= self.timing.late_s / 2 * NS
            read = await self._read(jobs, cursors, present, far, asked_at + self.store.deadline_s)
            if far and not read.trouble:
                self._far_at = present
            self._trouble = read.trouble
            return read

    # -------------------------------------------------------------------------------------------- one read

    @property
    def _window(self) -> int:
        """How far back lines are known one by one: a line so late is seen by the next read that reaches far."""
        return int((self.timing.late_s * 1.5 + NEAR_S) * NS)

    async def _read(
        self, jobs: Sequence[ReadJob], cursors: Mapping[str, JobCursor], now: int, far: bool, ends: float
    ) -> SourceRead:
        found = _Round(end=now + int(AHEAD_S * NS))
        wanted: list[ReadJob] = []
        froms: dict[str, int] = {}
        before: dict[str, JobCursor] = {}
        for job in jobs:
            names = tuple(name for name in job.names if JOB_NAME.fullmatch(name))
            if not names:
                why = f"no usable name: {', '.join(map(repr, job.names))[:80]}, expected a job number"
                found.gaps[job.job_id].append(Gap(Span(job.since, moment(now)), why))
                continue
            wanted.append(job)
            cursor = _cursor(job, cursors.get(job.job_id), now)
            before[job.job_id] = cursor
            froms[job.job_id] = self._begin(job.job_id, cursor, now, far, found)
        self._memory.keep_only({job.job_id for job in wanted})
        queue = self._groups(wanted, froms, now)
        while queue:
            if found.pages >= MAX_PAGES or found.bytes >= READ_BYTES or time.monotonic() >= ends:
                found.full = True
                found.trouble = found.trouble or "there was more than could be read at once"
                break
            try:
                await self._page(queue, found, ends)
            except LogTrouble as trouble:
                found.trouble = str(trouble)
                if trouble.again:
                    break
        self._full = found.full
        return await asyncio.to_thread(self._sort_out, before, froms, found, now)

    def _begin(self, job_id: str, cursor: JobCursor, now: int, far: bool, found: _Round) -> int:
        """Where the read of one job begins."""
        if not self._memory.remembers(job_id, cursor):
            begin = cursor.floor
        else:
            overlap = self.timing.late_s * 1.5 if far else min(NEAR_S, self.timing.late_s)
            begin = max(cursor.floor, cursor.read_to - int(overlap * NS))
        oldest = now - int(self.timing.backlog_s * NS)
        if begin < oldest:
            if cursor.read_to < oldest:
                why = f"longer ago than is read while watching (telemetry.logs.backlog_s, {self.timing.backlog_s:g} s)"
                found.gaps[job_id].append(Gap(Span(moment(cursor.read_to), moment(oldest)), why))
            begin = oldest
        return begin

    def _groups(self, jobs: Sequence[ReadJob], froms: Mapping[str, int], now: int) -> deque[_Group]:
        """The questions: jobs of about the same age together, so that one with a long way to go does not make the
        others' lines be read again."""
        fresh_s = int(self.timing.late_s * 1.5 + NEAR_S + 4 * self.timing.interval_s)
        by_age: dict[int, list[ReadJob]] = defaultdict(list)
        for job in jobs:
            age_s = max(0, now - froms[job.job_id]) // NS
            by_age[0 if age_s <= fresh_s else age_s.bit_length()].append(job)
        groups: deque[_Group] = deque()
        for _, some in sorted(by_age.items()):
            for at in range(0, len(some), self.store.jobs_at_once):
                part = some[at : at + self.store.jobs_at_once]
                names = {name: job.job_id for job in part for name in job.names if JOB_NAME.fullmatch(name)}
                begin = min(froms[job.job_id] for job in part)
                groups.append(_Group(names, begin, self.store.page_lines, self.store.longest_span))
        return groups

    async def _page(self, queue: deque[_Group], found: _Round, ends: float) -> None:
        """Asks for one page of the first group and puts back what is left of it."""
        group = queue.popleft()
        found.pages += 1
        limit = min(group.limit, self.store.page_lines)
        begin = max(0, group.begin)
        end = min(found.end, begin + group.span)
        try:
            page = await self.store.page(list(group.names), begin, end, limit, newest_first=False, ends=ends)
        except AnswerTooLarge:
            if limit <= SMALLEST_PAGE:
                raise
            group.limit = max(SMALLEST_PAGE, limit // 8)
            queue.appendleft(group)
            return
        found.trouble = found.trouble or page.note
        for line in page.lines:
            job_id = group.names.get(line.job)
            if job_id is not None:  # a store may answer more than it was asked
                found.lines[job_id].append(line)
                found.bytes += len(line.data)
        reached = end
        if page.whole:
            group.span = min(self.store.longest_span, group.span * 4)
        else:
            if not page.lines or (page.broken and page.lines[-1].at <= begin):
                raise LogTrouble(page.note or "an answer without lines that is not whole", again=page.broken)
            reached = page.lines[-1].at  # of this very moment there may be more
            if reached <= begin:
                reached = begin + 1
                why = f"more than {len(page.lines)} lines at one moment"
                for job_id in set(group.names.values()):
                    found.gaps[job_id].append(Gap(Span(moment(begin), moment(reached)), why))
            group.span = max(NS, 2 * (reached - begin))
        for job_id in group.names.values():
            found.done_to[job_id] = reached
        if reached >= found.end:
            return
        for part in reversed(_split(group, page, reached)):
            if part.split:
                queue.append(part)  # behind those who do not shout
            else:
                queue.appendleft(part)

    def _sort_out(
        self, before: Mapping[str, JobCursor], froms: Mapping[str, int], found: _Round, now: int
    ) -> SourceRead:
        chunks: list[LogChunk] = []
        cursors: dict[str, JobCursor] = {}
        behind: set[str] = set()
        for job_id, cursor in before.items():
            done_to = found.done_to.get(job_id)
            gaps = found.gaps.get(job_id, [])
            if done_to is None:  # not asked for
                cursors[job_id] = cursor
                behind.add(job_id)
                found.gaps.pop(job_id, None)  # it may still be read
                continue
            if done_to < now:
                behind.add(job_id)
            some, cursors[job_id] = self._memory.sort_out(
                job_id,
                cursor,
                found.lines.get(job_id, ()),
                read_from=froms[job_id],
                read_to=max(min(done_to, now), min(cursor.read_to, now)),
                window=self._window,
                gaps=tuple(gaps),
            )
            chunks += some
        return SourceRead(
            chunks=tuple(chunks),
            cursors=cursors,
            gaps={job_id: tuple(gaps) for job_id, gaps in found.gaps.items() if gaps},
            trouble=found.trouble,
            behind=frozenset(behind),
        )

    # -------------------------------------------------------------------------------------------- one attempt

    async def read_attempt(self, job: ReadJob, until: datetime | None, *, max_bytes: int = BACKLOG_BYTES) -> AttemptLog:
        """The log of one attempt in the order of time, over all of its streams. `until` is when the attempt ended."""
        names = [name for name in job.names if JOB_NAME.fullmatch(name)]
        if not names:
            return AttemptLog((), (f"{BLIND}job {job.job_id} has no name that {self.name} could know it by",))
        begin = nanoseconds(job.since) - int(SKEW_S * NS)
        end = time.time_ns() + int(AHEAD_S * NS)
        if until is not None:
            end = min(end, nanoseconds(until) + int(self.timing.late_s * NS))
        lines: dict[Line, None] = {}
        note = await self._backwards(names, begin, end, max_bytes, lines)
        path = f"{self.name}:{job.job_id}"
        if not lines:
            return AttemptLog((), (f"{BLIND}{path}: {note or 'no line of this attempt is there'}",))
        ordered = sorted(lines, key=lambda line: line.at)
        data = text_of(ordered)
        if (cut := len(data) - max_bytes) > 0:
            whole = data[cut:] if data[cut - 1 : cut] == b"\n" else data[cut:].partition(b"\n")[2]
            data = whole or data[cut:]
            note = note or f"only the last {len(data)} bytes were read"
        return AttemptLog((LogPart(path=path, data=data, offset=0),), (f"{path}: {note}",) if note else ())

    async def _backwards(
        self, names: Sequence[str], begin: int, end: int, max_bytes: int, lines: dict[Line, None]
    ) -> str:
        """Collects lines from the end on; gives a note where they are not all."""
        ends = time.monotonic() + self.timing.attempt_s
        limit, size = self.store.page_lines, 0
        while end > begin:
            if size >= max_bytes:
                return f"only the lines since {moment(end).isoformat(timespec='seconds')} were read"
            low = max(begin, end - self.store.longest_span)
            try:
                question_ends = min(ends, time.monotonic() + self.store.deadline_s)
                page = await self.store.page(names, low, end, limit, newest_first=True, ends=question_ends)
            except AnswerTooLarge as trouble:
                if limit <= SMALLEST_PAGE:
                    return str(trouble)
                limit = max(SMALLEST_PAGE, limit // 8)
                continue
            except LogTrouble as trouble:
                return str(trouble)
            limit = min(limit, self.store.page_lines)
            for line in page.lines:
                if line not in lines:
                    lines[line] = None
                    size += len(line.data) + 1
            if page.whole:
                end = low
            elif not page.lines:
                return page.note or "the answer broke off"
            else:
                oldest = page.lines[-1].at
                if page.broken and oldest + 1 >= end:
                    return page.note
                end = oldest + 1 if oldest + 1 < end else oldest
        return ""


def _cursor(job: ReadJob, known: JobCursor | None, now: int) -> JobCursor:
    """The cursor to go on from: a new one where the attempt is another."""
    begin = nanoseconds(job.since) - int(SKEW_S * NS)
    if known is not None and known.begin == begin:
        # Our own clock may have been set back since.
        return known if known.read_to <= now else known.model_copy(update={"read_to": now})
    return JobCursor(begin=begin, read_to=min(begin, now), floor=begin)


def _split(group: _Group, page: Page, reached: int) -> list[_Group]:
    """What is left to ask of a group: the loud jobs each by itself, the others together."""
    jobs = set(group.names.values())
    loud: list[str] = []
    if not page.whole and len(jobs) > 1:
        counts = Counter(group.names[line.job] for line in page.lines if line.job in group.names)
        loud = [job_id for job_id, count in counts.items() if count > len(page.lines) * LOUD_SHARE]
    parts = []
    for chosen, split in ((jobs - set(loud), False), *(({job_id}, True) for job_id in loud)):
        names = {name: job_id for name, job_id in group.names.items() if job_id in chosen}
        if names:
            parts.append(_Group(names, reached, group.limit, group.span, split))
    return parts
