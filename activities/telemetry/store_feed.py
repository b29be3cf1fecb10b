"""Puts what a log store gives into the shape of a read file, so that the watch of logs need not know the difference.

Of each job one text in the order of time, over all of its streams. Nothing is understood here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from activities.telemetry.joblog import BLIND, MIB, LogCursor
from activities.telemetry.logsource import Gap, JobCursor, LogSource, ReadJob, SourceRead, text_of


@dataclass(frozen=True, slots=True)
class StoreFeed:
    """What is new of one job, as `read_new` gives it of a file."""

    path: str
    data: bytes
    cursor: LogCursor
    """Offset and line are those of the text handed out so far; its size tells when there is more to read."""
    trouble: str
    store: JobCursor | None
    """To be kept with the job, and given again at the next read."""
    gaps: tuple[Gap, ...] = ()
    asked: bool = True
    """False: the store was not asked this time, so that nothing new says nothing."""
    late: int = 0
    """So many bytes at the beginning are of lines older than what their stream had told before."""
    outage: str = ""
    """Why the store could not be read up to now; empty where only this job is not there."""


async def feed_from_store(
    source: LogSource, jobs: Sequence[ReadJob], cursors: Mapping[str, JobCursor], attempts: Mapping[str, int]
) -> dict[str, StoreFeed]:
    """What is new in the logs of all jobs of a sweep, by job. `attempts` are their restart counts."""
    read = await source.read(jobs, cursors)
    late: dict[str, list[tuple[int, int, int]]] = {}
    fresh: dict[str, list[tuple[int, int, int]]] = {}
    for at, chunk in enumerate(read.chunks):
        # Sorted by time; lines of one moment stay in the order of their stream. Late is late within the own stream: a
        # node whose lines always come later than another's is not late.
        for number, line in enumerate(chunk.lines):
            where = late if number < chunk.late else fresh
            where.setdefault(chunk.job_id, []).append((line.at, at, number))
    feeds: dict[str, StoreFeed] = {}
    for job in jobs:
        old, new = (
            text_of([read.chunks[chunk].lines[number] for _, chunk, number in sorted(part.get(job.job_id, ()))])
            for part in (late, fresh)
        )
        feeds[job.job_id] = _feed(source.name, job.job_id, old, new, read, attempts.get(job.job_id, 0))
    return feeds


def _feed(source: str, job_id: str, old: bytes, new: bytes, read: SourceRead, attempt: int) -> StoreFeed:
    path = f"{source}:{job_id}"
    store, gaps = read.cursors.get(job_id), read.gaps.get(job_id, ())
    streams = store.streams if store is not None else ()
    offset = sum(stream.offset for stream in streams)
    behind = job_id in read.behind or bool(gaps)
    trouble = outage = ""
    if read.trouble and (job_id in read.behind or not read.asked):
        outage = read.trouble
        trouble = f"{BLIND}{path}: {outage}"
    elif gaps:
        trouble = f"{path}: {gaps[0].why}"
    elif not streams:
        # Perhaps it printed nothing, perhaps nobody collects it: the store cannot tell.
        trouble = f"{BLIND}{path}: no line of this job is there"
    cursor = LogCursor(
        path=path,
        inode=1 if streams else 0,
        offset=offset,
        line=1 + sum(stream.line - 1 for stream in streams),
        attempt=attempt,
        size=offset + (2 * MIB if behind else 0),
    )
    return StoreFeed(
        path=path,
        data=old + new,
        cursor=cursor,
        trouble=trouble,
        store=store,
        gaps=gaps,
        asked=read.asked,
        late=len(old),
        outage=outage,
    )
