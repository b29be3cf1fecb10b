"""Permits: the caps of a cluster hold whoever asks, however many at once, and however often they ask."""

from typing import Any

import pytest

from activities.audit.permits import ASK_AGAIN, SLOT
from activities.audit.store import AuditStore, KeyTaken
from recovery.incident_effects import Affected
from recovery.records import Action
from tests.activities.audit.askers import ask, ask_within, in_processes
from tests.activities.audit.samples import NOON, all_at_once, at, opened, request

SLOT_S = SLOT.total_seconds()


def excluded(store: AuditStore, cluster: str) -> list[str]:
    return [one.node for one in store.exclusions(cluster, now=NOON)]


def test_without_caps_everything_is_granted(store: AuditStore, cluster: str) -> None:
    assert all(store.permit(request(cluster, str(n), nodes=(f"n{n}",))).granted for n in range(10))


def test_a_step_that_was_granted_is_granted_again(store: AuditStore, cluster: str) -> None:
    step = request(cluster, "1", max_restarts_at_once=1)
    assert store.permit(step).granted
    assert store.permit(step).granted
    assert not store.permit(request(cluster, "2", max_restarts_at_once=1)).granted
    store.release_permit(step.step_key, at(30))
    assert store.permit(step.model_copy(update={"now": at(7200)})).granted
    assert store.permit(request(cluster, "2", max_restarts_at_once=1)).granted


def test_a_step_key_of_another_job_is_refused(store: AuditStore, cluster: str) -> None:
    step = request(cluster, "1")
    store.permit(step)
    others: list[dict[str, Any]] = [{"job_id": "2"}, {"cluster": f"{cluster}-b"}]
    for other in others:
        with pytest.raises(KeyTaken, match=step.step_key):
            store.permit(step.model_copy(update=other))


def test_a_restart_waits_for_a_place_and_gets_it_on_release(store: AuditStore, cluster: str) -> None:
    for step in ("1", "2"):
        assert store.permit(request(cluster, step, max_restarts_at_once=2)).granted
    third = request(cluster, "3", max_restarts_at_once=2)
    answer = store.permit(third)
    assert (answer.granted, answer.until) == (False, NOON + ASK_AGAIN)
    assert "max_restarts_at_once" in answer.reason
    store.release_permit(f"{cluster}/1", NOON)
    store.release_permit(f"{cluster}/1", NOON)
    store.release_permit("no such step", NOON)
    assert store.permit(third).granted
    assert not store.permit(request(cluster, "4", max_restarts_at_once=2)).granted


def test_a_step_that_changed_nothing_takes_neither_place_nor_nodes(store: AuditStore, cluster: str) -> None:
    caps: dict[str, Any] = {
        "max_restarts_at_once": 1,
        "max_restarted_nodes_per_hour": 4,
        "max_excluded_share": 0.01,
        "max_actions_per_hour": 2,
        "node_count": 4,
    }
    assert store.permit(request(cluster, "1", nodes=("n1",), **caps)).granted
    store.void_permit(f"{cluster}/1", NOON)
    store.void_permit("no such step", NOON)
    assert store.exclusions(cluster, NOON) == []
    assert store.permit(request(cluster, "2", nodes=("n2",), **caps)).granted
    store.void_permit(f"{cluster}/2", NOON)
    answer = store.permit(request(cluster, "3", nodes=("n3",), **caps))
    assert "max_actions_per_hour" in answer.reason, "but it was asked of Slurm"


def test_a_place_ends_by_itself(store: AuditStore, cluster: str) -> None:
    store.permit(request(cluster, "1", max_restarts_at_once=1))
    late = request(cluster, "2", max_restarts_at_once=1, now=at(SLOT_S - 3))
    assert store.permit(late).until == at(SLOT_S)
    assert store.permit(late.model_copy(update={"now": at(SLOT_S)})).granted


@pytest.mark.parametrize(
    ("action", "granted"), [(Action.STOP, 3), (Action.ARM, 3), (Action.GUARD, 1), (Action.RELEASE, 1)]
)
def test_only_what_brings_jobs_back_takes_a_place(
    store: AuditStore, cluster: str, action: Action, granted: int
) -> None:
    steps = [request(cluster, str(n), action, max_restarts_at_once=1) for n in range(3)]
    assert sum(store.permit(step).granted for step in steps) == granted


