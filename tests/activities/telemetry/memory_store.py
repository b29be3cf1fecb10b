"""A log store in memory behind the real reader: it can be slow or away, and counts what it is asked."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from activities.telemetry.http_logs import LogTrouble
from activities.telemetry.logsource import NS, Line, ReadJob
from activities.telemetry.store_reader import Page, StoreReader, StoreTiming
from activities.telemetry.store_shape import StoreShape

SINCE = datetime.now(UTC) - timedelta(minutes=10)


class MemoryStore:
    """A Store."""

    name = "memory"
    page_lines = 1_000
    jobs_at_once = 100
    longest_span = 366 * 86_400 * NS
    deadline_s = 30.0
    shape = StoreShape()

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.asked = 0
        self.away = ""
        self.answers = asyncio.Event()
        self.answers.set()

    def reader(self, interval_s: float = 0.0) -> StoreReader:
        return StoreReader(self, StoreTiming(interval_s=interval_s))

    def prints(self, job: str, text: str, *, stream: str = "n1", age_s: float = 0.0) -> None:
        """Adds lines, each a nanosecond after the one before."""
        begin = time.time_ns() - int(age_s * NS)
        for number, line in enumerate(text.splitlines()):
            self.lines.append(Line(at=begin + number, job=job, stream=stream, data=line.encode(), node=stream))

    async def page(
        self, names: Sequence[str], begin: int, end: int, limit: int, *, newest_first: bool, ends: float
    ) -> Page:
        self.asked += 1
        await self.answers.wait()
        if self.away:
            raise LogTrouble(self.away, again=True)
        found = [line for line in self.lines if line.job in names and begin <= line.at < end]
        found.sort(key=lambda line: line.at, reverse=newest_first)
        return Page(tuple(found[:limit]), whole=len(found) <= limit)

    async def sample(self, begin: int, end: int, limit: int, *, ends: float) -> Page:
        return await self.page([line.job for line in self.lines], begin, end, limit, newest_first=True, ends=ends)

    async def close(self) -> None:
        pass


def job(name: str, since: datetime = SINCE) -> ReadJob:
    return ReadJob(name, (name,), since)
