"""A weak suspect that repeats becomes a strong one, and nobody's word alone convicts a node for others."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from recovery.policy import decide
from recovery.policy_numbers import Policy
from recovery.records import Action, Confidence, FaultClass, JobState, Suspect, Verdict
from recovery.recurrence import Suspicion, essential, strengthened, suspected_earlier, worth_remembering
from tests.recovery.situations import CLUSTER, NODES, T0, at, attempt, situation, view

LIFE = 7


def suspicion(node: str = "n02", **more: Any) -> Suspicion:
    usual: dict[str, Any] = {
        "node": node,
        "life_id": 99,
        "job_id": "777",
        "user": "bob",
        "attempt": 0,
        "signature": "nccl.timeout",
        "at": at(-3600),
        "expires_at": at(86_400),
    }
    return Suspicion(**{**usual, **more})


def verdict(
    node: str = "n02",
    confidence: Confidence = Confidence.LOW,
    *,
    trusted: bool = False,
    fault_class: FaultClass = FaultClass.STORAGE,
    number: int = 0,
) -> Verdict:
    suspect = Suspect(node=node, how="it happened there", confidence=confidence, trusted=trusted)
    return Verdict(fault_class=fault_class, signature="nccl.timeout", suspects=(suspect,), reason="why", attempt=number)


def judged(found: Verdict, *ledger: Suspicion) -> Suspect:
    return strengthened(found, view(), LIFE, ledger).suspects[0]


def test_a_weak_suspect_of_another_users_job_becomes_a_strong_one() -> None:
    told = judged(verdict(), suspicion())
    assert (told.again, told.confidence, told.trusted) == (True, Confidence.MEDIUM, False)
    assert told.how == "it happened there; suspected before by job 777 of bob (nccl.timeout)"


def test_another_job_of_the_same_user_counts_only_with_a_witness_nobody_can_write() -> None:
    same = suspicion(user="alice")
    assert not judged(verdict(), same).again
    assert judged(verdict(), suspicion(user="alice", trusted=True)).again
    assert judged(verdict(trusted=True), same).again


def test_an_earlier_attempt_of_the_same_job_counts_and_the_same_attempt_does_not() -> None:
    own = suspicion(life_id=LIFE, job_id="12345", user="alice")
    assert judged(verdict(number=1), own).again
    assert not judged(verdict(number=0), own).again
    assert "an earlier attempt of this job" in judged(verdict(number=1), own).how


def test_a_suspicion_of_another_node_or_of_nobody_known_changes_nothing() -> None:
    assert not judged(verdict(), suspicion("n03")).again
    assert not judged(verdict(), suspicion(user="")).again


def test_a_strong_suspect_stays_as_sure_as_it_was() -> None:
    assert judged(verdict(confidence=Confidence.HIGH), suspicion()).confidence is Confidence.HIGH


ENTRIES = st.lists(
    st.builds(
        suspicion,
        node=st.sampled_from(CLUSTER),
        user=st.sampled_from(["alice", "bob", "carol", ""]),
        life_id=st.sampled_from([LIFE, 98, 99]),
        attempt=st.integers(0, 3),
        trusted=st.booleans(),
        confidence=st.sampled_from(Confidence),
    ),
    max_size=12,
)


@given(ENTRIES, st.sampled_from(CLUSTER), st.sampled_from(Confidence), st.booleans())
def test_the_ledger_never_adds_a_suspect_nor_makes_one_weaker(
    ledger: list[Suspicion], node: str, confidence: Confidence, trusted: bool
) -> None:
    found = verdict(node, confidence, trusted=trusted)
    told = strengthened(found, view(), LIFE, ledger)
    assert [one.node for one in told.suspects] == [node]
    assert list(Confidence).index(told.suspects[0].confidence) >= list(Confidence).index(confidence)
    assert told.suspects[0].trusted is trusted
    assert strengthened(verdict().model_copy(update={"suspects": ()}), view(), LIFE, ledger).suspects == ()


@given(ENTRIES, st.sampled_from(NODES))
def test_one_users_untrusted_jobs_convict_no_node_for_themselves_or_others(ledger: list[Suspicion], node: str) -> None:
    """Whatever alice's other jobs printed, her job's weak suspect stays weak, and bob's needs bob's own suspicion."""
    only_alice = [one.model_copy(update={"user": "alice", "trusted": False, "life_id": 99}) for one in ledger]
    assert not judged(verdict(node), *only_alice).again


def test_attempts_count_within_the_window_and_since_the_node_was_cleared() -> None:
    early, late = attempt(0, suspects=("n01", "n02")), attempt(1, suspects=("n03",))
    now, week = at(10_000), timedelta(days=7)
    assert suspected_earlier([early, late], {}, now, week) == {"n01", "n02", "n03"}
    assert suspected_earlier([early, late], {"n02": at(700), "n03": at(700)}, now, week) == {"n01", "n03"}
    assert suspected_earlier([early, late], {}, now, timedelta(seconds=8_500)) == {"n03"}


def advised(found: Verdict, *ledger: Suspicion, policy: Policy | None = None, **more: Any) -> Any:
    told = strengthened(found, view(), LIFE, ledger)
    return decide(situation(verdict=told, **more), policy or Policy(max_excluded_share=0.5))


def test_a_weak_suspect_is_excluded_at_its_second_offence_only() -> None:
    for fault_class in (FaultClass.STORAGE, FaultClass.INTERCONNECT):
        assert advised(verdict(fault_class=fault_class)).exclude == ()
        again = advised(verdict(fault_class=fault_class), suspicion())
        assert (again.action, again.exclude) == (Action.RESTART, ("n02",))


def test_a_cleared_node_is_not_held_against_earlier_attempts() -> None:
    attempts = (attempt(0, suspects=("n02",)), attempt(1))
    seen = view(restarts=1)
    facts: dict[str, Any] = {"view": seen, "attempts": attempts, "now": at(2000)}
    assert advised(verdict(number=1), **facts).exclude == ("n02",)
    assert advised(verdict(number=1), **facts, nodes_cleared={"n02": at(1500)}).exclude == ()


def test_a_node_is_drained_only_by_a_trusted_witness_and_where_the_policy_says_so() -> None:
    hardware = verdict(confidence=Confidence.HIGH, trusted=True, fault_class=FaultClass.HARDWARE)
    on = Policy(drain=True, max_excluded_share=0.5)
    assert advised(hardware, policy=on).drain == ("n02",)
    assert advised(hardware).drain == ()
    told_by_the_job = verdict(confidence=Confidence.HIGH, fault_class=FaultClass.HARDWARE)
    assert advised(told_by_the_job, policy=on).drain == ()
    assert advised(told_by_the_job, suspicion(trusted=True), policy=on).drain == ()
    needed = situation(verdict=hardware, nodes_usable=NODES)  # the job needs all four
    assert (decide(needed, on).exclude, decide(needed, on).drain) == ((), ())
    outside = verdict("n07", Confidence.HIGH, trusted=True, fault_class=FaultClass.HARDWARE)
    assert advised(outside, policy=on).drain == ()
    assert advised(verdict(confidence=Confidence.HIGH, trusted=True), policy=on).drain == ()


def test_healthy_nodes_are_kept_where_the_policy_says_so_and_the_share_allows_it() -> None:
    found = verdict(confidence=Confidence.HIGH, fault_class=FaultClass.HARDWARE)
    keep = Policy.model_validate({"keep_nodes": "reservation", "max_kept_share": 0.5, "max_excluded_share": 0.5})
    assert advised(found, policy=keep).keep_nodes == ("n01", "n03", "n04")
    assert advised(found).keep_nodes == ()
    assert advised(found, policy=keep.model_copy(update={"max_kept_share": 0.25})).keep_nodes == ()
    reserved = view(reservation="mine")
    assert advised(found, policy=keep, view=reserved).keep_nodes == ()
    assert advised(found, policy=keep, view=view(JobState.CANCELLED)).keep_nodes == ()


def test_the_last_of_several_suspicions_is_told() -> None:
    old, new = suspicion(at=T0, job_id="1"), suspicion(at=at(5), job_id="2", life_id=98)
    assert "suspected before by job 2 of bob" in judged(verdict(), old, new).how


def test_where_users_errors_happened_is_held_against_no_node() -> None:
    assert not judged(verdict(), suspicion(fault_class=FaultClass.USER)).again
    assert not judged(verdict(fault_class=FaultClass.OUT_OF_MEMORY), suspicion()).again


@given(ENTRIES, st.sampled_from(NODES))
def test_a_decision_needs_no_more_than_the_essential_entries(ledger: list[Suspicion], node: str) -> None:
    found = verdict(node, number=2)
    kept = essential(sorted(ledger, key=lambda entry: entry.at, reverse=True), LIFE)
    assert judged(found, *kept).again is judged(found, *ledger).again


def test_many_entries_of_one_user_hide_nobody_elses() -> None:
    flood = [suspicion(life_id=1000 + number, user="mallory", at=at(number)) for number in range(500)]
    kept = essential([*reversed(flood), suspicion()], LIFE)
    assert [entry.user for entry in kept] == ["mallory", "bob"]


def _remembered(found: Verdict, rule: str = "suspect", exclude: tuple[str, ...] = ()) -> list[str]:
    return [one.node for one in worth_remembering(found, rule, exclude).suspects]


def test_whom_only_somebody_outside_named_is_not_remembered() -> None:
    outside = Suspect(node="n03", how="a service said so", confidence=Confidence.LOW, by="adviser")
    found = verdict("n02")
    assert _remembered(found.model_copy(update={"suspects": (*found.suspects, outside)})) == ["n02"]


def test_a_fault_that_many_jobs_share_makes_no_node_suspect_but_those_that_are_excluded_all_the_same() -> None:
    assert _remembered(verdict("n02"), rule="incident") == []
    assert _remembered(verdict("n02"), rule="incident", exclude=("n02",)) == ["n02"]
