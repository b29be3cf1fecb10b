"""What holds for every situation there could be: thousands of made-up jobs, clusters and attempts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from recovery.budgets import GENERAL, IN_ALL, LAUNCH, UNKNOWN, budgets
from recovery.directive import Directive
from recovery.hang import Hang, Stage
from recovery.incident_records import Incident, IncidentKind
from recovery.maintenance import Window
from recovery.policy import RULES, Demand, Policy, Situation, decide
from recovery.policy_numbers import OnStuck, RestartOn
from recovery.records import (
    Action,
    Advice,
    Attempt,
    AttemptRow,
    Confidence,
    FaultClass,
    Finding,
    JobState,
    JobView,
    Mode,
    Progress,
    Retry,
    Suspect,
    ToldCode,
    Verdict,
)
from recovery.straggler import Straggler
from tests.recovery.situations import CLUSTER, T0, at, finding

thorough = settings(max_examples=2500, deadline=None)

REASONS = (
    "",
    "Resources",
    "BeginTime",
    "launch failed requeued held",
    "launch_failed_requeued_held",
    "JobHeldAdmin",
    "DependencyNeverSatisfied",
)
SIGNATURES = ("", "xid.79", "nccl.timeout", "scheduler.launch_failed", "scheduler.node_fail")
USUAL_STATES = (
    JobState.FAILED,
    JobState.FAILED,
    JobState.NODE_FAIL,
    JobState.OUT_OF_MEMORY,
    JobState.TIMEOUT,
    JobState.PENDING,
    JobState.RUNNING,
)


class Maker:
    """Makes up a situation and a policy from a seed: quicker by far than drawing every field, and as repeatable.

    Half of the time fields are ordinary, so that the rules far down in the table are reached too.
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.ordinary = self.random.random() < 0.5

    def chance(self, of: float) -> bool:
        return self.random.random() < (of / 10 if self.ordinary else of)

    def one(self, *choices: Any) -> Any:
        return self.random.choice(choices)

    def some(self, choices: Sequence[Any], most: int) -> tuple[Any, ...]:
        return tuple(self.random.sample(choices, self.random.randint(0, min(most, len(choices)))))

    def number(self, low: int, high: int) -> int:
        return self.random.randint(low, high)

    def time(self) -> datetime | None:
        return None if self.chance(0.2) else at(self.number(-1000, 100_000))

    def step(self) -> int | None:
        if self.ordinary and self.random.random() < 0.8:
            return 30  # where the job always dies
        return None if self.chance(0.4) else self.number(0, 50)

    def nodes(self) -> tuple[str, ...]:
        return tuple(CLUSTER[:4]) if self.ordinary else self.some((*CLUSTER, "stranger"), 5)

    def state(self) -> JobState:
        state: JobState = self.one(*USUAL_STATES) if self.ordinary else self.one(*JobState)
        return state

    def attempt(self, number: int, cause: Verdict) -> Attempt:
        again = self.ordinary or self.chance(0.5)
        return Attempt(
            number=number,
            state=self.state(),
            submit_time=self.time(),
            start_time=self.time(),
            end_time=self.time(),
            nodes=self.nodes(),
            exit_code=self.one(0, 1, 16, 93, 143),
            told_codes=self.one((), (), (), (ToldCode(code=self.one(16, 93, 1), node=self.one("n02", "stranger")),)),
            first_step=self.step(),
            last_step=self.step(),
            last_checkpoint=self.step(),
            fault_class=cause.fault_class if again else self.one(None, *FaultClass),
            signature=cause.signature if again else self.one(*SIGNATURES),
            suspects=self.nodes(),
            own_fault=self.chance(0.2),
            ended_by_us=self.chance(0.2),
            restarted_by=self.one("", "relight", "slurm", "other"),
        )

    def view(self) -> JobView:
        return JobView(
            cluster="prod",
            job_id="12345",
            raw_id=12345,
            state=self.state(),
            reason=self.one(*REASONS),
            priority=self.one(None, 100, 100, 0),
            restarts=self.number(0, 2 if self.ordinary else 12),
            requeue=not self.chance(0.3),
            batch=not self.chance(0.1),
            exit_code=1 if self.ordinary and self.random.random() < 0.8 else self.one(0, 1, 16, 93),
            het_job_id=7 if self.chance(0.1) else None,
            submit_time=self.time(),
            start_time=self.time(),
            end_time=self.time(),
            nodes=self.nodes(),
            min_nodes=self.number(0, 8),
            excluded=self.some(CLUSTER, 2),
            required_nodes=("n01",) if self.chance(0.2) else (),
            looked_at=T0,
        )

    def row(self) -> AttemptRow | None:
        if self.chance(0.5):
            return None
        return AttemptRow(raw_id=1, state=self.state(), nodes=self.nodes())

    def verdict(self) -> Verdict:
        suspects = tuple(
            Suspect(node=node, how="said so", confidence=self.one(*Confidence), trusted=self.chance(0.5))
            for node in self.some((*CLUSTER, "stranger"), 6)
        )
        return Verdict(
            fault_class=self.one(*FaultClass),
            signature=self.one(*SIGNATURES),
            retry=self.one(Retry.YES, *Retry),
            suspects=suspects,
            reason="a reason",
        )

    def hang(self, restarts: int) -> Hang | None:
        if self.random.random() < 0.7:
            return None
        attempt = self.one(restarts, restarts, restarts + 1)
        return Hang(attempt=attempt, stage=self.one(*Stage), since=T0, limit_s=300, step=self.step())

    def straggler(self, restarts: int) -> Straggler | None:
        if self.random.random() < 0.7:
            return None
        attempt = self.one(restarts, restarts, restarts + 1)
        return Straggler(attempt=attempt, since=T0, drop=0.5, usual_s=1.0, nodes=self.nodes(), how="clock")

    def finding(self) -> Finding:
        if self.random.random() < 0.3:
            return finding(detector="nodes", attempt=self.number(0, 2), signature="node.rebooted", nodes=("n02",))
        if self.random.random() < 0.3:
            return finding(detector="metrics", attempt=self.number(0, 2), trusted=True, nodes=("n02",))
        return finding(attempt=self.number(0, 2), seen_at=at(self.number(0, 100_000)), retry=self.one(*Retry))

    def demand(self) -> Demand:
        return Demand(
            action=self.one("restart", "stop", "release", "dance"),
            exclude=self.nodes(),
            restart_count=self.one(None, None, self.number(0, 3)),
        )

    def situation(self, *, force: bool) -> Situation:
        job, cause = self.view(), self.verdict()
        numbers = sorted({*self.some(range(13), 4), job.restarts}) if self.random.random() < 0.9 else []
        if self.ordinary:
            numbers = list(range(job.restarts + 1))
        late: tuple[Finding, ...] = ()
        if job.state is JobState.PENDING and job.restarts and self.random.random() < 0.5:
            told = finding(detector="metrics", attempt=job.restarts - 1, trusted=True, nodes=("n02",))
            late = (told,)  # of the attempt before, while the restarted job waits
        now = at(self.number(0, 100_000))
        if job.state is JobState.PENDING and self.random.random() < 0.3:
            job = job.model_copy(update={"submit_time": now - timedelta(seconds=self.number(0, 60))})
        return Situation(
            now=now,
            view=job,
            row=self.row(),
            previous_row=self.row(),
            accounting=self.random.random() < 0.5,
            attempts=tuple(self.attempt(number, cause) for number in numbers),
            findings=(*(self.finding() for _ in range(self.number(0, 2))), *late),
            verdict=cause,
            progress=Progress(
                attempt=job.restarts, step=self.step(), checkpoint=self.step(), checkpoint_at=self.one(None, at(90_000))
            ),
            hang=self.hang(job.restarts),
            straggler=self.straggler(job.restarts),
            opted_in=not self.chance(0.1),
            directive=Directive(
                max_restarts=self.one(None, self.number(0, 20)),
                paused=self.chance(0.1),
                stop_codes=self.one((), (), (1,)),
            ),
            directive_error="bad" if self.chance(0.1) else "",
            mode=self.one(*Mode),
            paused=self.chance(0.1),
            stopped=self.chance(0.1),
            dependents_started=("12346",) if self.chance(0.1) else (),
            maintenance=(Window(begins=at(50_000), ends=at(60_000)),) if self.chance(0.2) else (),
            twins=("12347",) if self.chance(0.1) else (),
            nodes_usable=CLUSTER if self.ordinary else self.nodes(),
            nodes_known=self.one((), CLUSTER),
            min_job_age_s=self.one(10, 300, 3600, 100_000),
            frozen="STOP file" if self.chance(0.2) else "",
            own_faults=self.number(0, 4),
            expected_restart=bool(late) or self.random.random() < 0.3,
            declined=self.some(CLUSTER, 1),
            force=self.demand() if force and self.random.random() < 0.5 else None,
            incidents=self.incidents(cause),
        )

    def incidents(self, cause: Verdict) -> tuple[Incident, ...]:
        if self.random.random() < 0.8:
            return ()
        kind = self.one(*IncidentKind)
        return (
            Incident(
                id=f"{kind.value}-1",
                kind=kind,
                cause=cause.signature,
                opened_at=T0,
                last_at=at(self.number(0, 100_000)),
                jobs=3,
                only_user=self.one("", "", "mallory"),
                nodes=self.nodes(),
            ),
        )

    def policy(self) -> Policy:
        if self.ordinary:
            return Policy(
                restart_on=self.some(tuple(RestartOn), 2),
                stop_requeued=self.chance(0.5),
                straggler=self.one(*OnStuck),
                straggler_checkpoint_age_s=self.one(600, 100_000),
            )
        return Policy(
            max_restarts=self.number(0, 12),
            max_restarts_per_day=self.number(0, 12),
            max_restarts_same_cause=self.number(0, 4),
            max_restarts_no_new_checkpoint=self.number(0, 4),
            max_restarts_unknown=self.number(0, 3),
            max_restarts_launch=self.number(0, 3),
            max_node_hours_without_progress=self.random.uniform(0.1, 1000),
            max_excluded_share=self.random.uniform(0.01, 1.0),
            own_fault_limit=self.number(1, 4),
            backoff_s=self.one(0, 10, 300),
            purge_margin_s=self.number(10, 600),
            stop_requeued=self.chance(0.5),
            restart_on=self.some(tuple(RestartOn), 2),
            arm_requeue=self.chance(0.5),
            park=self.chance(0.5),
            hang=self.one(*OnStuck),
            straggler=self.one(*OnStuck),
        )


