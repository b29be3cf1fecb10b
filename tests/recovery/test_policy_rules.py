"""The default table: which rule answers in which situation, and what it advises."""

from typing import Any

import pytest

from recovery.directive import Directive
from recovery.policy import RULES, Policy, Situation, decide, rules_table_markdown
from recovery.policy_numbers import RestartOn
from recovery.records import Action, Advice, Confidence, FaultClass, JobState, Mode, Progress, Retry, Role
from tests.recovery.situations import NODES, T0, at, attempt, finding, row, situation, suspect, verdict, view

DEFAULT = Policy()


def told(one: Situation, policy: Policy = DEFAULT) -> tuple[Action, str]:
    advice = decide(one, policy)
    return advice.action, advice.rule


LEAVE = Action.LEAVE_ALONE


@pytest.mark.parametrize(
    ("job", "more", "expected"),
    [
        # not ours to touch
        (view(), {"opted_in": False}, (LEAVE, "not_opted_in")),
        (view(), {"directive_error": "bad"}, (LEAVE, "bad_directive")),
        (view(), {"stopped": True}, (LEAVE, "stopped")),
        (view(JobState.COMPLETED), {}, (LEAVE, "finished")),
        (view(JobState.CANCELLED), {}, (LEAVE, "cancelled")),
        (view(JobState.PREEMPTED), {}, (LEAVE, "preempted")),
        (view(JobState.DEADLINE), {}, (LEAVE, "deadline")),
        (view(JobState.PENDING, restarts=1, submit_time=at(500)), {}, (LEAVE, "requeued_elsewhere")),
        (view(JobState.PENDING, restarts=1, submit_time=at(600)), {}, (Action.WAIT, "requeue_not_told")),
        (
            view(JobState.PENDING, restarts=1, submit_time=at(600)),
            {"previous_row": row(JobState.RUNNING)},
            (Action.WAIT, "requeue_not_told"),
        ),
        (
            view(JobState.PENDING, restarts=1, submit_time=at(600)),
            {"previous_row": row(JobState.REQUEUED)},
            (LEAVE, "requeued_elsewhere"),
        ),
        (
            view(JobState.PENDING, restarts=1, submit_time=at(600)),
            {"accounting": False},
            (LEAVE, "requeued_elsewhere"),
        ),
        (view(batch=False), {}, (LEAVE, "interactive")),
        (view(het_job_id=12345), {}, (LEAVE, "heterogeneous")),
        (view(JobState.PENDING, reason="DependencyNeverSatisfied"), {}, (LEAVE, "dependency_never")),
        (view(JobState.COMPLETING), {}, (Action.WAIT, "completing")),
        (view(JobState.UNKNOWN), {}, (LEAVE, "state_unknown")),
        (view(), {"dependents_started": ("12346",)}, (LEAVE, "dependent_started")),
        (view(), {"twins": ("12399",)}, (LEAVE, "twin")),
        (view(JobState.TIMEOUT), {}, (LEAVE, "timeout")),
        (view(JobState.SUSPENDED), {}, (LEAVE, "suspended")),
        (view(JobState.STOPPED), {}, (LEAVE, "suspended")),
        (view(), {"paused": True, "paused_by": "bob"}, (LEAVE, "paused")),
        (view(), {"directive": Directive(paused=True)}, (LEAVE, "paused")),
        (view(), {"verdict": verdict(FaultClass.SCHEDULER, retry=Retry.HANDS_OFF)}, (LEAVE, "hands_off")),
        (view(), {"frozen": "STOP file"}, (Action.WAIT, "frozen")),
        # alive
        (
            view(JobState.PENDING, restarts=1, reason="launch_failed_requeued_held", priority=0),
            {},
            (Action.RELEASE, "launch_failed"),
        ),
        (view(JobState.SPECIAL_EXIT, reason="JobHeldUser"), {}, (LEAVE, "held")),
        (view(JobState.PENDING, priority=0, reason="JobHeldAdmin"), {}, (LEAVE, "held")),
        (view(JobState.RUNNING, requeue=False), {}, (Action.ARM, "arm")),
        (view(JobState.PENDING, requeue=False), {}, (Action.ARM, "arm")),
        (view(JobState.RUNNING, requeue=False), {"frozen": "STOP file"}, (Action.WAIT, "arm")),
        (view(JobState.RUNNING), {}, (LEAVE, "running")),
        (view(JobState.CONFIGURING), {}, (LEAVE, "running")),
        (view(JobState.RESIZING), {}, (LEAVE, "running")),
        (view(JobState.RUNNING), {"findings": (finding(),)}, (Action.WAIT, "in_job_retry")),
        (view(JobState.PENDING, reason="Resources"), {}, (LEAVE, "waiting")),
        (view(JobState.PENDING, restarts=1), {"expected_restart": True}, (LEAVE, "waiting")),
        (view(JobState.REQUEUED), {}, (LEAVE, "requeued_elsewhere")),
        # stopping
        (view(exit_code=93), {}, (Action.STOP, "stop_code")),
        (view(exit_code=42), {"directive": Directive(stop_codes=(42,))}, (Action.STOP, "stop_code")),
        (view(), {"directive": Directive(max_restarts=0)}, (Action.STOP, "budget_spent")),
        (
            view(),
            {"verdict": verdict(FaultClass.USER, signature="import", retry=Retry.NO)},
            (Action.STOP, "cannot_help"),
        ),
        (view(), {"verdict": verdict(FaultClass.USER, signature="import")}, (Action.STOP, "cannot_help")),
        (
            view(),
            {"verdict": verdict(FaultClass.STORAGE, signature="enospc", retry=Retry.NO)},
            (Action.STOP, "cannot_help"),
        ),
        (view(requeue=False), {}, (LEAVE, "not_restartable")),
        (view(JobState.NODE_FAIL, requeue=False), {}, (LEAVE, "not_restartable")),
        # restarting
        (view(), {}, (Action.RESTART, "suspect")),
        (view(JobState.NODE_FAIL), {}, (Action.RESTART, "suspect")),
        (view(), {"verdict": verdict(FaultClass.INTERCONNECT)}, (Action.RESTART, "infrastructure")),
        (view(), {"verdict": verdict(FaultClass.STORAGE)}, (Action.RESTART, "infrastructure")),
        (view(), {"verdict": verdict(FaultClass.SYSTEM_SOFTWARE)}, (Action.RESTART, "infrastructure")),
        (view(JobState.BOOT_FAIL), {"verdict": verdict(FaultClass.UNKNOWN)}, (Action.RESTART, "infrastructure")),
        (
            view(JobState.OUT_OF_MEMORY),
            {"verdict": verdict(FaultClass.OUT_OF_MEMORY)},
            (Action.RESTART, "out_of_memory"),
        ),
        (view(), {"verdict": verdict(FaultClass.APPLICATION, retry=Retry.ONCE)}, (Action.RESTART, "application")),
        (view(), {"verdict": verdict(FaultClass.USER, retry=Retry.ONCE)}, (Action.RESTART, "application")),
        (view(exit_code=16), {"verdict": verdict(FaultClass.UNKNOWN)}, (Action.RESTART, "asks_elsewhere")),
        (view(), {"verdict": verdict(FaultClass.UNKNOWN, signature="")}, (Action.RESTART, "unknown")),
        (
            view(),
            {"verdict": verdict(FaultClass.NONE, signature=""), "findings": (finding(),)},
            (LEAVE, "nothing_broke"),
        ),
        # A job that failed without a word has failed all the same.
        (
            view(),
            {"verdict": verdict(FaultClass.NONE, signature="", retry=Retry.HANDS_OFF)},
            (Action.RESTART, "unknown"),
        ),
    ],
)
def test_the_default_table(job: Any, more: dict[str, Any], expected: tuple[Action, str]) -> None:
    assert told(situation(job, **more)) == expected


