"""Tells open pages that something changed. One task reads the store for all of them, however many there are.

It says only what changed; the page then reads it as it would anyway. Nothing of a job's text is sent here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from activities.audit.records import Event
from workers.console.reading import Readings, Source

EVERY_S = 1.0
NOW_EVERY_S = 3.0
"""Of a whole cluster something changes all the time."""
BACK = 200
"""Ids this far back are read again: of several writers one may appear late, under a lower id."""
MOST_LISTENERS = 500
BEAT_S = 15.0
NOW = "now"

log = logging.getLogger("relight.console")


def topic_of(cluster: str, job_id: str) -> str:
    return f"job:{cluster}-{job_id}"


class Live:
    """Listeners by topic: `now` hears of everything, `job:prod-12345` of that job."""

    def __init__(self, readings: Readings) -> None:
        self._readings = readings
        self._listeners: dict[asyncio.Event, str] = {}
        self._last: int | None = None
        self._told: OrderedDict[int, None] = OrderedDict()
        self._moved: datetime | None = None
        self.heard: list[Callable[[list[Event]], None]] = []
        """Called with each row of the log that appeared since the console began, once."""
        self.read_at: datetime | None = None

    @property
    def is_full(self) -> bool:
        return len(self._listeners) >= MOST_LISTENERS

    @asynccontextmanager
    async def listening(self, topic: str) -> AsyncIterator[asyncio.Event]:
        """An event that is set when something about the topic changed; the listener clears it."""
        changed = asyncio.Event()
        self._listeners[changed] = topic
        try:
            yield changed
        finally:
            del self._listeners[changed]

    async def run(self) -> None:
        """Until it is cancelled. A store that cannot be read is tried again, without haste."""
        pause = EVERY_S
        while True:
            try:
                self._tell(await self._look())
                pause = EVERY_S
            except Exception as error:  # whatever it is: pages must learn of changes again as soon as that is possible
                log.warning("no news for open pages: %s", error)
                pause = min(30.0, pause * 2)
            await asyncio.sleep(pause)

    async def _look(self) -> set[str]:
        if self._last is None:
            self._last = await self._readings(lambda source: source.store.newest_event())
            self._told = OrderedDict.fromkeys(
                event.id for event in await self._readings(_events, max(0, self._last - BACK))
            )
            moved = await self._readings(lambda source: source.store.moved(None, limit=1))
            self._moved = moved[0].step_at if moved else None
        fresh = [
            event for event in await self._readings(_events, max(0, self._last - BACK)) if event.id not in self._told
        ]
        for event in fresh:
            self._told[event.id] = None
        while len(self._told) > 10 * BACK:
            self._told.popitem(last=False)
        self._last = max([self._last, *(event.id for event in fresh)])
        since = self._moved
        moved = await self._readings(lambda source: source.store.moved(since))
        if moved:
            self._moved = moved[0].step_at
        self.read_at = datetime.now(UTC)
        if fresh:
            for hears in self.heard:
                hears(fresh)
        topics = {topic_of(one.cluster, one.job_id) for one in fresh}
        topics |= {topic_of(one.cluster, one.job_id) for one in moved}
        return {NOW, *topics} if topics else set()

    def _tell(self, topics: set[str]) -> None:
        for changed, topic in self._listeners.items():
            if topic in topics:
                changed.set()


def _events(source: Source, after: int) -> list[Event]:
    found: list[Event] = []
    while True:
        rows = source.store.events_after(found[-1].id if found else after)
        found += rows
        if len(rows) < 1000 or len(found) >= 20_000:
            return found


async def stream(live: Live, topic: str, still_in: Callable[[], bool]) -> AsyncIterator[str]:
    """Server-sent events for one page: `changed`, not too often, and a comment now and then as a sign of life."""
    pause = NOW_EVERY_S if topic == NOW else EVERY_S
    async with live.listening(topic) as changed:
        yield "retry: 3000\n\n"
        while still_in():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BEAT_S):
                    await changed.wait()
            if changed.is_set():
                changed.clear()
                yield "event: changed\ndata: 1\n\n"
                await asyncio.sleep(pause)
            else:
                yield ": here\n\n"
