"""The worker dies (or sleeps) right before and after each change of Slurm: nothing happens twice, nothing is lost.

Judged by Slurm's own records and by the audit log, after another worker has taken over.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from activities.audit.records import Event
from activities.contracts import EventKind
from tests.integration.sabotage import Sabotage
from tests.integration.story import told_on_failure
from tests.stage import RELIGHT, Stage

BEFORE_AND_AFTER = pytest.mark.parametrize("order", ["worker-before", "worker-after"])


@pytest.fixture(scope="module")
def sabotage() -> Iterator[Sabotage]:
    made = Sabotage()
    yield made
    made.close()


@pytest.fixture(scope="module")
def big_stage(sabotage: Sabotage) -> Iterator[Stage]:
    # A requeued job waits two minutes by itself, as on most sites: what comes back sooner was moved up by relight.
    with Stage(nodes=6, cred_expire_s=120, **sabotage.settings) as made:
        made.start_worker()
        yield made


@pytest.fixture
def stage(big_stage: Stage) -> Stage:
    """With a living worker, whatever the test before did to it."""
    if not big_stage.worker_lives:
        big_stage.start_worker()
    return big_stage


def _crash(stage: Stage, job: int, faults: Path) -> str:
    """Breaks a node of the job that is not its batch host; gives the node."""
    stage.until(lambda: stage.trained(job, 2), f"job {job} trains")
    shown = stage.slurm.show(job)
    victim = next(node for node in stage.hosts(shown["NodeList"]) if node != shown["BatchHost"])
    (faults / victim).write_text("gpu")
    return victim


def _worker_dies_and_another_comes(stage: Stage, sabotage: Sabotage, point: str, job: int | str) -> None:
    with told_on_failure(stage, job):
        stage.until(lambda: sabotage.struck(point, job), f"the strike at {point} of job {job}", 60)
    stage.until(lambda: not stage.worker_lives, "the worker is dead", 20)
    stage.start_worker()


def _done(stage: Stage, job: int, action: str) -> list[Event]:
    return stage.events(job, EventKind.STEP, done=True, action=action)


def _came_back_once(stage: Stage, sabotage: Sabotage, job: int, victim: str, kind: str = "first_step") -> None:
    """One requeue by Slurm's own records, the exclusion stands, the job finishes, one plan and one step on record."""
    with told_on_failure(stage, job):
        stage.until(lambda: stage.slurm.state(job) == "COMPLETED", f"job {job} finishes")
        attempts = stage.slurm.settled_attempts(job)
        assert [attempt["State"] for attempt in attempts] == ["REQUEUED", "COMPLETED"]
        assert stage.restarts(job) == 1
        assert sabotage.requeues(job) == 1
        assert stage.slurm.show(job)["ExcNodeList"] == victim
        assert victim in stage.hosts(attempts[0]["NodeList"])
        assert victim not in stage.hosts(attempts[1]["NodeList"])
        stage.until(lambda: stage.events(job, EventKind.OUTCOME, kind=kind), "the recovery is told")
        assert [event.body["excluded"] for event in _done(stage, job, "restart")] == [[victim]]
        _planned_once(stage, job)


def _planned_once(stage: Stage, job: int) -> None:
    """One plan and one step; where no worker came within its deadline, the step was refused and planned anew."""
    refused = stage.events(job, EventKind.STEP, done=False)
    assert {event.body["refused"] for event in refused} <= {"late"}
    steps = [event for event in stage.events(job, EventKind.STEP) if event.body.get("done")]
    assert len(stage.events(job, EventKind.PLAN)) - len(refused) == len(steps) == 1


@BEFORE_AND_AFTER
def test_around_the_restart(stage: Stage, sabotage: Sabotage, order: str) -> None:
    faults = stage.faults(order)
    job = stage.train("alice", order, nodes=2, steps=25, comment="relight", faults=faults, step_time=0.2)
    sabotage.arm("restart", job, order)
    victim = _crash(stage, job, faults)
    _worker_dies_and_another_comes(stage, sabotage, "restart", job)
    _came_back_once(stage, sabotage, job, victim)


