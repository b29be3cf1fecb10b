"""Follows one cluster's log store for the sweep: one read for all its jobs at a time, and no sweep waits long for it.

A read that takes longer than a sweep may wait goes on beside it, and the next sweep takes what it gave. Nothing is
understood here, and nothing is kept: what has to outlive the process is handed to the caller.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from activities.telemetry.logsource import NS, JobCursor, LogSource, ReadJob
from activities.telemetry.store_feed import StoreFeed, feed_from_store

log = logging.getLogger("relight.sweep")

PATIENCE_S = 1.0
"""Longest that a sweep waits for the store; most reads take a few milliseconds."""

KEEP_S = 20
"""A cursor behind which nothing was printed is written this often, so that thousands of quiet jobs cost no writes."""


@dataclass(frozen=True)
class LogStore:
    """The log store of one cluster, and when it counts."""

    source: LogSource
    files_first: bool = False
    """A job's own files count wherever one of them can be read, the store only for jobs without such a file."""
    settle_s: float = 10.0
    """How long after an attempt's end its last lines are waited for."""


@dataclass(frozen=True, slots=True)
class Followed:
    """A job whose log is wanted, and how far it was read."""

    job: ReadJob
    attempt: int
    cursor: JobCursor | None


@dataclass
class _Reading:
    """A read that is going on, and what it was begun with."""

    task: asyncio.Task[dict[str, StoreFeed]]
    begun: Mapping[str, Followed]


class StoreFollower:
    """Reads on in one store. Called by one sweep at a time."""

    def __init__(self, source: LogSource, *, patience_s: float = PATIENCE_S) -> None:
        self._source = source
        self._patience_s = patience_s
        self._reading: _Reading | None = None
        self._quiet: dict[str, JobCursor] = {}
        self._trouble = ""

    async def follow(self, wanted: Sequence[Followed]) -> dict[str, StoreFeed]:
        """What is new of these jobs, by job. A job is left out while nothing is known of it yet."""
        stored = {one.job.job_id: one.cursor for one in wanted}
        jobs = {one.job.job_id: self._newest(one) for one in wanted}
        self._quiet = {job_id: cursor for job_id, cursor in self._quiet.items() if job_id in jobs}
        if self._reading is None:
            if not jobs:
                return {}
            self._reading = _Reading(asyncio.create_task(self._read(list(jobs.values()))), jobs)
        reading = self._reading
        await asyncio.wait({reading.task}, timeout=self._patience_s)
        if not reading.task.done():
            return {}
        self._reading = None
        read = reading.task.result()
        self._tell(next((feed.outage for feed in read.values() if feed.outage), ""))
        # A job that was restarted since, or whose cursor could not be kept, is asked for anew.
        fitting = {job_id: feed for job_id, feed in read.items() if jobs.get(job_id) == reading.begun[job_id]}
        return {job_id: self._thrifty(job_id, stored[job_id], feed) for job_id, feed in fitting.items()}

    async def _read(self, wanted: Sequence[Followed]) -> dict[str, StoreFeed]:
        return await feed_from_store(
            self._source,
            [one.job for one in wanted],
            {one.job.job_id: one.cursor for one in wanted if one.cursor is not None},
            {one.job.job_id: one.attempt for one in wanted},
        )

    def _newest(self, one: Followed) -> Followed:
        """The job with the newest cursor: while nothing is printed, not each of them is written down."""
        mine = self._quiet.get(one.job.job_id)
        if mine is None or one.cursor is None or not _same_lines(mine, one.cursor):
            return one
        return Followed(one.job, one.attempt, mine) if mine.read_to > one.cursor.read_to else one

    def _thrifty(self, job_id: str, stored: JobCursor | None, feed: StoreFeed) -> StoreFeed:
        """The feed, with the cursor that is written down already where a newer one is not worth writing."""
        newer = feed.store
        self._quiet.pop(job_id, None)
        if newer is None or stored is None or feed.data or feed.gaps or not _same_lines(newer, stored):
            return feed
        if newer.read_to - stored.read_to >= KEEP_S * NS:
            return feed
        self._quiet[job_id] = newer
        return replace(feed, store=stored)

    def _tell(self, trouble: str) -> None:
        if trouble and not self._trouble:
            log.warning("the log store %s is not fully read, which is blind time: %s", self._source.name, trouble)
        elif self._trouble and not trouble:
            log.info("the log store %s is read again", self._source.name)
        self._trouble = trouble


def _same_lines(one: JobCursor, other: JobCursor) -> bool:
    """Whether both stand behind the same lines of the same attempt."""
    return one.begin == other.begin and _lines(one) == _lines(other)


def _lines(cursor: JobCursor) -> list[tuple[str, int, int]]:
    return [(stream.stream, stream.at, stream.offset) for stream in cursor.streams]