def made(seed: int, *, force: bool = False) -> tuple[Situation, Policy]:
    maker = Maker(seed)
    return maker.situation(force=force), maker.policy()


seeds = st.integers(0, 2**40)
CHANGES = {Action.RESTART, Action.GUARD, Action.RELEASE, Action.ARM, Action.STOP}


@thorough
@given(seeds)
def test_of_an_incident_only_a_repeated_suspect_is_excluded(seed: int) -> None:
    situation, policy = made(seed)
    advice = decide(situation, policy)
    if advice.rule == "incident":
        before = {node for one in situation.attempts if one.number < advice.restart_count for node in one.suspects}
        assert set(advice.exclude) <= before
        assert advice.exclude == () or situation.verdict.fault_class is FaultClass.HARDWARE


def test_the_made_up_situations_reach_every_rule() -> None:
    rules = {decide(*made(seed, force=seed % 2 == 0)).rule for seed in range(6000)}
    assert {rule.id for rule in RULES} - rules == set()


def a_finished_or_cancelled_job_is_never_touched(one: Situation, policy: Policy, advice: Advice) -> None:
    assert one.view is not None
    over = {JobState.COMPLETED, JobState.CANCELLED}
    ended_so = one.view.state in over
    by_accounting = one.row is not None and one.row.state in over
    if ended_so or (by_accounting and (one.view.state.is_final or one.view.state is JobState.COMPLETING)):
        assert advice.action not in CHANGES


