"""How attempts use up budgets, and what refills them."""

from typing import Any

from recovery.budgets import advanced, budgets, spent
from recovery.directive import Directive
from recovery.policy import Policy
from recovery.records import Attempt, FaultClass, JobState
from tests.recovery.situations import at, attempt


def used(attempts: list[Attempt], now_s: float = 10_000, **policy: Any) -> dict[str, float]:
    found = budgets(attempts, Policy(**policy), Directive(), at(now_s))
    return {budget.name: budget.used for budget in found}


def hardware(number: int, **more: Any) -> Attempt:
    return attempt(number, **{"fault_class": FaultClass.HARDWARE, "signature": "xid.79", "last_step": 100, **more})


def unknown(number: int, **more: Any) -> Attempt:
    return attempt(number, **{"fault_class": FaultClass.UNKNOWN, "last_step": 100, **more})


def test_the_first_failure_has_used_nothing() -> None:
    assert set(used([hardware(0)]).values()) == {0}


def test_each_restart_that_brought_nothing_counts_everywhere() -> None:
    counts = used([hardware(0), hardware(1), hardware(2)])
    assert (counts["restarts"], counts["same_cause"], counts["no_new_checkpoint"], counts["unknown"]) == (2, 2, 2, 0)


def test_another_cause_is_not_the_same_cause() -> None:
    counts = used([hardware(0), hardware(1, signature="xid.48"), hardware(2)])
    assert (counts["restarts"], counts["same_cause"], counts["no_new_checkpoint"]) == (2, 1, 2)


def test_a_new_checkpoint_or_a_step_above_the_best_refills_all_but_the_totals() -> None:
    for gain in ({"last_step": 101}, {"last_checkpoint": 100}):
        counts = used([hardware(0), hardware(1), hardware(2, **gain)])
        assert (counts["restarts"], counts["same_cause"], counts["no_new_checkpoint"]) == (2, 0, 0)
        after = used([hardware(0), hardware(1), hardware(2, **gain), hardware(3)])
        assert (after["restarts"], after["same_cause"], after["no_new_checkpoint"]) == (3, 1, 1)


def test_resuming_below_the_best_step_is_no_advance() -> None:
    steps = [hardware(0, last_step=120), hardware(1, last_step=110), hardware(2, last_step=120)]
    assert [advanced(steps, index) for index in range(3)] == [True, False, False]


def test_progress_that_cannot_be_read_is_not_counted_as_none() -> None:
    blind = [hardware(number, last_step=None) for number in range(6)]
    counts = used(blind)
    assert (counts["no_new_checkpoint"], counts["node_hours_without_progress"]) == (0, 0)
    assert (counts["restarts"], counts["same_cause"]) == (5, 5)


def test_node_hours_count_only_what_was_spent_since_the_last_advance() -> None:
    each = 4 * 590 / 3600
    assert used([hardware(0)])["node_hours_without_progress"] == 0
    counts = used([hardware(0), hardware(1), hardware(2)])
    assert abs(counts["node_hours_without_progress"] - 2 * each) < 1e-9
    stuck = [hardware(n, first_step=1, last_step=None) for n in range(2)]
    assert abs(used(stuck)["node_hours_without_progress"] - 2 * each) < 1e-9


def test_unknown_causes_have_a_budget_of_their_own() -> None:
    counts = used([unknown(0), unknown(1, fault_class=None), unknown(2)])
    assert (counts["unknown"], counts["same_cause"]) == (2, 0)


def test_an_attempt_that_died_of_our_own_doing_costs_nothing() -> None:
    with_own = [hardware(0), attempt(1, own_fault=True), attempt(2, own_fault=True), hardware(3)]
    assert used(with_own) == used([hardware(0), hardware(3)])


def test_requeues_by_a_person_and_preemptions_cost_nothing() -> None:
    by_hand = attempt(0, state=JobState.REQUEUED, restarted_by="other", last_step=100)
    preempted = attempt(1, state=JobState.PREEMPTED, restarted_by="slurm", last_step=100)
    counts = used([by_hand, preempted, hardware(2)])
    assert (counts["restarts"], counts["no_new_checkpoint"], counts["unknown"]) == (0, 0, 0)
    # A preemption that relight itself restarted is charged, or it could go on for ever.
    assert used([preempted.model_copy(update={"restarted_by": "relight"}), hardware(2)])["restarts"] == 1


def test_a_request_for_other_hardware_is_neither_the_same_cause_nor_lack_of_progress() -> None:
    counts = used([hardware(0, exit_code=16), unknown(1, exit_code=16), hardware(2)])
    assert (counts["restarts"], counts["same_cause"], counts["no_new_checkpoint"], counts["unknown"]) == (2, 0, 0, 0)


def test_only_the_last_24_hours_count_per_day() -> None:
    past = [hardware(number) for number in range(4)]
    assert used(past, now_s=4000)["restarts_per_day"] == 3
    assert used(past, now_s=1500 + 24 * 3600)["restarts_per_day"] == 2
    assert used(past, now_s=4000 + 24 * 3600)["restarts_per_day"] == 0
    without_times = [Attempt(number=number) for number in range(3)]
    assert used(without_times)["restarts_per_day"] == 2


def test_a_job_may_only_lower_its_budget() -> None:
    def limit(asked: int) -> float:
        return budgets([hardware(0)], Policy(max_restarts=10), Directive(max_restarts=asked), at(0))[0].limit

    assert [limit(3), limit(10), limit(500)] == [3, 10, 10]


def test_a_budget_of_nothing_is_spent_at_once() -> None:
    found = budgets([hardware(0)], Policy(max_restarts=0), Directive(), at(0))
    assert [budget.name for budget in spent(found)] == ["restarts"]


def test_without_any_record_nothing_is_used() -> None:
    assert set(used([]).values()) == {0}
