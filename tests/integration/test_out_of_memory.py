"""Jobs that use more memory than they have, on a real cluster: Slurm's own limit kills them, without control groups.

A job in the same cluster whose only oddity are long evaluations raises nothing meanwhile.
"""

from __future__ import annotations

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


def _named_by_slurm(stage: Stage, job: int) -> set[str]:
    """The nodes of whose memory the log of the first attempt speaks."""
    first_attempt = "".join(stage.log(job).split("iteration       11/")[:2])
    return set(re.findall(r"slurmstepd-(\S+): error: StepId=\S+ exceeded memory limit", first_attempt))
