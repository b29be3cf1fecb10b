"""Maintenance windows: which one a start would run into, and when the next attempt may start then."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recovery.maintenance import Window, in_calendar, start_behind
from recovery.policy import decide
from recovery.policy_file import PolicyFileError, parse
from recovery.policy_numbers import Policy
from recovery.records import Action
from tests.recovery.situations import CLUSTER, T0, at, attempt, situation, verdict, view

CALENDAR = """
clusters:
  prod:
    maintenance:
      - {from: 2026-03-10T08:00:00Z, to: 2026-03-10T16:00:00Z, reason: new switches}
      - {from: 2026-03-01T03:00:00+01:00, to: 2026-03-01T05:00:00+01:00, repeat: weekly, partitions: [gpu]}
"""


def utc(day: int, hour: int) -> datetime:
    return datetime(2026, 3, day, hour, tzinfo=UTC)


def windows(now: datetime, partition: str = "cpu") -> list[tuple[datetime, datetime]]:
    return [(one.begins, one.ends) for one in parse(CALENDAR, "p").maintenance("prod", partition, now)]


def test_a_window_holds_for_its_partitions_and_comes_again_as_often_as_it_says() -> None:
    once, weekly = (utc(10, 8), utc(10, 16)), (utc(8, 2), utc(8, 4))
    assert windows(utc(2, 0)) == [once]
    assert windows(utc(2, 0), "gpu") == [weekly, once]
    assert windows(utc(8, 3), "cpu,gpu") == [weekly, once]
    assert windows(utc(8, 4), "gpu") == [once, (utc(15, 2), utc(15, 4))]
    assert windows(utc(11, 0)) == []
    assert parse(CALENDAR, "p").maintenance("other", "gpu", T0) == ()


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ("{from: 2026-03-10T08:00:00, to: 2026-03-11T08:00:00Z}", "tells no time zone"),
        ("{from: 2026-03-10T08:00:00Z, to: 2026-03-10T07:00:00Z}", "expected later than from"),
        ("{from: 2026-03-10T08:00:00Z, to: 2026-03-12T07:00:00Z, repeat: daily}", "expected at most 1 day"),
        ("{from: 2026-03-10, to: 2026-03-12T07:00:00Z}", "a time with its zone is expected"),
        ("{from: 7, to: 2026-03-12T07:00:00Z}", "a time with its zone is expected"),
        ("{from: 2026-03-10T08:00:00Z}", "clusters.prod.maintenance[0].to"),
        ("{from: 2026-03-10T08:00:00Z, to: 2026-03-10T09:00:00Z, reson: x}", "is not known; did you mean reason?"),
    ],
)
def test_a_window_that_cannot_be_meant_is_told(entry: str, told: str) -> None:
    with pytest.raises(PolicyFileError) as caught:
        parse(f"clusters:\n  prod:\n    maintenance:\n      - {entry}\n", "policy.yaml")
    assert told in str(caught.value)
    assert str(caught.value).startswith("policy.yaml:")


def failed(**more: Any) -> Any:
    return situation(verdict=verdict(), **more)


SOON = Window(begins=at(601 + 1000), ends=at(20_000), reason="new switches")


def test_a_restart_too_near_to_a_window_is_put_behind_it() -> None:
    advice = decide(failed(maintenance=(SOON,)), Policy())
    assert (advice.action, advice.not_before) == (Action.RESTART, at(20_000))
    assert "new switches" in advice.reason


def test_a_job_that_saves_often_enough_is_restarted_before_the_window() -> None:
    advice = decide(failed(maintenance=(SOON,)), Policy(checkpoint_within_s=900))
    assert (advice.action, advice.not_before) == (Action.RESTART, None)


def test_windows_that_follow_each_other_closely_are_one() -> None:
    next_one = Window(begins=at(20_600), ends=at(30_000))
    assert decide(failed(maintenance=(next_one, SOON)), Policy()).not_before == at(30_000)


def test_a_window_of_some_nodes_counts_only_where_too_few_others_are_left() -> None:
    of_four = SOON.model_copy(update={"nodes": CLUSTER[:4]})
    of_five = SOON.model_copy(update={"nodes": CLUSTER[:5]})
    assert decide(failed(maintenance=(of_four,)), Policy()).not_before is None
    assert decide(failed(maintenance=(of_five,)), Policy()).not_before == at(20_000)


def test_an_operators_force_waits_for_no_window() -> None:
    from recovery.situation import Demand

    advice = decide(failed(maintenance=(SOON,), force=Demand(action="restart")), Policy())
    assert (advice.action, advice.not_before) == (Action.RESTART, None)


def vain(count: int, **policy: Any) -> float:
    """Seconds from the end of the last of `count` + 1 failures without progress to the next start."""
    past = [attempt(number, last_step=30, first_step=1, restarted_by="relight", signature=f"s{number}")
            for number in range(count + 1)]  # fmt: skip
    end = at(1000 * count + 600)
    job = view(restarts=count, submit_time=at(1000 * count), start_time=at(1000 * count + 10), end_time=end)
    one = situation(job, attempts=tuple(past), verdict=verdict(signature=f"s{count}"), now=end, expected_restart=True)
    advice = decide(one, Policy(max_restarts_no_new_checkpoint=100, max_restarts_per_day=100, **policy))
    assert advice.action is Action.RESTART, advice.reason
    return 0.0 if advice.not_before is None else (advice.not_before - end).total_seconds()


def test_restarts_in_vain_come_at_growing_intervals_up_to_the_longest() -> None:
    assert [vain(count) for count in range(5)] == [0, 10, 20, 40, 80]
    assert vain(9) == 600
    assert vain(3, backoff_s=0) == 0
    assert vain(3, backoff_s=60, backoff_times=1.0) == 60


def test_progress_ends_the_backoff() -> None:
    past = (attempt(0, last_step=30, restarted_by="relight"), attempt(1, last_step=60, submit_time=T0))
    job = view(restarts=1)
    advice = decide(situation(job, attempts=past, expected_restart=True), Policy())
    assert (advice.action, advice.not_before) == (Action.RESTART, None)


@settings(max_examples=2500, deadline=None)
@given(st.integers(0, 2**40))
def test_a_start_behind_windows_never_runs_into_one(seed: int) -> None:
    random = Random(seed)
    spans = [(random.randint(0, 5000), random.randint(1, 5000)) for _ in range(random.randint(0, 6))]
    start, needs = random.randint(0, 8000), random.randint(0, 3000)
    made = [Window(begins=at(begin), ends=at(begin + length)) for begin, length in spans]
    behind = start_behind(made, at(start), timedelta(seconds=needs), CLUSTER, 4)
    begins = behind[0] if behind is not None else at(start)
    assert begins >= at(start)
    assert not any(one.begins < begins + timedelta(seconds=needs) and one.ends > begins for one in made)
    assert behind is None or begins in {one.ends for one in made}


def test_the_calendar_of_no_window_is_empty() -> None:
    assert in_calendar((), "gpu", T0) == ()
