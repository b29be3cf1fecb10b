"""When a judgement of the sweep counts, and what nodes tell about an attempt that has ended."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from activities.judging import after_the_fact, judgements, just_ended
from activities.sweep_cursor import SweepCursor
from recovery.hang import Hang, Stage
from recovery.pace import Pace
from recovery.records import FaultClass, Finding, JobState, NodeView, Progress
from tests.recovery.situations import at, attempt, finding, view

HANG = Hang(attempt=0, stage=Stage.CONFIRMED, step=70, since=at(200), limit_s=300)
NOW = at(600)


def cursor(**more: Any) -> SweepCursor:
    pace = Pace(attempt=0, begun=at(0), step=70, at=at(200), looked_at=more.pop("looked_at", at(590)))
    return SweepCursor(pace=pace, hang=HANG, **more)


def judged(**more: Any) -> tuple[Hang | None, list[str]]:
    job = more.pop("job", view(JobState.RUNNING))
    nodes = more.pop("nodes", ())
    step = more.pop("step", 70)
    hang, _, found = judgements(job, cursor(**more), nodes, Progress(step=step), NOW, told_step=70)
    return hang, [one.signature for one in found]


def restarted(name: str = "n02", *, booted: float | None = None, daemon: float = -100) -> NodeView:
    return NodeView(
        name=name,
        state="ALLOCATED",
        boot_time=at(booted) if booted is not None else at(-1000),
        slurmd_start_time=at(daemon),
    )


def test_a_fresh_judgement_becomes_a_finding() -> None:
    assert judged() == (HANG, ["hang.no_step"])


def test_a_judgement_of_a_sweep_that_is_away_counts_for_nothing() -> None:
    assert judged(looked_at=NOW - timedelta(minutes=3)) == (None, [])


def test_a_judgement_that_new_steps_belie_counts_for_nothing() -> None:
    assert judged(step=75) == (None, [])


def test_a_judgement_of_another_attempt_or_of_a_job_that_does_not_run_counts_for_nothing() -> None:
    assert judged(job=view(JobState.RUNNING, restarts=1)) == (None, [])
    assert judged(job=view(JobState.FAILED)) == (None, [])
    assert judged(job=view(JobState.RUNNING, completing=True)) == (None, [])


def test_with_steps_stopped_a_restarted_daemon_names_the_node() -> None:
    hang, found = judged(nodes=(restarted(daemon=195),))
    assert hang == HANG
    assert found == ["hang.no_step", "node.daemon_restarted"]


# ------------------------------------------------------------------------------------------------ afterwards


def afterwards(*nodes: NodeView, findings: tuple[Finding, ...] = ()) -> list[tuple[str, ...]]:
    """Of a job that ended 600 s after T0."""
    return [one.nodes for one in after_the_fact(view(JobState.FAILED), nodes, findings, at(610))]


def test_a_reboot_under_an_attempt_that_ended_names_the_node() -> None:
    assert afterwards(restarted(booted=300)) == [("n02",)]


def test_a_reboot_after_its_end_says_nothing() -> None:
    assert afterwards(restarted(booted=605)) == []


def test_a_restarted_daemon_counts_right_before_the_end_and_without_another_cause() -> None:
    assert afterwards(restarted(daemon=590)) == [("n02",)]
    assert afterwards(restarted(daemon=300)) == []
    cause = finding(fault_class=FaultClass.APPLICATION)
    assert afterwards(restarted(daemon=590), findings=(cause,)) == []


# ------------------------------------------------------------------------------------------------ told late


def test_of_an_attempt_that_has_just_ended_metrics_may_still_tell() -> None:
    waits = view(JobState.PENDING, restarts=1, submit_time=at(600))
    before = just_ended(waits, (attempt(0),), at(660))
    assert before is not None
    assert (before.restarts, before.nodes, before.end_time) == (0, attempt(0).nodes, at(600))
    unseen = attempt(0, end_time=None, state=JobState.RUNNING)
    assert just_ended(waits, (unseen,), at(660)) == before.model_copy(update={"state": JobState.RUNNING})
    assert just_ended(waits, (attempt(0),), at(900)) is None
    assert just_ended(waits, (attempt(0, nodes=()),), at(660)) is None
    assert just_ended(waits, (), at(660)) is None