@pytest.mark.parametrize("order", ["worker", "worker-and-gate"])
def test_between_the_requeue_and_its_update(stage: Stage, sabotage: Sabotage, order: str) -> None:
    faults = stage.faults(f"between-{order}")
    job = stage.train("alice", f"between-{order}", nodes=2, steps=25, comment="relight", faults=faults, step_time=0.2)
    sabotage.arm("between", job, order)
    victim = _crash(stage, job, faults)
    _worker_dies_and_another_comes(stage, sabotage, "between", job)
    _came_back_once(stage, sabotage, job, victim)


@BEFORE_AND_AFTER
def test_around_the_update_that_moves_the_start_up(stage: Stage, sabotage: Sabotage, order: str) -> None:
    faults = stage.faults(f"lease-{order}")
    job = stage.train("alice", f"lease-{order}", nodes=2, steps=25, comment="relight", faults=faults, step_time=0.2)
    sabotage.keep_completing(job)  # restarted while COMPLETING: the start is far, until its nodes are free
    sabotage.arm("lease", job, order)
    victim = _crash(stage, job, faults)
    with told_on_failure(stage, job):
        stage.until(lambda: _done(stage, job, "restart"), "it is restarted while its nodes complete")
    sabotage.complete(job)
    _worker_dies_and_another_comes(stage, sabotage, "lease", job)
    _came_back_once(stage, sabotage, job, victim)


@BEFORE_AND_AFTER
def test_around_a_forced_restart_of_a_running_job(stage: Stage, sabotage: Sabotage, order: str) -> None:
    script = '[ "$SLURM_RESTART_COUNT" ] || sleep 600'  # no progress is told: all that counts is where it runs
    job = stage.slurm.submit("alice", script, "--nodes=2", name=f"forced-{order}", comment="relight")
    stage.until(lambda: stage.events(job, EventKind.STATE, state="RUNNING"), "relight sees it run")
    victim = stage.hosts(stage.slurm.show(job)["NodeList"])[1]
    sabotage.arm("restart", job, order)
    _force(stage, job, action="restart", exclude=[victim])
    _worker_dies_and_another_comes(stage, sabotage, "restart", job)
    _came_back_once(stage, sabotage, job, victim, kind="restarted")


def _force(stage: Stage, job: int, **words: object) -> None:
    request = json.dumps({**words, "by": "alice", "reason": "a test"})
    workflow = f"{stage.cluster_name}-{job}"
    done = stage.temporal.run("workflow", "signal", "--workflow-id", workflow, "--name", "force", "--input", request)
    assert done.returncode == 0, done.stderr


@BEFORE_AND_AFTER
def test_around_a_stop(stage: Stage, sabotage: Sabotage, order: str) -> None:
    faults = stage.faults(f"stop-{order}")
    job = stage.train("bob", f"stop-{order}", nodes=1, steps=900, comment="relight", faults=faults)
    sabotage.keep_completing(job)
    stage.until(lambda: stage.events(job, EventKind.STATE, state="RUNNING"), "relight sees it run")
    sabotage.arm("stop", job, order)
    _force(stage, job, action="stop")
    _worker_dies_and_another_comes(stage, sabotage, "stop", job)
    with told_on_failure(stage, job):
        stage.until(lambda: stage.events(job, EventKind.OUTCOME), "the stop is told")
    assert stage.events(job, EventKind.OUTCOME)[-1].body["kind"] == "stopped"
    assert stage.slurm.state(job) == "COMPLETING"
    sabotage.complete(job)
    stage.until(lambda: stage.slurm.state(job) == "CANCELLED", "the job is cancelled")
    assert stage.restarts(job) == 0
    _planned_once(stage, job)


@BEFORE_AND_AFTER
def test_around_arming(stage: Stage, sabotage: Sabotage, order: str) -> None:
    faults = stage.faults(f"arm-{order}")
    sabotage.arm("arm", "any", order)
    job = stage.train("bob", f"arm-{order}", "--no-requeue", nodes=1, steps=900, comment="relight", faults=faults)
    _worker_dies_and_another_comes(stage, sabotage, "arm", "any")
    stage.until(lambda: stage.events(job, EventKind.OUTCOME, kind="armed"), "it is armed")
    assert stage.slurm.show(job)["Requeue"] == "1"
    _planned_once(stage, job)
    stage.slurm.run("scancel", str(job))