@pytest.mark.parametrize("state", list(JobState))
def test_every_state_of_slurm_has_a_row(state: JobState) -> None:
    assert decide(situation(view(state)), DEFAULT).rule in {rule.id for rule in RULES}


def test_rules_have_unique_ids_and_answer_with_their_own() -> None:
    ids = [rule.id for rule in RULES]
    assert len(ids) == len(set(ids))
    assert all(rule.decide.__name__ == rule.id for rule in RULES)


def test_the_documented_table_has_one_row_for_each_rule_in_order() -> None:
    lines = rules_table_markdown().splitlines()
    assert [line.split("`")[1] for line in lines[2:]] == ["gone", *(rule.id for rule in RULES)]
    assert all(line.count(" | ") == 2 for line in (lines[0], *lines[2:]))


def test_a_job_that_slurm_forgot_is_left_alone_with_the_setting_to_raise() -> None:
    advice = decide(
        situation(attempts=(attempt(0, fault_class=FaultClass.HARDWARE),)).model_copy(update={"view": None}), DEFAULT
    )
    assert (advice.action, advice.rule) == (LEAVE, "gone")
    assert "MinJobAge" in advice.reason


# ------------------------------------------------------------------------------------------------ COMPLETING


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (JobState.CANCELLED, (LEAVE, "cancelled")),
        (JobState.COMPLETED, (LEAVE, "finished")),
        (JobState.REQUEUED, (LEAVE, "requeued_elsewhere")),
        (JobState.FAILED, (Action.RESTART, "suspect")),
        (JobState.RUNNING, (Action.WAIT, "completing")),
    ],
)
def test_while_completing_accounting_tells_how_it_ended(state: JobState, expected: tuple[Action, str]) -> None:
    assert told(situation(view(JobState.COMPLETING), row=row(state))) == expected


