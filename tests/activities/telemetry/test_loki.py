"""Job logs out of Loki, against a strict double of its documented API."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from activities.telemetry.http_logs import LogAccess
from activities.telemetry.logsource import JobCursor, ReadJob, SourceRead, nanoseconds
from activities.telemetry.loki import Loki, loki_source
from activities.telemetry.store_reader import StoreReader, StoreTiming
from activities.telemetry.store_shape import StoreShape
from tests.services.loki_double import LokiDouble

NOW = datetime(2030, 5, 6, 7, 8, 9, tzinfo=UTC)
SINCE = NOW - timedelta(minutes=10)
TIMING = StoreTiming(interval_s=0.0)


@pytest.fixture
def loki() -> Iterator[LokiDouble]:
    with LokiDouble() as double:
        yield double


def source(loki: LokiDouble, **shape: Any) -> StoreReader:
    return loki_source(LogAccess(url=loki.url), StoreShape.model_validate(shape), TIMING)


def push(loki: LokiDouble, number: str, seconds: float, text: str, host: str = "n1", **more: Any) -> None:
    """A line printed so many seconds before now."""
    at = nanoseconds(NOW - timedelta(seconds=seconds))
    loki.push({"slurm_job_id": number, "host": host, **more.pop("labels", {})}, at, text, **more)


async def read(
    reader: StoreReader, numbers: list[str], cursors: dict[str, JobCursor], later_s: float = 0.0
) -> SourceRead:
    jobs = [ReadJob(number, (number,), SINCE) for number in numbers]
    found = await reader.read(jobs, cursors, now=NOW + timedelta(seconds=later_s))
    cursors.update(found.cursors)
    return found


def texts(read: SourceRead, number: str) -> list[str]:
    lines = [line for chunk in read.chunks if chunk.job_id == number for line in chunk.lines]
    return [line.data.decode("utf-8", "replace") for line in sorted(lines, key=lambda line: line.at)]


async def test_all_jobs_are_asked_for_at_once_and_told_apart(loki: LokiDouble) -> None:
    numbers = [str(at) for at in range(1, 91)]
    for number in numbers:
        push(loki, number, 2, f"{number} on a", "a:9100")
        push(loki, number, 1, f"{number} on b", "b")
    push(loki, "12", 1, "12 again", "c")
    push(loki, "1234", 1, "a number that begins like others")
    found = await read(source(loki), numbers, {})
    assert not found.trouble
    assert len(loki.asked) == 1
    assert texts(found, "12") == ["12 on a", "12 on b", "12 again"]
    assert {chunk.node for chunk in found.chunks if chunk.job_id == "1"} == {"a", "b"}
    assert {chunk.job_id for chunk in found.chunks} == set(numbers)


async def test_many_jobs_take_several_questions_of_bounded_length(loki: LokiDouble) -> None:
    numbers = [str(10_000_000 + at) for at in range(250)]
    for number in numbers:
        push(loki, number, 1, "here")
    found = await read(source(loki), numbers, {})
    assert {chunk.job_id for chunk in found.chunks} == set(numbers)
    assert len(loki.asked) == 3
    assert max(len(question["query"]) for question in loki.asked) < 2_000


async def test_late_lines_and_duplicates_come_once_also_after_a_restart(loki: LokiDouble) -> None:
    reader, cursors = source(loki), dict[str, JobCursor]()
    push(loki, "7", 5, "first")
    push(loki, "7", 3, "third")
    assert texts(await read(reader, ["7"], cursors), "7") == ["first", "third"]
    push(loki, "7", 4, "second")
    assert texts(await read(reader, ["7"], cursors, 1), "7") == ["second"]
    assert texts(await read(source(loki), ["7"], cursors, 2), "7") == []
    push(loki, "7", -2, "first")  # the same words later are another line
    push(loki, "7", -2, "first", "n2")
    assert texts(await read(source(loki), ["7"], cursors, 3), "7") == ["first", "first"]


async def test_a_server_that_gives_fewer_lines_at_once_is_believed(loki: LokiDouble) -> None:
    loki.most = 6
    for at in range(50):
        push(loki, "7", 50 - at // 4, f"{at:02}")  # four of each moment, which a page may part
    found = await read(source(loki), ["7"], {})
    assert not found.trouble
    assert texts(found, "7") == [f"{at:02}" for at in range(50)]
    assert [question["limit"] for question in loki.asked][:2] == ["5000", "6"]
    assert {question["limit"] for question in loki.asked[1:]} == {"6"}


async def test_what_is_too_much_for_one_read_is_caught_up_with(
    loki: LokiDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("activities.telemetry.store_reader.MAX_PAGES", 12)
    numbers = [str(at) for at in range(1, 21)]
    for number in numbers:
        for at in range(30):
            push(loki, number, 60 - at * 2, f"{at:02}")
    reader, cursors = source(loki), dict[str, JobCursor]()
    reader.store.page_lines = 20
    reader.store.jobs_at_once = 5
    seen: dict[str, list[str]] = {number: [] for number in numbers}
    for later_s in range(20):
        found = await read(reader, numbers, cursors, later_s * 5)
        for number in numbers:
            seen[number] += texts(found, number)
        if not found.behind:
            break
        assert "more than could be read" in found.trouble
    assert not found.behind
    assert all(lines == [f"{at:02}" for at in range(30)] for lines in seen.values())


async def test_the_tenant_is_told(loki: LokiDouble) -> None:
    loki.tenants = True
    push(loki, "7", 1, "mine", tenant="team-a")
    push(loki, "7", 1, "theirs", tenant="team-b")
    assert "no org id" in (await read(source(loki), ["7"], {})).trouble
    assert texts(await read(source(loki, tenant="team-a"), ["7"], {}), "7") == ["mine"]


async def test_the_job_may_stand_in_structured_metadata(loki: LokiDouble) -> None:
    at = nanoseconds(NOW - timedelta(seconds=1))
    loki.push({"cluster": "prod"}, at, "mine", more={"slurm_job_id": "7"})
    loki.push({"cluster": "prod"}, at, "another's", more={"slurm_job_id": "8"})
    loki.push({"cluster": "test"}, at, "another cluster's", more={"slurm_job_id": "7"})
    shape = {"job_is_label": False, "selector": '{cluster="prod"}'}
    assert texts(await read(source(loki, **shape), ["7"], {}), "7") == ["mine"]


async def test_the_selector_is_put_in(loki: LokiDouble) -> None:
    push(loki, "7", 1, "here", labels={"cluster": "a"})
    push(loki, "7", 1, "there", labels={"cluster": "b"})
    assert texts(await read(source(loki, selector='{cluster="b"}'), ["7"], {}), "7") == ["there"]
    assert "HTTP 400: parse error" in (await read(source(loki, selector='{cluster="b}'), ["7"], {})).trouble


async def test_what_a_job_prints_comes_back_as_it_was(loki: LokiDouble) -> None:
    hostile = ["two\nlines", "NUL \x00", 'quotes " \\ }', "漢字 \U0001f525", "x" * 100_000, "half a pair \ud83d"]
    for at, text in enumerate(hostile):
        push(loki, "7", 20 - at, text)
    found = await read(source(loki), ["7"], {})
    assert texts(found, "7") == [*hostile[:-1], "half a pair ?"]


async def test_of_an_attempt_of_weeks_the_end_is_read_in_stretches(loki: LokiDouble) -> None:
    begun = datetime.now(UTC) - timedelta(days=40)
    for day in (1, 20, 39):
        loki.push({"slurm_job_id": "7"}, nanoseconds(begun + timedelta(days=day)), f"day {day}")
    loki.push({"slurm_job_id": "7"}, nanoseconds(begun - timedelta(days=1)), "an earlier attempt")
    log = await source(loki).read_attempt(ReadJob("7", ("7",), begun), None)
    assert [part.data for part in log.parts] == [b"day 1\nday 20\nday 39\n"]
    assert log.notes == ()
    assert {question["direction"] for question in loki.asked} == {"backward"}


def test_names_that_are_no_numbers_never_reach_a_query(loki: LokiDouble) -> None:
    store = Loki(LogAccess(url=loki.url), StoreShape())
    assert store.query(["7", '8"}', ".*", "9|1", "9\n", "10_3"]) == '{slurm_job_id=~"7|10_3"}'
    with pytest.raises(ValueError, match="expected job numbers"):
        store.query([".*"])
