"""What the store knows of nodes: the ledger of suspicions, clearings, drains within their caps, exclusions."""

from __future__ import annotations

from typing import Any

import pytest

from activities.audit.records import DrainGrant
from activities.audit.store import AuditStore, KeyTaken
from recovery.records import Attempt, Confidence, FaultClass, Suspect, Verdict
from tests.activities.audit.samples import NOON, all_at_once, at, opened, request, view

WEEK = 7 * 86_400
NODES = ("n01", "n02", "n03")


def life_of(store: AuditStore, cluster: str, job_id: str, user: str = "alice", **attempts: Any) -> int:
    """A job that has had two attempts on three nodes."""
    life = store.open_life(view(cluster, job_id, user=user), workflow_id=f"{cluster}-{job_id}", run_id="r", now=NOON)
    ran = [Attempt(number=number, nodes=NODES) for number in (0, 1)]
    store.append(cluster, job_id, life.life_id, [], attempts=ran)
    return life.life_id


def verdict(*nodes: str, confidence: Confidence = Confidence.LOW, trusted: bool = False) -> Verdict:
    suspects = tuple(Suspect(node=node, how="it says so", confidence=confidence, trusted=trusted) for node in nodes)
    return Verdict(fault_class=FaultClass.HARDWARE, signature="xid.79", suspects=suspects, reason="a GPU is lost")


def test_suspicions_of_several_jobs_and_users_are_told_newest_first(store: AuditStore, cluster: str) -> None:
    one, two = life_of(store, cluster, "1"), life_of(store, cluster, "2", "bob")
    store.suspect(one, 0, verdict("n01"), at(1), at(WEEK))
    store.suspect(two, 1, verdict("n01", "n02", trusted=True), at(2), at(WEEK))
    told = store.suspicions(cluster, ["n01"], now=at(3))
    assert [(entry.job_id, entry.user, entry.attempt, entry.trusted) for entry in told] == [
        ("2", "bob", 1, True),
        ("1", "alice", 0, False),
    ]
    assert (told[1].life_id, told[1].signature, told[1].how, told[1].at) == (one, "xid.79", "it says so", at(1))
    assert {entry.node for entry in store.suspicions(cluster, now=at(3))} == {"n01", "n02"}
    assert store.suspicions(cluster, [], now=at(3)) == ()
    assert store.suspicions(f"{cluster}-b", now=at(3)) == ()


def test_nodes_outside_the_attempt_are_never_entered(store: AuditStore, cluster: str) -> None:
    life = life_of(store, cluster, "1")
    assert store.suspect(life, 0, verdict("n02", "n77"), NOON, at(WEEK)) == ("n02",)
    assert store.suspect(life, 5, verdict("n02"), NOON, at(WEEK)) == ()  # an attempt whose nodes nobody has seen
    assert [entry.node for entry in store.suspicions(cluster, now=at(1))] == ["n02"]


def test_the_same_attempt_counts_once_with_what_was_known_last(store: AuditStore, cluster: str) -> None:
    life = life_of(store, cluster, "1")
    store.suspect(life, 0, verdict("n01"), at(1), at(WEEK))
    store.suspect(life, 0, verdict("n01", confidence=Confidence.HIGH), at(50), at(2 * WEEK))
    (entry,) = store.suspicions(cluster, now=at(60))
    assert (entry.confidence, entry.at) == (Confidence.HIGH, at(1))


def test_suspicions_end_with_their_time_or_when_the_node_is_cleared(store: AuditStore, cluster: str) -> None:
    life = life_of(store, cluster, "1")
    store.suspect(life, 0, verdict("n01", "n02"), at(1), at(100))
    assert store.suspicions(cluster, now=at(100)) == ()
    store.clear_node(cluster, "n01", "ops", "new cable", at(10))
    assert [entry.node for entry in store.suspicions(cluster, now=at(20))] == ["n02"]
    store.suspect(life, 1, verdict("n01"), at(30), at(100))
    assert [(entry.node, entry.attempt) for entry in store.suspicions(cluster, now=at(40))] == [("n01", 1), ("n02", 0)]
    done = store.cleared(cluster, ["n01", "n02"])
    assert [(one.node, one.by, one.reason, one.at) for one in done.values()] == [("n01", "ops", "new cable", at(10))]


def test_many_nodes_are_asked_about_at_once(store: AuditStore, cluster: str) -> None:
    life = life_of(store, cluster, "1")
    store.suspect(life, 0, verdict("n01"), NOON, at(WEEK))
    many = [*NODES, *(f"x{number:05d}" for number in range(5000))]
    assert [entry.node for entry in store.suspicions(cluster, many, now=at(1))] == ["n01"]


def test_many_who_suspect_at_once_enter_everything_once(store: AuditStore, cluster: str) -> None:
    lives = [life_of(store, cluster, str(number)) for number in range(1, 9)]

    def enter(life: int) -> Any:
        return lambda: store.suspect(life, 0, verdict(*NODES), NOON, at(WEEK))

    all_at_once([enter(life) for life in (*lives, *lives)])
    assert len(store.suspicions(cluster, now=at(1))) == len(lives) * len(NODES)


# ------------------------------------------------------------------------------------------------ drains