def test_what_accounting_holds_for_cancelled_is_never_revived() -> None:
    assert told(situation(view(JobState.FAILED), row=row(JobState.CANCELLED, cancelled_by=1000))) == (
        LEAVE,
        "cancelled",
    )


def test_looks_at_a_long_epilog_thin_out_and_stay_bounded() -> None:
    waits = []
    for seconds in (0, 1, 10, 60, 3600):
        now = at(600 + seconds)
        look = decide(situation(view(JobState.COMPLETING), now=now), DEFAULT).look_again_at
        assert look is not None
        waits.append((look - now).total_seconds())
    assert waits == [2, 2, 5, 30, 30]


# ------------------------------------------------------------------------------------------------ requeued by Slurm


def requeued(**more: Any) -> Situation:
    """A node failed; Slurm requeued the job, which waits for its BeginTime."""
    job = view(JobState.PENDING, restarts=1, submit_time=at(700), start_time=at(821), reason="BeginTime")
    usual: dict[str, Any] = {
        "now": at(701),
        "previous_row": row(JobState.NODE_FAIL),
        "attempts": (
            attempt(0, submit_time=T0, state=JobState.NODE_FAIL),
            attempt(1, state=JobState.PENDING, nodes=()),
        ),
        "verdict": verdict(FaultClass.HARDWARE, suspect("n02"), signature="scheduler.node_fail"),
    }
    return situation(job, **{**usual, **more})


def test_a_node_failure_that_slurm_requeued_is_guarded_not_requeued_again() -> None:
    advice = decide(requeued(), DEFAULT)
    assert (advice.action, advice.rule, advice.exclude, advice.restart_count) == (
        Action.GUARD,
        "node_fail_requeued",
        ("n02",),
        1,
    )


def test_without_accounting_the_recorded_attempt_tells_that_a_node_failed() -> None:
    assert told(requeued(previous_row=None, accounting=False)) == (Action.GUARD, "node_fail_requeued")


def test_a_guard_that_is_in_place_is_not_repeated() -> None:
    one = requeued()
    assert one.view is not None
    guarded = one.model_copy(update={"view": one.view.model_copy(update={"excluded": ("n02",)})})
    assert told(guarded) == (LEAVE, "node_fail_requeued")


def test_a_node_outside_the_failed_attempt_is_not_excluded_by_a_guard() -> None:
    assert told(requeued(verdict=verdict(FaultClass.HARDWARE, suspect("n07")))) == (LEAVE, "node_fail_requeued")


def test_a_spent_budget_stops_a_requeued_attempt_only_where_the_policy_says_so() -> None:
    spent = requeued(directive=Directive(max_restarts=0))
    assert told(spent) == (LEAVE, "budget_spent")
    assert told(spent, Policy(stop_requeued=True)) == (Action.STOP, "budget_spent")


def test_a_requeue_by_somebody_else_is_left_alone() -> None:
    assert told(requeued(previous_row=row(JobState.REQUEUED))) == (LEAVE, "requeued_elsewhere")


def test_a_launch_that_keeps_failing_is_released_only_within_its_budget() -> None:
    def held(count: int) -> Situation:
        job = view(JobState.PENDING, restarts=count, priority=0, reason="launch failed requeued held")
        past = tuple(
            attempt(number, signature="scheduler.launch_failed", fault_class=FaultClass.SCHEDULER)
            for number in range(count + 1)
        )
        return situation(job, attempts=past, verdict=verdict(FaultClass.SCHEDULER, signature="scheduler.launch_failed"))

    assert [told(held(count))[0] for count in range(1, 6)] == [Action.RELEASE] * 2 + [LEAVE] * 3
    assert decide(held(4), DEFAULT).notify
    assert told(held(4), Policy(stop_requeued=True)) == (Action.STOP, "launch_failed")


