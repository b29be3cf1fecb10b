"""Time in which a log could not be read is remembered with its reason, bounded, and only where it lasted."""

from __future__ import annotations

from datetime import datetime, timedelta

from activities.blind_time import blind_summaries, with_blind_time
from activities.sweep_cursor import MAX_BLIND, BlindTime, SweepCursor, read_cursor
from activities.telemetry.logsource import Gap, Span
from activities.telemetry.logwatch import LogLook
from recovery.pace import Pace
from recovery.records import Progress
from tests.recovery.situations import T0


def at(second: float) -> datetime:
    return T0 + timedelta(seconds=second)


class Watched:
    """A job that is looked at."""

    def __init__(self) -> None:
        self.cursor = SweepCursor()

    def look(
        self, second: float, *, readable: bool = True, asked: bool = True, gaps: tuple[Gap, ...] = (), attempt: int = 0
    ) -> tuple[tuple[float, float | None], ...]:
        cursor = self.cursor.model_copy(update={"note": "" if readable else "blind: store:1: away"})
        look = LogLook(cursor=cursor, progress=Progress(), readable=readable, asked=asked, gaps=gaps)
        cursor = with_blind_time(cursor, look, attempt, at(second))
        if asked:
            cursor = cursor.model_copy(update={"pace": Pace(attempt=attempt, begun=T0, looked_at=at(second))})
        self.cursor = read_cursor(cursor.model_dump_json())
        return tuple(
            ((one.begin - T0).total_seconds(), (one.end - T0).total_seconds() if one.end else None)
            for one in self.cursor.blind
        )


def test_a_stretch_begins_with_the_last_good_look_and_ends_with_the_next() -> None:
    job = Watched()
    job.look(0)
    job.look(2)
    assert job.look(4, readable=False) == ((2, None),)
    assert job.look(30, readable=False) == ((2, None),)
    assert job.look(32) == ((2, 32),)
    assert job.look(34) == ((2, 32),)
    assert job.cursor.blind[0].why == "blind: store:1: away"


def test_a_moment_is_not_remembered() -> None:
    job = Watched()
    job.look(0)
    job.look(2, readable=False)
    assert job.look(4) == ()


def test_when_nobody_looked_nothing_changes() -> None:
    job = Watched()
    job.look(0)
    job.look(2, readable=False)
    assert job.look(60, asked=False) == ((0, None),)


def test_a_gap_that_stays_is_remembered_once() -> None:
    job = Watched()
    gap = Gap(Span(at(-600), at(-60)), "longer ago than is read while watching")
    assert job.look(0, readable=False, gaps=(gap,))[0] == (-600, -60)
    assert job.look(2, gaps=(gap,)) == ((-600, -60),)


def test_only_the_newest_stretches_are_kept() -> None:
    job = Watched()
    for number in range(10):
        job.look(100 * number)
        job.look(100 * number + 2, readable=False)
        found = job.look(100 * number + 50)
    assert len(found) == MAX_BLIND
    assert found[-1] == (900, 950)


def test_a_stretch_that_lasts_is_told_when_the_attempt_is_over() -> None:
    job = Watched()
    job.look(0)
    job.look(2, readable=False)
    job.look(60)
    job.look(90, readable=False)
    assert len(blind_summaries(job.cursor.blind, 0, over=False)) == 1
    over = list(blind_summaries(job.cursor.blind, 0, over=True).values())
    assert [text.partition(" UTC ")[2] for text in over] == ["for 60 s: store:1: away", "up to its end: store:1: away"]
    assert blind_summaries(job.cursor.blind, 1, over=True) == {}


def test_a_stretch_without_a_reason_is_told_without_one() -> None:
    blind = BlindTime(attempt=0, begin=T0)
    assert list(blind_summaries([blind], 0, over=True).values()) == [
        f"the log was not readable from {T0:%H:%M:%S} UTC up to its end"
    ]
