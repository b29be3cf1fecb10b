"""Whether a job lags behind its own usual pace, and who says which host is to blame."""

from __future__ import annotations

from functools import cache
from random import Random

import pytest

from recovery.measured import JobMetrics
from recovery.pace import Pace, Phase
from recovery.policy_numbers import Policy
from recovery.records import FaultClass, JobState, Role
from recovery.straggler import Straggler, judge, straggler_finding
from tests.recovery.sampled import Printed, Sampled, moment, sampled
from tests.recovery.situations import view

POLICY = Policy()


def story(printed: Printed, **more: object) -> list[Sampled]:
    return list(sampled(printed, POLICY, every=5, **more))  # type: ignore[arg-type]


def first(seen: list[Sampled]) -> float | None:
    return next((one.second for one in seen if one.straggler is not None), None)


@cache
def lagging() -> Pace:
    return story(Printed().steps(300, 5.0).steps(150, 10.0))[-1].pace


def found(**more: object) -> Straggler:
    straggler = judge(lagging(), POLICY, **more)  # type: ignore[arg-type]
    assert straggler is not None
    return straggler


def test_a_drop_that_lasts_is_found_after_the_policys_time() -> None:
    printed = Printed().steps(300, 5.0)
    slow_from = printed.now
    at = first(story(printed.steps(150, 10.0)))
    assert at is not None
    assert slow_from + 600 <= at <= slow_from + 900


def test_a_job_that_is_ten_times_slower_lags_and_does_not_hang() -> None:
    seen = story(Printed().steps(300, 4.0).steps(60, 40.0))
    assert first(seen) is not None
    assert all(one.hang is None for one in seen)


@pytest.mark.parametrize("seconds", [5.5, 6.5])
def test_a_small_drop_is_none(seconds: float) -> None:
    assert first(story(Printed().steps(300, 5.0).steps(300, seconds))) is None


def test_a_short_drop_is_none() -> None:
    assert first(story(Printed().steps(300, 5.0).steps(30, 10.0).steps(200, 5.0))) is None


def test_pauses_evaluations_and_saves_are_no_drop() -> None:
    printed = Printed()
    for _ in range(12):
        printed.steps(20, 5.0).pause(200, Phase.EVAL).steps(20, 5.0).pause(150)
    assert first(story(printed)) is None


def test_the_first_steps_after_a_start_are_no_drop() -> None:
    known = story(Printed().steps(300, 5.0))[-1].pace
    assert first(story(Printed().steps(3, 120.0).steps(300, 5.0), pace=known, attempt=1, begins=5000)) is None


def test_an_attempt_that_is_slow_from_its_start_is_measured_against_the_ones_before() -> None:
    known = story(Printed().steps(300, 5.0))[-1].pace
    assert first(story(Printed().steps(150, 10.0), pace=known, attempt=1, begins=5000)) is not None


def test_noisy_steps_are_no_drop() -> None:
    random = Random(7)
    for seconds in (0.5, 5.0, 30.0):
        printed = Printed().steps(400, 0.4 * seconds, 2.2 * seconds, random=random)
        assert first(story(printed)) is None


def test_it_is_over_when_the_pace_is_back_and_is_told_once_until_then() -> None:
    seen = story(Printed().steps(300, 5.0).steps(150, 10.0).steps(300, 5.0))
    told = {one.straggler for one in seen if one.straggler is not None}
    assert len(told) == 1
    assert seen[-1].straggler is None


def test_a_pace_that_stays_becomes_the_usual_one() -> None:
    seen = story(Printed().steps(300, 5.0).steps(700, 10.0))
    assert seen[-1].straggler is None
    assert seen[-1].pace.usual_s == pytest.approx(10.0, rel=0.1)


def test_without_metrics_it_says_that_the_host_cannot_be_told() -> None:
    finding = straggler_finding(view(JobState.RUNNING), found(), moment(3000))
    assert "cannot be told" in finding.summary
    assert (finding.nodes, finding.role, finding.fault_class) == ((), Role.SYMPTOM, FaultClass.UNKNOWN)
    assert not finding.trusted


def test_metrics_name_the_host() -> None:
    metrics = JobMetrics(slow_nodes=("n02",), slow_how="clock at 60 % of the others'")
    finding = straggler_finding(view(JobState.RUNNING), found(metrics=metrics), moment(3000))
    assert (finding.nodes, finding.role, finding.fault_class) == (("n02",), Role.ROOT, FaultClass.HARDWARE)
    assert finding.trusted
    assert "60 %" in finding.summary


def test_a_host_that_is_named_later_is_added() -> None:
    before = found()
    metrics = JobMetrics(slow_nodes=("n02",), slow_how="clock")
    assert found(before=before) == before
    assert found(before=before, metrics=metrics).nodes == ("n02",)


def test_a_host_outside_the_allocation_is_not_named() -> None:
    metrics = JobMetrics(slow_nodes=("stranger",), slow_how="clock")
    finding = straggler_finding(view(JobState.RUNNING), found(metrics=metrics), moment(3000))
    assert finding.nodes == ()
    assert finding.role is Role.SYMPTOM