# ------------------------------------------------------------------------------------------------ exclusions


def excluded(**more: Any) -> tuple[str, ...]:
    policy = more.pop("policy", DEFAULT)
    return decide(situation(**more), policy).exclude


def test_only_nodes_of_the_jobs_own_allocation_are_excluded() -> None:
    assert excluded(verdict=verdict(FaultClass.HARDWARE, suspect("n07"), suspect("n02"))) == ("n02",)


def test_a_weak_suspect_is_excluded_only_when_it_repeats_there() -> None:
    weak = verdict(FaultClass.HARDWARE, suspect("n02", Confidence.LOW))
    job = view(restarts=1, submit_time=at(1000))
    assert excluded(verdict=weak) == ()
    assert excluded(job=job, verdict=weak, attempts=(attempt(0, suspects=("n03",)), attempt(1))) == ()
    assert excluded(job=job, verdict=weak, attempts=(attempt(0, suspects=("n02",)), attempt(1))) == ("n02",)


def test_a_storage_fault_excludes_a_node_only_when_it_repeats_there() -> None:
    storage = verdict(FaultClass.STORAGE, suspect("n02"), signature="estale")
    job = view(restarts=1, submit_time=at(1000))
    assert excluded(verdict=storage) == ()
    assert excluded(job=job, verdict=storage, attempts=(attempt(0, suspects=("n02",)), attempt(1))) == ("n02",)


def test_no_exclusion_strands_the_job() -> None:
    both = verdict(FaultClass.HARDWARE, suspect("n02"), suspect("n03", Confidence.MEDIUM))
    assert excluded(verdict=both, nodes_usable=NODES, nodes_known=NODES) == ()
    share = Policy(max_excluded_share=1.0)
    five = (*NODES, "n05")
    # Of two, the surer one goes.
    assert excluded(verdict=both, nodes_usable=five, nodes_known=five, policy=share) == ("n02",)
    assert excluded(verdict=both, policy=share) == ("n02", "n03")
    # A suspect that is down is no usable node anyway.
    assert excluded(nodes_usable=("n01", "n03", "n04", "n05"), nodes_known=five) == ("n02",)


def test_a_node_the_job_requires_is_not_excluded() -> None:
    assert excluded(job=view(required_nodes=("n02",))) == ()


def test_one_job_never_avoids_more_than_the_policys_share_of_the_cluster() -> None:
    everyone = verdict(FaultClass.HARDWARE, *(suspect(node) for node in NODES))
    assert len(excluded(verdict=everyone, policy=Policy(max_excluded_share=0.25))) == 2
    assert len(excluded(verdict=everyone, policy=Policy(max_excluded_share=0.01))) == 1


def test_nodes_that_are_excluded_already_are_not_named_again() -> None:
    assert excluded(job=view(excluded=("n02",))) == ()


def test_the_allocation_is_known_although_the_node_list_shrinks_while_completing() -> None:
    job = view(JobState.COMPLETING, nodes=("n04",))
    assert excluded(job=job, row=row(JobState.FAILED)) == ("n02",)


# ------------------------------------------------------------------------------------------------ stopping


def test_an_error_retried_once_is_stopped_the_second_time() -> None:
    once = verdict(FaultClass.APPLICATION, signature="illegal_access", retry=Retry.ONCE)
    past = (attempt(0, fault_class=FaultClass.APPLICATION, signature="illegal_access"), attempt(1))
    second = situation(view(restarts=1, submit_time=at(1000)), verdict=once, attempts=past)
    assert told(situation(verdict=once)) == (Action.RESTART, "application")
    assert told(second) == (Action.STOP, "once_spent")


def test_out_of_memory_twice_at_the_same_step_stops() -> None:
    def second(step: int | None) -> Situation:
        first = attempt(0, fault_class=FaultClass.OUT_OF_MEMORY, signature="oom", last_step=120)
        return situation(
            view(JobState.OUT_OF_MEMORY, restarts=1, submit_time=at(1000)),
            verdict=verdict(FaultClass.OUT_OF_MEMORY, signature="oom"),
            attempts=(first, attempt(1)),
            progress=Progress(attempt=1, step=step),
        )

    assert told(second(120)) == (Action.STOP, "out_of_memory_again")
    assert told(second(180)) == (Action.RESTART, "out_of_memory")
    assert told(second(None)) == (Action.RESTART, "out_of_memory")