def wish(cluster: str, node: str, life: int, step: str = "s", **more: Any) -> DrainGrant:
    known: dict[str, Any] = {
        "cluster": cluster,
        "node": node,
        "step_key": f"{cluster}/{step}",
        "life_id": life,
        "job_id": "1",
        "signature": "xid.79",
        "expiry_s": 3600,
        "max_share": 0.02,
        "max_per_hour": 10,
        "cluster_nodes": 100,
        "now": NOON,
    }
    return DrainGrant.model_validate(known | more)


def test_a_drain_is_granted_once_for_a_step(store: AuditStore, cluster: str) -> None:
    life = life_of(store, cluster, "1")
    first, _ = store.grant_drain(wish(cluster, "n01", life))
    again, _ = store.grant_drain(wish(cluster, "n01", life, now=at(30)))
    assert first is not None
    assert first == again
    assert first.until == at(3600)
    with pytest.raises(KeyTaken):
        store.grant_drain(wish(cluster, "n01", life_of(store, cluster, "2")))
    refused, why = store.grant_drain(wish(cluster, "n01", life, "other"))
    assert (refused, why) == (None, "relight has drained n01 already")


def test_the_share_of_drained_nodes_is_capped(store: AuditStore, cluster: str) -> None:
    life = life_of(store, cluster, "1")
    drains = [store.grant_drain(wish(cluster, node, life))[0] for node in ("n01", "n02")]
    refused, why = store.grant_drain(wish(cluster, "n03", life))
    assert refused is None
    assert "max_drained_share 0.02 allows 2" in why
    assert drains[0] is not None
    assert store.end_drain(drains[0].drain_id, "relight", "its time is over", at(60))
    assert not store.end_drain(drains[0].drain_id, "relight", "again", at(61))
    assert store.grant_drain(wish(cluster, "n03", life))[0] is not None
    assert [one.node for one in store.drains(cluster)] == ["n02", "n03"]
    assert store.grant_drain(wish(f"{cluster}-b", "n01", life, "t", cluster_nodes=0))[0] is None


def test_the_pace_of_drains_is_capped_and_refused_ones_do_not_count(store: AuditStore, cluster: str) -> None:
    life = life_of(store, cluster, "1")
    caps: dict[str, Any] = {"max_share": 1.0, "max_per_hour": 1}
    failed, _ = store.grant_drain(wish(cluster, "n01", life, **caps))
    assert failed is not None
    store.end_drain(failed.drain_id, "relight", "not drained", NOON)
    done, _ = store.grant_drain(wish(cluster, "n02", life, **caps))
    assert done is not None
    store.drain_carried_out(done.drain_id, at(1))
    refused, why = store.grant_drain(wish(cluster, "n03", life, **caps, now=at(3599)))
    assert refused is None
    assert "max_drains_per_hour" in why
    assert store.grant_drain(wish(cluster, "n03", life, **caps, now=at(3601)))[0] is not None


def test_many_askers_at_once_never_pass_the_cap(store: AuditStore, cluster: str) -> None:
    life = life_of(store, cluster, "1")

    def ask(number: int) -> Any:
        return lambda: store.grant_drain(wish(cluster, f"n{number:02d}", life, max_share=0.03))[0]

    answers = all_at_once([ask(number) for number in range(16)])
    assert sum(1 for answer in answers if answer is not None) == 3


def test_a_clearing_after_the_drain_asks_for_its_end(store: AuditStore, cluster: str) -> None:
    life = life_of(store, cluster, "1")
    store.clear_node(cluster, "n01", "ops", "before", at(-5))
    store.grant_drain(wish(cluster, "n01", life))
    (drain,) = store.drains(cluster)
    assert drain.cleared_at is None
    store.clear_node(cluster, "n01", "ops", "new cable", at(5))
    (drain,) = store.drains(cluster)
    assert (drain.cleared_at, drain.cleared_by, drain.clear_reason) == (at(5), "ops", "new cable")
    store.end_drain(drain.drain_id, "ops", "cleared by ops", at(6))
    assert [(one.node, one.end_reason) for one in store.drains_of(cluster, "n01")] == [("n01", "cleared by ops")]


def test_a_clearing_counts_also_when_its_hosts_clock_is_behind(store: AuditStore, cluster: str) -> None:
    life = life_of(store, cluster, "1")
    store.suspect(life, 0, verdict("n01"), at(100), at(WEEK))
    store.grant_drain(wish(cluster, "n01", life, now=at(101)))
    store.clear_node(cluster, "n01", "ops", "new cable", at(5))
    assert store.suspicions(cluster, now=at(102)) == ()
    assert store.drains(cluster)[0].cleared_by == "ops"


def test_exclusions_are_told_by_node_and_job_until_they_are_relaxed(store: AuditStore, cluster: str) -> None:
    opened(store, cluster)
    store.permit(request(cluster, "1", nodes=("n01", "n02"), exclusion_s=100))
    store.permit(request(cluster, "2", nodes=("n01",), exclusion_s=50))
    told = [(one.node, one.job_id, one.until) for one in store.exclusions(cluster, NOON)]
    assert told == [("n01", "1", at(100)), ("n01", "2", at(50)), ("n02", "1", at(100))]
    store.give_up_exclusions(cluster, "1", ("n01",))
    assert [(one.node, one.job_id) for one in store.exclusions(cluster, NOON)] == [("n01", "2"), ("n02", "1")]
    assert [one.node for one in store.exclusions(cluster, at(60))] == ["n02"]
