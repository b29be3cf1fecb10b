"""slurmctld dies around a restart and forgets what it had not saved: the exclusion or the start, even the requeue.

Judged by Slurm's own records: the job finishes, never on the node it was to avoid, and every requeue is explained.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from activities.contracts import EventKind
from tests.integration.sabotage import Sabotage
from tests.integration.story import told_on_failure
from tests.stage import Stage


@pytest.fixture(scope="module")
def sabotage() -> Iterator[Sabotage]:
    made = Sabotage()
    yield made
    made.close()


@pytest.fixture(scope="module")
def stage(sabotage: Sabotage) -> Iterator[Stage]:
    with Stage(nodes=5, **sabotage.settings) as made:
        made.start_worker()
        yield made


def _crash(stage: Stage, name: str) -> tuple[int, Path]:
    """A job that has begun to train; its node breaks when the file that is given is written."""
    for node in stage.slurm.nodes:
        if "DRAIN" in stage.slurm.node(node)["State"]:  # Slurm drains a node that could not launch a job
            stage.slurm.run("scontrol", "update", f"nodename={node}", "state=resume", check=True)
        stage.slurm.wait_node(node, {"IDLE"}, 90)
    faults = stage.faults(name)
    job = stage.train("alice", name, nodes=2, steps=40, comment="relight", faults=faults, step_time=0.2)
    stage.until(lambda: stage.trained(job, 2), f"job {job} trains")
    shown = stage.slurm.show(job)
    victim = next(node for node in stage.hosts(shown["NodeList"]) if node != shown["BatchHost"])
    return job, faults / victim


def _restart_slurmctld(stage: Stage) -> None:
    stage.slurm.kill_slurmctld()
    killed = time.monotonic()
    stage.until(lambda: time.monotonic() > killed + 1, "a second without slurmctld")
    stage.slurm.start_slurmctld()


def _comes_back(stage: Stage, sabotage: Sabotage, job: int, victim: str) -> None:
    with told_on_failure(stage, job):
        # Slurm itself may take a minute to see that a job it remembers as running is long dead.
        stage.until(lambda: stage.slurm.state(job) == "COMPLETED", f"job {job} finishes", 200)
        attempts = stage.slurm.settled_attempts(job)
        assert attempts[-1]["State"] == "COMPLETED"
        assert victim not in stage.hosts(attempts[-1]["NodeList"])
        stage.until(lambda: stage.events(job, EventKind.STATE, state="COMPLETED"), "its end is seen")
        plans = [event.body["step_key"] for event in stage.events(job, EventKind.PLAN)]
        assert len(set(plans)) == len(plans)
        # Every restart stands in the log: the one for the crash, those that slurmctld forgot, those that its
        # forgetting made necessary. The others are Slurm's own, of a launch or a node that it lost itself.
        undone = stage.events(job, EventKind.OUTCOME, kind="undone")
        own_faults = [event for event in stage.events(job, EventKind.ADVICE) if event.body["rule"] == "own_fault"]
        launches = stage.events(job, EventKind.STEP, done=True, action="release")
        lost_nodes = [attempt for attempt in attempts if attempt["State"] == "NODE_FAIL"]
        assert 1 <= sabotage.requeues(job) <= 1 + len(own_faults) + len(undone)
        assert 1 <= stage.restarts(job) <= 1 + len(own_faults) + len(launches) + len(lost_nodes)


@pytest.mark.timeout(400)
@pytest.mark.parametrize("after_s", [0, 1, 2, 3, 4, 5])
def test_seconds_after_the_restart_was_accepted(stage: Stage, sabotage: Sabotage, after_s: int) -> None:
    job, fault = _crash(stage, f"after-{after_s}")
    fault.write_text("gpu")
    with told_on_failure(stage, job):
        stage.until(lambda: stage.events(job, EventKind.STEP, done=True, action="restart"), "it is restarted")
    accepted = stage.events(job, EventKind.STEP, done=True, action="restart")[0].at.timestamp()
    stage.until(lambda: time.time() >= accepted + after_s, f"{after_s} s later")
    _restart_slurmctld(stage)
    _comes_back(stage, sabotage, job, fault.name)


def test_between_the_requeue_and_its_update(stage: Stage, sabotage: Sabotage) -> None:
    job, fault = _crash(stage, "between")
    sabotage.arm("between", job, "pause")
    fault.write_text("gpu")
    with told_on_failure(stage, job):
        stage.until(lambda: sabotage.struck("between", job), "the requeue is made and its update is not")
    stage.slurm.kill_slurmctld()
    sabotage.go("between", job)
    stage.slurm.start_slurmctld()
    _comes_back(stage, sabotage, job, fault.name)


def test_right_before_the_restart(stage: Stage, sabotage: Sabotage) -> None:
    job, fault = _crash(stage, "before")
    sabotage.arm("restart", job, "pause")
    fault.write_text("gpu")
    with told_on_failure(stage, job):
        stage.until(lambda: sabotage.struck("restart", job), "the restart is about to be made")
    stage.slurm.kill_slurmctld()
    sabotage.go("restart", job)
    stage.slurm.start_slurmctld()
    _comes_back(stage, sabotage, job, fault.name)
