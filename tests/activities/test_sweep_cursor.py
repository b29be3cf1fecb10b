"""What the sweep remembers of a job, and when its workflow is to be told."""

from __future__ import annotations

from activities.sweep_cursor import SweepCursor, read_cursor
from recovery.hang import Hang, Stage
from recovery.pace import Pace
from recovery.straggler import Straggler
from tests.recovery.situations import at


def hang(stage: Stage = Stage.SUSPECTED) -> Hang:
    return Hang(attempt=1, stage=stage, step=70, since=at(100), limit_s=300, witnesses=("idle",))


def test_everything_survives_its_json() -> None:
    cursor = SweepCursor(
        attempt=1,
        pace=Pace(attempt=1, begun=at(0), step=70, at=at(100), pauses=((50, 61.5),)),
        hang=hang(),
        straggler=Straggler(attempt=1, since=at(50), drop=0.4, usual_s=2.0),
        nodes=("n02:down",),
        told=("hang:suspected:70",),
    )
    assert read_cursor(cursor.model_dump_json()) == cursor


def test_a_cursor_of_an_earlier_version_is_taken_up() -> None:
    assert read_cursor('{"logs":[],"attempt":3,"faults":["xid.79"]}').attempt == 3


def test_a_damaged_cursor_begins_anew() -> None:
    assert read_cursor('{"pace":{"windows":[["x"]]}}') == SweepCursor()


def test_each_change_of_a_judgement_is_told_once() -> None:
    cursor = SweepCursor(hang=hang())
    assert cursor.judged != cursor.told
    assert cursor.news == ("hang",)
    told = cursor.model_copy(update={"told": cursor.judged})
    assert told.judged == told.told
    assert told.model_copy(update={"hang": hang(Stage.CONFIRMED)}).news == ("hang",)
    assert told.model_copy(update={"hang": None}).news == ("hang",)
    assert told.model_copy(update={"nodes": ("n02:down", "metric:xid.79:n02")}).news == ("metrics", "node")


def test_a_job_that_runs_no_more_has_nothing_to_tell() -> None:
    cursor = SweepCursor(hang=hang(), nodes=("n02:down",), told=("hang:suspected:70",)).without_judgement()
    assert cursor.judged == cursor.told == ()


def test_while_a_job_waits_only_late_blame_is_told() -> None:
    ran = SweepCursor(nodes=("metric:xid.79:n02",), told=("metric:xid.79:n02",))
    waits = ran.while_waiting(())
    assert (waits.judged, waits.told) == ((), ())
    late = waits.while_waiting(("n03",))
    assert late.judged == ("metric:late:n03",)
    assert late.news == ("metrics",)
    told = late.model_copy(update={"told": late.judged})
    assert told.while_waiting(()) == told
    assert told.while_waiting(("n01",)).judged == ("metric:late:n01", "metric:late:n03")
