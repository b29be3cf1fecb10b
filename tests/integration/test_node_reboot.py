"""Nodes that go off under a running job, on a real cluster: one that comes back within a second, which Slurm does not
take for a failure, and one that stays away. A healthy job with long evaluations raises nothing meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from activities.contracts import EventKind
from tests.integration.story import told_on_failure
from tests.stage import Stage


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    policy = {"hang_floor_s": 10, "hang_start_s": 40, "hang_phase_s": 40, "hang_one_witness_s": 3600}
    with Stage(nodes=10, kill_wait_s=2, cred_expire_s=20, policy=policy) as made:
        made.start_worker()
        yield made


def _other_node(stage: Stage, job: int) -> str:
    """A node of the running job that is not its batch host."""
    shown = stage.slurm.show(job)
    return next(node for node in stage.hosts(shown["NodeList"]) if node != shown["BatchHost"])


def test_a_node_that_reboots_or_dies_under_a_job_is_seen_blamed_and_left_out(stage: Stage) -> None:
    faults = stage.faults("none")
    jobs = {
        name: stage.train(
            "alice", name, "--exclusive", nodes=2, steps=3000, comment="relight", faults=faults, step_time=0.2
        )
        for name in ("rebooted", "bystander", "dead")
    }
    jobs["healthy"] = stage.train(
        "bob",
        "healthy",
        "--exclusive",
        nodes=2,
        steps=3000,
        comment="relight",
        faults=faults,
        step_time=0.2,
        trainer_args="--eval-every 20 --eval-time 12",
    )
    with told_on_failure(stage, *jobs.values()):
        for job in jobs.values():
            stage.until(lambda job=job: stage.trained(job, 15), "it trains")
        rebooted, dead = _other_node(stage, jobs["rebooted"]), _other_node(stage, jobs["dead"])
        stage.slurm.kill_node(dead)
        stage.slurm.reboot_node(rebooted)

        job = jobs["rebooted"]
        stage.until(
            lambda: stage.events(job, EventKind.OUTCOME, kind="first_step"), "the job whose node rebooted is back"
        )
        verdict = stage.events(job, EventKind.VERDICT)[-1].body
        assert verdict["fault_class"] == "hardware"
        assert [suspect["node"] for suspect in verdict["suspects"]] == [rebooted]
        assert stage.slurm.show(job)["ExcNodeList"] == rebooted
        assert stage.restarts(job) == 1
        found = [event.body for event in stage.events(job, EventKind.FINDING) if event.body["detector"] == "nodes"]
        assert {(one["signature"], one["trusted"]) for one in found} >= {("node.daemon_restarted", True)}

        job = jobs["dead"]
        stage.until(lambda: stage.events(job, EventKind.OUTCOME, kind="first_step"), "the job whose node died is back")
        assert stage.slurm.show(job)["ExcNodeList"] == dead
        assert stage.events(job, EventKind.VERDICT)[-1].body["fault_class"] == "hardware"
        assert stage.restarts(job) == 1

        healthy = jobs["healthy"]
        stage.until(lambda: stage.trained(healthy, 61), "the healthy job has evaluated three times")
        for job in (healthy, jobs["bystander"]):
            assert stage.slurm.state(job) == "RUNNING"
            assert not stage.events(job, EventKind.FINDING)
            assert not stage.events(job, EventKind.ADVICE)
        for job in jobs.values():
            stage.slurm.run("scancel", str(job))
