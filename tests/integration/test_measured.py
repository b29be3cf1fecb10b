"""What metrics add, on a real cluster with a real Prometheus: the second witness of a hang, the host that is behind or
does not come, and the GPU error that is scraped only when the restart is under way.

One exporter stands for those of all nodes. Limits are low, so that seconds stand for minutes.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator

import pytest

from activities.contracts import EventKind
from tests.integration.story import told_on_failure
from tests.services.exporter import FakeExporter
from tests.services.prometheus import PrometheusServer
from tests.stage import Stage

POLICY = {
    "hang_floor_s": 10,
    "hang_start_s": 60,
    "hang_phase_s": 60,
    # A hang that is acted upon within the test was confirmed by a second witness.
    "hang_one_witness_s": 3600,
    "straggler_for_s": 12,
    "straggler_drop": 0.4,
}
POLICIES = {"movers": {"straggler": "restart"}, "patient": {"start_delay_s": 45, "lease_s": 90}}


class Gpus:
    """What the exporter shows of one GPU per node."""

    def __init__(self, exporter: FakeExporter, nodes: tuple[str, ...]) -> None:
        self.exporter = exporter
        for node in nodes:
            self.show(node, tensor=0.4, used=100, clock=1700)
            self.xid(node, 0)

    def show(self, *nodes: str, tensor: float, used: float, clock: float) -> None:
        for node in nodes:
            self.exporter.set("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", tensor, Hostname=node, gpu="0")
            self.exporter.set("DCGM_FI_DEV_GPU_UTIL", used, Hostname=node, gpu="0")
            self.exporter.set("DCGM_FI_DEV_SM_CLOCK", clock, Hostname=node, gpu="0")

    def xid(self, node: str, code: int) -> None:
        self.exporter.set("DCGM_FI_DEV_XID_ERRORS", code, Hostname=node, gpu="0")

    def killed_for_memory(self, node: str, processes: int) -> None:
        self.exporter.set("node_vmstat_oom_kill", processes, Hostname=node)


@pytest.fixture(scope="module")
def exporter() -> Iterator[FakeExporter]:
    with FakeExporter() as made:
        yield made


@pytest.fixture(scope="module")
def stage(exporter: FakeExporter) -> Iterator[Stage]:
    with PrometheusServer({exporter.address: {"job": "dcgm", "instance": "exporters:9400"}}) as server:
        settings = {"url": server.url, "interval_s": 1, "idle_s": 30, "lookback_s": 300}
        with Stage(nodes=18, kill_wait_s=2, policy=POLICY, policies=POLICIES, prometheus=settings) as made:
            made.start_worker()
            yield made


def _other_node(stage: Stage, job: int) -> str:
    """A node of the running job that is not its batch host."""
    shown = stage.slurm.show(job)
    return next(node for node in stage.hosts(shown["NodeList"]) if node != shown["BatchHost"])


def test_metrics_confirm_hangs_and_name_hosts_also_while_the_restarted_job_waits(
    stage: Stage, exporter: FakeExporter
) -> None:
    gpus = Gpus(exporter, stage.slurm.nodes)
    for node in stage.slurm.nodes:
        gpus.killed_for_memory(node, 0)
    sizes = {"hung": 2, "slowed": 3, "moved": 3, "late": 2, "starved": 2}
    policies = {"moved": "movers", "late": "patient"}
    faults = {name: stage.faults(name) for name in (*sizes, "healthy")}
    jobs = {}
    for name, nodes in sizes.items():
        about = {"policy": policies[name]} if name in policies else {}
        jobs[name] = stage.train(
            "alice",
            name,
            "--exclusive",
            nodes=nodes,
            steps=3000,
            comment=json.dumps({"relight": about}),
            faults=faults[name],
            step_time=0.2,
        )
    jobs["healthy"] = stage.train(
        "bob",
        "healthy",
        "--exclusive",
        nodes=2,
        steps=3000,
        comment="relight",
        faults=faults["healthy"],
        step_time=0.2,
        trainer_args="--eval-every 25 --eval-time 15",
    )
    with told_on_failure(stage, *jobs.values()):
        for name, job in jobs.items():
            # An error within half a minute of a job's start may be its predecessor's.
            stage.until(lambda job=job, name=name: stage.trained(job, 25 if name == "healthy" else 150), f"{name} runs")
        victims = {name: _other_node(stage, jobs[name]) for name in sizes}
        waiting = stage.slurm.show(jobs["hung"])["BatchHost"]

        for pid in stage.slurm.rank_pids(jobs["hung"], victims["hung"]):
            os.kill(pid, signal.SIGSTOP)
        gpus.show(waiting, tensor=0, used=100, clock=1700)
        gpus.show(victims["hung"], tensor=0, used=0, clock=1700)
        for name in ("slowed", "moved"):
            gpus.show(victims[name], tensor=0.2, used=100, clock=700)
            (faults[name] / victims[name]).write_text("slow 0.6")
        gpus.killed_for_memory(victims["starved"], 1)
        (faults["starved"] / victims["starved"]).write_text("kill")
        (faults["late"] / victims["late"]).write_text("exit 3")

        _xid_that_comes_late(stage, jobs["late"], victims["late"], gpus)
        _host_without_memory(stage, jobs["starved"], victims["starved"])
        _hang_with_two_witnesses(stage, jobs["hung"], victims["hung"])
        _slow_host(stage, jobs["slowed"], victims["slowed"])
        _slow_host_is_left_out(stage, jobs["moved"], victims["moved"])

        healthy = jobs["healthy"]
        stage.until(lambda: stage.trained(healthy, 76), "the healthy job has evaluated three times")
        assert not stage.events(healthy, EventKind.FINDING)
        assert not stage.events(healthy, EventKind.ADVICE)
        for job in jobs.values():
            stage.slurm.run("scancel", str(job))


def _xid_that_comes_late(stage: Stage, job: int, victim: str, gpus: Gpus) -> None:
    """The job fails and says nothing; the restart is under way when the GPU's error is scraped."""
    stage.until(lambda: stage.restarts(job) == 1, "it is restarted")
    assert stage.slurm.show(job)["ExcNodeList"] == "(null)"
    gpus.xid(victim, 79)
    stage.until(lambda: stage.slurm.show(job)["ExcNodeList"] == victim, "its waiting attempt is kept off the node")
    assert stage.slurm.state(job) == "PENDING"
    stage.until(lambda: stage.events(job, EventKind.OUTCOME, kind="first_step"), "it goes on")
    assert stage.restarts(job) == 1
    assert [event.body["action"] for event in stage.events(job, EventKind.STEP, done=True)] == ["restart", "guard"]
    verdict = stage.events(job, EventKind.VERDICT)[-1].body
    assert (verdict["fault_class"], verdict["signature"]) == ("hardware", "xid.79")


