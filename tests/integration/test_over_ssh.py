"""A cluster whose commands work on another machine only: the worker reaches it over a real sshd that goes away."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from activities.contracts import EventKind
from tests.integration.story import told_on_failure
from tests.services.sshd import SshServer
from tests.stage import Stage


@pytest.fixture(scope="module")
def sshd() -> Iterator[SshServer]:
    with SshServer() as server:
        yield server


@pytest.fixture(scope="module")
def stage(sshd: SshServer) -> Iterator[Stage]:
    ssh = {
        "host": "127.0.0.1",
        "port": sshd.port,
        "user": "root",
        "key_file": str(sshd.key),
        "known_hosts": str(sshd.known_hosts),
        "installed": False,
    }
    with Stage(nodes=4, ssh=ssh) as made:
        made.start_worker()
        yield made


def test_a_job_comes_back_though_the_host_is_away_when_it_fails(stage: Stage, sshd: SshServer) -> None:
    faults = stage.faults("far")
    job = stage.train("alice", "far", nodes=2, steps=2000, comment="relight", faults=faults, step_time=0.2)
    with told_on_failure(stage, job):
        stage.until(lambda: stage.events(job, EventKind.STATE, state="RUNNING"), "relight sees it run")
        stage.until(lambda: stage.trained(job, 2), "it trains")
        sshd.kill()
        shown = stage.slurm.show(job)
        victim = next(node for node in stage.hosts(shown["NodeList"]) if node != shown["BatchHost"])
        (faults / victim).write_text("gpu")
        stage.until(lambda: stage.slurm.state(job) == "FAILED", "it fails")
        stage.until(
            lambda: "cannot be reached over SSH" in stage.worker_log.read_text(), "relight says that it is blind"
        )
        assert not stage.events(job, EventKind.PLAN)
        sshd.start()
        stage.until(lambda: stage.events(job, EventKind.OUTCOME, kind="first_step"), "the recovery is told", 120)
        attempts = stage.slurm.settled_attempts(job)
        assert [attempt["State"] for attempt in attempts] == ["REQUEUED", "RUNNING"]
        assert stage.slurm.show(job)["ExcNodeList"] == victim
        stage.slurm.run("scancel", str(job))
