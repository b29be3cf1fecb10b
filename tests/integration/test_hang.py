"""Running jobs that get nowhere, on a real cluster: each is seen, told apart, and brought back exactly once.

The policy's floors are low, so that seconds stand for what takes minutes on a real site.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from activities.contracts import EventKind
from tests.stage import TRAINER, Stage

POLICY = {
    "hang_floor_s": 10,
    "hang_start_s": 25,
    "hang_phase_s": 40,
    "hang_one_witness_s": 8,
    "straggler_for_s": 12,
    "straggler_drop": 0.4,
}


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with Stage(nodes=10, kill_wait_s=2, policy=POLICY) as made:
        made.start_worker()
        yield made


def _other_node(stage: Stage, job: int) -> str:
    """A node of the running job that is not its batch host."""
    shown = stage.slurm.show(job)
    return next(node for node in stage.hosts(shown["NodeList"]) if node != shown["BatchHost"])


def _story(stage: Stage, job: int) -> str:
    """What relight wrote down about the job, for a failing test."""
    return "\n".join(
        f"{event.at:%H:%M:%S} {event.kind} {event.attempt}: {event.summary}" for event in stage.events(job)
    )


def _until(stage: Stage, job: int, ready: Callable[[int], object], what: str) -> None:
    """Waits for something to become true of a job."""
    try:
        stage.until(lambda: ready(job), what)
    except AssertionError as failure:
        failure.add_note(_story(stage, job))
        raise


def _submit(stage: Stage, name: str, script: str, faults: Path) -> int:
    """A training on two nodes inside a batch script of its own; `TRAIN` there stands for it."""
    trainer = stage.folder / "train.py"
    shutil.copy(TRAINER, trainer)
    home = stage.slurm.home("alice")
    train = (
        f"srun --kill-on-bad-exit=1 python3 {trainer} --steps 2000 --step-time 0.2 --save-every 5 "
        f"--checkpoints {home}/{name} --faults {faults}"
    )
    return stage.slurm.submit(
        "alice",
        "#!/bin/bash\n" + script.replace("TRAIN", train) + "\n",
        "--nodes=2",
        "--ntasks-per-node=1",
        "--exclusive",
        "--open-mode=append",
        f"--output={home}/%x-%j.out",
        name=name,
        comment="relight",
    )


def _cancel(stage: Stage, jobs: Iterable[int]) -> None:
    for job in jobs:
        stage.slurm.run("scancel", str(job))
    for job in jobs:
        stage.slurm.wait_state(job, {"CANCELLED", "FAILED", "COMPLETED"})


def test_each_way_to_get_nowhere_is_seen_and_recovered_once(stage: Stage) -> None:
    jobs: dict[str, int] = {}
    faults = {name: stage.faults(name) for name in ("silent", "stopped", "slowed", "healthy")}
    for name in ("silent", "stopped", "slowed"):
        jobs[name] = stage.train(
            "alice", name, "--exclusive", nodes=2, steps=2000, comment="relight", faults=faults[name], step_time=0.2
        )
    jobs["healthy"] = stage.train(
        "bob",
        "healthy",
        "--exclusive",
        nodes=2,
        steps=2000,
        comment="relight",
        faults=faults["healthy"],
        step_time=0.2,
        trainer_args="--eval-every 25 --eval-time 15",
    )
    for name, job in jobs.items():
        _until(stage, job, lambda job: stage.trained(job, 20 if job == jobs["healthy"] else 45), f"{name} trains")
    (faults["silent"] / _other_node(stage, jobs["silent"])).write_text("hang")
    victim = _other_node(stage, jobs["stopped"])
    for pid in stage.slurm.rank_pids(jobs["stopped"], victim):
        os.kill(pid, signal.SIGSTOP)
    _until(
        stage,
        jobs["silent"],
        lambda job: stage.events(job, EventKind.FINDING, certainty="suspected"),
        "a hang is suspected",
    )
    for file in faults["silent"].iterdir():
        file.unlink()  # the rank hangs for ever; its next attempt does not
    _until(stage, jobs["slowed"], lambda job: stage.trained(job, 130), "the job to be slowed has trained for a while")
    (faults["slowed"] / _other_node(stage, jobs["slowed"])).write_text("slow 0.5")

    for name in ("silent", "stopped"):
        job = jobs[name]
        _until(stage, job, lambda job: stage.events(job, EventKind.OUTCOME, kind="restarted"), f"{name} is restarted")
        _until(stage, job, lambda job: stage.events(job, EventKind.OUTCOME, kind="first_step"), f"{name} goes on")
        assert stage.restarts(job) == 1, _story(stage, job)
        # The log alone: told first, acted upon only when it lasts; which node it was nobody knows.
        advice = [event.body for event in stage.events(job, EventKind.ADVICE)]
        assert [(one["action"], one["rule"]) for one in advice] == [
            ("leave_alone", "hang_suspected"),
            ("restart", "hang"),
        ]
        assert all("nothing else says so" in one["reason"] for one in advice)
        assert stage.slurm.show(job)["ExcNodeList"] == "(null)"
        found = stage.events(job, EventKind.FINDING, signature="hang.no_step")
        assert found and found[-1].body["certainty"] == "confirmed"
        life = stage.events(job)[0].life_id
        assert life is not None
        hung = stage.store.attempts(life)[0]
        assert (hung.ended_by_us, hung.restarted_by) == (False, "relight"), "a hang is a fault and costs budget"

    _until(
        stage, jobs["slowed"], lambda job: stage.events(job, EventKind.ADVICE, rule="straggler"), "the slow job is told"
    )
    assert stage.restarts(jobs["slowed"]) == 0, _story(stage, jobs["slowed"])
    assert "cannot be told" in stage.events(jobs["slowed"], EventKind.ADVICE, rule="straggler")[0].summary

    assert stage.slurm.state(jobs["healthy"]) == "RUNNING"
    assert not stage.events(jobs["healthy"], EventKind.FINDING), _story(stage, jobs["healthy"])
    assert not stage.events(jobs["healthy"], EventKind.ADVICE)
    _cancel(stage, jobs.values())


def test_a_start_up_without_end_and_a_script_that_outlives_its_ranks_are_restarted_once(stage: Stage) -> None:
    stalling, lingering = stage.faults("stalling"), stage.faults("lingering")
    jobs = {
        "stalling": _submit(stage, "stalling", "exec TRAIN", stalling),
        "lingering": _submit(stage, "lingering", "TRAIN; sleep 600", lingering),
    }
    for name, job in jobs.items():
        _until(stage, job, lambda job: stage.trained(job, 30), f"{name} trains")
    victim = _other_node(stage, jobs["stalling"])
    for node in stage.slurm.nodes:
        (stalling / node).write_text("gpu" if node == victim else "stall")
    dead = _other_node(stage, jobs["lingering"])
    (lingering / dead).write_text("gpu")

    job = jobs["lingering"]
    _until(stage, job, lambda job: stage.events(job, EventKind.OUTCOME, kind="first_step"), "the lingering job goes on")
    assert stage.restarts(job) == 1, _story(stage, job)
    assert stage.slurm.show(job)["ExcNodeList"] == dead, _story(stage, job)
    verdict = stage.events(job, EventKind.VERDICT)[-1].body
    assert (verdict["fault_class"], verdict["signature"]) == ("hardware", "cuda.ecc")

    job = jobs["stalling"]
    _until(
        stage,
        job,
        lambda job: stage.events(job, EventKind.FINDING, signature="hang.no_first_step"),
        "the stall is suspected",
    )
    for file in stalling.iterdir():
        file.unlink()
    _until(stage, job, lambda job: stage.restarts(job) == 2, "it is restarted again")
    _until(stage, job, lambda job: stage.trained(job, 60), "it trains in the end")
    assert stage.restarts(job) == 2, _story(stage, job)
    rules = [event.body["rule"] for event in stage.events(job, EventKind.ADVICE, action="restart")]
    assert rules == ["suspect", "hang"]
    _cancel(stage, jobs.values())


def test_what_only_looks_stuck_is_left_alone(stage: Stage) -> None:
    faults = {name: stage.faults(name) for name in ("retrying", "suspended", "unlogged", "paused")}
    loop = "for try in 1 2 3; do TRAIN && break; rm -f $FAULTS/*; done".replace("$FAULTS", str(faults["retrying"]))
    faults["retrying"].chmod(0o777)
    jobs = {
        "retrying": _submit(stage, "retrying", loop, faults["retrying"]),
        "suspended": _submit(stage, "suspended", "exec TRAIN", faults["suspended"]),
        "unlogged": _submit(stage, "unlogged", "exec TRAIN", faults["unlogged"]),
        "paused": _submit(stage, "paused", "exec TRAIN", faults["paused"]),
    }
    quiet = stage.slurm.submit("bob", "#!/bin/bash\nsleep 600\n", name="quiet", comment="relight")
    for name, job in jobs.items():
        _until(stage, job, lambda job: stage.trained(job, 60 if job == jobs["paused"] else 30), f"{name} trains")
    (faults["retrying"] / _other_node(stage, jobs["retrying"])).write_text("exit 3")
    stage.slurm.run("scontrol", "suspend", str(jobs["suspended"]), check=True)
    Path(stage.slurm.show(jobs["unlogged"])["StdOut"]).unlink()
    pids = stage.slurm.rank_pids(jobs["paused"], _other_node(stage, jobs["paused"]))
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    _until(
        stage,
        jobs["paused"],
        lambda job: stage.events(job, EventKind.FINDING, certainty="suspected"),
        "a hang is suspected",
    )
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    _until(stage, jobs["paused"], lambda job: stage.events(job, EventKind.WATCHDOG), "it is told that steps go on")
    assert "steps go on" in stage.events(jobs["paused"], EventKind.WATCHDOG)[0].summary
    _until(
        stage, quiet, lambda job: stage.events(job, EventKind.ADVICE, rule="hang_suspected"), "the quiet job is told"
    )
    _until(stage, jobs["retrying"], lambda job: stage.trained(job, 150), "the job has started its ranks anew by itself")
    stage.slurm.run("scontrol", "resume", str(jobs["suspended"]), check=True)
    _until(stage, jobs["suspended"], lambda job: stage.trained(job, 60), "the suspended job goes on")
    for job in (*jobs.values(), quiet):
        assert stage.restarts(job) == 0, _story(stage, job)
        assert not stage.events(job, EventKind.ADVICE, action="restart"), _story(stage, job)
    for name in ("suspended", "unlogged"):
        assert not stage.events(jobs[name], EventKind.FINDING, detector="progress"), _story(stage, jobs[name])
    _cancel(stage, (*jobs.values(), quiet))
