"""Whether a job hangs: every silent stop is found within its bound, and a healthy job raises nothing."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recovery.blame import attribute
from recovery.hang import Hang, Stage, absent_finding, hang_finding, judge, limit
from recovery.measured import JobMetrics
from recovery.node_events import NodeEvent, NodeTrouble
from recovery.pace import Pace, Phase
from recovery.policy_numbers import Policy
from recovery.records import Certainty, Confidence, FaultClass, JobState, Role
from tests.recovery.sampled import Printed, Sampled, moment, sampled
from tests.recovery.situations import view

POLICY = Policy()


def story(printed: Printed, policy: Policy = POLICY, **more: object) -> list[Sampled]:
    return list(sampled(printed, policy, **more))  # type: ignore[arg-type]


def first(seen: list[Sampled], stage: Stage) -> float | None:
    """When that stage was first reached."""
    return next((one.second for one in seen if one.hang is not None and one.hang.stage is stage), None)


def raised(seen: list[Sampled]) -> list[tuple[float, str]]:
    return [(one.second, one.hang.summary) for one in seen if one.hang is not None]


# ------------------------------------------------------------------------------------------------ silence


def test_a_silent_stop_is_suspected_at_its_limit_and_overdue_later() -> None:
    printed = Printed().steps(100, 5.0)
    seen = story(printed, until=printed.now + 3000)
    assert first(seen, Stage.SUSPECTED) == pytest.approx(printed.now + 300, abs=3)
    assert first(seen, Stage.OVERDUE) == pytest.approx(printed.now + 300 + 1800, abs=3)
    assert first(seen, Stage.CONFIRMED) is None
    hang = seen[-1].hang
    assert hang is not None
    assert hang.step == 100


def test_slow_steps_have_a_longer_limit_than_the_floor() -> None:
    printed = Printed().steps(20, 100.0)
    seen = story(printed, until=printed.now + 700)
    assert first(seen, Stage.SUSPECTED) == pytest.approx(printed.now + 5 * 100, abs=15)


def test_a_job_that_logs_every_hundredth_step_is_given_time_until_the_next_line() -> None:
    printed = Printed()
    for _ in range(12):
        printed.step += 99
        printed.steps(1, 400.0)
    assert raised(story(printed)) == []
    seen = story(printed, until=printed.now + 2500, every=10)
    assert first(seen, Stage.SUSPECTED) == pytest.approx(printed.now + 5 * 400, abs=60)


def test_steps_that_go_on_end_the_suspicion() -> None:
    seen = story(Printed().steps(100, 5.0).pause(400).steps(20, 5.0))
    assert first(seen, Stage.SUSPECTED) is not None
    assert seen[-1].hang is None


def test_a_counter_that_jumps_back_is_life() -> None:
    assert raised(story(Printed().steps(100, 5.0).back_to(50).steps(40, 5.0))) == []


def test_the_judgement_stays_the_same_while_nothing_changes() -> None:
    printed = Printed().steps(100, 5.0)
    hangs = {one.hang for one in story(printed, until=printed.now + 2000) if one.hang is not None}
    assert len(hangs) == 1


# ------------------------------------------------------------------------------------------------ start-up


def test_a_start_up_without_end_is_found_where_steps_were_read_before() -> None:
    known = story(Printed().steps(60, 5.0))[-1].pace
    seen = story(Printed(), pace=known, attempt=1, begins=10_000, until=6000, every=10)
    assert first(seen, Stage.SUSPECTED) == pytest.approx(3600, abs=20)
    assert first(seen, Stage.OVERDUE) == pytest.approx(3600 + 1800, abs=20)


def test_an_attempt_that_only_began_to_train_is_enough_to_understand_its_steps() -> None:
    known = story(Printed().steps(2, 1.0))[-1].pace
    seen = story(Printed(), pace=known, attempt=1, begins=10_000, until=6000, every=60)
    assert first(seen, Stage.OVERDUE) is not None


def test_start_ups_are_learned_from_the_second_on() -> None:
    pace = Pace(starts=(100.0, 90.0), knows_steps=True)
    seen = story(Printed(), pace=pace, attempt=2, until=700)
    assert first(seen, Stage.SUSPECTED) == pytest.approx(500, abs=4)


def test_a_silent_job_of_which_no_step_was_ever_read_is_told_and_not_acted_upon() -> None:
    seen = story(Printed(), until=20_000, every=60)
    assert first(seen, Stage.SUSPECTED) == pytest.approx(3600, abs=60)
    assert not any(one.hang is not None and one.hang.stage.acts for one in seen)


def test_a_job_that_prints_what_nobody_understands_raises_nothing() -> None:
    printed = Printed()
    for _ in range(200):
        printed.pause(60).says("")
    assert raised(story(printed, until=12_000, every=30)) == []


def test_with_its_own_progress_expression_a_job_counts_as_understood() -> None:
    pace = Pace(attempt=0, begun=moment(0), looked_at=moment(0))
    hang = judge(pace, POLICY, moment(6000), own_progress=True)
    assert hang is not None
    assert hang.stage is Stage.OVERDUE


# ------------------------------------------------------------------------------------------------ blind time


@pytest.mark.parametrize("blindness", ["blind", "away"])
def test_time_in_which_nobody_could_look_is_no_silence(blindness: str) -> None:
    printed = Printed().steps(100, 5.0)
    lost: dict[str, Any] = {blindness: [(printed.now + 50, 3800)]}
    seen = story(printed, until=4000, **lost)
    assert raised(seen) == []


def test_a_hang_is_found_after_blind_time_all_the_same() -> None:
    printed = Printed().steps(100, 5.0)
    seen = story(printed, until=2000, blind=[(600, 1000)])
    assert first(seen, Stage.SUSPECTED) == pytest.approx(printed.now + 300 + 400, abs=5)


# ------------------------------------------------------------------------------------------------ phases and pauses


def test_an_announced_evaluation_is_waited_for() -> None:
    printed = Printed().steps(100, 5.0).pause(1700, Phase.EVAL).steps(10, 5.0)
    assert raised(story(printed)) == []


def test_an_announced_save_that_never_ends_is_found() -> None:
    printed = Printed().steps(100, 5.0)
    stop = printed.now
    seen = story(printed.pause(0, Phase.SAVE), until=stop + 2500)
    assert first(seen, Stage.SUSPECTED) == pytest.approx(stop + 1800, abs=4)


def test_what_evaluations_take_is_learned() -> None:
    printed = Printed()
    for _ in range(2):
        printed.steps(50, 5.0).pause(120, Phase.EVAL)
    stop = printed.steps(50, 5.0).now
    seen = story(printed.pause(0, Phase.EVAL), until=stop + 800)
    assert first(seen, Stage.SUSPECTED) == pytest.approx(stop + 3 * 125, abs=15)


def test_pauses_that_came_before_are_waited_for_where_they_are_due() -> None:
    printed = Printed()
    for _ in range(3):
        printed.steps(50, 5.0).pause(290)
    due = printed.steps(50, 5.0)
    assert limit(story(due)[-1].pace, POLICY)[0] == pytest.approx(2 * 295, abs=10)
    assert limit(story(due.pause(290).steps(20, 5.0))[-1].pace, POLICY)[0] == 300


def test_one_stop_that_mended_itself_after_hours_does_not_hide_the_next() -> None:
    printed = Printed().steps(100, 5.0).pause(4 * 3600).steps(100, 5.0)
    seen = story(printed, every=10, until=printed.now + 2500)
    late = [one for one in seen if one.second > printed.now]
    assert first(late, Stage.SUSPECTED) == pytest.approx(printed.now + 1800, abs=20)


def test_after_its_last_step_a_job_may_take_long_to_end() -> None:
    pace = story(Printed().steps(100, 5.0))[-1].pace
    assert judge(pace, POLICY, moment(500 + 3000), total=100) is None
    assert judge(pace, POLICY, moment(500 + 3000), total=101) is not None
    assert judge(pace, POLICY, moment(500 + 3700), total=100) is not None


# ------------------------------------------------------------------------------------------------ witnesses


def stopped(words: str = "") -> Pace:
    """The pace of a job of 5 s steps, 400 s after its last one."""
    printed = Printed().steps(100, 5.0)
    if words:
        printed.says(words)
    return story(printed, until=printed.now + 400)[-1].pace


NOW = moment(900)


def witnessed(pace: Pace, **more: object) -> Hang:
    hang = judge(pace, POLICY, NOW, **more)  # type: ignore[arg-type]
    assert hang is not None
    return hang


def test_a_fault_told_after_the_last_step_confirms_a_hang() -> None:
    hang = witnessed(stopped("nccl.watchdog_timeout"))
    assert hang.stage is Stage.CONFIRMED
    assert "nccl.watchdog_timeout" in hang.summary


def test_a_fault_that_steps_followed_is_no_witness() -> None:
    printed = Printed().steps(50, 5.0).says("net.connection_lost").steps(50, 5.0)
    assert witnessed(story(printed, until=900)[-1].pace).stage is Stage.SUSPECTED


def test_idle_metrics_confirm_a_hang() -> None:
    for metrics in (JobMetrics(tensor_idle=True), JobMetrics(fabric_idle=True)):
        assert witnessed(stopped(), metrics=metrics).stage is Stage.CONFIRMED


def test_the_one_host_that_does_not_wait_is_named_and_suspected() -> None:
    hang = witnessed(stopped(), metrics=JobMetrics(tensor_idle=True, absent_nodes=("n02",)))
    assert "wait at full use: n02" in hang.summary
    found = absent_finding(view(JobState.RUNNING), hang, ("n02",), NOW)
    assert found is not None
    verdict = attribute(view(JobState.RUNNING), [hang_finding(view(JobState.RUNNING), hang, NOW), found])
    assert (verdict.signature, [one.node for one in verdict.suspects]) == ("hang.absent_host", ["n02"])
    assert verdict.suspects[0].confidence is Confidence.MEDIUM
    assert absent_finding(view(JobState.RUNNING), hang, ("n07",), NOW) is None


def test_metrics_that_are_not_measured_say_nothing() -> None:
    assert witnessed(stopped(), metrics=JobMetrics()).stage is Stage.SUSPECTED


def test_busy_tensor_cores_keep_one_witness_from_acting() -> None:
    late = moment(500 + 300 + 2000)
    pace = stopped()
    alone = judge(pace, POLICY, late)
    assert alone is not None
    assert alone.stage is Stage.OVERDUE
    busy = judge(pace, POLICY, late, metrics=JobMetrics(tensor_idle=False))
    assert busy is not None
    assert busy.stage is Stage.SUSPECTED


@pytest.mark.parametrize("trouble", [NodeTrouble.DOWN, NodeTrouble.REBOOTED, NodeTrouble.DAEMON_RESTARTED])
def test_an_event_of_a_node_confirms_a_hang(trouble: NodeTrouble) -> None:
    event = NodeEvent(node="n02", trouble=trouble, at=moment(510))
    hang = witnessed(stopped(), events=(event,))
    assert hang.stage is Stage.CONFIRMED
    assert "n02" in hang.summary


def test_events_that_steps_followed_and_drains_are_no_witnesses() -> None:
    earlier = NodeEvent(node="n02", trouble=NodeTrouble.DAEMON_RESTARTED, at=moment(300))
    draining = NodeEvent(node="n03", trouble=NodeTrouble.DRAINING, reason="firmware")
    assert witnessed(stopped(), events=(earlier, draining)).stage is Stage.SUSPECTED


def test_a_witness_that_falls_silent_again_is_not_forgotten() -> None:
    before = witnessed(stopped(), metrics=JobMetrics(tensor_idle=True))
    assert witnessed(stopped(), before=before) == before


def test_a_job_that_prints_on_after_a_fault_may_be_starting_anew() -> None:
    printed = Printed().steps(100, 5.0).says("torchelastic.exit").pause(60).says("")
    seen = story(printed, until=900)[-1]
    assert seen.hang is not None
    assert seen.hang.stage is Stage.SUSPECTED
    printed = Printed().steps(100, 5.0).says("torchelastic.exit").pause(60).says("").pause(500).back_to(90)
    assert story(printed.steps(20, 5.0))[-1].hang is None
    late = judge(seen.pace, POLICY, moment(500 + 3700))
    assert late is not None
    assert late.stage is Stage.CONFIRMED


def test_what_the_watchdog_prints_on_while_ranks_wait_is_no_restart() -> None:
    printed = Printed().steps(100, 5.0).says("nccl.watchdog_timeout").pause(60).says("")
    seen = story(printed, until=900)[-1]
    assert seen.hang is not None
    assert seen.hang.stage is Stage.CONFIRMED


# ------------------------------------------------------------------------------------------------ findings


def test_a_hang_becomes_a_symptom_with_a_stable_id_for_each_stage() -> None:
    job = view(JobState.RUNNING)
    suspected = witnessed(stopped())
    confirmed = witnessed(stopped("gloo.timeout"))
    finding = hang_finding(job, suspected, NOW)
    assert (finding.signature, finding.fault_class, finding.role) == ("hang.no_step", FaultClass.UNKNOWN, Role.SYMPTOM)
    assert finding.certainty is Certainty.SUSPECTED
    assert finding.id == hang_finding(job, suspected, moment(990)).id
    assert finding.id != hang_finding(job, confirmed, NOW).id
    assert hang_finding(job, confirmed, NOW).certainty is Certainty.CONFIRMED


# ------------------------------------------------------------------------------------------------ in general


def healthy(random: Random, policy: Policy) -> Printed:
    """A job with its own step time, its own evaluations and saves; announced or short enough to need no telling."""
    step_s = random.choice((0.3, 1.0, 5.0, 20.0, 60.0))
    spread = random.uniform(1.0, 3.0)
    floor = policy.hang_floor_s
    eval_every, save_every = random.randint(20, 80), random.randint(10, 60)
    eval_s, save_s = random.uniform(0, 4 * floor), random.uniform(0, 2 * floor)
    tells = random.random() < 0.6
    if not tells:
        eval_s, save_s = eval_s * 0.15, save_s * 0.3
    printed = Printed().pause(random.uniform(0, 3000))
    for number in range(1, random.randint(100, 250)):
        printed.steps(1, step_s, step_s * spread, random=random)
        if number % eval_every == 0:
            printed.pause(eval_s * random.uniform(0.8, 1.2), Phase.EVAL if tells else None)
        elif number % save_every == 0:
            printed.pause(save_s * random.uniform(0.8, 1.2), Phase.SAVE if tells else None)
    return printed


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 1 << 30))
def test_a_healthy_job_raises_nothing_and_its_silent_stop_is_found_within_its_bound(seed: int) -> None:
    random = Random(seed)
    policy = Policy()
    printed = healthy(random, policy)
    every = random.choice((5.0, 12.0))
    seen = list(sampled(printed, policy, every=every, jitter=1.0, random=random))
    assert raised(seen) == []
    assert all(one.straggler is None for one in seen)
    bound = longest_silence(printed, policy, every)
    stop = list(
        sampled(printed, policy, every=every, until=printed.now + bound + 3 * every + policy.hang_one_witness_s)
    )
    stop = [one for one in stop if one.second > printed.now]
    found = first(stop, Stage.SUSPECTED)
    assert found is not None
    assert found <= printed.now + bound + 3 * every
    assert first(stop, Stage.OVERDUE) is not None


def longest_silence(printed: Printed, policy: Policy, every: float) -> float:
    """What may at most be waited for after the last line, by the rules a person would write down."""
    lines = printed.lines
    waits = sorted(later[0] - earlier[0] for earlier, later in pairwise(lines[3:]))
    typical, longest = waits[len(waits) // 2], waits[-1]
    normal = [wait for wait in waits if wait <= 5 * typical + 3 * every] or [typical]
    pauses = len(waits) - len(normal)
    if pauses and (sum(normal) / pauses < 10 * every or sum(normal) < 60 * every):
        normal = waits  # hardly seen to train between its pauses: they are its pace
    bound = max(policy.hang_floor_s, 5 * (normal[-1] + 2 * every), 2 * (longest + 2 * every))
    if isinstance(lines[-1][1], Phase):
        bound = max(bound, policy.hang_phase_s, 3 * longest)
    if printed.now - lines[0][0] < 6 * every:
        bound = max(bound, policy.hang_start_s)
    return bound


@settings(max_examples=2_000, deadline=None)
@given(st.integers(0, 1 << 30))
def test_the_stages_only_rise_while_steps_are_missing(seed: int) -> None:
    random = Random(seed)
    pace = stopped_cached(random.choice(("", "gloo.timeout", "cuda.ecc")))
    order = [None, Stage.SUSPECTED, Stage.OVERDUE, Stage.CONFIRMED]
    hang, reached = None, 0
    for second in range(510, 4000, random.randint(30, 200)):
        metrics = random.choice((None, JobMetrics(), JobMetrics(tensor_idle=True), JobMetrics(tensor_idle=False)))
        hang = judge(pace, POLICY, moment(second), metrics=metrics, before=hang)
        stage = order.index(hang.stage if hang is not None else None)
        assert stage >= reached or {stage, reached} <= {2, 3}
        reached = stage


_PACES: dict[str, Pace] = {}


def stopped_cached(words: str) -> Pace:
    if words not in _PACES:
        _PACES[words] = stopped(words)
    return _PACES[words]
