"""What holds for every situation there could be: thousands of made-up jobs, clusters and attempts."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recovery.budgets import GENERAL, IN_ALL, LAUNCH, UNKNOWN, budgets
from recovery.directive import Directive
from recovery.policy import Demand, Policy, Situation, decide
from recovery.policy_numbers import RestartOn
from recovery.records import (
    Action,
    Attempt,
    AttemptRow,
    Confidence,
    FaultClass,
    JobState,
    JobView,
    Mode,
    Progress,
    Retry,
    Suspect,
    Verdict,
)
from tests.recovery.situations import CLUSTER, T0, at

thorough = settings(max_examples=2500, deadline=None, suppress_health_check=[HealthCheck.too_slow])

times = st.one_of(st.none(), st.integers(-1000, 100_000).map(at))
nodes = st.lists(st.sampled_from((*CLUSTER, "stranger")), max_size=5, unique=True).map(tuple)
steps = st.one_of(st.none(), st.integers(0, 50))
signatures = st.sampled_from(["", "xid.79", "nccl.timeout", "scheduler.launch_failed", "scheduler.node_fail"])
reasons = st.sampled_from(
    [
        "",
        "Resources",
        "BeginTime",
        "launch failed requeued held",
        "launch_failed_requeued_held",
        "JobHeldAdmin",
        "DependencyNeverSatisfied",
    ]
)

attempts_of = st.builds(
    Attempt,
    number=st.integers(0, 12),
    state=st.sampled_from(JobState),
    submit_time=times,
    start_time=times,
    end_time=times,
    nodes=nodes,
    exit_code=st.sampled_from([0, 1, 16, 93, 143]),
    first_step=steps,
    last_step=steps,
    last_checkpoint=steps,
    fault_class=st.one_of(st.none(), st.sampled_from(FaultClass)),
    signature=signatures,
    suspects=nodes,
    own_fault=st.booleans(),
    ended_by_us=st.booleans(),
    restarted_by=st.sampled_from(["", "relight", "slurm", "other"]),
)
histories = st.lists(attempts_of, max_size=8, unique_by=lambda one: one.number).map(
    lambda found: tuple(sorted(found, key=lambda one: one.number))
)
views = st.builds(
    JobView,
    cluster=st.just("prod"),
    job_id=st.just("12345"),
    raw_id=st.just(12345),
    state=st.sampled_from(JobState),
    reason=reasons,
    priority=st.one_of(st.none(), st.sampled_from([0, 100])),
    restarts=st.integers(0, 12),
    requeue=st.booleans(),
    batch=st.booleans(),
    exit_code=st.sampled_from([0, 1, 16, 93]),
    het_job_id=st.sampled_from([None, None, None, 7]),
    submit_time=times,
    start_time=times,
    end_time=times,
    nodes=nodes,
    min_nodes=st.integers(0, 8),
    excluded=nodes,
    required_nodes=st.sampled_from([(), ("n01",)]),
    looked_at=st.just(T0),
)
rows = st.one_of(st.none(), st.builds(AttemptRow, raw_id=st.just(1), state=st.sampled_from(JobState), nodes=nodes))
suspects = st.builds(
    Suspect,
    node=st.sampled_from((*CLUSTER, "stranger")),
    how=st.just("said so"),
    confidence=st.sampled_from(Confidence),
    trusted=st.booleans(),
)
verdicts = st.builds(
    Verdict,
    fault_class=st.sampled_from(FaultClass),
    signature=signatures,
    retry=st.sampled_from(Retry),
    suspects=st.lists(suspects, max_size=6).map(tuple),
    reason=st.just("a reason"),
)
demands = st.builds(
    Demand,
    action=st.sampled_from(["restart", "stop", "release", "dance"]),
    exclude=nodes,
    restart_count=st.one_of(st.none(), st.integers(0, 3)),
)
directives = st.builds(
    Directive,
    max_restarts=st.one_of(st.none(), st.integers(0, 20)),
    paused=st.sampled_from([False, False, False, True]),
    stop_codes=st.sampled_from([(), (1,)]),
)
policies = st.builds(
    Policy,
    max_restarts=st.integers(0, 12),
    max_restarts_per_day=st.integers(0, 12),
    max_restarts_same_cause=st.integers(0, 4),
    max_restarts_no_new_checkpoint=st.integers(0, 4),
    max_restarts_unknown=st.integers(0, 3),
    max_restarts_launch=st.integers(0, 3),
    max_node_hours_without_progress=st.floats(0.1, 1e6),
    max_excluded_share=st.floats(0.01, 1.0),
    own_fault_limit=st.integers(1, 4),
    restart_on=st.lists(st.sampled_from(RestartOn), unique=True, max_size=2).map(tuple),
    stop_requeued=st.booleans(),
    arm_requeue=st.booleans(),
    park=st.booleans(),
)
rarely = st.sampled_from([False] * 7 + [True])


def situations(force: st.SearchStrategy[Any]) -> st.SearchStrategy[Situation]:
    return st.builds(
        Situation,
        now=st.integers(0, 100_000).map(at),
        view=views,
        row=rows,
        previous_row=rows,
        attempts=histories,
        verdict=verdicts,
        progress=st.builds(Progress, attempt=st.integers(0, 12), step=steps, checkpoint=steps),
        opted_in=rarely.map(lambda value: not value),
        directive=directives,
        directive_error=rarely.map(lambda value: "bad" if value else ""),
        mode=st.sampled_from(Mode),
        paused=rarely,
        stopped=rarely,
        dependents_started=rarely.map(lambda value: ("12346",) if value else ()),
        twins=rarely.map(lambda value: ("12347",) if value else ()),
        nodes_usable=nodes,
        nodes_known=st.sampled_from([(), CLUSTER]),
        min_job_age_s=st.sampled_from([10, 300, 3600]),
        frozen=rarely.map(lambda value: "STOP file" if value else ""),
        own_faults=st.integers(0, 4),
        expected_restart=st.booleans(),
        force=force,
    )


by_itself = situations(st.none())
with_force = situations(st.one_of(st.none(), demands))
CHANGES = {Action.RESTART, Action.GUARD, Action.RELEASE, Action.ARM, Action.STOP}


@thorough
@given(with_force, policies)
def test_a_finished_or_cancelled_job_is_never_touched_not_even_by_force(one: Situation, policy: Policy) -> None:
    assert one.view is not None
    over = {JobState.COMPLETED, JobState.CANCELLED}
    ended_so = one.view.state in over
    by_accounting = one.row is not None and one.row.state in over
    if ended_so or (by_accounting and (one.view.state.is_final or one.view.state is JobState.COMPLETING)):
        assert decide(one, policy).action not in CHANGES


@thorough
@given(by_itself, policies)
def test_a_restart_is_advised_only_for_an_ended_batch_job_that_slurm_would_requeue(
    one: Situation, policy: Policy
) -> None:
    assert one.view is not None
    if decide(one, policy).action is Action.RESTART:
        assert one.view.state.is_final or one.view.state is JobState.COMPLETING
        assert one.view.batch
        assert one.view.requeue
        assert one.view.het_job_id is None
        assert not (one.twins or one.dependents_started or one.paused or one.stopped or one.frozen)
        assert one.opted_in
        assert not one.directive_error


@thorough
@given(by_itself, policies)
def test_no_node_outside_the_allocation_is_excluded(one: Situation, policy: Policy) -> None:
    assert one.view is not None
    advice = decide(one, policy)
    allocation = set(one.view.nodes)
    for other in (one.row, one.previous_row, *one.attempts):
        allocation |= set(other.nodes) if other is not None else set()
    assert set(advice.exclude) <= allocation
    assert not set(advice.exclude) & {*one.view.excluded, *one.view.required_nodes}
    assert set(advice.exclude) <= {suspect.node for suspect in one.verdict.suspects}
    if advice.exclude and one.nodes_known:
        left = set(one.nodes_usable) - {*one.view.excluded, *advice.exclude}
        assert len(left) >= max(1, one.view.min_nodes)


@thorough
@given(with_force, policies)
def test_force_excludes_only_nodes_that_are_known(one: Situation, policy: Policy) -> None:
    advice = decide(one, policy)
    assert "stranger" not in advice.exclude or "stranger" in _reach(one)


def _reach(one: Situation) -> set[str]:
    assert one.view is not None
    found = set(one.view.nodes) | set(one.nodes_known)
    for other in (one.row, one.previous_row, *one.attempts):
        found |= set(other.nodes) if other is not None else set()
    return found


@thorough
@given(by_itself, policies)
def test_no_budget_is_exceeded(one: Situation, policy: Policy) -> None:
    advice = decide(one, policy)
    left = {budget.name: budget.left for budget in advice.budgets}
    if advice.action is Action.RESTART and advice.rule != "own_fault":
        assert all(left[name] > 0 for name in GENERAL)
        assert advice.rule != "unknown" or left[UNKNOWN] > 0
    if advice.action is Action.RELEASE:
        assert left[LAUNCH] > 0
        assert left[IN_ALL] > 0
    if advice.action is Action.GUARD:
        assert all(left[name] > 0 for name in GENERAL)


@thorough
@given(with_force, policies)
def test_the_same_situation_always_gives_the_same_advice_and_it_says_why(one: Situation, policy: Policy) -> None:
    advice = decide(one, policy)
    again = decide(Situation.model_validate_json(one.model_dump_json()), Policy.model_validate(policy.model_dump()))
    assert advice == again
    assert advice.reason
    assert advice.rule != "no_rule"
    assert (advice.look_again_at is not None) == (advice.action is Action.WAIT)
    assert advice.look_again_at is None or advice.look_again_at > one.now


@thorough
@given(by_itself, policies)
def test_approval_is_asked_in_approve_mode_only_and_ends_before_slurm_forgets_the_job(
    one: Situation, policy: Policy
) -> None:
    assert one.view is not None
    advice = decide(one, policy)
    if not advice.needs_approval:
        return
    assert one.mode is Mode.APPROVE
    assert advice.acts
    assert advice.approve_within_s is not None
    parked = policy.park and advice.action is Action.RESTART
    if one.view.state.is_final and one.view.end_time is not None and not parked:
        forgotten = one.view.end_time + timedelta(seconds=one.min_job_age_s - 60)
        assert advice.approve_within_s == 0 or one.now + timedelta(seconds=advice.approve_within_s) <= forgotten


endings = st.builds(
    dict,
    fault_class=st.sampled_from(
        [
            FaultClass.HARDWARE,
            FaultClass.INTERCONNECT,
            FaultClass.STORAGE,
            FaultClass.APPLICATION,
            FaultClass.UNKNOWN,
            FaultClass.OUT_OF_MEMORY,
            FaultClass.SCHEDULER,
        ]
    ),
    signature=st.sampled_from(["a", "b", "c", "d"]),
    gain=st.integers(0, 3),
    own_fault=st.sampled_from([False, False, True]),
    exit_code=st.sampled_from([1, 1, 16]),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(endings, min_size=40, max_size=40), policies, st.booleans())
def test_a_job_that_always_fails_is_given_up_in_the_end(
    fates: list[dict[str, Any]], policy: Policy, sees_progress: bool
) -> None:
    """Whatever befalls the attempts: the restarts are bounded, by the budget in all and relight's own faults."""
    past: list[Attempt] = []
    step, own_faults, restarts = 0, 0, 0
    for number, fate in enumerate(fates):
        step += fate["gain"]
        now = at(1000 * number + 601)
        own = fate["own_fault"] and number > 0
        own_faults = own_faults + 1 if own else 0
        current = Attempt(
            number=number,
            state=JobState.FAILED,
            submit_time=at(1000 * number),
            start_time=at(1000 * number + 5),
            end_time=at(1000 * number + 600),
            nodes=CLUSTER[:4],
            last_step=step if sees_progress else None,
            own_fault=own,
            exit_code=fate["exit_code"],
        )
        cause = Verdict(fault_class=fate["fault_class"], signature=fate["signature"], reason="it broke")
        advice = decide(
            Situation(
                now=now,
                view=JobView(
                    cluster="prod",
                    job_id="1",
                    raw_id=1,
                    state=JobState.FAILED,
                    restarts=number,
                    nodes=CLUSTER[:4],
                    exit_code=fate["exit_code"],
                    submit_time=current.submit_time,
                    end_time=current.end_time,
                    looked_at=now,
                ),
                attempts=(*past, current),
                verdict=cause,
                mode=Mode.ACT,
                own_faults=own_faults,
                expected_restart=number > 0,
            ),
            policy,
        )
        if advice.action is not Action.RESTART:
            break
        restarts += 0 if own else 1
        past.append(
            current.model_copy(
                update={
                    "fault_class": cause.fault_class,
                    "signature": cause.signature,
                    "restarted_by": "relight",
                }
            )
        )
        charged = budgets(past, policy, Directive(), now)
        assert next(budget.used for budget in charged if budget.name == IN_ALL) <= policy.max_restarts
    else:
        raise AssertionError("40 failures in a row and still restarting")
    assert restarts <= policy.max_restarts
