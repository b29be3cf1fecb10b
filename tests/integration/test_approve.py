"""Approve mode: a change waits for a person's answer, and never longer than Slurm remembers the job."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from activities.audit.records import Event
from activities.contracts import EventKind
from tests.stage import Stage

MIN_JOB_AGE_S = 180
FAILS_ONCE = '#!/bin/bash\n[ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] && exec sleep 600\nsleep 3\nexit 9\n'


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    policies = {
        "patient": {"approve_wait_s": 10},
        "hasty": {"approve_wait_s": 10, "on_silence": "restart"},
        "parking": {"park": True},
    }
    with Stage(nodes=6, mode="approve", policies=policies, min_job_age_s=MIN_JOB_AGE_S) as made:
        made.start_worker()
        yield made


def _failing(stage: Stage, name: str, **asked: Any) -> int:
    comment = str({"relight": asked}).replace("'", '"')
    return stage.slurm.submit("alice", FAILS_ONCE, "--open-mode=append", comment=comment, name=name)


def _asks(stage: Stage, job: int) -> Event:
    stage.until(lambda: stage.events(job, EventKind.ADVICE, action="restart"), f"job {job} waits for an answer")
    return stage.events(job, EventKind.ADVICE, action="restart")[0]


def _answer(stage: Stage, job: int, answer: str) -> str:
    said = stage.relight("approve", str(job), answer, "--by", "oncall", "--reason", "looked at it")
    assert said.returncode == 0, said.stderr
    return said.stdout


def _runs_again(stage: Stage, job: int, approved_by: str) -> None:
    stage.until(lambda: stage.events(job, EventKind.OUTCOME, kind="restarted"), f"job {job} runs again")
    assert stage.slurm.state(job) == "RUNNING"
    assert stage.restarts(job) == 1
    assert stage.events(job, EventKind.PLAN)[-1].body["approved_by"] == approved_by
    stage.slurm.run("scancel", str(job))


def test_a_yes_restarts_and_a_comment_cannot_do_without(stage: Stage) -> None:
    job = _failing(stage, "yes", mode="act")
    advice = _asks(stage, job)
    assert advice.body["needs_approval"] is True
    latest = advice.at + timedelta(seconds=int(str(advice.body["approve_within_s"])))
    ended = datetime.fromtimestamp(
        int(
            stage.slurm.run(
                "squeue", "-h", "-t", "all", "-j", str(job), "-o", "%e", env={"SLURM_TIME_FORMAT": "%s"}
            ).stdout
        ),
        UTC,
    )
    assert latest <= ended + timedelta(seconds=MIN_JOB_AGE_S - 60 + 1)
    assert stage.events(job, EventKind.STEP) == []
    assert stage.restarts(job) == 0
    assert "approved" in _answer(stage, job, "--yes")
    _runs_again(stage, job, "oncall")


def test_a_no_leaves_the_job_as_it_ended(stage: Stage) -> None:
    job = _failing(stage, "no")
    _asks(stage, job)
    assert "rejected" in _answer(stage, job, "--no")
    stage.until(lambda: stage.events(job, EventKind.OPERATOR), "the no is on record")
    told = stage.events(job, EventKind.OPERATOR)
    assert [(event.by, event.summary) for event in told] == [("oncall", "rejected restart: looked at it")]
    again = stage.relight("approve", str(job), "--yes", "--by", "late")
    assert again.returncode == 1
    assert "answered already, by oncall" in again.stderr
    assert stage.slurm.state(job) == "FAILED"
    assert stage.restarts(job) == 0
    assert stage.events(job, EventKind.STEP) == []


def test_silence_does_what_the_policy_says(stage: Stage) -> None:
    patient, hasty = (_failing(stage, policy, policy=policy) for policy in ("patient", "hasty"))
    for job, action in ((patient, "leave_alone"), (hasty, "restart")):
        _asks(stage, job)
        stage.until(lambda job=job: stage.events(job, EventKind.WATCHDOG), f"job {job}: nobody answers in time")
        assert stage.events(job, EventKind.WATCHDOG)[0].summary.endswith(f"the policy says {action}")
    _runs_again(stage, hasty, "nobody: the policy's on_silence")
    assert stage.slurm.state(patient) == "FAILED"
    assert stage.events(patient, EventKind.STEP) == []


def test_a_parked_job_waits_in_the_queue_until_a_yes_moves_it_up_or_a_no_cancels_it(stage: Stage) -> None:
    wanted, unwanted = (_failing(stage, name, policy="parking") for name in ("wanted", "unwanted"))
    for job in (wanted, unwanted):
        stage.until(lambda job=job: stage.events(job, EventKind.STEP, done=True), f"job {job} is parked")
        shown = stage.slurm.show(job)
        assert shown["JobState"] == "PENDING"
        start = datetime.fromisoformat(shown["StartTime"])
        assert start > datetime.now() + timedelta(hours=11)
    _answer(stage, wanted, "--yes")
    _answer(stage, unwanted, "--no")
    stage.until(lambda: stage.slurm.state(wanted) == "RUNNING", "the yes moves it up")
    stage.until(lambda: stage.slurm.state(unwanted) == "CANCELLED", "the no cancels it")
    assert stage.restarts(wanted) == 1
    done = {
        job: [row.body["action"] for row in stage.events(job, EventKind.STEP, done=True)] for job in (wanted, unwanted)
    }
    assert done == {wanted: ["restart", "guard"], unwanted: ["restart", "stop"]}
    stage.slurm.run("scancel", str(wanted))
