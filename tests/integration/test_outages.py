"""What relight stands on goes away in the middle of recoveries: slurmctld, Temporal, the audit database, permission.

Afterwards every job is recovered by exactly one requeue (as Slurm and a counting `scontrol` have it), nothing was done
while it could not be known or recorded, and the worker's log says in single lines what was away.

A worker that starts while the database or Temporal is away says which, where and what to check, and ends with exit
code 2 within seconds instead of waiting: the service manager (systemd, Kubernetes) shows the sentence as the reason
and starts it again, and a wrong address is noticed at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from activities.contracts import EventKind
from tests.cluster.waiting import until
from tests.integration.sabotage import Sabotage
from tests.services import PostgresServer, TemporalServer
from tests.stage import Stage


@pytest.fixture(scope="module")
def sabotage() -> Iterator[Sabotage]:
    made = Sabotage()
    yield made
    made.close()


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="module")
def stage(sabotage: Sabotage, postgres: PostgresServer) -> Iterator[Stage]:
    with Stage(nodes=6, kill_wait_s=2, database=postgres.url, **sabotage.settings) as made:
        made.start_worker()
        yield made


class Training:
    """A job of two nodes that trains until one of them is broken."""

    def __init__(self, stage: Stage, name: str) -> None:
        self.stage = stage
        self.faults = stage.faults(name)
        self.job = stage.train("alice", name, nodes=2, steps=2000, comment="relight", faults=self.faults, step_time=0.2)
        self.victim = ""

    def wait_until_it_trains(self) -> None:
        self.stage.until(lambda: self.stage.trained(self.job, 5), f"job {self.job} trains")
        shown = self.stage.slurm.show(self.job)
        self.victim = next(node for node in self.stage.hosts(shown["NodeList"]) if node != shown["BatchHost"])

    def crash(self) -> None:
        (self.faults / self.victim).write_text("gpu")

    def done(self, action: str = "restart") -> int:
        return len(self.stage.events(self.job, EventKind.STEP, action=action, done=True))

    @property
    def story(self) -> str:
        return "\n".join(f"{row.at:%X} {row.kind}: {row.summary}" for row in self.stage.events(self.job))

    def is_recovered_by_one_requeue(self, sabotage: Sabotage) -> None:
        try:
            self.stage.until(
                lambda: self.stage.events(self.job, EventKind.OUTCOME, kind="first_step"),
                f"job {self.job} takes new steps",
                120,
            )
        except AssertionError as failure:
            failure.add_note(self.story)
            raise
        counted = (self.stage.restarts(self.job), sabotage.requeues(self.job), self.done())
        assert counted == (1, 1, 1), self.story
        self.stage.slurm.run("scancel", str(self.job))


def _lasts(seconds: float, nothing_happens: Callable[[], bool]) -> None:
    """The outage itself: as long as told, and watched all the time."""
    ends = time.monotonic() + seconds
    until(lambda: not nothing_happens() or time.monotonic() > ends, "the outage ends", timeout_s=seconds + 60)
    assert nothing_happens()


class Log:
    """What the worker says from here on."""

    def __init__(self, path: Path) -> None:
        self._path, self._begins = path, path.stat().st_size

    @property
    def text(self) -> str:
        return self._path.read_bytes()[self._begins :].decode(errors="replace")

    def says_in_single_lines(self, *words: str) -> None:

        assert "Traceback" not in self.text
        for word in words:
            assert any(word in line for line in self.text.splitlines()), f"{word!r} is not in:\n{self.text[-3000:]}"


@pytest.mark.timeout(420)
def test_slurmctld_away_for_a_minute_before_at_and_after_the_restart_step(stage: Stage, sabotage: Sabotage) -> None:
    unseen, stepping, settling = (Training(stage, name) for name in ("unseen", "stepping", "settling"))
    for job in (unseen, stepping, settling):
        job.wait_until_it_trains()
    log = Log(stage.worker_log)
    sabotage.arm("restart", stepping.job, "pause")
    stepping.crash()
    settling.crash()
    stage.until(lambda: settling.done(), "one job is restarted and being verified")
    stage.until(lambda: sabotage.struck("restart", stepping.job), "the other one's restart is under way")
    stage.slurm.stop_slurmctld()
    try:
        sabotage.go("restart", stepping.job)
        unseen.crash()
        _lasts(60, lambda: (unseen.done(), stepping.done(), settling.done()) == (0, 0, 1))
    finally:
        stage.slurm.start_slurmctld()
    for job in (unseen, stepping, settling):
        job.is_recovered_by_one_requeue(sabotage)
    log.says_in_single_lines("the sweep of prod is blind: SlurmctldAway")


@pytest.mark.parametrize("seconds", [8, 30])
def test_temporal_killed_during_the_restart_step(stage: Stage, sabotage: Sabotage, seconds: int) -> None:
    job = Training(stage, f"temporal-{seconds}")
    job.wait_until_it_trains()
    log = Log(stage.worker_log)
    sabotage.arm("restart", job.job, "pause")
    job.crash()
    stage.until(lambda: sabotage.struck("restart", job.job), "its restart is under way")
    stage.temporal.kill()
    try:
        sabotage.go("restart", job.job)
        _lasts(seconds, lambda: sabotage.requeues(job.job) <= 1)
    finally:
        stage.temporal.start()
    job.is_recovered_by_one_requeue(sabotage)
    log.says_in_single_lines()


def test_without_the_audit_database_nothing_is_done_and_afterwards_everything(
    stage: Stage, sabotage: Sabotage, postgres: PostgresServer
) -> None:
    unplanned, stepping = Training(stage, "unplanned"), Training(stage, "recorded")
    for job in (unplanned, stepping):
        job.wait_until_it_trains()
    log = Log(stage.worker_log)
    sabotage.arm("restart", stepping.job, "pause")
    stepping.crash()
    stage.until(lambda: sabotage.struck("restart", stepping.job), "its restart is on record and under way")
    postgres.kill()
    try:
        sabotage.go("restart", stepping.job)
        unplanned.crash()
        stage.until(lambda: stage.slurm.state(unplanned.job) == "FAILED", "the other one fails meanwhile")
        _lasts(30, lambda: sabotage.requeues(unplanned.job) == 0 and sabotage.requeues(stepping.job) <= 1)
        assert stage.restarts(unplanned.job) == 0
    finally:
        postgres.start()
    for job in (unplanned, stepping):
        job.is_recovered_by_one_requeue(sabotage)
    log.says_in_single_lines("the sweep of prod is blind: AuditUnavailable")


def test_a_stop_file_refuses_every_change_until_it_is_removed(stage: Stage, sabotage: Sabotage) -> None:
    job, armed = Training(stage, "stopped"), Training(stage, "stopped-too")
    for one in (job, armed):
        one.wait_until_it_trains()
    stop = stage.config.parent / "gate" / "STOP"
    # One restart is under way when the file appears, the other is decided after it.
    sabotage.arm("restart", job.job, "pause")
    job.crash()
    stage.until(lambda: sabotage.struck("restart", job.job), "its restart is under way")
    stop.write_text("power work in row 7")
    try:
        sabotage.go("restart", job.job)
        armed.crash()
        stage.until(lambda: stage.events(job.job, EventKind.STEP, refused="stopped"), "the gate's refusal is on record")
        for one in (job, armed):
            stage.until(lambda one=one: stage.events(one.job, EventKind.ADVICE, rule="frozen"), "the wait is on record")
            assert "power work in row 7" in stage.events(one.job, EventKind.ADVICE, rule="frozen")[0].summary
        unarmed = stage.slurm.submit("bob", "#!/bin/bash\nsleep 600\n", "--no-requeue", comment="relight", name="arm")
        stage.until(lambda: stage.events(unarmed, EventKind.ADVICE, rule="arm"), "it is not armed, and says why")
        forced = stage.relight("force", str(unarmed), "--action", "stop")
        assert forced.returncode == 0, forced.stderr
        stage.until(lambda: stage.events(unarmed, EventKind.ADVICE, rule="force"), "the demand is answered")
        assert "power work in row 7" in stage.events(unarmed, EventKind.ADVICE, rule="force")[0].summary
        assert stage.slurm.show(unarmed)["Requeue"] == "0"
        assert stage.slurm.state(unarmed) == "RUNNING"
        assert [sabotage.requeues(one.job) for one in (job, armed)] == [0, 0]
    finally:
        stop.unlink()
    for one in (job, armed):
        one.is_recovered_by_one_requeue(sabotage)
    stage.until(lambda: stage.slurm.show(unarmed)["Requeue"] == "1", "it is armed now")
    stage.slurm.run("scancel", str(unarmed))


@pytest.mark.parametrize("away", ["database", "temporal"])
def test_a_worker_that_starts_during_an_outage_says_what_is_away_and_ends(
    stage: Stage, postgres: PostgresServer, away: str
) -> None:
    server: PostgresServer | TemporalServer = postgres if away == "database" else stage.temporal
    where = f"127.0.0.1:{postgres.port}" if away == "database" else stage.temporal.target
    server.kill()
    try:
        started = stage.relight("worker", timeout_s=180)
    finally:
        server.start()
    assert started.returncode == 2
    told = started.stderr.strip().splitlines()
    assert len(told) == 1, started.stderr
    assert where in told[0]
    assert ("audit database" if away == "database" else "Temporal") in told[0]
