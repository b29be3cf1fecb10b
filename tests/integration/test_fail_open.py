"""What becomes of a job when relight is gone for good, or when keeping it off a node would strand it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from activities.contracts import EventKind
from tests.integration.sabotage import Sabotage
from tests.integration.story import told_on_failure
from tests.stage import Stage


@pytest.fixture
def sabotage() -> Iterator[Sabotage]:
    made = Sabotage()
    yield made
    made.close()


@pytest.fixture(scope="module")
def shared() -> Iterator[Stage]:
    with Stage(nodes=4) as made:
        made.start_worker()
        yield made


def _crash(stage: Stage, job: int, faults: Path, *, heals: bool = False) -> str:
    stage.until(lambda: stage.trained(job, 2), f"job {job} trains")
    shown = stage.slurm.show(job)
    victim = next(node for node in stage.hosts(shown["NodeList"]) if node != shown["BatchHost"])
    (faults / victim).write_text("gpu")
    if heals:
        stage.until(lambda: stage.slurm.state(job) in {"FAILED", "COMPLETING"}, "it crashes")
        (faults / victim).unlink()
    return victim


@pytest.mark.parametrize("completing", [False, True])
def test_a_restarted_job_starts_although_relight_is_gone_for_good(sabotage: Sabotage, completing: bool) -> None:
    with Stage(nodes=4, cred_expire_s=5, policy={"lease_s": 15}, **sabotage.settings) as stage:
        stage.start_worker()
        faults = stage.faults("orphan")
        job = stage.train("alice", "orphan", nodes=2, steps=20, comment="relight", faults=faults, step_time=0.2)
        if completing:
            sabotage.keep_completing(job)
        sabotage.arm("restart", job, "worker-after")
        victim = _crash(stage, job, faults)
        stage.until(lambda: not stage.worker_lives, "the worker is dead right after the restart")
        stage.temporal.kill()
        Path(stage.database.removeprefix("sqlite:///")).unlink()
        if completing:
            sabotage.complete(job)
        assert stage.slurm.state(job) in {"PENDING", "COMPLETING"}
        stage.until(lambda: stage.slurm.state(job) == "COMPLETED", "the job finishes by itself")
        attempts = stage.slurm.settled_attempts(job)
        assert [attempt["State"] for attempt in attempts] == ["REQUEUED", "COMPLETED"]
        assert victim not in stage.hosts(attempts[1]["NodeList"])
        assert stage.slurm.show(job)["ExcNodeList"] == victim
        assert not stage.worker_lives


def test_a_job_that_needs_every_node_is_restarted_without_an_exclusion_and_told_why(shared: Stage) -> None:
    stage = shared
    faults = stage.faults("every")
    job = stage.train("alice", "every", nodes=4, steps=20, comment="relight", faults=faults, step_time=0.2)
    victim = _crash(stage, job, faults, heals=True)
    with told_on_failure(stage, job):
        stage.until(lambda: stage.slurm.state(job) == "COMPLETED", "the job finishes")
        assert stage.restarts(job) == 1
        assert stage.slurm.show(job)["ExcNodeList"] == "(null)"
        advice = stage.events(job, EventKind.ADVICE, action="restart")[0]
        assert f"{victim} not excluded" in advice.summary
        assert "the job needs 4" in advice.summary


def test_exclusions_that_come_to_strand_a_job_are_given_up(shared: Stage) -> None:
    """A node is drained after the restart was verified and while the job waits for others to end."""
    stage = shared
    faults = stage.faults("stranded")
    job = stage.train("alice", "stranded", nodes=3, steps=20, comment="relight", faults=faults, step_time=0.2)
    blocker = stage.slurm.submit("bob", "sleep 300", "--nodes=1", "--exclusive", name="blocker")
    stage.until(lambda: stage.slurm.state(blocker) == "RUNNING", "the blocker runs")
    busy = stage.slurm.show(blocker)["NodeList"]
    victim = _crash(stage, job, faults, heals=True)
    with told_on_failure(stage, job):
        stage.until(lambda: stage.events(job, EventKind.OUTCOME, kind="waiting"), "it waits, verified")
        assert stage.slurm.show(job)["ExcNodeList"] == victim
        stage.slurm.run("scontrol", "update", f"nodename={busy}", "state=drain", "reason=test", check=True)
        stage.slurm.run("scancel", str(blocker))
        stage.until(lambda: stage.slurm.state(job) == "COMPLETED", "the job finishes on the nodes there are")
        assert stage.slurm.show(job)["ExcNodeList"] == "(null)"
        assert stage.restarts(job) == 1
        told = [event.summary for event in stage.events(job, EventKind.WATCHDOG)]
        assert any(f"gives up excluding {victim}" in text for text in told)
        stage.until(lambda: stage.events(job, EventKind.OUTCOME, relaxed=[victim]), "the outcome tells it")
    stage.slurm.run("scontrol", "update", f"nodename={busy}", "state=resume", check=True)


def test_exclusions_that_strand_a_job_at_once_are_given_up(shared: Stage) -> None:
    """A node is drained between the restart and the start: no set of nodes fits (BadConstraints)."""
    stage = shared
    faults = stage.faults("at-once")
    job = stage.train("alice", "at-once", nodes=3, steps=20, comment="relight", faults=faults, step_time=0.2)
    victim = _crash(stage, job, faults, heals=True)
    with told_on_failure(stage, job):
        stage.until(lambda: stage.slurm.show(job)["ExcNodeList"] == victim, "it is restarted without the node")
        # Somebody else's exclusion, of a node that is needed then: it stays, ours goes.
        other = next(node for node in stage.slurm.nodes if node != victim)
        both = ",".join(sorted((victim, other)))
        stage.slurm.run("scontrol", "update", f"jobid={job}", f"ExcNodeList={both}", check=True)
        stage.until(lambda: stage.slurm.state(job) == "COMPLETED", "the job finishes")
        assert stage.slurm.show(job)["ExcNodeList"] == other
        told = [event.summary for event in stage.events(job, EventKind.WATCHDOG)]
        assert any(f"gives up excluding {victim}" in text for text in told)