@BEFORE_AND_AFTER
def test_around_the_release_of_a_job_whose_launch_failed(stage: Stage, sabotage: Sabotage, order: str) -> None:
    faults = stage.faults(f"release-{order}")
    name = f"release-{order}"
    job = stage.train("bob", name, "--hold", nodes=1, steps=10, comment="relight", faults=faults, step_time=0.1)
    sabotage.fail_launch(job)
    sabotage.arm("release", job, order)
    stage.slurm.run("scontrol", "release", str(job), check=True)
    _worker_dies_and_another_comes(stage, sabotage, "release", job)
    with told_on_failure(stage, job):
        stage.until(lambda: stage.events(job, EventKind.OUTCOME, kind="released"), "the release is told")
    stage.slurm.run("scontrol", "update", f"jobid={job}", "StartTime=now+3")  # instead of two minutes later
    stage.until(lambda: stage.slurm.state(job) == "COMPLETED", "the job finishes")
    assert stage.restarts(job) == 1
    _planned_once(stage, job)
    for node in stage.slurm.nodes:
        if "DRAIN" in stage.slurm.node(node)["State"]:
            stage.slurm.run("scontrol", "update", f"nodename={node}", "state=resume", check=True)


@BEFORE_AND_AFTER
def test_around_arming_a_dependent_again(stage: Stage, sabotage: Sabotage, order: str) -> None:
    faults = stage.faults(f"rearm-{order}")
    job = stage.train("alice", f"rearm-{order}", nodes=2, steps=25, comment="relight", faults=faults, step_time=0.2)
    child = stage.slurm.submit("alice", "true", f"--dependency=afterok:{job}", name=f"child-{order}")
    sabotage.arm("rearm", child, order)
    victim = _crash(stage, job, faults)
    _worker_dies_and_another_comes(stage, sabotage, "rearm", child)
    _came_back_once(stage, sabotage, job, victim)
    with told_on_failure(stage, job, child):
        stage.until(lambda: stage.slurm.state(child) == "COMPLETED", "the child runs", 60)


def test_a_dependent_that_slurm_gives_up_on_between_look_and_restart_is_armed_again(
    stage: Stage, sabotage: Sabotage
) -> None:
    faults = stage.faults("late-child")
    job = stage.train("alice", "late-child", nodes=2, steps=25, comment="relight", faults=faults, step_time=0.2)
    sabotage.arm("restart", job, "worker-before")
    victim = _crash(stage, job, faults)
    with told_on_failure(stage, job):
        stage.until(lambda: sabotage.struck("restart", job), "the strike", 60)
    stage.until(lambda: not stage.worker_lives, "the worker is dead", 20)
    child = stage.slurm.submit("alice", "true", f"--dependency=afterok:{job}", name="child-late")
    stage.until(lambda: stage.slurm.show(child)["Reason"] == "DependencyNeverSatisfied", "Slurm gives it up", 90)
    stage.start_worker()
    _came_back_once(stage, sabotage, job, victim)
    with told_on_failure(stage, job, child):
        stage.until(lambda: stage.slurm.state(child) == "COMPLETED", "the child runs", 60)


