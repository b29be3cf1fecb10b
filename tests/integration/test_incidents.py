"""One fault of many jobs is one incident: nothing is excluded, everybody comes back, once, and one after the other."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from activities.contracts import EventKind
from recovery.incident_records import Incident, IncidentKind
from tests.integration.story import told_on_failure
from tests.stage import Stage

FILE_SYSTEM = "OSError: [Errno 5] Input/output error: '/scratch/data/shard_07.bin'"
GPU = "RuntimeError: CUDA error: uncorrectable ECC error encountered"
OUTAGE_S = 90


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    quick = {"incident_jobs": 3, "incident_pace_s": 1, "incident_quiet_s": 3, "max_restarts_at_once": 20}
    with Stage(nodes=5, policy=quick) as made:
        made.start_worker()
        yield made


def _submit(stage: Stage, trip: str, number: int, words: str, *more: str, user: str = "alice") -> int:
    """A job that waits for the file `trip`, then says the words and fails; its second attempt goes well."""
    script = (
        "#!/bin/bash\n"
        'if [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ]; then sleep 1; exit 0; fi\n'
        "echo started\n"
        f"until [ -e {_trip(stage, trip)} ]; do sleep 0.2; done\n"
        f'echo "{words}" >&2\nexit 1\n'
    )
    output = f"--output={stage.slurm.home(user)}/%x-%j.out"
    return stage.slurm.submit(
        user, script, *more, output, "--open-mode=append", name=f"{trip}-{number}", comment="relight"
    )


def _trip(stage: Stage, name: str) -> Path:
    return stage.faults("trips") / name


def _all_run(stage: Stage, jobs: list[int]) -> None:
    stage.until(lambda: all("started" in stage.log(job) for job in jobs), "all jobs run")
    watched = stage.store.watched
    stage.until(lambda: {str(job) for job in jobs} <= {row.job_id for row in watched(stage.cluster_name)}, "watched")


def _saved(stage: Stage) -> None:
    """slurmctld saves its state some seconds after a change; what it had not saved it does not know after a crash."""
    known = time.time()
    stage.slurm.submit("alice", "#!/bin/bash\ntrue\n", "--output=/dev/null", name="a-change-to-save")
    state = stage.folder / "ctld" / "job_state"
    stage.until(lambda: state.exists() and state.stat().st_mtime > known, "slurmctld has saved its jobs")


def _come_back(stage: Stage, jobs: list[int], within_s: float = 120) -> None:
    with told_on_failure(stage, *jobs):
        stage.until(lambda: all(stage.slurm.state(job) == "COMPLETED" for job in jobs), "all jobs come back", within_s)
        assert [stage.restarts(job) for job in jobs] == [1] * len(jobs)


def _requeued_once(stage: Stage, job: int) -> None:
    """By Slurm's accounting. What a dying slurmctld forgot of a requeue may stand there; relight knows of it then."""
    rows = stage.slurm.settled_attempts(job)
    forgotten = stage.events(job, EventKind.OUTCOME, kind="undone")
    assert 2 <= len({row["Submit"] for row in rows}) <= 2 + len(forgotten)
    assert rows[-1]["State"] == "COMPLETED"
    made = stage.events(job, EventKind.STEP, done=True, action="restart")
    assert len(made) <= 1 + len(forgotten), "relight requeues once, or not at all what Slurm itself has requeued"


def _were_restarted(stage: Stage, jobs: list[int]) -> None:
    with told_on_failure(stage, *jobs):
        assert [len(stage.events(job, EventKind.STEP, done=True, action="restart")) for job in jobs] == [1] * len(jobs)


def _incidents(stage: Stage, kind: IncidentKind) -> list[Incident]:
    return [one for one in stage.store.incidents(stage.cluster_name, include_closed=True) if one.kind is kind]


def test_one_file_system_fault_is_one_incident_and_excludes_nothing(stage: Stage) -> None:
    users = ("alice", "bob", "alice", "bob", "alice")
    jobs = [_submit(stage, "files", number, FILE_SYSTEM, "--exclusive", user=user) for number, user in enumerate(users)]
    _all_run(stage, jobs)
    _trip(stage, "files").touch()
    _come_back(stage, jobs)
    _were_restarted(stage, jobs)
    with told_on_failure(stage, *jobs):
        found = _incidents(stage, IncidentKind.FILE_SYSTEM)
        assert [(one.jobs, one.only_user) for one in found] == [(5, "")]
        notices = stage.store.events(stage.cluster_name, "")
        assert len([one for one in notices if one.kind == EventKind.INCIDENT and one.body["id"] == found[0].id]) == 1
        for job in jobs:
            plans = stage.events(job, EventKind.ADVICE, action="restart")
            assert [(one.body["rule"], one.body["exclude"]) for one in plans] == [("incident", [])]
            assert stage.events(job, EventKind.INCIDENT, incident=found[0].id)
        told = stage.relight("incidents")
        assert told.returncode == 0
        assert found[0].id in told.stdout
        closed = stage.relight("incidents", "close", found[0].id, "--by", "oncall", "--reason", "fs1 is back")
        assert closed.returncode == 0, closed.stderr
        assert _incidents(stage, IncidentKind.FILE_SYSTEM)[0].closed_by == "oncall"


def test_one_gpu_fault_on_three_nodes_at_once_excludes_none_of_them(stage: Stage) -> None:
    jobs = [_submit(stage, "gpus", number, GPU, "--exclusive") for number in range(3)]
    _all_run(stage, jobs)
    _trip(stage, "gpus").touch()
    _come_back(stage, jobs)
    _were_restarted(stage, jobs)
    with told_on_failure(stage, *jobs):
        assert [one.jobs for one in _incidents(stage, IncidentKind.SIGNATURE)] == [3]
        steps = [step for job in jobs for step in stage.events(job, EventKind.STEP, done=True, action="restart")]
        assert [step.body["excluded"] for step in steps] == [[], [], []]


@pytest.mark.timeout(500)
def test_slurmctld_that_dies_among_failing_jobs_ends_in_one_requeue_each(stage: Stage) -> None:
    before = [_submit(stage, "early", number, "it broke") for number in range(5)]
    during = [_submit(stage, "late", number, "it broke") for number in range(5)]
    _all_run(stage, [*before, *during])
    _saved(stage)
    _trip(stage, "early").touch()
    stage.until(lambda: "FAILED" in {stage.slurm.state(job) for job in before}, "the first fails")
    stage.slurm.kill_slurmctld()
    killed = time.monotonic()
    _trip(stage, "late").touch()
    stage.until(lambda: time.monotonic() > killed + OUTAGE_S, "an outage", OUTAGE_S + 60)
    stage.slurm.start_slurmctld()
    # Slurm itself requeues what it lost in the outage; then relight must not.
    _come_back(stage, [*before, *during], within_s=240)
    with told_on_failure(stage, *before, *during):
        for job in (*before, *during):
            _requeued_once(stage, job)
    found = _incidents(stage, IncidentKind.SLURMCTLD)
    assert len(found) == 1
    assert found[0].back_at is not None