def a_restart_is_advised_only_for_an_ended_or_stuck_batch_job_that_slurm_would_requeue(
    one: Situation, policy: Policy, advice: Advice
) -> None:
    assert one.view is not None
    if advice.action is Action.RESTART:
        over = one.view.state.is_final or one.view.state is JobState.COMPLETING
        assert over or is_stuck(one, policy)
        assert one.view.batch
        assert one.view.requeue
        assert one.view.het_job_id is None
        assert not (one.twins or one.dependents_started or one.paused or one.stopped or one.frozen)
        assert one.opted_in
        assert not one.directive_error


def is_stuck(one: Situation, policy: Policy) -> bool:
    assert one.view is not None
    if one.view.state is not JobState.RUNNING:
        return False
    hangs = one.hang is not None and one.hang.attempt == one.view.restarts
    if hangs:
        assert one.hang is not None
        return one.hang.stage is not Stage.SUSPECTED and policy.hang is OnStuck.RESTART
    lags = one.straggler is not None and one.straggler.attempt == one.view.restarts
    return lags and policy.straggler is OnStuck.RESTART and one.progress.checkpoint_at is not None


def a_running_job_is_changed_only_when_it_is_stuck(one: Situation, policy: Policy, advice: Advice) -> None:
    assert one.view is not None
    if one.view.state is JobState.RUNNING and advice.action in CHANGES - {Action.ARM} and one.force is None:
        assert is_stuck(one, policy)