def test_actions_per_hour_tell_when_the_next_is_due(store: AuditStore, cluster: str) -> None:
    for number in range(3):
        assert store.permit(
            request(cluster, str(number), Action.STOP, max_actions_per_hour=3, now=at(number * 60))
        ).granted
    fourth = request(cluster, "3", Action.STOP, max_actions_per_hour=3, now=at(200))
    answer = store.permit(fourth)
    assert (answer.granted, answer.until) == (False, at(3600))
    assert store.permit(fourth.model_copy(update={"max_actions_per_hour": 2})).until == at(3660)
    assert store.permit(fourth.model_copy(update={"now": at(3600)})).granted


def test_nodes_of_restarted_jobs_are_counted_within_an_hour(store: AuditStore, cluster: str) -> None:
    cap: dict[str, Any] = {"max_restarted_nodes_per_hour": 10}
    assert store.permit(request(cluster, "1", node_count=50, **cap)).granted, "larger by itself, and the only one"
    small = request(cluster, "2", node_count=4, **cap)
    answer = store.permit(small)
    assert (answer.granted, answer.until) == (False, at(3600))
    assert "max_restarted_nodes_per_hour" in answer.reason
    assert store.permit(request(cluster, "3", Action.STOP, node_count=4, **cap)).granted, "nothing comes back"
    later = {"now": at(3600)}
    assert store.permit(small.model_copy(update=later)).granted
    assert store.permit(request(cluster, "4", node_count=6, **cap, **later)).granted
    assert not store.permit(request(cluster, "5", node_count=1, **cap, **later)).granted


def test_no_more_nodes_are_excluded_than_the_share_allows(store: AuditStore, cluster: str) -> None:
    share: dict[str, Any] = {"max_excluded_share": 0.05}  # 5 of 100 nodes
    assert store.permit(request(cluster, "1", nodes=("n1", "n2", "n3"), **share)).granted
    answer = store.permit(request(cluster, "2", nodes=("n4", "n5", "n6"), **share))
    assert (answer.granted, answer.until) == (False, NOON + ASK_AGAIN)
    assert "max_excluded_share" in answer.reason
    assert store.permit(request(cluster, "3", nodes=("n3", "n4", "n5"), **share)).granted
    assert store.permit(request(cluster, "4", nodes=("n1", "n5"), **share)).granted, "they are excluded already"
    assert store.permit(request(cluster, "5", **share)).granted, "it excludes nothing"
    assert not store.permit(request(cluster, "6", nodes=("n6",), **share)).granted


def test_of_more_exclusions_than_the_share_allows_at_all_as_many_as_fit_are_made(
    store: AuditStore, cluster: str
) -> None:
    many: dict[str, Any] = {"nodes": ("a", "b", "c"), "cluster_nodes": 8, "max_excluded_share": 0.25}
    answer = store.permit(request(cluster, "1", **many))
    assert (answer.granted, answer.withheld, answer.left_out) == (True, False, ("c",))
    assert "max_excluded_share" in answer.reason
    again = store.permit(request(cluster, "1", **many))
    assert (again.granted, again.left_out) == (True, ("c",)), "the same step is answered the same"
    assert excluded(store, cluster) == ["a", "b"]
    sure = store.permit(request(cluster, "2", certain=("a", "b", "c"), **many))
    assert (sure.granted, sure.until) == (False, None), "no job starts on a node that is known to be bad"


def test_a_small_cluster_may_avoid_one_node(store: AuditStore, cluster: str) -> None:
    few: dict[str, Any] = {"cluster_nodes": 4, "max_excluded_share": 0.1}
    assert store.permit(request(cluster, "1", nodes=("n1",), **few)).granted
    assert not store.permit(request(cluster, "2", nodes=("n2",), **few)).granted


def test_an_unknown_number_of_nodes_is_waited_for(store: AuditStore, cluster: str) -> None:
    blind = request(cluster, "1", nodes=("n1",), cluster_nodes=0, max_excluded_share=0.1)
    assert store.permit(blind).until == NOON + ASK_AGAIN
    assert store.permit(blind.model_copy(update={"nodes": ()})).granted


