"""The sweep's part of incidents, over outages of slurmctld and nodes that Slurm drains. The audit store is real."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from activities import correlating
from activities.audit.records import PermitRequest
from activities.audit.store import AuditStore
from activities.contracts import PermitAnswer
from activities.correlating import Correlating
from activities.site import Site
from activities.slurm.answers import SweepRow
from activities.slurm.errors import SlurmctldAway
from recovery.incident_effects import Affected
from recovery.incident_records import Failure, Incident, IncidentKind, Sign
from recovery.policy_file import PolicyFile, parse
from recovery.records import Action, FaultClass, JobState, Nodes, NodeView

IO_ERROR = Sign(signature="storage.io_error", fault_class=FaultClass.STORAGE)
RUNNING = SweepRow(job_id="9", raw_id=9, state=JobState.RUNNING, restarts=0, uid=1, seen="", node_list="n9")


@dataclass
class FakeSite:
    """What Correlating uses of a site; it is its own Slurm client and policy source."""

    store: AuditStore
    name: str
    found: tuple[NodeView, ...] = ()
    switches: dict[str, Nodes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    away: bool = False

    @property
    def policies(self) -> FakeSite:
        return self

    def current(self) -> PolicyFile:
        return parse("", "built-in")

    def client(self, cluster: str) -> FakeSite:
        return self

    async def nodes(self, cluster: str) -> Sequence[NodeView]:
        self.asked.append("nodes")
        if self.away:
            raise SlurmctldAway("away")
        return self.found

    async def topology(self) -> Mapping[str, Nodes]:
        self.asked.append("topology")
        return self.switches


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AuditStore]:
    with AuditStore(f"sqlite:///{tmp_path_factory.mktemp('audit')}/audit.db") as made:
        made.migrate()
        yield made


@pytest.fixture
def site(store: AuditStore) -> FakeSite:
    return FakeSite(store, name=uuid.uuid4().hex)


@pytest.fixture
def sweep(site: FakeSite) -> Correlating:
    return Correlating(cast(Site, site))


def now(seconds: float = 0) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


def failure(number: int, **more: Any) -> Failure:
    fields: dict[str, Any] = {
        "job_id": str(number),
        "attempt": 0,
        "user": f"u{number}",
        "at": now(-1),
        "seen_at": now(-1),
        "nodes": (f"n{number}",),
        "signs": (IO_ERROR,),
    }
    return Failure(**{**fields, **more})


def opened(site: FakeSite) -> list[tuple[IncidentKind, bool]]:
    found: tuple[Incident, ...] = site.store.open_incidents(site.name)
    return [(one.kind, one.back_at is not None) for one in found]


async def test_what_fails_in_two_sweeps_is_one_incident(site: FakeSite, sweep: Correlating) -> None:
    await sweep.after_sweep(site.name, now(), [RUNNING], [failure(1), failure(2)])
    assert opened(site) == []
    await sweep.after_sweep(site.name, now(), [RUNNING], [failure(3)])
    assert opened(site) == [(IncidentKind.FILE_SYSTEM, False)]
    told = site.store.failure(site.name, "1", 0, 0)
    assert told is not None
    assert told.correlated


async def test_another_process_goes_on_where_one_stopped(site: FakeSite, sweep: Correlating) -> None:
    await sweep.after_sweep(site.name, now(), [RUNNING], [failure(1), failure(2)])
    other = Correlating(cast(Site, site))
    await other.after_sweep(site.name, now(), [RUNNING], [failure(3)])
    assert opened(site) == [(IncidentKind.FILE_SYSTEM, False)]


async def test_topology_is_read_rarely_and_only_when_something_failed(site: FakeSite, sweep: Correlating) -> None:
    site.switches = {"s1": ("n1", "n2", "n3")}
    await sweep.after_sweep(site.name, now(), [RUNNING], [])
    assert "topology" not in site.asked
    for number in (1, 2, 3):
        await sweep.after_sweep(site.name, now(), [RUNNING], [failure(number, signs=())])
    assert site.asked.count("topology") == 1
    assert opened(site) == [(IncidentKind.SWITCH, False)]


async def test_an_outage_of_slurmctld_is_told_while_it_lasts_and_when_it_ends(
    site: FakeSite, sweep: Correlating
) -> None:
    await sweep.blind(site.name, now(-3))
    assert opened(site) == [], "a sweep or two prove nothing"
    long_away = Correlating(cast(Site, site))
    await long_away.blind(site.name, now(-30))
    await long_away.blind(site.name, now())
    assert opened(site) == [(IncidentKind.SLURMCTLD, False)]
    await long_away.after_sweep(site.name, now(), [RUNNING], [])
    assert opened(site) == [(IncidentKind.SLURMCTLD, True)]


async def test_nodes_drained_after_our_restarts_are_told_and_others_are_not(
    site: FakeSite, sweep: Correlating, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(correlating, "KILLS_EVERY_S", 0.0)
    drained = [NodeView(name=f"n{n}", state="IDLE", flags=("DRAIN",), reason="Kill task failed") for n in range(1, 5)]
    site.found = tuple(drained)
    site.store.tell_failures(site.name, [failure(n, state=JobState.RUNNING, signs=()) for n in (1, 2, 3)])
    await sweep.after_sweep(site.name, now(), [RUNNING], [])
    assert opened(site) == [], "nothing was restarted"
    for number in (1, 2):
        asked = PermitRequest(
            cluster=site.name, step_key=f"{site.name}-{number}", job_id=str(number), action=Action.RESTART, now=now()
        )
        assert site.store.permit(asked).granted
    await sweep.after_sweep(site.name, now(), [RUNNING], [])
    (incident,) = site.store.open_incidents(site.name)
    assert (incident.kind, incident.nodes) == (IncidentKind.OURSELVES, ("n1", "n2"))


def asks(site: FakeSite, job: str, *nodes: str, **affected: Any) -> PermitAnswer:
    """What a restart that would exclude these nodes is answered."""
    return site.store.permit(
        PermitRequest(
            cluster=site.name,
            step_key=f"{site.name}-{job}-asks",
            job_id=job,
            action=Action.RESTART,
            nodes=nodes,
            affected=Affected(**affected),
            now=now(),
        )
    )


async def test_jobs_that_fail_on_one_switch_keep_their_nodes(site: FakeSite, sweep: Correlating) -> None:
    site.switches = {"leaf1": ("n1", "n2", "n3"), "leaf2": ("n9",)}
    for number in (1, 2, 3):
        gone = failure(number, state=JobState.NODE_FAIL, signs=())
        await sweep.after_sweep(site.name, now(), [RUNNING], [gone])
    (incident,) = site.store.open_incidents(site.name)
    assert (incident.kind, incident.cause, incident.jobs) == (IncidentKind.SWITCH, "leaf1", 3)
    told = {"signature": "scheduler.node_fail", "fault_class": FaultClass.HARDWARE, "user": "u1"}
    answer = asks(site, "1", "n1", nodes=("n1",), **told)
    assert (answer.granted, answer.withheld, answer.incident) == (True, True, incident.id)
    elsewhere = asks(site, "9", "n9", nodes=("n9",), **told)
    assert elsewhere.left_out == (), "another switch is not part of it"


async def test_a_switch_on_which_others_go_on_is_no_incident(site: FakeSite, sweep: Correlating) -> None:
    site.switches = {"leaf1": ("n1", "n2", "n3", "n9")}
    others = [RUNNING._replace(job_id=str(number), raw_id=number) for number in (9, 10, 11)]
    await sweep.after_sweep(site.name, now(), others, [failure(n, signs=()) for n in (1, 2, 3)])
    assert opened(site) == []


async def test_jobs_that_fail_on_nodes_in_maintenance_are_one_incident(site: FakeSite, sweep: Correlating) -> None:
    site.found = (
        NodeView(name="n1", state="IDLE", flags=("MAINTENANCE",)),
        NodeView(name="n2", state="MIXED", flags=("MAINT", "DRAIN")),
        NodeView(name="n3", state="ALLOCATED", flags=("MAINTENANCE",)),
        NodeView(name="n4", state="IDLE"),
    )
    await sweep.after_sweep(site.name, now(), [RUNNING], [failure(n, signs=()) for n in (1, 2, 4)])
    assert opened(site) == [], "two of them only"
    await sweep.after_sweep(site.name, now(), [RUNNING], [failure(3, signs=())])
    (incident,) = site.store.open_incidents(site.name)
    assert (incident.kind, incident.jobs, incident.nodes) == (IncidentKind.MAINTENANCE, 3, ("n1", "n2", "n3"))
    broken = {"signature": "xid.79", "fault_class": FaultClass.HARDWARE}
    answer = asks(site, "1", "n1", nodes=("n1",), **broken)
    assert (answer.granted, answer.withheld, answer.incident) == (True, True, incident.id)
    assert asks(site, "4", "n4", nodes=("n4",), **broken).left_out == ()


async def test_while_our_own_restarts_leave_what_cannot_be_killed_nothing_is_restarted(
    site: FakeSite, sweep: Correlating, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(correlating, "KILLS_EVERY_S", 0.0)
    site.store.tell_failures(site.name, [failure(n, state=JobState.RUNNING, signs=()) for n in (1, 2)])
    assert asks(site, "1").granted
    assert asks(site, "2").granted
    site.found = (NodeView(name="n1", state="IDLE", flags=("DRAIN",), reason="Kill task failed"),)
    await sweep.after_sweep(site.name, now(), [RUNNING], [])
    assert opened(site) == [], "one node is an accident"
    site.found += (NodeView(name="n2", state="IDLE", flags=("DRAIN",), reason="Kill task failed"),)
    await sweep.after_sweep(site.name, now(), [RUNNING], [])
    assert opened(site) == [(IncidentKind.OURSELVES, False)]
    answer = asks(site, "3")
    assert not answer.granted
    assert "Kill task failed" in answer.reason


async def test_nodes_that_cannot_be_read_keep_nobody_from_being_compared(site: FakeSite, sweep: Correlating) -> None:
    site.away = True
    await sweep.after_sweep(site.name, now(), [RUNNING], [failure(n) for n in (1, 2, 3)])
    assert opened(site) == [(IncidentKind.FILE_SYSTEM, False)]
