"""What reads job logs from a log store gives and takes: jobs and cursors in, chunks of lines with their times out.

Only records and the one interface; no store is known here, nothing is asked and nothing is understood.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Protocol

from pydantic import Field

from activities.telemetry.joblog import AttemptLog
from recovery.records import Record

NS = 1_000_000_000
JOB_NAME = re.compile(r"[0-9]{1,18}(_[0-9]{1,9})?")
"""What a job is called in a store. Everything else is refused: names become part of queries."""

MAX_STREAMS = 16
"""Streams of one job that have a cursor of their own; the lines of further ones share a few."""
SHARED_STREAMS = 4
STREAM_LENGTH = 64
_PLAIN = re.compile(r"[^A-Za-z0-9._:/+-]")


class StreamCursor(Record):
    """What was handed out of one stream (one node, rank or file of a job). As JSON under 300 bytes."""

    stream: str
    at: int = Field(description="time of the newest line handed out, in nanoseconds since 1970")
    count: int = Field(default=0, description="lines handed out that are newer than the job's floor")
    digest: int = Field(default=0, description="sum of their hashes: they are known again after a restart")
    offset: int = Field(default=0, description="bytes handed out")
    line: int = Field(default=1, description="number of the next line")


class JobCursor(Record):
    """How far the log of one job's current attempt was read. Times in nanoseconds since 1970."""

    begin: int = Field(description="older lines belong to an earlier attempt")
    read_to: int = Field(description="everything that had arrived up to here was read")
    floor: int = Field(description="older lines are not handed out any more, however late they arrive")
    streams: tuple[StreamCursor, ...] = ()

    @property
    def by_stream(self) -> dict[str, StreamCursor]:
        return {one.stream: one for one in self.streams}


@dataclass(frozen=True, slots=True)
class ReadJob:
    """A job whose log is wanted."""

    job_id: str
    """What relight calls it; cursors and chunks go by it."""
    names: tuple[str, ...]
    """What it may be called in the store: its raw number, for array tasks also `12_3`."""
    since: datetime
    """When the current attempt began."""


def read_job(job_id: str, raw_id: int, since: datetime) -> ReadJob:
    """The job as a store may know it: shippers take the number from the environment, or the name from a file."""
    return ReadJob(job_id=job_id, names=tuple(dict.fromkeys((str(raw_id), job_id))), since=since)


@dataclass(frozen=True, slots=True)
class Span:
    begin: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class Gap:
    """Time that is not seen, and why. Lasting: it is told once, and not made up for later."""

    span: Span
    why: str


@dataclass(frozen=True, slots=True)
class Line:
    """One entry of a store. A shipper may have put several lines of text into one."""

    at: int
    job: str
    stream: str
    data: bytes
    node: str = ""


@dataclass(frozen=True, slots=True)
class LogChunk:
    """What is new in one stream of a job, oldest first."""

    job_id: str
    stream: str
    node: str
    """Where it was printed, as the store tells; empty where it does not, or for streams put together."""
    lines: tuple[Line, ...]
    span: Span
    """From the oldest of its lines to the newest."""
    offset: int
    """Bytes of this stream handed out before."""
    late: int = 0
    """How many of its lines are older than what was handed out before."""
    gaps: tuple[Gap, ...] = ()
    """What is missing in the time since the last read."""

    @property
    def data(self) -> bytes:
        return text_of(self.lines)


@dataclass(frozen=True, slots=True)
class SourceRead:
    """What one read gave."""

    chunks: tuple[LogChunk, ...] = ()
    cursors: Mapping[str, JobCursor] = field(default_factory=dict)
    """By job. To be kept, and given to the next read, once the chunks were worked on."""
    gaps: Mapping[str, tuple[Gap, ...]] = field(default_factory=dict)
    """By job, also for jobs without a chunk."""
    trouble: str = ""
    """Why not everything could be read. What is missing is read later, unless a gap tells otherwise."""
    behind: frozenset[str] = frozenset()
    """Jobs that were not read up to now."""
    asked: bool = True
    """False: the last read was a moment ago, and the store was not asked."""


class LogSource(Protocol):
    """Where logs come from, for all jobs of a cluster."""

    @property
    def name(self) -> str: ...

    async def read(self, jobs: Sequence[ReadJob], cursors: Mapping[str, JobCursor]) -> SourceRead:
        """What is new. Never raises for what the store does; trouble is told."""
        ...

    async def read_attempt(self, job: ReadJob, until: datetime | None, *, max_bytes: int = ...) -> AttemptLog:
        """The whole log of one attempt, of long ones the end."""
        ...

    async def close(self) -> None: ...


def text_of(lines: Sequence[Line]) -> bytes:
    """The lines as a log: each ends in a newline."""
    return b"".join(line.data if line.data.endswith(b"\n") else line.data + b"\n" for line in lines)


@lru_cache(maxsize=50_000)
def stream_name(*parts: str) -> str:
    """A short plain name for a stream, of what the store says about it: it becomes part of a cursor."""
    whole = "/".join(part for part in parts if part)
    plain = _PLAIN.sub("_", whole)
    if plain == whole and len(plain) <= STREAM_LENGTH:
        return plain or "all"
    return f"{plain[: STREAM_LENGTH - 9]}~{zlib.crc32(whole.encode('utf-8', 'replace')):08x}"


def moment(ns: int) -> datetime:
    """A time of a store as a moment; what no calendar knows becomes the nearest it knows."""
    try:
        return datetime.fromtimestamp(ns // NS, UTC) + timedelta(microseconds=ns % NS // 1000)
    except (OverflowError, ValueError, OSError):
        return datetime.max.replace(tzinfo=UTC) if ns > 0 else datetime.fromtimestamp(0, UTC)


def nanoseconds(when: datetime) -> int:
    """A moment as stores count it, without the rounding of a float."""
    past = when - datetime(1970, 1, 1, tzinfo=UTC)
    return (past.days * 86_400 + past.seconds) * NS + past.microseconds * 1000