def test_exclusions_of_a_job_that_has_ended_count_no_more(store: AuditStore, cluster: str) -> None:
    share: dict[str, Any] = {"max_excluded_share": 0.01}
    life = opened(store, cluster, "1").life_id
    assert store.permit(request(cluster, "1", nodes=("n1",), **share)).granted
    second = request(cluster, "2", nodes=("n2",), **share)
    standing: list[tuple[str, str, bool]] = [
        ("RUNNING", "watching", True),
        ("FAILED", "recovering", True),
        ("FAILED", "stopped", False),
        ("PENDING", "watching", True),
        ("CANCELLED", "left_alone", False),
        ("COMPLETED", "finished", False),
    ]
    for state, phase, counts in standing:
        store.append(cluster, "1", life, (), state=state, phase=phase)
        assert excluded(store, cluster) == (["n1"] if counts else []), f"{state}, {phase}"
        if counts:
            assert not store.permit(second).granted, f"{state}, {phase}"
    assert store.permit(second).granted


def test_one_users_exclusions_take_a_part_of_the_share_only(store: AuditStore, cluster: str) -> None:
    caps: dict[str, Any] = {"max_excluded_share": 0.1, "max_excluded_per_user": 0.3}  # ten of a hundred, three each
    for job in range(4):
        opened(store, cluster, f"a{job}")
    alices: dict[str, Any] = caps | {"affected": Affected(user="alice")}
    for job in range(3):
        assert store.permit(request(cluster, f"a{job}", nodes=(f"n{job}",), **alices)).granted
    fourth = request(cluster, "a3", nodes=("n8",), **alices)
    answer = store.permit(fourth)
    assert (answer.granted, answer.until) == (False, NOON + ASK_AGAIN)
    assert "alice" in answer.reason
    assert "max_excluded_per_user" in answer.reason
    assert store.permit(request(cluster, "a3x", nodes=("n1", "n2"), **alices)).granted, "they are among hers already"
    bobs: dict[str, Any] = caps | {"affected": Affected(user="bob")}
    assert store.permit(request(cluster, "b", nodes=("n4", "n5", "n6"), **bobs)).granted
    assert store.permit(fourth.model_copy(update={"certain": ("n8",)})).granted, "no word of hers"


def test_what_logs_say_never_keeps_a_node_in_that_is_known_to_be_bad(store: AuditStore, cluster: str) -> None:
    share: dict[str, Any] = {"max_excluded_share": 0.02}
    assert store.permit(request(cluster, "1", nodes=("n1", "n2"), **share)).granted
    assert not store.permit(request(cluster, "2", nodes=("n3",), **share)).granted
    assert store.permit(request(cluster, "3", nodes=("n3", "n4"), certain=("n3", "n4"), **share)).granted
    fifth = request(cluster, "4", nodes=("n5",), certain=("n5",), last_ask=True, **share)
    assert store.permit(fifth).until == NOON + ASK_AGAIN, "their own share is taken as well"
    assert store.permit(request(cluster, "5", nodes=("n4",), certain=("n4",), **share)).granted


def test_who_has_waited_long_enough_goes_without_the_exclusions_that_do_not_fit(
    store: AuditStore, cluster: str
) -> None:
    share: dict[str, Any] = {"max_excluded_share": 0.02, "last_ask": True}
    assert store.permit(request(cluster, "1", nodes=("n1",), **share)).left_out == ()
    answer = store.permit(request(cluster, "2", nodes=("n2", "n3"), **share))
    assert (answer.granted, answer.withheld, answer.left_out) == (True, False, ("n3",))
    none = store.permit(request(cluster, "3", nodes=("n4", "n5"), **share))
    assert (none.granted, none.withheld, none.left_out) == (True, True, ("n4", "n5"))
    assert "max_excluded_share" in none.reason
    assert excluded(store, cluster) == ["n1", "n2"]
    guard = store.permit(request(cluster, "4", Action.GUARD, nodes=("n4",), **share))
    assert not guard.granted, "a guard without its exclusion would change nothing"
    blind = store.permit(request(cluster, "5", nodes=("n4",), cluster_nodes=0, **share))
    assert (blind.granted, blind.withheld) == (True, True)
    forced = store.permit(request(cluster, "6", nodes=("n4",), forced=True, **share))
    assert (forced.granted, forced.left_out) == (True, ()), "an operator's word is no log's"


