"""ClusterWatch on a real stage: one watch, whatever becomes of workers; quiet jobs cost nothing; nobody is lost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from activities.contracts import EventKind
from tests.stage import RELIGHT, Stage

WATCH = "relight-watch-prod"
LIVES = "#!/bin/bash\nsleep 600\n"


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with Stage(nodes=4, accounting=False) as made:
        made.start_worker()
        yield made


@pytest.fixture
def standby(stage: Stage) -> Iterator[subprocess.Popen[bytes]]:
    """A second worker for the same cluster, ready when the first one holds the sweep."""
    stage.until(lambda: _sweeper(stage) == stage.worker_pid, "the first worker sweeps")
    path = stage.folder / "relight" / "standby.log"
    with path.open("wb") as log:
        other = subprocess.Popen(
            [str(RELIGHT), "worker"], env=stage.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        stage.until(lambda: b"watching" in path.read_bytes(), "the second worker watches", 180)
        yield other
    finally:
        other.kill()
        other.wait()


def _described(stage: Stage, workflow_id: str) -> dict[str, Any]:
    done = stage.temporal.run("workflow", "describe", "--workflow-id", workflow_id, "-o", "json")
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def _sweep(stage: Stage) -> dict[str, Any]:
    """The one pending activity of the watch, as Temporal knows it."""
    pending = _described(stage, WATCH).get("pendingActivities", [])
    assert len(pending) <= 1
    return pending[0] if pending else {}


def _sweeper(stage: Stage) -> int:
    """Process id of the worker that sweeps; 0 while none does."""
    sweep = _sweep(stage)
    running = sweep.get("state") == "PENDING_ACTIVITY_STATE_STARTED"
    return int(str(sweep["lastWorkerIdentity"]).partition("@")[0]) if running else 0


def _sweeps(stage: Stage) -> int:
    """How often the running sweep activity has swept, from its heartbeat."""
    details = _sweep(stage).get("heartbeatDetails", [])
    return int(details[0]["sweeps"]) if details else 0


def _running_watches(stage: Stage) -> list[str]:
    query = 'WorkflowType="ClusterWatch" AND ExecutionStatus="Running"'
    done = stage.temporal.run("workflow", "list", "--query", query, "-o", "json")
    return [row["execution"]["workflowId"] for row in json.loads(done.stdout or "[]")]


def _history(stage: Stage, job: int) -> list[str]:
    """Each event of the workflow's history, with what a signal or an activity was given."""
    done = stage.temporal.run("workflow", "show", "--workflow-id", f"prod-{job}", "-o", "json")
    assert done.returncode == 0, done.stderr
    return [json.dumps(event)[:600] for event in json.loads(done.stdout)["events"]]


def _rests(stage: Stage, job: int) -> bool:
    told = _described(stage, f"prod-{job}")
    return not told.get("pendingActivities") and not told.get("pendingWorkflowTask")


def _first_step_seen(stage: Stage, job: int) -> bool:
    row = stage.store.watched_job("prod", str(job))
    return row is not None and row.first_step is not None


def _new_job_is_opened(stage: Stage, name: str) -> None:
    job = stage.slurm.submit("alice", LIVES, comment="relight", name=name)
    stage.until(lambda: stage.events(job, EventKind.OPENED), f"a sweep sees job {job}")
    stage.slurm.run("scancel", str(job))


def test_a_watch_started_by_hand_with_another_id_fails_at_once(stage: Stage) -> None:
    words = ("workflow", "execute", "--type", "ClusterWatch", "--task-queue", "relight-prod", "--workflow-id")
    for workflow_id, given in (
        ("my-watch", ["--input", '{"cluster": "prod"}']),
        ("prod-1", ["--input", '{"cluster": "prod"}']),
        (f"{WATCH}-2", []),
        ("relight-watch-prd", ["--input", '"prd"']),
    ):
        done = stage.temporal.run(*words, workflow_id, *given)
        assert done.returncode != 0
        assert "with the id relight-watch-<cluster>" in done.stdout + done.stderr
    assert _running_watches(stage) == [WATCH]


