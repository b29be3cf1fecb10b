"""How running jobs are felt at each sweep, over restarts of the sweep, suspensions and events of nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, cast

from activities.pulse import Pulse, blamed
from activities.site import Site
from activities.slurm.answers import SweepRow
from activities.sweep_cursor import SweepCursor, read_cursor
from activities.telemetry.logwatch import LogLook
from recovery.hang import Stage
from recovery.measured import JobMetrics, MeasuredJob
from recovery.policy_file import PolicyFile, parse
from recovery.records import FaultClass, JobState, NodeView, Progress, Role
from tests.recovery.situations import T0, finding

LOW = parse("policies: {default: {hang_floor_s: 30, hang_start_s: 60, hang_one_witness_s: 60}}", "policy.yaml")


@dataclass
class Policies:
    file: PolicyFile = LOW

    def current(self) -> PolicyFile:
        return self.file


@dataclass
class FakeSite:
    """What Pulse uses of a site."""

    policies: Policies = field(default_factory=Policies)
    sweep_interval_s: float = 2.0
    found: tuple[NodeView, ...] = ()
    asked: int = 0
    measures: bool = False
    measured_jobs: list[MeasuredJob] = field(default_factory=list)

    async def nodes(self, cluster: str) -> Sequence[NodeView]:
        self.asked += 1
        return self.found

    def is_measured(self, cluster: str) -> bool:
        return self.measures

    async def measured(self, cluster: str, jobs: Sequence[MeasuredJob]) -> Mapping[str, JobMetrics]:
        self.measured_jobs += jobs
        return {}


class Felt:
    """One job that is felt every two seconds; its cursor goes through JSON each time."""

    def __init__(self) -> None:
        self.site = FakeSite()
        self.pulse = Pulse(cast(Site, self.site))
        self.cursor = SweepCursor()
        self.second = 0.0
        self.step = 0
        self.owner = "bob"

    @property
    def now(self) -> datetime:
        return T0 + timedelta(seconds=self.second)

    def row(self, **more: Any) -> SweepRow:
        usual: dict[str, Any] = {
            "job_id": "7",
            "raw_id": 7,
            "state": JobState.RUNNING,
            "restarts": 0,
            "uid": 1,
            "user": self.owner,
            "seen": "x",
            "start": int(T0.timestamp()),
            "node_list": "n[01-04]",
            "comment": "relight",
        }
        return SweepRow(**{**usual, **more})

    def feel(self, look: LogLook | None, **more: Any) -> SweepCursor:
        self.second += 2
        cursor = self.pulse.feel("prod", self.row(), 1, look, self.cursor, self.now, **more)
        self.cursor = read_cursor(cursor.model_dump_json())
        return self.cursor

    def trains(self, looks: int) -> None:
        for _ in range(looks):
            self.step += 5
            self.feel(LogLook(cursor=self.cursor, progress=Progress(), step=self.step, grew=True))

    def silent(self, seconds: float, **more: Any) -> None:
        for _ in range(int(seconds / 2)):
            self.feel(LogLook(cursor=self.cursor, progress=Progress()), **more)


def test_a_silent_job_is_suspected_then_overdue() -> None:
    job = Felt()
    job.trains(20)
    job.silent(26)
    assert job.cursor.hang is None
    job.silent(10)
    assert job.cursor.hang is not None
    assert job.cursor.judged == ("hang:suspected:100",)
    job.silent(60)
    assert job.cursor.judged == ("hang:overdue:100",)


def test_the_policy_of_the_jobs_user_holds() -> None:
    places = "clusters: {prod: {users: {ada: {policy: patient}}}}"
    policies = "{default: {hang_floor_s: 30, hang_start_s: 60}, patient: {hang_floor_s: 600, hang_start_s: 900}}"
    job = Felt()
    job.site.policies = Policies(parse(f"{places}\npolicies: {policies}", "policy.yaml"))
    job.trains(20)
    job.silent(40)
    assert job.cursor.hang is not None
    job = Felt()
    job.site.policies = Policies(parse(f"{places}\npolicies: {policies}", "policy.yaml"))
    job.owner = "ada"
    job.trains(20)
    job.silent(40)
    assert job.cursor.hang is None


def test_a_new_sweep_goes_on_where_the_old_one_stopped() -> None:
    job = Felt()
    job.trains(20)
    job.silent(14)
    job.pulse = Pulse(cast(Site, job.site))
    job.silent(20)
    assert job.cursor.hang is not None


def test_what_happened_while_no_sweep_ran_is_not_known() -> None:
    job = Felt()
    job.trains(20)
    job.pulse = Pulse(cast(Site, job.site))
    job.second += 1000
    job.silent(26)
    assert job.cursor.hang is None
    job.silent(10)
    assert job.cursor.hang is not None


def test_a_quiet_job_is_not_written_at_every_sweep() -> None:
    job = Felt()
    job.trains(20)
    written = 0
    for _ in range(14):
        before = job.cursor
        job.silent(2)
        written += before != job.cursor
    assert written <= 2


def test_time_in_suspension_is_no_silence() -> None:
    job = Felt()
    job.trains(20)
    for _ in range(100):
        job.feel(None)
        assert job.cursor.judged == ()
    job.silent(20)
    assert job.cursor.hang is None
    job.silent(20)
    assert job.cursor.hang is not None


def test_a_hang_that_was_none_is_remembered_as_over() -> None:
    job = Felt()
    job.trains(20)
    job.silent(36)
    job.trains(1)
    assert job.cursor.hang is None
    assert job.cursor.over is not None
    assert job.cursor.over.step == 100


def test_metrics_are_a_witness_and_what_they_find_is_named() -> None:
    job = Felt()
    job.trains(20)
    job.silent(36, metrics=JobMetrics(tensor_idle=True))
    assert job.cursor.hang is not None
    assert job.cursor.hang.stage is Stage.CONFIRMED


async def test_events_of_its_nodes_are_named_and_the_list_is_read_rarely() -> None:
    job = Felt()
    job.site.found = tuple(
        NodeView(name=f"n{number:02d}", state="ALLOCATED", slurmd_start_time=T0 - timedelta(days=1))
        for number in range(1, 7)
    )
    job.site.found += (NodeView(name="n07", state="DOWN"),)
    await job.pulse.look_at_nodes("prod", [job.row()])
    job.trains(3)
    assert job.cursor.nodes == ()
    job.pulse = Pulse(cast(Site, job.site))
    job.site.found = (job.site.found[0].model_copy(update={"boot_time": job.now}), *job.site.found[1:])
    await job.pulse.look_at_nodes("prod", [job.row()])
    await job.pulse.look_at_nodes("prod", [job.row()])
    assert job.site.asked == 2
    job.silent(2)
    assert [name.split(":")[:2] for name in job.cursor.nodes] == [["n01", "rebooted"]]
    job.second += 20
    job.trains(1)
    assert len(job.cursor.nodes) == 1, "that step may have been completed before it"
    job.trains(1)
    assert job.cursor.nodes == ()


async def test_late_metrics_of_an_ended_attempt_are_asked_for_while_the_job_waits() -> None:
    job = Felt()
    job.site.measures = True
    waits: dict[str, Any] = {"state": JobState.PENDING, "restarts": 1, "start": None, "node_list": ""}
    asked = await job.pulse.measured("prod", [job.row(**waits)])
    assert asked == {}, "of an attempt that was never seen to run nothing is asked"
    await job.pulse.measured("prod", [job.row()])
    await job.pulse.measured("prod", [job.row(state=JobState.FAILED)])
    await job.pulse.measured("prod", [job.row(**waits)])
    assert [(one.attempt, one.end_time is None) for one in job.site.measured_jobs] == [(0, True), (0, False)]
    assert job.site.measured_jobs[-1].nodes == ("n01", "n02", "n03", "n04")
    await job.pulse.measured("prod", [job.row(restarts=1, start=int(T0.timestamp()) + 60)])
    assert job.site.measured_jobs[-1].attempt == 1


def test_only_causes_in_nodes_are_blamed_late() -> None:
    xid = finding(detector="metrics", trusted=True, nodes=("n03",))
    killed = xid.model_copy(update={"fault_class": FaultClass.OUT_OF_MEMORY, "nodes": ("n02",)})
    symptom = xid.model_copy(update={"role": Role.SYMPTOM, "nodes": ("n01",)})
    assert blamed(JobMetrics(findings=(symptom, killed, xid))) == ("n03",)
    assert blamed(None) == ()
