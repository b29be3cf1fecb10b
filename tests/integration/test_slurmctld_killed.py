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

pytestmark = pytest.mark.chaos


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
        stage.slurm.wait_node(node, {"IDLE"}, 60)
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
        stage.until(lambda: stage.slurm.state(job) == "COMPLETED", f"job {job} finishes", 120)
        last = stage.slurm.attempts(job)[-1]
        assert last["State"] == "COMPLETED"
        assert victim not in stage.hosts(last["NodeList"])
        stage.until(lambda: stage.events(job, EventKind.STATE, state="COMPLETED"), "its end is seen")
        steps = stage.events(job, EventKind.STEP, done=True, action="restart")
        plans = {event.body["step_key"] for event in stage.events(job, EventKind.PLAN)}
        assert len(plans) == len(stage.events(job, EventKind.PLAN))
        forgotten = stage.events(job, EventKind.OUTCOME, kind="undone")
        own_faults = [event for event in stage.events(job, EventKind.ADVICE) if event.body["rule"] == "own_fault"]
        # Restarts that slurmctld forgot, and those that its forgetting made necessary, stand in the log.
        assert stage.restarts(job) == 1 + len(own_faults)
        assert sabotage.requeues(job) == 1 + len(own_faults) + len(forgotten)
        assert len(steps) >= stage.restarts(job)


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
