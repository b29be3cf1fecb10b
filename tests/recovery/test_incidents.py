"""Several jobs that fail of one thing are one incident: found once, whatever is given twice, and closed by itself."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recovery.incident_effects import Affected, explaining, explains, holds_off, paces, put_off_until
from recovery.incident_records import ClusterLook, Failure, Incident, IncidentKind, Sign
from recovery.incidents import RETURN_S, correlate
from recovery.policy import Policy, decide
from recovery.records import Action, FaultClass, JobState, Retry
from tests.recovery.situations import at, attempt, finding, situation, suspect, verdict, view

POLICY = Policy()
QUIET = ClusterLook()
IO_ERROR = Sign(signature="storage.io_error", fault_class=FaultClass.STORAGE)
STALE = Sign(signature="storage.stale_handle", fault_class=FaultClass.STORAGE)
XID = Sign(signature="xid.79", fault_class=FaultClass.HARDWARE)
NCCL = Sign(signature="nccl.remote_error", fault_class=FaultClass.INTERCONNECT)
IMPORT = Sign(signature="python.import_error", fault_class=FaultClass.USER)
SWITCHES = ClusterLook(switches={"s1": ("n01", "n02", "n03"), "s2": ("n11", "n12", "n13")})


def failure(job: int, sign: Sign | None = IO_ERROR, second: float = 0, **more: object) -> Failure:
    fields: dict[str, object] = {
        "job_id": str(job),
        "attempt": 0,
        "user": f"user{job % 2}",
        "at": at(second),
        "seen_at": at(second + 1),
        "nodes": (f"n{job:02}",),
        "signs": (sign,) if sign is not None else (),
    }
    return Failure.model_validate(fields | more)


def found(
    failures: Iterable[Failure],
    look: ClusterLook = QUIET,
    known: Iterable[Incident] = (),
    now: datetime | None = None,
) -> tuple[Incident, ...]:
    return correlate(failures, look, known, now or at(10), POLICY)


def test_three_jobs_with_file_system_errors_are_one_incident() -> None:
    told = found([failure(1), failure(2, STALE, 20), failure(3, second=30)], now=at(40))
    assert [(one.kind, one.jobs, one.only_user, one.last_at) for one in told] == [
        (IncidentKind.FILE_SYSTEM, 3, "", at(31))
    ]


@pytest.mark.parametrize(
    "failures",
    [
        [failure(1), failure(2)],
        [failure(1), failure(2), failure(2, attempt=1)],
        [failure(1), failure(2, second=200), failure(3, second=400)],
        [failure(n, IMPORT) for n in range(1, 6)],
        [failure(n, None) for n in range(1, 6)],
        [failure(n, XID, nodes=("n01", f"n{n + 1:02}")) for n in range(1, 6)],
        [failure(n, nodes=("n01",)) for n in range(1, 6)],
    ],
    ids=["two jobs", "one job twice", "far apart", "users' errors", "no cause", "one bad node", "one node's mount"],
)
def test_what_is_no_shared_fault_opens_nothing(failures: list[Failure]) -> None:
    assert found(failures, now=at(500)) == ()


def test_more_of_the_same_joins_and_never_opens_another() -> None:
    first = found([failure(n) for n in (1, 2, 3)])
    more = [failure(n, second=100) for n in (1, 2, 3, 4, 5, 6)]
    later = found([*more, failure(7, second=110)], known=first, now=at(120))
    assert [(one.id, one.jobs, one.last_at) for one in later] == [(first[0].id, 4 + 3, at(111))]


def test_failures_under_one_switch_point_to_the_switch_and_not_to_what_each_printed() -> None:
    lost = [failure(1, NCCL), failure(2, None), failure(3, NCCL)]
    told = found(lost, SWITCHES)
    assert [(one.kind, one.cause, one.nodes) for one in told] == [
        (IncidentKind.SWITCH, "s1", ("n01", "n02", "n03")),
    ]
    elsewhere = [failure(1, NCCL), failure(2, NCCL), failure(11, NCCL), failure(12, NCCL)]
    assert [one.kind for one in found(elsewhere, SWITCHES)] == [IncidentKind.SIGNATURE]


def test_a_switch_on_which_most_jobs_go_on_is_not_to_blame() -> None:
    lost = [failure(n, None) for n in (1, 2, 3)]
    going_on = SWITCHES.model_copy(update={"running": (("n01",), ("n02",), ("n03", "n11"))})
    assert found(lost, SWITCHES) != ()
    assert found(lost, going_on) == ()


def test_failures_in_a_maintenance_window_are_the_maintenance() -> None:
    look = ClusterLook(maintenance=("n01", "n02", "n03"))
    told = found([failure(n, XID if n == 1 else None) for n in (1, 2, 3)], look)
    assert [(one.kind, one.nodes) for one in told] == [(IncidentKind.MAINTENANCE, ("n01", "n02", "n03"))]


def test_an_incident_closes_when_no_more_of_it_is_seen() -> None:
    first = found([failure(n) for n in (1, 2, 3)])
    last = first[0].last_at + timedelta(seconds=POLICY.incident_close_s)
    assert found((), known=first, now=last - timedelta(seconds=1)) == ()
    closed = found((), known=first, now=last)
    assert [one.is_open for one in closed] == [False]
    assert found([failure(n) for n in (1, 2, 3)], known=closed, now=last) == (), (
        "the same failures do not open it again"
    )
    again = found([failure(n, second=700, attempt=1) for n in (1, 2, 3)], known=closed, now=at(710))
    assert [(one.is_open, one.id != first[0].id) for one in again] == [(True, True)]


# ------------------------------------------------------------------------------------------------ slurmctld, ourselves


def test_an_outage_of_slurmctld_is_one_incident_until_it_has_answered_for_a_while() -> None:
    assert found((), ClusterLook(away_since=at(0)), now=at(5)) == ()
    opened = found((), ClusterLook(away_since=at(0)), now=at(12))
    assert [one.kind for one in opened] == [IncidentKind.SLURMCTLD]
    assert holds_off(opened[0], at(13))
    assert not holds_off(opened[0], at(13 + 180)), "a sweep that fell silent holds nobody off for ever"
    still = found((), ClusterLook(away_since=at(0)), known=opened, now=at(60))
    assert [one.id for one in still] == [opened[0].id]
    back = found((), ClusterLook(was_away=(at(0), at(90))), known=still, now=at(90))
    assert [(one.id, one.back_at, one.is_open) for one in back] == [(opened[0].id, at(90), True)]
    assert not holds_off(back[0], at(91))
    assert paces(back[0], Affected())
    assert found((), known=back, now=at(89 + RETURN_S)) == ()
    assert [one.is_open for one in found((), known=back, now=at(90 + RETURN_S))] == [False]


def test_an_outage_that_nobody_could_write_down_is_an_incident_afterwards() -> None:
    told = found((), ClusterLook(was_away=(at(0), at(30))), now=at(31))
    assert [(one.kind, one.back_at) for one in told] == [(IncidentKind.SLURMCTLD, at(30))]
    assert found((), ClusterLook(was_away=(at(0), at(4))), now=at(5)) == ()


def test_an_outage_closed_by_a_person_stays_closed() -> None:
    opened = found((), ClusterLook(away_since=at(0)), now=at(12))[0]
    closed = opened.model_copy(update={"closed_at": at(13), "closed_by": "oncall"})
    assert found((), ClusterLook(away_since=at(0)), known=[closed], now=at(14)) == ()


def test_nodes_that_our_restarts_drained_are_an_incident_against_ourselves() -> None:
    assert found((), ClusterLook(own_kills=("n01",))) == ()
    opened = found((), ClusterLook(own_kills=("n01", "n02")))
    assert [(one.kind, one.nodes) for one in opened] == [(IncidentKind.OURSELVES, ("n01", "n02"))]
    assert holds_off(opened[0], at(11))
    more = found((), ClusterLook(own_kills=("n01", "n02", "n03")), known=opened, now=at(100))
    assert [(one.id, one.nodes) for one in more] == [(opened[0].id, ("n01", "n02", "n03"))]
    closed = found((), known=more, now=at(100 + POLICY.incident_close_s))
    assert [one.is_open for one in closed] == [False]
    again = ClusterLook(own_kills=("n01", "n02", "n03"))
    assert found((), again, known=closed, now=at(101 + POLICY.incident_close_s)) == (), "they are still drained"


# ------------------------------------------------------------------------------------------------ what it means


def test_what_one_user_prints_counts_for_that_user_only() -> None:
    fake = found([failure(n, XID, user="mallory") for n in (1, 2, 3)])[0]
    victim = Affected(user="alice", nodes=("n07",), signature="xid.79", fault_class=FaultClass.HARDWARE)
    assert fake.only_user == "mallory"
    assert not explains(fake, victim)
    assert not paces(fake, victim)
    assert explains(fake, victim.model_copy(update={"user": "mallory"}))
    joined = found([failure(9, XID, 5, user="alice")], known=[fake])[0]
    assert joined.only_user == ""
    assert explains(joined, victim)


def test_what_the_scheduler_says_counts_for_everybody() -> None:
    gone = Sign(signature="scheduler.node_fail", fault_class=FaultClass.HARDWARE)
    lost = [failure(n, gone, user="alice", state=JobState.NODE_FAIL) for n in (1, 2, 3)]
    assert [one.only_user for one in found(lost)] == [""]


def test_a_fault_of_another_kind_keeps_its_own_treatment() -> None:
    files = found([failure(n) for n in (1, 2, 3)])
    gpu = Affected(user="alice", nodes=("n01",), signature="xid.79", fault_class=FaultClass.HARDWARE)
    assert explaining(files, gpu) is None
    files_of_alice = gpu.model_copy(update={"signature": "storage.read_only", "fault_class": FaultClass.STORAGE})
    assert explaining(files, files_of_alice) == files[0]


def _shared(sign: Sign, **more: object) -> dict[str, object]:
    incident = found([failure(n, sign, second=590) for n in (1, 2, 3)], now=at(600))[0]
    return {"incidents": (incident.model_copy(update=more),)}


def test_a_job_of_an_incident_is_restarted_without_exclusions() -> None:
    alone = decide(situation(), POLICY)
    assert (alone.rule, alone.exclude) == ("suspect", ("n02",))
    shared = decide(situation(**_shared(XID)), POLICY)
    assert (shared.action, shared.rule, shared.exclude) == (Action.RESTART, "incident", ())
    assert "3 jobs failed with xid.79" in shared.reason
    closed = decide(situation(**_shared(XID, closed_at=at(600))), POLICY)
    assert closed.rule == "suspect"


def test_hardware_that_fails_the_job_there_again_is_excluded_all_the_same() -> None:
    before = attempt(0, fault_class=FaultClass.HARDWARE, signature="xid.79", suspects=("n02",))
    job = view(restarts=1)
    twice = {"attempts": (before, attempt(1, submit_time=at(0), end_time=at(600)))}
    shared = decide(situation(job, **twice, **_shared(XID)), POLICY)
    assert (shared.rule, shared.exclude) == ("incident", ("n02",))


def test_a_lost_peer_is_no_cause_that_jobs_share() -> None:
    peers = NCCL.model_copy(update={"root": False})
    assert found([failure(n, peers) for n in (1, 2, 3)]) == ()
    assert [one.kind for one in found([failure(n, peers) for n in (1, 2, 3)], SWITCHES)] == [IncidentKind.SWITCH]


def test_a_file_system_is_given_time_but_no_job_is_forgotten_over_it() -> None:
    files = verdict(FaultClass.STORAGE, signature="storage.io_error")
    incident = _shared(IO_ERROR)
    waits = decide(situation(verdict=files, **incident), POLICY)
    assert (waits.action, waits.rule) == (Action.WAIT, "incident")
    assert waits.look_again_at == at(591 + POLICY.incident_quiet_s)
    later = decide(situation(verdict=files, now=waits.look_again_at, **incident), POLICY)
    assert (later.action, later.rule, later.exclude) == (Action.RESTART, "incident", ())
    endless = {"incidents": (incident["incidents"][0].model_copy(update={"last_at": at(10_000)}),)}  # type: ignore[index]
    last = decide(situation(verdict=files, now=at(600 + POLICY.permit_wait_s), **endless), POLICY)
    assert last.action is Action.RESTART
    assert put_off_until(_shared(XID)["incidents"][0], POLICY) is None  # type: ignore[index]


def test_what_stops_a_job_goes_before_any_incident() -> None:
    stops = decide(situation(verdict=verdict(FaultClass.STORAGE, signature="storage.io_error", retry=Retry.NO),
                             **_shared(IO_ERROR)), POLICY)  # fmt: skip
    assert stops.action is Action.STOP
    assert decide(situation(view(JobState.COMPLETED), **_shared(XID)), POLICY).rule == "finished"
    assert decide(situation(view(exit_code=93), **_shared(XID)), POLICY).rule == "stop_code"


def test_a_node_that_failed_under_a_waiting_job_is_not_excluded_for_a_lost_switch() -> None:
    gone = verdict(FaultClass.HARDWARE, suspect("n02"), signature="scheduler.node_fail")
    waiting = view(JobState.PENDING, restarts=1, start_time=None, end_time=None)
    lost = found([failure(n, None, nodes=(f"n0{n}",)) for n in (1, 2, 3)], SWITCHES)
    attempts = (attempt(0, state=JobState.NODE_FAIL), attempt(1, state=JobState.PENDING, nodes=()))
    facts = {"findings": (finding(signature="scheduler.node_fail"),), "verdict": gone, "attempts": attempts}
    alone = decide(situation(waiting, **facts), POLICY)
    shared = decide(situation(waiting, incidents=lost, **facts), POLICY)
    assert alone.exclude == ("n02",)
    assert shared.exclude == ()


# ------------------------------------------------------------------------------------------------ for any input


class Maker:
    """Sweeps of a small cluster in which much goes wrong, from one seed."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)

    def failure(self) -> Failure:
        random = self.random
        return failure(
            random.randrange(1, 12),
            random.choice((IO_ERROR, IO_ERROR, STALE, XID, NCCL, IMPORT, None)),
            random.choice((random.randrange(1200), random.randrange(1000, 1100))),
            attempt=random.randrange(3),
            nodes=tuple(sorted(random.sample(NODES, random.randrange(3)))),
            state=random.choice((JobState.FAILED, JobState.FAILED, JobState.NODE_FAIL)),
        )

    def look(self) -> ClusterLook:
        random = self.random
        return ClusterLook(
            away_since=at(random.randrange(1200)) if random.random() < 0.2 else None,
            switches=random.choice(({}, SWITCHES.switches)),
            maintenance=random.choice(((), (), ("n01", "n02"))),
            own_kills=random.choice(((), (), ("n01",), ("n01", "n02"), ("n02", "n03", "n11"))),
        )


