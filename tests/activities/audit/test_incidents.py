"""Incidents in the audit store: found once by whoever sweeps, told once, and obeyed by every permit."""

from __future__ import annotations

from typing import Any

import pytest

from activities.audit.store import AuditStore
from activities.contracts import EventKind
from recovery.incident_effects import Affected
from recovery.incident_records import ClusterLook, Failure, Incident, IncidentKind, Sign
from recovery.policy import Policy
from recovery.records import Action, FaultClass, JobState
from tests.activities.audit.askers import ask_within, in_processes
from tests.activities.audit.samples import NOON, all_at_once, at, request

POLICY = Policy()
QUIET = ClusterLook()
IO_ERROR = Sign(signature="storage.io_error", fault_class=FaultClass.STORAGE)
OF_FILES = Affected(user="alice", nodes=("n1",), signature="storage.io_error", fault_class=FaultClass.STORAGE)
OF_A_GPU = Affected(user="alice", nodes=("n1",), signature="xid.79", fault_class=FaultClass.HARDWARE)


def failure(number: int, second: float = 0, **more: Any) -> Failure:
    fields: dict[str, Any] = {
        "job_id": str(number),
        "attempt": 0,
        "life_id": number,
        "user": f"user{number % 2}",
        "at": at(second),
        "seen_at": at(second),
        "nodes": (f"n{number}",),
        "signs": (IO_ERROR,),
    }
    return Failure(**{**fields, **more})


def sweep(store: AuditStore, cluster: str, second: float, *failures: Failure, **look: Any) -> tuple[Incident, ...]:
    seen = ClusterLook(**look)
    return store.correlate(cluster, seen, POLICY, began=at(second), failures=failures, now=at(second))


def opened(store: AuditStore, cluster: str) -> Incident:
    (incident,) = sweep(store, cluster, 1, *(failure(number) for number in (1, 2, 3)))
    return incident


def notices(store: AuditStore, cluster: str) -> list[str]:
    return [str(one.body["event"]) for one in store.events(cluster, "") if one.kind == EventKind.INCIDENT]


def test_an_incident_is_found_once_and_told_once(store: AuditStore, cluster: str) -> None:
    found = opened(store, cluster)
    assert found.jobs == 3
    assert sweep(store, cluster, 3, *(failure(number) for number in (1, 2, 3))) == ()
    assert store.open_incidents(cluster) == (found,)
    assert store.open_incidents(f"{cluster}-b") == ()
    assert notices(store, cluster) == ["opened"]
    late = 1 + POLICY.incident_close_s
    assert [one.is_open for one in sweep(store, cluster, late)] == [False]
    assert sweep(store, cluster, late + 2) == ()
    assert notices(store, cluster) == ["opened", "closed"]
    assert store.open_incidents(cluster) == ()
    assert [one.id for one in store.incidents(cluster, include_closed=True)] == [found.id]


def test_a_failure_is_compared_by_the_first_sweep_that_began_after_it(store: AuditStore, cluster: str) -> None:
    def compared() -> bool:
        told = store.failure(cluster, "1", 1, 0)
        assert told is not None
        assert told.seen_at == NOON
        return told.correlated

    assert store.failure(cluster, "1", 1, 0) is None
    assert not store.failures_wait(cluster)
    sweep(store, cluster, 0, failure(1))
    assert not compared()
    assert store.failures_wait(cluster)
    sweep(store, cluster, 2)
    assert compared()
    assert not store.failures_wait(cluster)


def test_a_failure_told_again_says_more_and_keeps_its_moment(store: AuditStore, cluster: str) -> None:
    for number in (1, 2, 3):
        sweep(store, cluster, number, failure(number, signs=()))
    assert store.open_incidents(cluster) == ()
    store.tell_failures(cluster, [failure(number, 5, nodes=()) for number in (1, 2, 3)])
    (incident,) = sweep(store, cluster, 6)
    assert (incident.kind, incident.jobs) == (IncidentKind.FILE_SYSTEM, 3)
    told = store.failure(cluster, "1", 1, 0)
    assert told is not None
    assert told.seen_at == NOON


def test_sweeps_and_jobs_that_tell_at_once_find_one_incident(store: AuditStore, cluster: str) -> None:
    failures = [failure(number) for number in range(20)]
    calls = [lambda: sweep(store, cluster, 1, *failures)] * 6
    calls += [lambda one=one: store.tell_failures(cluster, [one]) or () for one in failures]  # type: ignore[misc]
    all_at_once(calls)
    (incident,) = store.open_incidents(cluster)
    assert incident.jobs == 20
    assert notices(store, cluster) == ["opened"]


def test_a_person_closes_an_incident(store: AuditStore, cluster: str) -> None:
    found = opened(store, cluster)
    assert store.close_incident(cluster, "no such", by="oncall", reason="x") is None
    closed = store.close_incident(cluster, found.id, by="oncall", reason="fs1 is back", now=at(60))
    assert closed is not None
    assert (closed.closed_by, closed.close_reason, closed.closed_at) == ("oncall", "fs1 is back", at(60))
    assert store.close_incident(cluster, found.id, by="other", reason="late") == closed
    assert sweep(store, cluster, 62) == (), "the same failures do not open it again"
    assert notices(store, cluster) == ["opened", "closed"]


# ------------------------------------------------------------------------------------------------ permits


