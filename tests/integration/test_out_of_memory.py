"""Jobs that end in being stopped, on a real cluster: out of memory at the same step, and a budget that is spent.

Slurm's own limit on memory kills them, without control groups. A job in the same cluster whose only oddity are long
evaluations raises nothing meanwhile.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from activities.contracts import EventKind
from tests.integration.story import told_on_failure
from tests.stage import Stage

LIMIT_ON_MEMORY = """SelectTypeParameters=CR_Core_Memory
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
"""


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with Stage(nodes=6, kill_wait_s=2, extra_conf=LIMIT_ON_MEMORY, policy={"hang_floor_s": 10}) as made:
        made.start_worker()
        yield made


def test_out_of_memory_is_told_apart_restarted_once_and_stopped_when_it_comes_at_the_same_step(stage: Stage) -> None:
    nodes = stage.slurm.nodes
    greedy = {"once": nodes[1::2], "again": nodes[1::2], "everywhere": nodes, "healthy": ()}
    faults = {name: stage.faults(name) for name in greedy}
    for name, where in greedy.items():
        for node in where:
            (faults[name] / node).write_text("memory 300 12")
    jobs = {
        name: stage.train(
            "alice",
            name,
            "--mem=100",
            f"--nodelist={first},{second}",
            nodes=2,
            steps=600,
            comment="relight",
            faults=faults[name],
            step_time=0.2,
        )
        for name, first, second in zip(("once", "again", "everywhere"), nodes[::2], nodes[1::2], strict=True)
    }
    jobs["healthy"] = stage.train(
        "bob",
        "healthy",
        "--mem=100",
        nodes=2,
        steps=600,
        comment="relight",
        faults=faults["healthy"],
        step_time=0.2,
        trainer_args="--eval-every 20 --eval-time 12",
    )
    with told_on_failure(stage, *jobs.values()):
        once, again, everywhere, healthy = jobs.values()
        stage.until(lambda: stage.events(once, EventKind.ADVICE), "the first job is advised upon")
        for file in faults["once"].iterdir():
            file.unlink()
        verdict = stage.events(once, EventKind.VERDICT)[0].body
        assert (verdict["fault_class"], verdict["signature"]) == ("out_of_memory", "slurm.memory_limit")
        assert stage.events(once, EventKind.ADVICE)[0].body["rule"] == "out_of_memory"
        assert [suspect["node"] for suspect in verdict["suspects"]] == [nodes[1]]
        assert stage.slurm.show(once)["ExcNodeList"] == "(null)", "a single time is no reason to avoid the node"
        stage.until(lambda: stage.events(once, EventKind.OUTCOME, kind="first_step"), "it goes on")

        stage.until(lambda: stage.events(again, EventKind.ADVICE, action="stop"), "the other job is stopped")
        rules = [event.body["rule"] for event in stage.events(again, EventKind.ADVICE)]
        assert rules == ["out_of_memory", "out_of_memory_again"]
        assert stage.restarts(again) == 1
        assert stage.slurm.state(again) == "FAILED"

        stage.until(lambda: stage.events(everywhere, EventKind.ADVICE), "the third job is advised upon")
        advice = stage.events(everywhere, EventKind.ADVICE)[0]
        verdict_told = stage.events(everywhere, EventKind.VERDICT)[0].summary
        if _named_by_slurm(stage, everywhere) == set(nodes[4:6]):
            assert advice.body["rule"] == "cannot_help"
            assert "no node is to blame" in verdict_told
            assert stage.restarts(everywhere) == 0
        else:  # the first node's daemon ended the step before the other one had looked
            assert advice.body["rule"] == "out_of_memory"
            stage.until(lambda: stage.events(everywhere, EventKind.ADVICE, action="stop"), "it is stopped all the same")
            assert stage.restarts(everywhere) == 1
        assert stage.slurm.state(everywhere) == "FAILED"

        stage.until(lambda: stage.trained(healthy, 41), "the healthy job has evaluated twice")
        assert not stage.events(healthy, EventKind.FINDING)
        assert not stage.events(healthy, EventKind.ADVICE)
        for job in (once, healthy):
            stage.slurm.run("scancel", str(job))


def test_a_job_that_never_saves_a_checkpoint_is_stopped_with_a_record_of_each_attempt(stage: Stage) -> None:
    script = (
        "#!/bin/bash\n"
        "for step in 1 2 3; do printf ' iteration %8d/     100 | lm loss: 2.0E+00 |\\n' $step; sleep 0.5; done\n"
        "echo \"OSError: [Errno 5] Input/output error: '/scratch/shard'\" >&2\n"
        "exit 1\n"
    )
    comment = '{"relight": {"max_restarts_no_new_checkpoint": 2, "max_restarts_same_cause": 3}}'
    job = stage.slurm.submit("bob", script, "--mem=100", "--open-mode=append", name="never", comment=comment)
    with told_on_failure(stage, job):
        stage.until(lambda: stage.events(job, EventKind.ADVICE, action="stop"), "it is stopped", 180)
        assert [row["State"] for row in stage.slurm.settled_attempts(job)] == ["REQUEUED", "REQUEUED", "FAILED"]
        assert (stage.restarts(job), stage.slurm.state(job)) == (2, "FAILED")
        advice = [(event.attempt, event.body["rule"]) for event in stage.events(job, EventKind.ADVICE)]
        assert advice == [(0, "infrastructure"), (1, "infrastructure"), (2, "budget_spent")]
        stage.until(lambda: "stopped for good" in stage.relight("show", str(job)).stdout, "the record says so")

        told = json.loads(stage.relight("show", str(job), "--json").stdout)
        attempts = [
            (one["number"], one["state"], one["signature"], one["exit_code"], one["last_step"], one["last_checkpoint"])
            for one in told["attempts"]
        ]
        assert attempts == [(number, "FAILED", "storage.io_error", 1, 3, None) for number in range(3)]
        assert [one["restarted_by"] for one in told["attempts"]] == ["relight", "relight", ""]
        assert all(one["nodes"] and one["start_time"] and one["end_time"] for one in told["attempts"])
        assert told["life"]["stopped"] is True

        shown = stage.relight("show", str(job)).stdout.splitlines()
        begin = shown.index("Attempts")
        for number, line in enumerate(shown[begin + 1 : begin + 4]):
            assert line.split()[:2] == [str(number), "FAILED"], line
            for word in (" on ", "steps 1-3", "exit 1:0", "storage.io_error"):
                assert word in line, line
        assert "2 of 2" in next(line for line in shown if "budget_spent" in line)


def _named_by_slurm(stage: Stage, job: int) -> set[str]:
    """The nodes of whose memory the log of the first attempt speaks."""
    first_attempt = "".join(stage.log(job).split("iteration       11/")[:2])
    return set(re.findall(r"slurmstepd-(\S+): error: StepId=\S+ exceeded memory limit", first_attempt))
