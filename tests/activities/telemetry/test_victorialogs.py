"""Job logs out of a real VictoriaLogs: all that is new, once, whatever the order, the restarts and the contents."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count

import pytest

from activities.telemetry.http_logs import LogAccess
from activities.telemetry.logs_check import check_logs
from activities.telemetry.logsource import JobCursor, ReadJob, SourceRead
from activities.telemetry.store_feed import feed_from_store
from activities.telemetry.store_reader import StoreReader, StoreTiming
from activities.telemetry.store_shape import StoreShape
from activities.telemetry.victorialogs import VictoriaLogs, victorialogs_source
from tests.services.victorialogs import NotToBeHad, VictoriaLogsServer, ensure

# The first of them may have to build the server.
pytestmark = pytest.mark.timeout(1_800)

NOW = datetime.now(UTC).replace(microsecond=0)
SINCE = NOW - timedelta(minutes=10)
TIMING = StoreTiming(interval_s=0.0, late_s=60.0)
_numbers = count(1_000_001)


@pytest.fixture(scope="module")
def server() -> Iterator[VictoriaLogsServer]:
    try:
        ensure()
    except NotToBeHad as reason:
        pytest.skip(str(reason))
    with VictoriaLogsServer() as server:
        yield server


@pytest.fixture
def number() -> str:
    """A job of its own for each test: they share the server."""
    return str(next(_numbers))


def source(server: VictoriaLogsServer, **shape: str) -> StoreReader:
    return victorialogs_source(LogAccess(url=server.url, deadline_s=30.0), StoreShape.model_validate(shape), TIMING)


def entry(number: str, seconds: float, text: str, host: str = "n1", **more: str) -> dict[str, str]:
    """A line printed so many seconds before now."""
    when = (NOW - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {"_time": when, "_msg": text, "slurm_job_id": number, "host": host, **more}


def job(number: str, since: datetime = SINCE) -> ReadJob:
    return ReadJob(number, (number,), since)


def texts(read: SourceRead, number: str) -> list[str]:
    """The new lines of a job, by time."""
    lines = [line for chunk in read.chunks if chunk.job_id == number for line in chunk.lines]
    return [line.data.decode("utf-8", "surrogateescape") for line in sorted(lines, key=lambda line: line.at)]


async def read(reader: StoreReader, numbers: Sequence[str], cursors: dict[str, JobCursor], later_s: float = 0.0):  # type: ignore[no-untyped-def]
    found = await reader.read([job(number) for number in numbers], cursors, now=NOW + timedelta(seconds=later_s))
    cursors.update(found.cursors)
    return found


async def test_all_jobs_of_a_sweep_are_read_by_one_question_and_told_apart(server: VictoriaLogsServer) -> None:
    numbers = [str(next(_numbers)) for _ in range(50)]
    server.insert(
        entry(number, 9 - at, f"{number} step {at}", host) for number in numbers for host in "ab" for at in range(3)
    )
    reader, cursors = source(server), dict[str, JobCursor]()
    asked = 0

    class Counting(VictoriaLogs):
        async def page(self, *words, **named):  # type: ignore[no-untyped-def]
            nonlocal asked
            asked += 1
            return await super().page(*words, **named)

    reader.store.__class__ = Counting
    found = await read(reader, numbers, cursors)
    assert not found.trouble
    assert asked == 1
    for number in numbers:
        chunks = [chunk for chunk in found.chunks if chunk.job_id == number]
        assert {(chunk.node, chunk.stream) for chunk in chunks} == {("a", "a"), ("b", "b")}
        for chunk in chunks:
            assert chunk.data == b"".join(f"{number} step {at}\n".encode() for at in range(3))
            assert chunk.span.end - chunk.span.begin == timedelta(seconds=2)
    assert (await read(reader, numbers, cursors)).chunks == ()
    for cursor in cursors.values():
        for stream in cursor.streams:
            assert len(stream.model_dump_json()) < 300
        assert JobCursor.model_validate_json(cursor.model_dump_json()) == cursor


async def test_late_lines_and_lines_out_of_order_come_once(server: VictoriaLogsServer, number: str) -> None:
    reader, cursors = source(server), dict[str, JobCursor]()
    server.insert([entry(number, 3, "third"), entry(number, 5, "first"), entry(number, 4, "second")])
    assert texts(await read(reader, [number], cursors), number) == ["first", "second", "third"]
    server.insert([entry(number, 4.5, "late"), entry(number, 5, "first"), entry(number, -1, "new")])
    found = await read(reader, [number], cursors, later_s=2)
    assert texts(found, number) == ["late", "new"]
    assert [chunk.late for chunk in found.chunks] == [1]


async def test_a_line_that_is_very_late_comes_with_a_read_that_reaches_far(
    server: VictoriaLogsServer, number: str
) -> None:
    reader, cursors = source(server), dict[str, JobCursor]()
    server.insert([entry(number, 1, "in time")])
    await read(reader, [number], cursors)
    server.insert([entry(number, 50, "nearly a minute late")])
    assert texts(await read(reader, [number], cursors, later_s=5), number) == []
    assert texts(await read(reader, [number], cursors, later_s=31), number) == ["nearly a minute late"]
    assert texts(await read(reader, [number], cursors, later_s=62), number) == []


async def test_a_node_whose_clock_is_ahead_is_read_once(server: VictoriaLogsServer, number: str) -> None:
    reader, cursors = source(server), dict[str, JobCursor]()
    server.insert([entry(number, -100, "from the future"), entry(number, 1, "now")])
    assert texts(await read(reader, [number], cursors), number) == ["now", "from the future"]
    server.insert([entry(number, -3, "still seen")])
    assert texts(await read(reader, [number], cursors, later_s=5), number) == ["still seen"]
    assert texts(await read(source(server), [number], cursors, later_s=200), number) == []


async def test_a_line_later_than_the_window_is_left_out(server: VictoriaLogsServer, number: str) -> None:
    reader, cursors = source(server), dict[str, JobCursor]()
    server.insert([entry(number, 1, "in time")])
    await read(reader, [number], cursors)
    server.insert([entry(number, 500, "much too late")])
    assert texts(await read(reader, [number], cursors, later_s=2), number) == []


async def test_what_a_job_prints_comes_back_as_it_was(server: VictoriaLogsServer, number: str) -> None:
    hostile = [
        'two\nlines {"_time":"2020-01-01T00:00:00Z","slurm_job_id":"1"}',
        "NUL \x00 and bell \x07 and colours \x1b[31mred\x1b[0m",
        'quotes " and \\ and `backticks` and | pipes and } braces',
        "€ 漢字 \u2028 \U0001f525",
        "x" * 200_000,
        "progress 1%\rprogress 2%",
    ]
    server.insert(entry(number, 20 - at, text) for at, text in enumerate(hostile))
    found = await read(source(server), [number], {})
    assert texts(found, number) == hostile
    assert not found.trouble


async def test_bytes_that_are_no_text_do_no_harm(server: VictoriaLogsServer, number: str) -> None:
    good = json.dumps(entry(number, 5, "BAD")).encode().replace(b"BAD", b"caf\xe9 \xff\xfe then")
    server.insert_raw(good + b"\n" + json.dumps(entry(number, 4, "after")).encode())
    found = await read(source(server), [number], {})
    assert [text[:3] for text in texts(found, number)] == ["caf", "aft"]
    assert not found.trouble


async def test_a_restart_goes_on_from_the_cursor_and_repeats_nothing(server: VictoriaLogsServer, number: str) -> None:
    server.insert([entry(number, 9 - at, f"step {at}") for at in range(5)])
    cursors: dict[str, JobCursor] = {}
    await read(source(server), [number], cursors)
    server.insert([entry(number, 0.5, "step 5")])
    assert texts(await read(source(server), [number], cursors), number) == ["step 5"]


async def test_after_a_restart_a_late_line_is_not_lost_though_others_come_again(
    server: VictoriaLogsServer, number: str
) -> None:
    server.insert([entry(number, 9, "one"), entry(number, 7, "three")])
    cursors: dict[str, JobCursor] = {}
    await read(source(server), [number], cursors)
    server.insert([entry(number, 8, "two")])
    assert texts(await read(source(server), [number], cursors), number) == ["one", "two", "three"]


async def test_a_cursor_that_could_not_be_kept_loses_nothing(server: VictoriaLogsServer, number: str) -> None:
    reader, kept = source(server), dict[str, JobCursor]()
    server.insert([entry(number, 9, "one")])
    await read(reader, [number], kept)
    server.insert([entry(number, 8, "two")])
    assert texts(await read(reader, [number], dict(kept)), number) == ["two"]
    assert texts(await read(reader, [number], dict(kept)), number)[-1] == "two"


async def test_small_pages_give_every_line_once_and_a_loud_job_does_not_hold_up_the_others(
    server: VictoriaLogsServer, number: str
) -> None:
    quiet = str(next(_numbers))
    server.insert(entry(number, 100 - at // 3 / 10, f"{at:03}") for at in range(150))  # three of each moment
    server.insert([entry(quiet, 0.1, "quiet")])
    reader = source(server)
    reader.store.page_lines = 7
    cursors: dict[str, JobCursor] = {}
    seen: list[str] = []
    found = await read(reader, [number, quiet], cursors)
    assert texts(found, quiet) == ["quiet"]
    seen += texts(found, number)
    while found.behind:
        assert found.trouble
        found = await read(reader, [number, quiet], cursors)
        seen += texts(found, number)
    assert sorted(seen) == [f"{at:03}" for at in range(150)]


async def test_a_server_with_little_memory_is_asked_for_less_at_once(server: VictoriaLogsServer, number: str) -> None:
    # 25 MB is what this server lets one question sort.
    server.insert(entry(number, 300 - at / 100, f"{at:05}" + "x" * 4_000) for at in range(9_000))
    reader, cursors = source(server), dict[str, JobCursor]()
    found = await read(reader, [number], cursors)
    lines = texts(found, number)
    while found.behind:
        found = await read(reader, [number], cursors)
        lines += texts(found, number)
    assert [text[:5] for text in lines] == [f"{at:05}" for at in range(9_000)]
    assert reader.store.page_lines < 9_000


async def test_more_lines_of_one_moment_than_a_page_holds_are_a_gap_and_not_an_end(
    server: VictoriaLogsServer, number: str
) -> None:
    server.insert([*(entry(number, 5, f"same moment {at}") for at in range(20)), entry(number, 4, "after")])
    reader = source(server)
    reader.store.page_lines = 5
    found = await read(reader, [number], {})
    assert texts(found, number)[-1] == "after"
    assert "one moment" in found.gaps[number][0].why


async def test_an_earlier_attempt_is_left_out(server: VictoriaLogsServer, number: str) -> None:
    server.insert([entry(number, 300, "attempt 0"), entry(number, 10, "attempt 1")])
    reader = source(server)
    second = job(number, NOW - timedelta(seconds=60))
    first = await reader.read([job(number)], {}, now=NOW)
    found = await reader.read([second], first.cursors, now=NOW)
    assert texts(found, number) == ["attempt 1"]
    log = await reader.read_attempt(job(number), NOW - timedelta(seconds=200))
    assert [part.data for part in log.parts] == [b"attempt 0\n"]


async def test_of_a_long_attempt_the_end_is_read(server: VictoriaLogsServer, number: str) -> None:
    server.insert(entry(number, 100 - at / 10, f"{at:04}", host=f"n{at % 3}") for at in range(500))
    reader = source(server)
    reader.store.page_lines = 50
    log = await reader.read_attempt(job(number), NOW, max_bytes=1_000)
    (part,) = log.parts
    assert part.data == b"".join(b"%04d\n" % at for at in range(300, 500))
    assert "only the lines since" in log.notes[0]
    (part,) = (await reader.read_attempt(job(number), NOW)).parts
    assert part.data == b"".join(b"%04d\n" % at for at in range(500))


async def test_an_attempt_without_lines_is_blind(server: VictoriaLogsServer, number: str) -> None:
    log = await source(server).read_attempt(job(number), NOW)
    assert log.blind
    assert log.notes[0].startswith("blind: ")


async def test_a_name_that_is_no_number_is_not_asked_for(server: VictoriaLogsServer, number: str) -> None:
    server.insert([entry(number, 1, "mine")])
    evil = ReadJob("evil", ('1") or *', f"{number}\n", f"{number}|.*"), SINCE)
    found = await source(server).read([evil], {}, now=NOW)
    assert found.chunks == ()
    assert "expected a job number" in found.gaps["evil"][0].why
    with pytest.raises(ValueError, match="expected job numbers"):
        VictoriaLogs(LogAccess(url=server.url), StoreShape()).query(['1"'], 0, 1, 1, newest_first=False)


async def test_tenants_and_selectors_keep_jobs_of_one_number_apart(server: VictoriaLogsServer, number: str) -> None:
    server.insert([entry(number, 1, "here", cluster="a")], streams="cluster")
    server.insert([entry(number, 1, "there", cluster="b")], streams="cluster")
    server.insert([entry(number, 1, "elsewhere")], tenant="7:3")
    assert texts(await read(source(server, selector='{cluster="a"}'), [number], {}), number) == ["here"]
    assert texts(await read(source(server, tenant="7:3"), [number], {}), number) == ["elsewhere"]


async def test_odd_field_names_and_array_tasks_are_found(server: VictoriaLogsServer, number: str) -> None:
    server.insert([{**entry("", 1, f"task {name}"), 'job id-"x': name} for name in (f"{number}_3", number)])
    reader = source(server, job_field='job id-"x')
    found = await reader.read([ReadJob("task", (number, f"{number}_3"), SINCE)], {}, now=NOW)
    assert sorted(texts(found, "task")) == sorted([f"task {number}", f"task {number}_3"])


async def test_a_sample_shows_the_newest_lines_of_any_job(server: VictoriaLogsServer, number: str) -> None:
    server.insert([entry(number, 5, "older", cluster="sample"), entry(number, 1, "newer", "n2", cluster="sample")])
    server.insert([{"_time": NOW.isoformat().replace("+00:00", "Z"), "_msg": "of no job", "cluster": "sample"}])
    report = await check_logs(source(server, selector="cluster:sample").store)
    assert (report.ok, report.lines, report.jobs, report.nodes) == (True, 2, 1, ("n1", "n2"))
    assert report.example == f"job {number}, node n1, stream n1"


async def test_a_mistake_in_the_selector_is_told_in_the_servers_words(server: VictoriaLogsServer, number: str) -> None:
    found = await read(source(server, selector='{cluster="a"'), [number], {})
    assert "HTTP 400" in found.trouble
    assert found.behind == {number}


async def test_an_outage_is_trouble_and_its_lines_come_afterwards(number: str) -> None:
    try:
        ensure()
    except NotToBeHad as reason:
        pytest.skip(str(reason))
    with VictoriaLogsServer() as server:
        access = LogAccess(url=server.url, deadline_s=2.0)
        reader = victorialogs_source(access, timing=TIMING)
        cursors: dict[str, JobCursor] = {}
        server.insert([entry(number, 9, "before")])
        assert texts(await read(reader, [number], cursors), number) == ["before"]
        server.stop()
        found = await read(reader, [number], cursors, later_s=5)
        assert "cannot be reached" in found.trouble
        assert found.behind == {number}
        feeds = await feed_from_store(reader, [job(number)], cursors, {number: 0})
        assert feeds[number].trouble.startswith("blind: ")
        server.start()
        server.insert([entry(number, -8, "meanwhile")])
        lines: list[str] = []
        async with asyncio.timeout(60):
            while not lines:
                lines = texts(await read(reader, [number], cursors, later_s=20), number)
                await asyncio.sleep(0.1)
        assert lines == ["meanwhile"]
        server.hang()
        assert "no answer" in (await read(reader, [number], cursors, later_s=25)).trouble
        server.unhang()


async def test_a_feed_is_one_text_in_the_order_of_time(server: VictoriaLogsServer, number: str) -> None:
    server.insert([entry(number, 9, "a1", "a"), entry(number, 8, "b1", "b"), entry(number, 7, "a2", "a")])
    reader = source(server)
    real = datetime.now(UTC) - timedelta(minutes=20)
    feeds = await feed_from_store(reader, [job(number, real), job("9", real)], {}, {number: 2})
    feed = feeds[number]
    assert feed.data == b"a1\nb1\na2\n"
    assert (feed.cursor.offset, feed.cursor.line, feed.cursor.attempt, feed.trouble) == (9, 4, 2, "")
    assert feed.store is not None
    assert feeds["9"].trouble.startswith("blind: ")  # it cannot be told from a job that nobody collects
    late = (NOW - datetime.now(UTC)).total_seconds()
    server.insert([entry(number, late, "b2", "b")])
    again = await feed_from_store(reader, [job(number, real)], {number: feed.store}, {number: 2})
    assert again[number].data == b"b2\n"
    assert again[number].cursor.offset - len(again[number].data) == 9
