"""Jobs that are somebody else's to restart, or nobody's: relight leaves them as they are and records why.

Whether a job was restarted is read from Slurm's own restart count, never from what relight says of itself.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator

import pytest

from activities.audit.records import Event
from activities.contracts import EventKind
from tests.stage import Stage

SLOW_EPILOG = '[ "$SLURM_JOB_USER" = bob ] && sleep 10; true'
"""Bob's jobs stay COMPLETING for ten seconds."""

FAILS = "#!/bin/bash\nsleep 5\nexit 9\n"
LIVES = "#!/bin/bash\nsleep 600\n"


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with Stage(nodes=6, kill_wait_s=2, epilog=SLOW_EPILOG) as made:
        made.start_worker()
        yield made


@contextlib.contextmanager
def _worker_frozen(stage: Stage) -> Iterator[None]:
    """What happens in here has happened when relight looks next."""
    os.kill(stage.worker_pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(stage.worker_pid, signal.SIGCONT)


def _seen(stage: Stage, job: int | str, state: str) -> None:
    stage.until(lambda: stage.events(job, EventKind.STATE, state=state), f"relight sees job {job} {state}")


def _advice(stage: Stage, job: int | str, rule: str) -> Event:
    """Waits for the advice by that rule."""
    stage.until(
        lambda: stage.events(job, EventKind.ADVICE, rule=rule),
        f"the advice by rule {rule} for job {job}",
    )
    return stage.events(job, EventKind.ADVICE, rule=rule)[-1]


def _untouched(stage: Stage, job: int | str, restarts: int = 0) -> None:
    assert stage.restarts(job) == restarts
    assert stage.events(job, EventKind.STEP) == []


def _ends_when_told(stage: Stage, name: str, code: int = 9) -> tuple[int, Callable[[], None]]:
    """A job that opted in and runs until it is told to end, however long the machine takes to see it run."""
    word = stage.slurm.home("alice") / f"{name}-fail"
    script = f"#!/bin/bash\nuntil [ -e {word} ]; do sleep 0.2; done\nexit {code}\n"
    return stage.slurm.submit("alice", script, comment="relight", name=name), word.touch


@pytest.mark.parametrize("dependency", ["singleton", "afternotok"])
def test_a_job_whose_dependent_started_is_not_restarted(stage: Stage, dependency: str) -> None:
    name = f"chain-{dependency}"
    job, fail = _ends_when_told(stage, name)
    how = dependency if dependency == "singleton" else f"{dependency}:{job}"
    child = stage.slurm.submit("alice", LIVES, f"--dependency={how}", name=name)
    _seen(stage, job, "RUNNING")
    with _worker_frozen(stage):
        fail()
        stage.slurm.wait_state(child, {"RUNNING"})
    advice = _advice(stage, job, "dependent_started")
    assert str(child) in advice.summary
    assert advice.body["action"] == "leave_alone"
    assert stage.slurm.state(job) == "FAILED"
    _untouched(stage, job)
    assert stage.slurm.state(child) == "RUNNING"
    stage.slurm.run("scancel", str(child))


def test_a_job_whose_resubmitted_copy_lives_is_not_restarted(stage: Stage) -> None:
    job = stage.slurm.submit("alice", FAILS, comment="relight", name="again")
    _seen(stage, job, "RUNNING")
    with _worker_frozen(stage):
        stage.slurm.wait_state(job, {"FAILED"})
        copy = stage.slurm.submit("alice", LIVES, name="again")
    advice = _advice(stage, job, "twin")
    assert str(copy) in advice.summary
    _untouched(stage, job)
    stage.slurm.run("scancel", str(copy))


def test_a_job_of_the_same_name_elsewhere_is_no_copy(stage: Stage) -> None:
    other = stage.slurm.home("alice") / "elsewhere"
    stage.slurm.run("mkdir", str(other), user="alice", check=True)
    job = stage.slurm.submit("alice", FAILS, comment='{"relight": {"max_restarts": 1}}', name="namesake")
    namesake = stage.slurm.submit("alice", LIVES, f"--chdir={other}", name="namesake")
    stage.until(lambda: stage.events(job, EventKind.OUTCOME, kind="restarted"), "it is restarted")
    assert stage.restarts(job) == 1
    stage.slurm.run("scancel", str(namesake))


def _cancel_in_a_slow_epilog(stage: Stage) -> int:
    job = stage.slurm.submit("bob", LIVES, comment="relight", name="unwanted")
    _seen(stage, job, "RUNNING")
    stage.slurm.run("scancel", str(job), user="bob", check=True)
    stage.slurm.wait_state(job, {"COMPLETING"})
    stage.until(
        lambda: any("completing" in event.summary.lower() for event in stage.events(job, EventKind.STATE)),
        "relight looks while the epilog runs",
    )
    return job


def test_a_job_cancelled_in_its_epilog_is_told_from_a_crashed_one_by_accounting(stage: Stage) -> None:
    job = _cancel_in_a_slow_epilog(stage)
    assert "cancelled by uid" in _advice(stage, job, "cancelled").summary
    stage.slurm.wait_state(job, {"CANCELLED"})
    _seen(stage, job, "CANCELLED")
    _untouched(stage, job)


def test_a_job_cancelled_in_its_epilog_is_waited_for_without_accounting() -> None:
    with Stage(nodes=2, accounting=False, epilog=SLOW_EPILOG) as stage:
        stage.start_worker()
        job = _cancel_in_a_slow_epilog(stage)
        assert _advice(stage, job, "completing").body["action"] == "wait"
        stage.slurm.wait_state(job, {"CANCELLED"})
        _advice(stage, job, "cancelled")
        _untouched(stage, job)


def test_a_finished_job_is_not_restarted_even_when_an_operator_asks(stage: Stage) -> None:
    job, end = _ends_when_told(stage, "finished", code=0)
    _seen(stage, job, "RUNNING")
    end()
    _advice(stage, job, "finished")
    asked = stage.relight("force", str(job), "--action", "restart", "--by", "oncall")
    assert asked.returncode == 0, asked.stderr
    assert "refused: the job has finished" in _advice(stage, job, "force").summary
    assert stage.slurm.state(job) == "COMPLETED"
    _untouched(stage, job)


def test_a_suspended_jobs_silence_is_no_fault(stage: Stage) -> None:
    faults = stage.faults("suspended")
    job = stage.train("alice", "suspended", nodes=2, steps=20, comment="relight", faults=faults, step_time=0.2)
    stage.until(lambda: stage.trained(job, 3), "it trains")
    stage.slurm.run("scontrol", "suspend", str(job), check=True)
    assert "relight waits for whoever stopped it" in _advice(stage, job, "suspended").summary
    stage.slurm.run("scontrol", "resume", str(job), check=True)
    stage.slurm.wait_state(job, {"COMPLETED"})
    _advice(stage, job, "finished")
    _untouched(stage, job)


def test_a_job_that_its_owner_holds_stays_held(stage: Stage) -> None:
    job = stage.slurm.submit("alice", LIVES, comment="relight", name="held")
    _seen(stage, job, "RUNNING")
    stage.slurm.run("scontrol", "requeuehold", str(job), user="alice", check=True)
    assert "held" in _advice(stage, job, "held").summary
    shown = stage.slurm.show(job)
    assert (shown["JobState"], shown["Priority"]) == ("PENDING", "0")
    _untouched(stage, job, restarts=1)
    stage.slurm.run("scancel", str(job))


def test_a_job_that_its_owner_requeued_is_in_their_hands(stage: Stage) -> None:
    job = stage.slurm.submit("alice", LIVES, comment="relight", name="theirs")
    _seen(stage, job, "RUNNING")
    stage.slurm.run("scontrol", "requeue", str(job), user="alice", check=True)
    assert "somebody other than relight" in _advice(stage, job, "requeued_elsewhere").summary
    stage.slurm.wait_state(job, {"RUNNING"})
    assert stage.slurm.show(job)["ExcNodeList"] == "(null)"
    _untouched(stage, job, restarts=1)
    stage.slurm.run("scancel", str(job))


@pytest.mark.parametrize(
    ("comment", "rule", "action"),
    [
        ('{"relight": {"paused": true}}', "paused", "leave_alone"),
        ('{"relight": {"mode": "monitor"}}', "unknown", "restart"),
    ],
)
def test_an_owner_can_call_relight_off_while_the_job_runs(stage: Stage, comment: str, rule: str, action: str) -> None:
    job, fail = _ends_when_told(stage, f"veto-{rule}")
    _seen(stage, job, "RUNNING")
    stage.slurm.run("scontrol", "update", f"jobid={job}", f"comment={comment}", user="alice", check=True)
    fail()
    _seen(stage, job, "FAILED")
    advice = _advice(stage, job, rule)
    assert advice.body["action"] == action
    assert stage.slurm.state(job) == "FAILED"
    _untouched(stage, job)
