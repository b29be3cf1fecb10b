"""What is learned of a job from looks at its log, and that it stays small."""

from __future__ import annotations

from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from recovery.pace import PAUSES, WINDOWS, Look, Pace, Phase, after
from recovery.policy_numbers import Policy
from tests.recovery.sampled import Printed, Sampled, moment, sampled

POLICY = Policy()


def last(printed: Printed, **more: object) -> Pace:
    return list(sampled(printed, POLICY, **more))[-1].pace  # type: ignore[arg-type]


def test_typical_and_longest_waits_follow_the_steps() -> None:
    pace = last(Printed().steps(200, 9.0, 10.0, 14.0))
    assert 13.0 <= pace.longest_s <= 17.0
    assert pace.usual_s is not None
    assert 10.5 <= pace.usual_s <= 11.5


def test_the_first_steps_after_a_start_are_not_learned_from() -> None:
    pace = last(Printed().steps(3, 120.0).steps(100, 5.0))
    assert pace.longest_s <= 8.0
    assert pace.pauses == ()


def test_a_start_up_is_learned_when_it_was_watched_and_kept_for_the_next_attempt() -> None:
    pace = last(Printed().pause(200).steps(50, 3.0))
    assert len(pace.starts) == 1
    assert 203 <= pace.starts[0] <= 206
    pace = last(Printed().pause(90).steps(50, 3.0), pace=pace, attempt=1, begins=10_000)
    assert [round(took, -1) for took in pace.starts] == [200, 90]
    assert pace.attempt == 1


def test_a_start_up_that_nobody_watched_is_not_learned() -> None:
    printed = Printed().pause(200).steps(50, 3.0)
    assert last(printed, away=[(0, 300)]).starts == ()


def test_a_long_pause_is_no_slow_step() -> None:
    printed = Printed()
    for _ in range(3):
        printed.steps(50, 4.0).pause(100)
    pace = last(printed.steps(20, 4.0))
    assert [step for step, _ in pace.pauses] == [50, 100, 150]
    assert all(100 <= seconds <= 108 for _, seconds in pace.pauses)
    assert pace.longest_s < 10


def test_pauses_every_n_steps_are_expected_there_and_nowhere_else() -> None:
    printed = Printed()
    for _ in range(3):
        printed.steps(50, 4.0).pause(100)
    assert last(printed.steps(50, 4.0)).pause_is_due()
    printed = Printed()
    for _ in range(3):
        printed.steps(50, 4.0).pause(100)
    assert not last(printed.steps(25, 4.0)).pause_is_due()


def test_pauses_without_a_rhythm_are_expected_anywhere() -> None:
    printed = Printed()
    for steps in (50, 77, 61):
        printed.steps(steps, 4.0).pause(100)
    assert last(printed.steps(25, 4.0)).pause_is_due()


def test_announced_saves_and_evaluations_are_learned_apart() -> None:
    printed = Printed()
    for _ in range(2):
        printed.steps(30, 4.0).pause(60, Phase.SAVE).steps(30, 4.0).pause(200, Phase.EVAL)
    pace = last(printed.steps(5, 4.0))
    assert [round(took, -1) for took in pace.saves] == [60, 60]
    assert [round(took, -1) for took in pace.evals] == [200, 200]
    assert pace.pauses == ()
    assert pace.phase is Phase.NONE


def test_when_every_step_becomes_slow_they_are_no_pauses_any_more() -> None:
    pace = last(Printed().steps(100, 5.0).steps(20, 60.0))
    assert pace.longest_s >= 59
    assert len(pace.pauses) == 2


def test_a_counter_that_jumps_back_goes_on_and_teaches_nothing() -> None:
    printed = Printed().steps(100, 5.0).pause(300).back_to(80).steps(30, 5.0)
    pace = last(printed)
    assert pace.step == 110
    assert pace.longest_s < 10
    assert pace.pauses == ()


def test_nothing_is_learned_over_time_in_which_nobody_looked() -> None:
    printed = Printed().steps(400, 5.0)
    for blindness in ({"blind": [(1000, 1300)]}, {"away": [(1000, 1300)]}):
        pace = last(printed, **blindness)
        assert pace.longest_s < 10
        assert pace.pauses == ()


def test_quiet_time_is_the_time_somebody_looked() -> None:
    printed = Printed().steps(100, 5.0)
    for blindness in ({"blind": [(600, 900)]}, {"away": [(600, 900)]}):
        seen = list(sampled(printed, POLICY, until=1000, **blindness))[-1]  # type: ignore[arg-type]
        assert 195 <= seen.pace.quiet_s(moment(seen.second)) <= 205


def test_of_two_states_only_time_may_differ() -> None:
    pace = last(Printed().steps(20, 5.0))
    later = after(pace, Look(at=moment(101), attempt=0), window_s=150, outage_s=15)
    assert later != pace
    assert later.same_but_for_time(pace)
    assert not after(later, Look(at=moment(103), attempt=0, step=21), window_s=150, outage_s=15).same_but_for_time(pace)


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 1 << 30))
def test_it_stays_small_and_survives_its_json(seed: int) -> None:
    random = Random(seed)
    printed = Printed(step=random.choice((0, 10**11)))
    for _ in range(random.randint(1, 12)):
        printed.steps(random.randint(1, 60), 0.2, random.uniform(0.3, 90), random=random)
        kind = random.choice((None, Phase.SAVE, Phase.EVAL, "a.word", "back"))
        if kind == "back":
            printed.back_to(max(0, printed.step - random.randint(0, 40)))
        elif isinstance(kind, Phase) or kind is None:
            printed.pause(random.uniform(0, 4000), kind)
        else:
            printed.says(f"{kind}.{random.randint(0, 9)}{'x' * 40}")
    every = random.choice((7.0, 14.0))
    biggest = max(sampled(printed, POLICY, every=every, random=random), key=_size)
    assert _size(biggest) < 1_000, biggest.pace.model_dump_json()
    assert len(biggest.pace.windows) <= WINDOWS
    assert len(biggest.pace.pauses) <= PAUSES


def _size(seen: Sampled) -> int:
    return len(seen.pace.model_dump_json())


def test_a_step_that_is_seen_late_is_not_held_to_be_late() -> None:
    def seen(pace: Pace, second: float, **more: Any) -> Pace:
        look = Look(**{"at": moment(second), "attempt": 0, "started": moment(-5), **more})
        return after(pace, look, window_s=60, outage_s=30)

    pace = seen(Pace(), 0, step=1)
    assert pace.went_on_at(0) == moment(-5)
    pace = seen(pace, 2, step=5)
    assert (pace.went_on_at(0), pace.went_on_at(0, newer=True)) == (moment(0), moment(2))
    assert pace.went_on_at(1) is None
    blind = seen(pace, 4, readable=False)
    assert (blind.went_on_at(0), blind.went_on_at(0, newer=True)) == (moment(0), moment(2))
    assert seen(blind, 6, step=9).went_on_at(0) == moment(2)
    away = seen(pace, 600, step=9)
    assert away.went_on_at(0) == moment(2), "while nobody looked it may have stopped long ago"
    quiet = seen(seen(pace, 4), 6, step=9)
    assert quiet.went_on_at(0) == moment(4)
