"""Following a log store for a sweep: one read for all jobs, no waiting for a slow store, few writes for quiet jobs."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

import pytest

from activities.telemetry.logsource import JobCursor
from activities.telemetry.store_feed import StoreFeed
from activities.telemetry.store_follow import Followed, StoreFollower
from tests.activities.telemetry.memory_store import SINCE, MemoryStore, job


class Sweep:
    """What a sweep does with a follower: it keeps each job's cursor and hands it in again."""

    def __init__(self, store: MemoryStore, *, interval_s: float = 0.0, patience_s: float = 30.0) -> None:
        self.follower = StoreFollower(store.reader(interval_s), patience_s=patience_s)
        self.kept: dict[str, JobCursor] = {}

    async def __call__(self, *names: str) -> dict[str, StoreFeed]:
        feeds = await self.follower.follow([Followed(job(name), 0, self.kept.get(name)) for name in names])
        self.kept |= {name: feed.store for name, feed in feeds.items() if feed.store is not None}
        return feeds


@pytest.fixture
async def store() -> MemoryStore:
    return MemoryStore()


async def test_all_jobs_of_a_sweep_are_asked_for_in_one_question(store: MemoryStore) -> None:
    for name in ("1", "2", "3"):
        store.prints(name, f"hello from {name}")
    feeds = await Sweep(store)("1", "2", "3")
    assert {name: feed.data for name, feed in feeds.items()} == {
        name: f"hello from {name}\n".encode() for name in ("1", "2", "3")
    }
    assert store.asked == 1


async def test_a_slow_store_is_not_waited_for_and_its_answer_is_taken_later(store: MemoryStore) -> None:
    sweep = Sweep(store, patience_s=0.05)
    store.prints("1", "slow")
    store.answers.clear()
    assert await sweep("1") == {}
    assert await sweep("1") == {}
    assert store.asked == 1
    store.answers.set()
    async with asyncio.timeout(30):
        while not (feeds := await sweep("1")):
            pass
    assert feeds["1"].data == b"slow\n"


async def test_an_answer_about_an_attempt_that_is_over_is_dropped(store: MemoryStore) -> None:
    follower = StoreFollower(store.reader(), patience_s=0.05)
    store.prints("1", "of the first attempt")
    store.answers.clear()
    assert await follower.follow([Followed(job("1"), 0, None)]) == {}
    store.answers.set()
    second = Followed(job("1", SINCE + timedelta(minutes=9, seconds=30)), 1, None)
    async with asyncio.timeout(30):
        while not (feeds := await follower.follow([second])):
            pass
    assert feeds["1"].cursor.attempt == 1


async def test_between_two_reads_nothing_is_asked_and_that_is_told(store: MemoryStore) -> None:
    sweep = Sweep(store, interval_s=300)
    store.prints("1", "hello")
    assert (await sweep("1"))["1"].asked
    feed = (await sweep("1"))["1"]
    assert (feed.asked, feed.data, feed.trouble, store.asked) == (False, b"", "", 1)


async def test_while_nothing_is_printed_the_cursor_that_is_kept_stays_and_no_line_comes_twice(
    store: MemoryStore,
) -> None:
    sweep = Sweep(store)
    store.prints("1", "one", age_s=1)
    await sweep("1")
    kept = sweep.kept["1"]
    for _ in range(3):
        feed = (await sweep("1"))["1"]
        assert (feed.data, feed.store) == (b"", kept)
    store.prints("1", "two")
    assert (await sweep("1"))["1"].data == b"two\n"
    assert sweep.kept["1"] != kept


async def test_a_cursor_that_could_not_be_kept_loses_no_line(store: MemoryStore) -> None:
    sweep = Sweep(store)
    store.prints("1", "one", age_s=2)
    await sweep("1")
    before = dict(sweep.kept)
    store.prints("1", "two", age_s=1)
    assert (await sweep("1"))["1"].data == b"two\n"
    sweep.kept = before
    assert (await sweep("1"))["1"].data.endswith(b"two\n")


async def test_lines_are_late_only_within_their_own_stream(store: MemoryStore) -> None:
    sweep = Sweep(store)
    store.prints("1", "a1", stream="a", age_s=3)
    store.prints("1", "b1", stream="b", age_s=8)
    assert (await sweep("1"))["1"].late == 0
    store.prints("1", "a0", stream="a", age_s=5)
    store.prints("1", "b2", stream="b", age_s=6)
    feed = (await sweep("1"))["1"]
    assert (feed.data, feed.late) == (b"a0\nb2\n", len(b"a0\n"))


async def test_an_outage_is_told_for_each_job_and_once_in_the_log(
    store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "relight.sweep")
    sweep = Sweep(store)
    store.prints("1", "hello", age_s=1)
    await sweep("1", "2")
    store.away = "cannot be reached"
    for _ in range(3):
        feeds = await sweep("1", "2")
        assert {feed.trouble.split(":")[0] for feed in feeds.values()} == {"blind"}
    store.away = ""
    assert (await sweep("1", "2"))["1"].trouble == ""
    away, back = (record.getMessage() for record in caplog.records if record.name == "relight.sweep")
    assert "cannot be reached" in away
    assert "read again" in back