def test_exclusions_end_with_their_time_or_with_the_job(store: AuditStore, cluster: str) -> None:
    share: dict[str, Any] = {"max_excluded_share": 0.01}
    life = opened(store, cluster, "1").life_id
    store.permit(request(cluster, "1", nodes=("n1",), exclusion_s=600, **share))
    second = request(cluster, "2", nodes=("n2",), **share)
    assert store.permit(second.model_copy(update={"now": at(595)})).until == at(600)
    store.close_life(life, "finished", at(300))
    assert store.permit(second.model_copy(update={"now": at(301), "exclusion_s": 60})).granted
    third = request(cluster, "3", nodes=("n3",), **share)
    assert not store.permit(third.model_copy(update={"now": at(360)})).granted
    assert store.permit(third.model_copy(update={"now": at(361)})).granted


@pytest.mark.parametrize("cap", ["max_restarts_at_once", "max_actions_per_hour", "max_excluded_share"])
def test_a_cap_of_nothing_denies(store: AuditStore, cluster: str, cap: str) -> None:
    caps: dict[str, Any] = {cap: 0}
    answer = store.permit(request(cluster, "1", nodes=("n1",), **caps))
    assert (answer.granted, answer.until) == (False, None)
    assert cap in answer.reason


def test_clusters_do_not_share_their_caps(store: AuditStore, cluster: str) -> None:
    assert store.permit(request(cluster, "1", max_restarts_at_once=1)).granted
    assert store.permit(request(f"{cluster}-b", "1", max_restarts_at_once=1)).granted


def test_sixty_threads_get_no_more_than_the_cap(store: AuditStore, cluster: str) -> None:
    caps: dict[str, Any] = {"max_restarts_at_once": 7, "max_actions_per_hour": 100, "max_excluded_share": 0.2}
    steps = [request(cluster, str(n), nodes=(f"n{n}",), **caps) for n in range(60)]
    answers = all_at_once([lambda step=step: store.permit(step) for step in steps])  # type: ignore[misc]
    assert sum(answer.granted for answer in answers) == 7


def test_one_step_asked_for_from_forty_threads_takes_one_place(store: AuditStore, cluster: str) -> None:
    step = request(cluster, "1", max_restarts_at_once=2, max_actions_per_hour=2)
    assert all(answer.granted for answer in all_at_once([lambda: store.permit(step)] * 40))
    assert store.permit(request(cluster, "2", max_restarts_at_once=2, max_actions_per_hour=2)).granted


def test_sixty_askers_in_four_processes_get_no_more_than_the_cap(store: AuditStore, url: str, cluster: str) -> None:
    granted = in_processes(ask, [(url, cluster, f"p{number}", 15) for number in range(4)])
    keys = [key for keys in granted for key in keys]
    assert len(set(keys)) == len(keys) == 5  # five of a hundred nodes may be excluded


def test_two_hundred_askers_of_one_user_get_no_more_than_its_part(store: AuditStore, url: str, cluster: str) -> None:
    """Half of them wait no longer: they are restarted without what does not fit."""
    caps: dict[str, Any] = {"max_excluded_share": 0.1, "max_excluded_per_user": 0.4, "now": NOON}
    for number in range(4):
        for asker in range(50):
            opened(store, cluster, f"p{number}-{asker}")
    caps |= {"affected": Affected(user="alice")}
    told = in_processes(
        ask_within, [(url, cluster, f"p{number}", 50, caps | {"last_ask": number % 2 == 0}) for number in range(4)]
    )
    answers = [answer for one in told for answer in one]
    assert len(answers) == 200
    assert sum(answer.granted and not answer.left_out for answer in answers) == 4
    assert all(answer.granted for number in (0, 2) for answer in told[number])
    assert len(excluded(store, cluster)) == 4
