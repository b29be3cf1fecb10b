"""What several looks tell of one attempt."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from recovery.attempts import merged, with_attempts, with_restarters
from recovery.records import Attempt, JobState

START = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
END = START + timedelta(seconds=20)


def test_an_attempt_that_was_requeued_keeps_its_own_end_and_ending() -> None:
    seen = Attempt(number=0, state=JobState.FAILED, start_time=START, end_time=END, nodes=("n01", "n02"), exit_code=1)
    accounted = Attempt(number=0, state=JobState.REQUEUED, start_time=START, end_time=END + timedelta(hours=2))
    both = merged(seen, accounted)
    assert both.state is JobState.FAILED
    assert both.end_time == END
    assert both.node_hours == seen.node_hours


def test_progress_never_goes_back_within_an_attempt() -> None:
    both = merged(Attempt(number=3, last_step=40, last_checkpoint=30), Attempt(number=3, last_step=35))
    assert (both.last_step, both.last_checkpoint) == (40, 30)


def test_looks_are_sorted_into_their_attempts() -> None:
    known = (Attempt(number=1, nodes=("n03",)),)
    all_of_them = with_attempts(known, [Attempt(number=0, nodes=("n01",)), Attempt(number=1, last_step=7)])
    assert [(one.number, one.nodes, one.last_step) for one in all_of_them] == [(0, ("n01",), None), (1, ("n03",), 7)]


def test_who_started_the_next_attempt_is_told_once() -> None:
    attempts = (
        Attempt(number=0, state=JobState.NODE_FAIL),
        Attempt(number=1, state=JobState.FAILED),
        Attempt(number=2, state=JobState.FAILED, exit_code=100),
        Attempt(number=3, state=JobState.FAILED, restarted_by="relight"),
        Attempt(number=4, state=JobState.RUNNING),
    )
    told = with_restarters(attempts, 4, ours=False, requeue_exit=(100,))
    assert [one.restarted_by for one in told] == ["slurm", "other", "slurm", "relight", ""]
    assert with_restarters(attempts[:2], 2, ours=True)[1].restarted_by == "relight"
