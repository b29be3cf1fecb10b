"""The live feed: one reader of the store, and every page that is open hears of what concerns it."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from activities.audit.records import Watched
from activities.contracts import EventKind, NewEvent
from tests.console.conftest import Grounds
from workers.console.live import Live, stream
from workers.console.reading import Readings, Source

PATIENCE_S = 60


async def _first(live: Live, topic: str) -> str:
    async for piece in stream(live, topic, lambda: True):
        if piece.startswith("event:"):
            return piece
    return ""


async def test_pages_hear_of_their_job_and_of_nothing_else(grounds: Grounds) -> None:
    life = grounds.job("1")
    grounds.job("2")
    live = Live(Readings(Source(grounds.store, grounds.settings), deadline_s=30))
    heard: list[str] = []
    live.heard.append(lambda events: heard.extend(event.summary for event in events))
    feed = asyncio.create_task(live.run())
    waiting = {topic: asyncio.create_task(_first(live, topic)) for topic in ("now", "job:prod-1", "job:prod-2")}
    async with asyncio.timeout(PATIENCE_S):
        while live.read_at is None:  # noqa: ASYNC110 - nothing else tells of it
            await asyncio.sleep(0.02)
        event = NewEvent(key=f"{life}:new", kind=EventKind.FINDING, at=grounds.now, summary="<b>hostile</b>")
        grounds.store.append("prod", "1", life, [event])
        assert await waiting["job:prod-1"] == "event: changed\ndata: 1\n\n"  # nothing of the job's own text is sent
        await waiting["now"]
    assert heard == ["<b>hostile</b>"]
    assert not waiting["job:prod-2"].done()
    grounds.store.watch(Watched(cluster="prod", job_id="2", life_id=2, attempt=0, step=7,
                                step_at=grounds.now + timedelta(seconds=1)))  # fmt: skip
    async with asyncio.timeout(PATIENCE_S):
        await waiting["job:prod-2"]
    feed.cancel()


async def test_a_feed_ends_when_its_reader_may_look_no_more(grounds: Grounds) -> None:
    live = Live(Readings(Source(grounds.store, grounds.settings), deadline_s=30))
    pieces = [piece async for piece in stream(live, "now", lambda: False)]
    assert pieces == ["retry: 3000\n\n"]
    assert not live.is_full


async def test_a_row_that_appears_late_under_a_lower_id_is_heard_of(grounds: Grounds) -> None:
    """Two writers take their ids in one order and may commit in the other."""
    life = grounds.job("1")
    live = Live(Readings(Source(grounds.store, grounds.settings), deadline_s=30))
    await live._look()
    event = NewEvent(key=f"{life}:a", kind=EventKind.FINDING, at=grounds.now, summary="a")
    grounds.store.append("prod", "1", life, [event])
    live._last = grounds.store.newest_event() + 5  # as if rows with higher ids had been read before
    assert "job:prod-1" in await live._look()
    assert await live._look() == set()