def test_our_own_fault_is_restarted_free_of_charge_up_to_its_limit() -> None:
    def died(own_faults: int) -> Situation:
        past = (attempt(0, fault_class=FaultClass.HARDWARE, signature="xid.79"), attempt(1, own_fault=True))
        job = view(restarts=1, submit_time=at(1000))
        return situation(job, attempts=past, own_faults=own_faults, directive=Directive(max_restarts=1))

    assert told(died(1)) == (Action.RESTART, "own_fault")
    assert told(died(3)) == (LEAVE, "own_fault")


def test_timeout_and_preemption_are_restarted_where_the_policy_names_them() -> None:
    policy = Policy(restart_on=(RestartOn.TIMEOUT, RestartOn.PREEMPTED))
    ended = verdict(FaultClass.NONE, signature="scheduler.timeout", retry=Retry.HANDS_OFF)
    assert told(situation(view(JobState.TIMEOUT), verdict=ended), policy) == (Action.RESTART, "named_ending")
    assert told(situation(view(JobState.PREEMPTED), verdict=ended), policy) == (Action.RESTART, "named_ending")


def test_a_stop_is_told_with_the_history_that_shows_it() -> None:
    past = tuple(attempt(n, fault_class=FaultClass.HARDWARE, signature="xid.79", last_step=100) for n in range(5))
    advice = decide(situation(view(restarts=4, submit_time=at(4000)), now=at(4601), attempts=past), DEFAULT)
    assert (advice.action, advice.notify) == (Action.STOP, True)
    assert "same_cause 4 of 3" in advice.reason
    assert "0 xid.79 after step 100" in advice.reason


# ------------------------------------------------------------------------------------------------ a running job


def test_a_running_job_that_completed_a_step_after_its_fault_has_helped_itself() -> None:
    went_on = Progress(attempt=0, step=7, step_at=at(400))
    assert told(situation(view(JobState.RUNNING), findings=(finding(),), progress=went_on)) == (LEAVE, "running")


def test_a_running_job_is_given_the_policys_time_after_a_fault_and_then_reported() -> None:
    seen = situation(view(JobState.RUNNING), findings=(finding(),), now=at(301))
    advice = decide(seen, DEFAULT)
    assert (advice.action, advice.look_again_at) == (Action.WAIT, at(300 + 1800))
    late = decide(seen.model_copy(update={"now": at(300 + 1800)}), DEFAULT)
    assert (late.action, late.rule, late.notify) == (LEAVE, "in_job_retry", True)


@pytest.mark.parametrize(
    "harmless", [{"role": Role.SYMPTOM}, {"attempt": 3}, {"fault_class": FaultClass.NONE}, {"retry": Retry.HANDS_OFF}]
)
def test_what_is_no_root_fault_of_this_attempt_does_not_count_while_running(harmless: dict[str, Any]) -> None:
    assert told(situation(view(JobState.RUNNING), findings=(finding(**harmless),))) == (LEAVE, "running")


def test_arming_can_be_switched_off() -> None:
    assert told(situation(view(JobState.RUNNING, requeue=False)), Policy(arm_requeue=False)) == (LEAVE, "running")


# ------------------------------------------------------------------------------------------------ frozen


def test_a_frozen_cluster_is_waited_for_and_then_ordinary_scheduling_goes_on() -> None:
    def frozen(seconds: float, **more: Any) -> Advice:
        return decide(situation(now=at(600 + seconds), frozen="STOP file", **more), DEFAULT)

    assert frozen(1).look_again_at == at(616)
    assert (frozen(239).action, frozen(239).look_again_at) == (Action.WAIT, at(840))
    assert (frozen(240).action, frozen(240).rule, frozen(240).notify) == (LEAVE, "frozen", True)
    # Slurm forgets a failed job MinJobAge after its end: no wait is longer than that less a minute.
    assert frozen(61, min_job_age_s=120).action is LEAVE


def test_a_healthy_job_does_not_wait_for_a_frozen_cluster() -> None:
    assert told(situation(view(JobState.RUNNING), frozen="STOP file")) == (LEAVE, "running")


# ------------------------------------------------------------------------------------------------ approval