def no_node_outside_the_allocation_is_excluded(one: Situation, policy: Policy, advice: Advice) -> None:
    assert one.view is not None
    allocation = set(one.view.nodes)
    for other in (one.row, one.previous_row, *one.attempts):
        allocation |= set(other.nodes) if other is not None else set()
    assert set(advice.exclude) <= allocation
    assert not set(advice.exclude) & {*one.view.excluded, *one.view.required_nodes}
    asked = {told.node for other in one.attempts for told in other.told_codes}
    alone = allocation if len(allocation) == 1 else set()
    assert set(advice.exclude) <= {*(suspect.node for suspect in one.verdict.suspects), *asked, *alone}
    if advice.exclude and one.nodes_known:
        left = set(one.nodes_usable) - {*one.view.excluded, *advice.exclude}
        assert len(left) >= max(1, one.view.min_nodes)


def only_nodes_that_are_known_are_excluded(one: Situation, policy: Policy, advice: Advice) -> None:
    assert "stranger" not in advice.exclude or "stranger" in _reach(one)


def _reach(one: Situation) -> set[str]:
    assert one.view is not None
    found = set(one.view.nodes) | set(one.nodes_known)
    for other in (one.row, one.previous_row, *one.attempts):
        found |= set(other.nodes) if other is not None else set()
    return found


def no_budget_is_exceeded(one: Situation, policy: Policy, advice: Advice) -> None:
    left = {budget.name: budget.left for budget in advice.budgets}
    if advice.action is Action.RESTART and advice.rule != "own_fault":
        assert all(left[name] > 0 for name in GENERAL)
        assert advice.rule != "unknown" or left[UNKNOWN] > 0
    if advice.action is Action.RELEASE:
        assert left[LAUNCH] > 0
        assert left[IN_ALL] > 0
    if advice.action is Action.GUARD and advice.rule != "blamed_late":  # which adds to a restart that is paid for
        assert all(left[name] > 0 for name in GENERAL)


def the_same_situation_always_gives_the_same_advice_and_it_says_why(
    one: Situation, policy: Policy, advice: Advice
) -> None:
    again = decide(Situation.model_validate_json(one.model_dump_json()), Policy.model_validate(policy.model_dump()))
    assert advice == again
    assert advice.reason
    assert advice.rule != "no_rule"
    assert (advice.look_again_at is not None) == (advice.action is Action.WAIT)
    assert advice.look_again_at is None or advice.look_again_at > one.now


def approval_is_asked_in_approve_mode_only_and_ends_before_slurm_forgets_the_job(
    one: Situation, policy: Policy, advice: Advice
) -> None:
    assert one.view is not None
    if not advice.needs_approval:
        return
    assert one.mode is Mode.APPROVE
    assert advice.acts
    assert advice.approve_within_s is not None
    parked = policy.park and advice.action is Action.RESTART
    if one.view.state.is_final and one.view.end_time is not None and not parked:
        forgotten = one.view.end_time + timedelta(seconds=max(0, one.min_job_age_s - policy.purge_margin_s))
        assert advice.approve_within_s == 0 or one.now + timedelta(seconds=advice.approve_within_s) <= forgotten