@BEFORE_AND_AFTER
def test_around_the_guard_of_a_job_that_slurm_requeued(stage: Stage, sabotage: Sabotage, order: str) -> None:
    faults = stage.faults(f"guard-{order}")
    job = stage.train("alice", f"guard-{order}", nodes=2, steps=25, comment="relight", faults=faults, step_time=0.2)
    stage.until(lambda: stage.trained(job, 2), "it trains")
    shown = stage.slurm.show(job)
    victim = next(node for node in stage.hosts(shown["NodeList"]) if node != shown["BatchHost"])
    sabotage.arm("lease", job, order)
    stage.slurm.kill_node(victim)
    try:
        stage.slurm.run("scontrol", "update", f"nodename={victim}", "state=down", "reason=dead", check=True)
        _worker_dies_and_another_comes(stage, sabotage, "lease", job)
        with told_on_failure(stage, job):
            stage.until(lambda: stage.slurm.state(job) == "COMPLETED", "the job finishes")
            attempts = stage.slurm.settled_attempts(job)
            assert [attempt["State"] for attempt in attempts] == ["NODE_FAIL", "COMPLETED"]
            assert victim not in stage.hosts(attempts[1]["NodeList"])
            assert stage.slurm.show(job)["ExcNodeList"] == victim
            assert stage.restarts(job) == 1
            stage.until(lambda: stage.events(job, EventKind.OUTCOME, kind="first_step"), "the recovery is told")
            _planned_once(stage, job)
    finally:
        stage.slurm.start_node(victim)
        stage.slurm.run("scontrol", "update", f"nodename={victim}", "state=resume")
        stage.slurm.wait_node(victim, {"IDLE"}, 90)


# ------------------------------------------------------------------------------------------------ two workers


@pytest.fixture
def other_worker(stage: Stage) -> Iterator[subprocess.Popen[bytes]]:
    """A second worker beside the stage's own."""
    with (stage.folder / "relight" / "other.log").open("wb") as log:
        other = subprocess.Popen(
            [str(RELIGHT), "worker"], env=stage.env, stdout=log, stderr=log, start_new_session=True
        )
    try:
        stage.until(lambda: b"watching" in Path(log.name).read_bytes(), "the other worker watches", 60)
        yield other
    finally:
        other.send_signal(signal.SIGCONT)
        other.terminate()
        other.wait(60)


def test_two_workers_restart_a_job_once(
    stage: Stage, sabotage: Sabotage, other_worker: subprocess.Popen[bytes]
) -> None:
    jobs = {}
    for number in (1, 2):
        faults = stage.faults(f"two-{number}")
        jobs[number] = stage.train(
            "alice", f"two-{number}", nodes=2, steps=25, comment="relight", faults=faults, step_time=0.2
        )
    sabotage.arm("restart", jobs[2], "worker-after")
    victims = {job: _crash(stage, job, stage.faults(f"two-{number}")) for number, job in jobs.items()}
    for job, victim in victims.items():
        _came_back_once(stage, sabotage, job, victim)
    assert [stage.worker_lives, other_worker.poll() is None].count(True) == 1


@pytest.mark.parametrize("wakes", ["after-the-deadline", "before-the-deadline"])
def test_a_worker_that_slept_over_its_restart_changes_nothing(stage: Stage, sabotage: Sabotage, wakes: str) -> None:
    faults = stage.faults(wakes)
    job = stage.train("alice", wakes, nodes=2, steps=25, comment="relight", faults=faults, step_time=0.2)
    sabotage.arm("restart", job, "stop")
    victim = _crash(stage, job, faults)
    stage.until(lambda: sabotage.struck("restart", job), "the worker sleeps right before the restart")
    _, sleeper = sabotage.pids("restart", job)
    planned = stage.events(job, EventKind.PLAN)[0].at.timestamp()
    stage.start_worker()
    try:
        if wakes == "before-the-deadline":
            stage.until(lambda: stage.restarts(job) == 1, "another worker restarts it")
            sabotage.wake_gate("restart", job)
        _came_back_once(stage, sabotage, job, victim)
        if wakes == "after-the-deadline":
            stage.until(lambda: time.time() > planned + 61, "the step's deadline has passed")
            sabotage.wake_gate("restart", job)
        os.kill(sleeper, signal.SIGCONT)
        later = stage.train("bob", f"{wakes}-later", nodes=1, steps=4000, comment="relight", faults=faults)
        with told_on_failure(stage, job, later):
            stage.until(lambda: stage.events(later, EventKind.STATE, state="RUNNING"), "relight goes on")
        stage.slurm.run("scancel", str(later))
        _came_back_once(stage, sabotage, job, victim)
    finally:
        os.kill(sleeper, signal.SIGKILL)