def test_a_quiet_job_adds_nothing_to_its_history(stage: Stage) -> None:
    sleeping = stage.slurm.submit("alice", LIVES, comment="relight", name="quiet")
    training = stage.train(
        "alice", "steady", nodes=1, steps=20_000, comment="relight", faults=stage.faults("steady"), step_time=0.1
    )
    for job in (sleeping, training):
        stage.until(lambda job=job: stage.events(job, EventKind.STATE, state="RUNNING"), f"relight sees job {job} run")
    stage.until(lambda: stage.trained(training, 10), "one trains")
    stage.until(lambda: _first_step_seen(stage, training), "its first step is seen")
    seen = _sweeps(stage)
    stage.until(lambda: _sweeps(stage) >= seen + 2, "what they began with is told")
    for job in (sleeping, training):
        stage.until(lambda job=job: _rests(stage, job), f"job {job}'s workflow has looked at what it was told")
    before = {job: _history(stage, job) for job in (sleeping, training)}
    seen = _sweeps(stage)
    stage.until(lambda: _sweeps(stage) >= seen + 5, "five more sweeps")
    for job, known in before.items():
        assert _history(stage, job)[len(known) :] == []
    stage.slurm.run("scancel", str(sleeping), str(training))


def test_a_job_whose_workflow_was_terminated_is_taken_up_at_its_next_change(stage: Stage) -> None:
    ends = stage.slurm.home("alice") / "orphan-ends"
    script = f"#!/bin/bash\nuntil [ -e {ends} ]; do sleep 0.2; done\nrm {ends}\nexit 9\n"
    job = stage.slurm.submit("alice", script, comment="relight", name="orphan")
    stage.until(lambda: stage.events(job, EventKind.STATE, state="RUNNING"), "relight sees it run")
    ended = stage.temporal.run("workflow", "terminate", "--workflow-id", f"prod-{job}", "--reason", "by mistake")
    assert ended.returncode == 0, ended.stderr
    ends.touch()
    ends.chmod(0o666)
    stage.until(lambda: stage.events(job, EventKind.OUTCOME, kind="restarted"), "it is recovered all the same")
    assert [event.summary.split(":")[0] for event in stage.events(job, EventKind.OPENED)] == [
        "opened by the sweep",
        "opened again by the sweep",
    ]
    assert len({event.life_id for event in stage.events(job)}) == 1
    assert stage.restarts(job) == 1
    stage.slurm.run("scancel", str(job))


def test_a_sweep_that_hangs_is_taken_over_and_its_worker_may_wake_up(
    stage: Stage, standby: subprocess.Popen[bytes]
) -> None:
    os.kill(stage.worker_pid, signal.SIGSTOP)
    try:
        stage.until(lambda: _sweeper(stage) == standby.pid, "the other worker sweeps")
        _new_job_is_opened(stage, "while-it-hangs")
    finally:
        os.kill(stage.worker_pid, signal.SIGCONT)
    _new_job_is_opened(stage, "after-it-woke")
    assert _sweeper(stage) == standby.pid
    assert _running_watches(stage) == [WATCH]
    standby.kill()
    stage.until(lambda: _sweeper(stage) == stage.worker_pid, "the first worker sweeps again")


def test_a_killed_worker_is_replaced_by_the_standby_and_there_is_one_watch(
    stage: Stage, standby: subprocess.Popen[bytes]
) -> None:
    assert _running_watches(stage) == [WATCH]
    run = _described(stage, WATCH)["workflowExecutionInfo"]["execution"]["runId"]
    stage.kill_worker()
    stage.until(lambda: _sweeper(stage) == standby.pid, "the other worker sweeps")
    _new_job_is_opened(stage, "after-the-kill")
    stage.start_worker()
    again = stage.temporal.run(
        *("workflow", "start", "--type", "ClusterWatch", "--task-queue", "relight-prod", "--workflow-id", WATCH),
        *("--input", '{"cluster": "prod"}'),
    )
    assert again.returncode == 0, again.stderr
    assert _running_watches(stage) == [WATCH]
    assert _described(stage, WATCH)["workflowExecutionInfo"]["execution"]["runId"] == run