def a_foreign_requeue_stays_in_foreign_hands(one: Situation, policy: Policy, advice: Advice) -> None:
    """What somebody else has requeued is never restarted, stopped or released; a node failure may be guarded."""
    assert one.view is not None
    if one.view.state is JobState.PENDING and one.view.restarts > 0 and not one.expected_restart:
        assert advice.action is not Action.RESTART
        launch = "launch" in one.view.reason.lower()
        assert advice.action is not Action.RELEASE or launch
    if one.view.state is JobState.REQUEUED:
        assert advice.action not in CHANGES


def a_late_start_is_given_to_restarts_only_and_never_for_long(one: Situation, policy: Policy, advice: Advice) -> None:
    if advice.not_before is None:
        return
    assert advice.action is Action.RESTART
    assert advice.not_before > one.now
    in_the_way = [window.ends for window in one.maintenance]
    longest = one.now + timedelta(seconds=policy.backoff_most_s)
    assert advice.not_before <= max([longest, *in_the_way])


def no_more_nodes_are_excluded_than_the_policys_share(one: Situation, policy: Policy, advice: Advice) -> None:
    if one.nodes_known:
        assert len(advice.exclude) <= max(1, int(policy.max_excluded_share * len(one.nodes_known)))


def the_facts_are_short(one: Situation, policy: Policy, advice: Advice) -> None:
    assert len(advice.facts) <= 20
    assert all(0 < len(fact) <= 200 for fact in advice.facts)
    assert advice.facts or advice.routine


HOLDS = (
    a_foreign_requeue_stays_in_foreign_hands,
    a_late_start_is_given_to_restarts_only_and_never_for_long,
    no_more_nodes_are_excluded_than_the_policys_share,
    the_facts_are_short,
    a_restart_is_advised_only_for_an_ended_or_stuck_batch_job_that_slurm_would_requeue,
    a_running_job_is_changed_only_when_it_is_stuck,
    no_node_outside_the_allocation_is_excluded,
    no_budget_is_exceeded,
    approval_is_asked_in_approve_mode_only_and_ends_before_slurm_forgets_the_job,
)


HOLDS_UNDER_FORCE = (
    a_finished_or_cancelled_job_is_never_touched,
    only_nodes_that_are_known_are_excluded,
    the_same_situation_always_gives_the_same_advice_and_it_says_why,
)


@thorough
@given(seeds)
def test_what_holds_even_under_force_holds_in_every_situation(seed: int) -> None:
    one, policy = made(seed, force=True)
    advice = decide(one, policy)
    for holds in HOLDS_UNDER_FORCE:
        holds(one, policy, advice)


@thorough
@given(seeds)
def test_what_holds_without_an_operator_holds_in_every_situation(seed: int) -> None:
    one, policy = made(seed)
    advice = decide(one, policy)
    for holds in HOLDS:
        holds(one, policy, advice)


@thorough
@given(seeds)
def test_a_job_that_always_fails_is_given_up_in_the_end(seed: int) -> None:
    """Whatever befalls the attempts: the restarts are bounded, by the budget in all and relight's own faults."""
    maker = Maker(seed)
    maker.ordinary = False
    policy = maker.policy()
    sees_progress = maker.chance(0.7)
    past: list[Attempt] = []
    step, own_faults, restarts = 0, 0, 0
    for number in range(60):
        step += maker.number(0, 3)
        now = at(1000 * number + 601)
        own = maker.chance(0.3) and number > 0
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
            exit_code=maker.one(1, 1, 16),
        )
        cause = Verdict(fault_class=maker.one(*FaultClass), signature=maker.one("a", "b", "c"), reason="it broke")
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
                    exit_code=current.exit_code,
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
        raise AssertionError("60 failures in a row and still restarting")
    assert restarts <= policy.max_restarts