NODES = ("n01", "n02", "n03", "n11", "n12", "n13")


@settings(max_examples=2_000, deadline=None)
@given(st.integers(0, 2**32))
def test_sweep_after_sweep_no_cause_has_two_incidents_and_all_close(seed: int) -> None:
    maker = Maker(seed)
    incidents: dict[str, Incident] = {}
    seen: dict[str, Failure] = {}
    for number in range(maker.random.randrange(1, 4)):
        now = at(1300 + 2 * number)
        for fresh in (maker.failure() for _ in range(maker.random.randrange(7))):
            seen.setdefault(fresh.key, fresh)
        failures, look = list(seen.values()), maker.look()
        told = found(failures, look, incidents.values(), now)
        backwards = found(failures[::-1], look, list(incidents.values())[::-1], now)
        assert backwards == told, "the order must not matter"
        incidents |= {one.id: one for one in told}
        assert found(failures, look, incidents.values(), now) == (), "telling it again must change nothing"
        opened = [(one.kind, one.cause) for one in incidents.values() if one.is_open]
        assert len(opened) == len(set(opened))
        members = [member for one in incidents.values() for member in one.members]
        assert len(members) == len(set(members)), "a failure is of one incident"
    for second in (4_000, 8_000):
        incidents |= {one.id: one for one in found(seen.values(), QUIET, incidents.values(), at(second))}
    assert not [one for one in incidents.values() if one.is_open]