def asked(policy: Policy = DEFAULT, **more: Any) -> Advice:
    return decide(situation(mode=Mode.APPROVE, **more), policy)


def test_in_approve_mode_a_change_waits_for_a_yes_but_not_longer_than_slurm_remembers() -> None:
    assert (asked().needs_approval, asked().approve_within_s) == (True, 239)
    assert asked(now=at(900)).approve_within_s == 0
    assert asked(Policy(approve_wait_s=20)).approve_within_s == 20
    assert asked(Policy(park=True)).approve_within_s == 1800
    assert asked(job=view(JobState.RUNNING, requeue=False)).approve_within_s == 1800


def test_silence_leaves_alone_unless_the_policy_says_restart() -> None:
    assert asked().on_silence is LEAVE
    assert asked(Policy.model_validate({"on_silence": "restart"})).on_silence is Action.RESTART


def test_a_guard_is_approved_before_slurm_starts_the_job() -> None:
    advice = decide(requeued(mode=Mode.APPROVE), DEFAULT)
    assert (advice.action, advice.needs_approval, advice.approve_within_s) == (Action.GUARD, True, 119)


def test_nothing_that_changes_nothing_needs_approval() -> None:
    assert not asked(job=view(JobState.COMPLETED)).needs_approval
    stop = asked(job=view(exit_code=93))
    assert (stop.action, stop.needs_approval) == (Action.STOP, False)


@pytest.mark.parametrize("mode", [Mode.MONITOR, Mode.ACT])
def test_other_modes_need_no_approval_and_are_written_on_the_advice(mode: Mode) -> None:
    advice = decide(situation(mode=mode), DEFAULT)
    assert (advice.needs_approval, advice.mode) == (False, mode)


def test_advice_carries_what_the_record_needs() -> None:
    one = situation(policy_name="pretraining", policy_hash="abc", catalogue_hash="def")
    advice = decide(one, DEFAULT)
    assert (advice.policy, advice.policy_hash, advice.catalogue_hash) == ("pretraining", "abc", "def")
    assert (advice.fault_class, advice.signature) == (FaultClass.HARDWARE, "xid.79")
    assert {budget.name for budget in advice.budgets} >= {"restarts", "same_cause", "unknown"}
    assert decide(situation(), DEFAULT).policy_hash == DEFAULT.hash


# ------------------------------------------------------------------------------------------------ told late


def waiting_again(**more: Any) -> Situation:
    """Relight has restarted the job, it waits, and metrics tell of its first attempt now."""
    job = view(JobState.PENDING, restarts=1, submit_time=at(1000), excluded=more.pop("excluded", ()))
    usual: dict[str, Any] = {
        "attempts": (attempt(0), attempt(1, state=JobState.PENDING, nodes=(), start_time=None, end_time=None)),
        "findings": (finding(detector="metrics", trusted=True, nodes=("n03",)),),
        "verdict": verdict(FaultClass.HARDWARE, suspect("n03")),
        "expected_restart": True,
    }
    return situation(job, **{**usual, **more})


def test_a_node_that_is_blamed_while_the_job_waits_is_excluded_as_well() -> None:
    advice = decide(waiting_again(excluded=("n08",)), Policy())
    assert (advice.action, advice.rule, advice.exclude) == (Action.GUARD, "blamed_late", ("n03",))
    assert advice.restart_count == 1


@pytest.mark.parametrize(
    "more",
    [
        {"excluded": ("n03",)},
        {"declined": ("n03",)},
        {"findings": ()},
        {"findings": (finding(nodes=("n03",)),)},
        {"verdict": verdict(FaultClass.HARDWARE, suspect("n07"))},
        {"nodes_usable": ("n01", "n02", "n03", "n04")},
        {"expected_restart": False, "previous_row": row(JobState.REQUEUED)},
    ],
    ids=["excluded", "given-up", "nothing-new", "only-the-log", "another-jobs-node", "too-few-nodes", "not-ours"],
)
def test_a_job_that_waits_is_left_alone_where_nothing_can_be_added(more: dict[str, Any]) -> None:
    assert decide(waiting_again(**more), Policy()).action is Action.LEAVE_ALONE


def test_a_paused_or_frozen_job_is_not_guarded_late() -> None:
    assert decide(waiting_again(paused=True), Policy()).rule == "paused"
    assert decide(waiting_again(frozen="STOP"), Policy()).rule == "frozen"