def _host_without_memory(stage: Stage, job: int, victim: str) -> None:
    """The kernel killed a rank: the log tells that it was killed, the host's metrics why."""
    stage.until(lambda: stage.events(job, EventKind.OUTCOME, kind="first_step"), "the starved job goes on")
    verdict = stage.events(job, EventKind.VERDICT)[0].body
    assert (verdict["fault_class"], verdict["signature"]) == ("out_of_memory", "host.oom_kill")
    assert [suspect["node"] for suspect in verdict["suspects"]] == [victim]
    assert stage.slurm.show(job)["ExcNodeList"] == "(null)", "what ate the memory is not known"


def _hang_with_two_witnesses(stage: Stage, job: int, victim: str) -> None:
    stage.until(lambda: stage.events(job, EventKind.OUTCOME, kind="first_step"), "the hung job goes on")
    assert stage.restarts(job) == 1
    advice = stage.events(job, EventKind.ADVICE, action="restart")
    assert [event.body["rule"] for event in advice] == ["hang"]
    assert stage.slurm.show(job)["ExcNodeList"] == victim
    verdict = stage.events(job, EventKind.VERDICT)[-1].body
    assert (verdict["fault_class"], verdict["signature"]) == ("interconnect", "hang.absent_host")


def _slow_host(stage: Stage, job: int, victim: str) -> None:
    """By default a job that lags is told with the host, and left alone."""
    stage.until(lambda: stage.events(job, EventKind.FINDING, signature="straggler.slow_host"), "the slow host is named")
    found = stage.events(job, EventKind.FINDING, signature="straggler.slow_host")[-1].body
    assert found["nodes"] == [victim]
    assert "SM clock" in found["how"]
    stage.until(lambda: stage.events(job, EventKind.ADVICE, rule="straggler"), "it is told")
    assert victim in stage.events(job, EventKind.ADVICE, rule="straggler")[-1].summary
    assert stage.restarts(job) == 0


def _slow_host_is_left_out(stage: Stage, job: int, victim: str) -> None:
    """Where the policy says so it is restarted without the host, from a fresh checkpoint."""
    stage.until(lambda: stage.events(job, EventKind.OUTCOME, kind="first_step"), "the job leaves the slow host")
    assert stage.restarts(job) == 1
    assert stage.slurm.show(job)["ExcNodeList"] == victim
    assert stage.events(job, EventKind.ADVICE, action="restart")[0].body["rule"] == "straggler"
