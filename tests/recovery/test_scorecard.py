"""Recommendations compared with what happened next: told stories first, then thousands of made-up ones."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recovery.hindsight import GRACE, chosen, judged, submitted_again
from recovery.hindsight_records import Case, Judgement, Next, Story, Submission, Told
from recovery.records import Action, Advice, Attempt, FaultClass, JobState, Mode
from recovery.scorecard import ASSUMED_REACTION_S, LEAST_RIGHT, Spent, scorecard
from tests.recovery.situations import CLUSTER, T0, at, attempt

RIGHT, WRONG, UNPROVEN, OPEN = Judgement
LATER = T0 + timedelta(days=9)
XID = "xid.79"


def life(number: int = 1, **more: Any) -> Submission:
    usual = {"life_id": number, "cluster": "prod", "job_id": str(number), "user": "alice", "name": "llama"}
    return Submission.model_validate({**usual, "partition": "gpu", "submitted": T0, **more})


def told(action: Action = Action.RESTART, number: int = 0, **more: Any) -> Told:
    """An advice a second after the attempt of that number has ended."""
    usual: dict[str, Any] = {"fault_class": FaultClass.HARDWARE, "signature": XID, "rule": "suspect", "reason": "why"}
    approved = more.pop("approved", None)
    moment = more.pop("at", at(1000 * number + 601))
    advice = Advice(action=action, restart_count=number, **{**usual, **more})
    return Told(at=moment, advice=advice, approved=approved)


def failed(number: int = 0, **more: Any) -> Attempt:
    return attempt(number, **{"signature": XID, "fault_class": FaultClass.HARDWARE, "last_step": 100, **more})


def story(*attempts: Attempt, advice: Told, **more: Any) -> Story:
    return Story(**{"life": life(), "attempts": attempts, "told": (advice,), **more})


def case_of(*attempts: Attempt, advice: Told, now: Any = LATER, **more: Any) -> Case:
    return judged(story(*attempts, advice=advice, **more), advice, now)


BY_HAND = failed(restarted_by="other")
WENT_WELL = attempt(1, state=JobState.COMPLETED, last_step=500)
SAME_AGAIN = failed(1)


@pytest.mark.parametrize(
    ("action", "after", "judgement", "agreed"),
    [
        (Action.RESTART, WENT_WELL, RIGHT, True),
        (Action.RESTART, attempt(1, state=JobState.RUNNING, last_step=101), RIGHT, True),
        (Action.RESTART, attempt(1, state=JobState.RUNNING, last_step=99), OPEN, True),
        (Action.RESTART, attempt(1, state=JobState.PENDING, nodes=()), OPEN, True),
        (Action.RESTART, SAME_AGAIN, WRONG, True),
        (Action.RESTART, failed(1, signature="storage.io_error"), UNPROVEN, True),
        (Action.RESTART, attempt(1, state=JobState.CANCELLED), UNPROVEN, True),
        (Action.STOP, WENT_WELL, WRONG, False),
        (Action.STOP, SAME_AGAIN, RIGHT, False),
        (Action.STOP, attempt(1, state=JobState.TIMEOUT), UNPROVEN, False),
        (Action.LEAVE_ALONE, WENT_WELL, UNPROVEN, False),
        (Action.LEAVE_ALONE, SAME_AGAIN, RIGHT, False),
    ],
)
def test_a_persons_requeue_judges_the_advice(
    action: Action, after: Attempt, judgement: Judgement, agreed: bool
) -> None:
    case = case_of(BY_HAND, after, advice=told(action))
    assert (case.next, case.judgement, case.agreed) == (Next.REQUEUED, judgement, agreed)


@pytest.mark.parametrize(
    ("action", "judgement", "agreed"),
    [(Action.RESTART, UNPROVEN, False), (Action.STOP, UNPROVEN, True), (Action.LEAVE_ALONE, UNPROVEN, True)],
)
def test_a_job_that_nobody_brought_back_proves_nothing(action: Action, judgement: Judgement, agreed: bool) -> None:
    case = case_of(failed(), advice=told(action))
    assert (case.next, case.judgement, case.agreed) == (Next.NOTHING, judgement, agreed)
    early = case_of(failed(), advice=told(action), now=at(600) + GRACE / 2)
    assert (early.next, early.judgement) == (Next.PENDING, OPEN)


def test_a_restart_that_failed_again_on_a_node_that_was_to_be_excluded_was_right() -> None:
    advice = told(exclude=("n02",))
    case = case_of(BY_HAND, failed(1, suspects=("n02",)), advice=advice)
    assert (case.judgement, case.failed_again_on) == (RIGHT, ("n02",))
    unsure = case_of(BY_HAND, failed(1), advice=advice)
    assert (unsure.judgement, unsure.failed_again_on) == (UNPROVEN, ("n02",))
    without = case_of(BY_HAND, failed(1, nodes=("n01", "n05"), excluded=("n02",)), advice=advice)
    assert (without.judgement, without.failed_again_on, without.excluded_by_hand) == (WRONG, (), ("n02",))


def test_an_excluded_node_that_then_did_well_is_told() -> None:
    case = case_of(BY_HAND, WENT_WELL, advice=told(exclude=("n02", "n07")))
    assert (case.judgement, case.needless) == (RIGHT, ("n02",))
    guard = told(Action.GUARD, 1, exclude=("n02",))
    assert case_of(failed(restarted_by="slurm"), WENT_WELL, advice=guard).judgement is WRONG
    again = case_of(failed(restarted_by="slurm"), failed(1, suspects=("n02",)), advice=guard)
    assert (again.next, again.judgement) == (Next.SLURM, RIGHT)


def test_what_was_held_to_be_stuck_and_finished_by_itself_was_wrong() -> None:
    hung = told(rule="hang")
    done = case_of(attempt(0, state=JobState.COMPLETED), advice=hung)
    assert (done.next, done.judgement, done.agreed) == (Next.WENT_ON, WRONG, False)
    assert case_of(attempt(0, state=JobState.RUNNING), advice=hung).judgement is OPEN
    cancelled = attempt(0, state=JobState.CANCELLED, last_step=100)
    assert case_of(cancelled, advice=told(Action.STOP, rule="hang")).judgement is RIGHT
    later = attempt(0, restarted_by="other", end_time=at(90_000))
    unsure = case_of(later, WENT_WELL, advice=hung)
    assert (unsure.judgement, unsure.waited_s) == (UNPROVEN, None)


def test_a_long_run_without_any_sign_of_progress_is_no_failure_at_once() -> None:
    blind = {"last_step": None, "restarted_by": "other"}
    at_once = failed(1, last_step=None)
    assert case_of(failed(**blind), at_once, advice=told()).judgement is WRONG
    long = failed(1, last_step=None, end_time=at(40_000))
    assert case_of(failed(**blind), long, advice=told()).judgement is UNPROVEN


def test_a_job_submitted_again_stands_for_the_latest_failure_before_it() -> None:
    early, late = (
        story(failed(end_time=at(end)), advice=told(at=at(end + 1)), life=life(number))
        for number, end in ((1, 600), (2, 900))
    )
    copy = life(3, submitted=at(2000))
    others = (life(4, name="bert", submitted=at(2000)), life(5, user="bob", submitted=at(2000)),
              life(6, submitted=at(100)), life(7, submitted=at(900) + GRACE * 2))  # fmt: skip
    assert submitted_again((early, late), (*others, copy)) == {2: copy}
    case = case_of(failed(), advice=told(), again=copy, again_first=attempt(0, last_step=101))
    assert (case.next, case.judgement, case.waited_s) == (Next.RESUBMITTED, RIGHT, 1400)
    nameless = [each.model_copy(update={"life": life(1, name="wrap")}) for each in (early, late)]
    assert submitted_again(nameless, (life(3, name="wrap", submitted=at(2000)),)) == {}


def test_a_persons_no_counts_against_it_and_a_yes_for_it() -> None:
    asked = {"mode": Mode.APPROVE, "needs_approval": True}
    no = case_of(failed(), advice=told(approved=False, **asked))
    assert (no.next, no.judgement, no.agreed) == (Next.REJECTED, WRONG, False)
    yes = case_of(failed(restarted_by="relight"), WENT_WELL, advice=told(approved=True, **asked))
    assert (yes.next, yes.judgement, yes.agreed) == (Next.RELIGHT, RIGHT, True)


def test_one_recommendation_is_judged_for_each_attempt() -> None:
    advised = (
        told(Action.WAIT, rule="completing"),
        told(Action.LEAVE_ALONE, rule="unknown"),
        told(exclude=("n01",)),
        told(Action.LEAVE_ALONE, rule="twin", at=at(700)),
        told(Action.LEAVE_ALONE, 1, rule="requeued_elsewhere"),
    )
    one = Story(life=life(), attempts=(BY_HAND, SAME_AGAIN), told=advised)
    assert [(each.advice.action, each.advice.restart_count) for each in chosen(one)] == [(Action.RESTART, 0)]


def good(number: int, partition: str = "gpu", **more: Any) -> Story:
    fields = {"life": life(number, partition=partition), **more}
    return story(BY_HAND, WENT_WELL, advice=told(), **fields)


def test_a_class_is_safe_after_enough_right_ones_of_several_jobs_and_none_wrong() -> None:
    few = [good(number) for number in range(LEAST_RIGHT - 1)]
    span = {"since": T0, "until": LATER}
    (not_yet,) = scorecard(few, **span).trust
    assert (not_yet.safe, not_yet.why) == (False, "4 of the 5 cases it takes")
    enough = [*few, good(9)]
    card = scorecard([*enough, good(10, "debug")], **span)
    assert [(one.partition, one.safe) for one in card.trust] == [("debug", False), ("gpu", True)]
    assert card.verdict == "safe to turn on act for: hardware in prod/gpu (5 cases of 5 jobs, none wrong)"
    bad = story(BY_HAND, SAME_AGAIN, advice=told(), life=life(66))
    (spoilt,) = scorecard([*enough, bad], **span).trust
    assert (spoilt.safe, spoilt.wrong_jobs) == (False, ("prod-66",))
    one_job = [good(1) for _ in range(LEAST_RIGHT)]
    assert not scorecard(one_job, **span).trust[0].safe
    unwanted = [story(failed(), advice=told(), life=life(number)) for number in range(20, 23)]
    (doubted,) = scorecard([*enough, *unwanted], **span).trust
    assert (doubted.safe, doubted.why) == (False, "people did otherwise in 3 cases, 5 were right")


def test_time_is_saved_by_what_relight_needs_less_than_people() -> None:
    card = scorecard([good(1)], since=T0, until=LATER)
    assert (card.reaction_s, card.reaction_measured) == (ASSUMED_REACTION_S, 0)
    assert card.saved_s == 400 - ASSUMED_REACTION_S
    ours = story(failed(restarted_by="relight", end_time=at(997)), WENT_WELL, advice=told(mode=Mode.ACT), life=life(2))
    card = scorecard([good(1), ours], since=T0, until=LATER)
    assert (card.reaction_s, card.reaction_measured, card.saved_s) == (3, 1, 397)


def test_harm_is_what_relights_own_restarts_burnt_and_waited() -> None:
    again = failed(1, start_time=at(1100), end_time=at(1100 + 1800))
    ours = story(failed(restarted_by="relight"), again, advice=told(mode=Mode.ACT))
    harm = scorecard([ours, good(2)], since=T0, until=LATER).harm
    assert (harm.restarts, harm.failed_again, harm.burnt_node_hours) == (1, 1, 2)
    assert (harm.queue_wait_s, harm.longest_wait_s) == (100, 100)
    assert harm.burnt == Spent(node_hours=2), "Slurm tells of no GPUs"


def test_gpu_hours_are_told_of_jobs_whose_gpus_slurm_tells() -> None:
    again = failed(1, start_time=at(1100), end_time=at(1100 + 1800))
    ours = story(failed(restarted_by="relight", gpus=32), again, advice=told(mode=Mode.ACT))
    other = story(failed(restarted_by="relight"), again, advice=told(mode=Mode.ACT), life=life(2))
    card = scorecard([ours, other], since=T0, until=LATER)
    assert (card.harm.burnt, card.harm.burnt_node_hours) == (Spent(gpu_hours=16, node_hours=2), 4)
    assert card.harm.burnt.words == "16.0 GPU-hours and 2.0 node-hours of jobs whose GPUs are not told"
    by_hand = story(failed(restarted_by="other", gpus=36), WENT_WELL, advice=told())
    card = scorecard([by_hand], since=T0, until=LATER)
    assert card.saved == card.tallies[0].saved
    assert (round(card.saved.gpu_hours, 6), card.saved.node_hours) == (3.9, 0), "390 s of 36 GPUs"
    assert card.saved.words == "3.9 GPU-hours"


def test_without_records_there_is_nothing_to_tell() -> None:
    card = scorecard([], since=T0, until=LATER)
    assert (card.cases, card.tallies, card.trust, card.harm.restarts) == ((), (), (), 0)
    assert "nothing tells yet where acting is safe" in card.verdict


# ------------------------------------------------------------------------------------------------ made-up ones

moments = st.none() | st.integers(-100, 200_000).map(at)
some_nodes = st.lists(st.sampled_from(CLUSTER), max_size=3).map(tuple)
steps = st.none() | st.integers(0, 5)
signatures = st.sampled_from(["", XID, "storage.io_error"])
attempts = st.builds(
    Attempt,
    number=st.integers(0, 2),
    state=st.sampled_from(JobState),
    submit_time=moments,
    start_time=moments,
    end_time=moments,
    nodes=some_nodes,
    excluded=some_nodes,
    last_step=steps,
    last_checkpoint=steps,
    fault_class=st.none() | st.sampled_from(FaultClass),
    signature=signatures,
    suspects=some_nodes,
    ended_by_us=st.booleans(),
    own_fault=st.booleans(),
    restarted_by=st.sampled_from(["", "other", "slurm", "relight", "a word of a newer relight"]),
)
advices = st.builds(
    Advice,
    action=st.sampled_from(Action),
    rule=st.sampled_from(["suspect", "hang", "twin", "unknown", ""]),
    reason=st.just("why"),
    exclude=some_nodes,
    restart_count=st.integers(0, 2),
    fault_class=st.sampled_from(FaultClass),
    signature=signatures,
    mode=st.sampled_from(Mode),
    needs_approval=st.booleans(),
    routine=st.booleans(),
)
tolds = st.builds(Told, at=st.integers(0, 200_000).map(at), advice=advices, approved=st.none() | st.booleans())
lives = st.builds(
    life, st.integers(1, 6), partition=st.sampled_from(["gpu", ""]), submitted=st.integers(0, 90_000).map(at)
)
stories = st.builds(
    Story,
    life=lives,
    stopped=st.booleans(),
    attempts=st.lists(attempts, max_size=3, unique_by=lambda one: one.number).map(tuple),
    told=st.lists(tolds, max_size=3).map(tuple),
    again=st.none() | lives,
    again_first=st.none() | attempts,
)


@settings(max_examples=2000, deadline=None)
@given(st.lists(stories, max_size=3), st.integers(0, 400_000).map(at))
def test_every_recommendation_is_counted_once_whatever_happened(told_stories: list[Story], until: Any) -> None:
    card = scorecard(told_stories, since=T0, until=until)
    assert len(card.cases) == sum(len(chosen(one)) for one in told_stories) == sum(one.cases for one in card.tallies)
    for tally in card.tallies:
        assert tally.right + tally.wrong + tally.unproven + tally.open == tally.cases
        assert tally.agreed + tally.differed <= tally.cases
        assert tally.saved_s >= 0
    counted = Counter(case.judgement for case in card.cases if case.action is not Action.LEAVE_ALONE)
    assert counted[RIGHT] == sum(one.right for one in card.trust)
    assert counted[WRONG] == sum(one.wrong for one in card.trust)
    assert all(one.right >= LEAST_RIGHT and not one.wrong and not one.wrong_jobs for one in card.trust if one.safe)
    assert 0 <= card.harm.failed_again <= card.harm.restarts
    assert card.harm.longest_wait_s <= card.harm.queue_wait_s or card.harm.restarts == 0
    again = submitted_again(told_stories, [one.life for one in told_stories])
    assert len({id(one) for one in again.values()}) == len(again)