def test_a_permit_withholds_the_exclusions_of_a_shared_fault(store: AuditStore, cluster: str) -> None:
    opened(store, cluster)
    step = request(cluster, "1", nodes=("n1",), affected=OF_FILES, max_excluded_share=0.01)
    answer = store.permit(step)
    assert (answer.granted, answer.withheld) == (True, True)
    assert "file system" in answer.reason
    again = store.permit(step.model_copy(update={"now": at(9999)}))
    assert (again.granted, again.withheld) == (True, True), "the same step is answered the same"
    other = store.permit(request(cluster, "2", nodes=("n2",), affected=OF_A_GPU, max_excluded_share=0.01))
    assert (other.granted, other.withheld) == (True, False), "what was withheld takes no place"


def test_restarts_of_an_incident_take_turns_and_keep_them(store: AuditStore, cluster: str) -> None:
    opened(store, cluster)
    steps = [request(cluster, str(number), affected=OF_FILES, pace_s=5, now=at(2)) for number in range(4)]
    answers = [store.permit(step) for step in steps]
    assert [(one.granted, one.until) for one in answers] == [
        (True, None), (False, at(7)), (False, at(12)), (False, at(17)),
    ]  # fmt: skip
    assert store.permit(steps[3]).until == at(17)
    assert store.permit(steps[2].model_copy(update={"now": at(12)})).granted
    assert store.permit(request(cluster, "gpu", affected=OF_A_GPU, now=at(2))).granted
    assert store.permit(request(cluster, "forced", affected=OF_FILES, forced=True, now=at(2))).granted


def test_no_turn_is_so_late_that_the_job_would_be_gone(store: AuditStore, cluster: str) -> None:
    opened(store, cluster)
    steps = [request(cluster, str(n), affected=OF_FILES, pace_s=60, last_call=at(100), now=at(2)) for n in range(4)]
    assert [store.permit(step).until for step in steps] == [None, at(62), at(100), at(100)]
    late = request(cluster, "late", affected=OF_FILES, pace_s=60, last_call=at(1), now=at(2))
    assert store.permit(late).granted


def test_a_closed_incident_paces_nobody(store: AuditStore, cluster: str) -> None:
    found = opened(store, cluster)
    steps = [request(cluster, str(number), affected=OF_FILES, now=at(2)) for number in range(3)]
    assert [store.permit(step).granted for step in steps] == [True, False, False]
    store.close_incident(cluster, found.id, by="oncall", reason="over", now=at(3))
    assert all(store.permit(step).granted for step in steps)


def test_nothing_is_restarted_while_slurmctld_is_away_and_then_one_by_one(store: AuditStore, cluster: str) -> None:
    sweep(store, cluster, 20, away_since=at(0))
    steps = [request(cluster, str(number), affected=OF_A_GPU, now=at(21)) for number in range(3)]
    assert not any(store.permit(step).granted for step in steps)
    assert store.permit(request(cluster, "stop", Action.STOP, forced=True)).granted
    sweep(store, cluster, 90, was_away=(at(0), at(90)))
    after = [store.permit(step.model_copy(update={"now": at(91)})) for step in steps]
    assert [(one.granted, one.until) for one in after] == [(True, None), (False, at(96)), (False, at(101))]


def test_nothing_is_restarted_while_an_incident_against_ourselves_is_open(store: AuditStore, cluster: str) -> None:
    sweep(store, cluster, 20, own_kills=("n1", "n2"))
    answer = store.permit(request(cluster, "1", affected=OF_A_GPU, now=at(21)))
    assert not answer.granted
    assert "Kill task failed" in answer.reason
    assert store.permit(request(cluster, "2", affected=OF_A_GPU, forced=True, now=at(21))).granted
    sweep(store, cluster, 20 + POLICY.incident_close_s)
    assert store.permit(request(cluster, "1", affected=OF_A_GPU, now=at(21 + POLICY.incident_close_s))).granted


def test_nodes_of_running_jobs_that_we_restarted_are_known(store: AuditStore, cluster: str) -> None:
    store.tell_failures(cluster, [failure(1, state=JobState.RUNNING), failure(2), failure(3, state=JobState.RUNNING)])
    for job in ("1", "2"):
        store.permit(request(cluster, job, now=at(10)))
    assert store.restarted_nodes(cluster, NOON) == {"n1"}
    assert store.restarted_nodes(cluster, at(11)) == set()


# ------------------------------------------------------------------------------------------------ two hundred at once


@pytest.mark.parametrize("shared", [False, True], ids=["quiet", "incident"])
def test_two_hundred_askers_at_once_are_answered_one_after_the_other(
    store: AuditStore, url: str, cluster: str, shared: bool
) -> None:
    """Four processes of fifty threads: caps, exclusions, turns and withheld exclusions add up."""
    if shared:
        opened(store, cluster)
    caps: dict[str, Any] = {"max_restarts_at_once": 7, "max_actions_per_hour": 100, "max_excluded_share": 0.05}
    caps |= {"affected": OF_FILES, "pace_s": 1, "now": at(2)}
    told = in_processes(ask_within, [(url, cluster, f"p{number}", 50, caps) for number in range(4)])
    answers = [answer for one in told for answer in one]
    granted = [answer for answer in answers if answer.granted]
    assert len(answers) == 200
    if not shared:
        assert len(granted) == 5, "five of a hundred nodes may be excluded"
        assert not any(answer.withheld for answer in granted)
        return
    assert [answer.withheld for answer in granted] == [True], "the first has its turn at once"
    turns = sorted(answer.until for answer in answers if answer.until is not None)
    assert turns == [at(2 + second) for second in range(1, 200)]
