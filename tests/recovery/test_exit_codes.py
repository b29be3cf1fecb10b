"""Exit codes by agreement: from Slurm, or as srun told them in the log where Slurm never learnt them."""

from __future__ import annotations

from typing import Any

import pytest

from recovery.budgets import NO_NEW_CHECKPOINT, NODE_HOURS, SAME_CAUSE, budgets
from recovery.directive import Directive
from recovery.faults.catalogue import Catalogue
from recovery.log_reader import LogReader
from recovery.policy import Policy, decide
from recovery.records import Action, Advice, FaultClass, ToldCode
from tests.recovery.situations import T0, at, attempt, situation, verdict, view

STEP = " iteration {:8d}/     100 | consumed samples: 1 | elapsed time per iteration (ms): 100.0 | lm loss: 1.0E+00 |\n"
KILLED = """\
srun: error: n02: task 1: Exited with exit code {code}
srun: Terminating StepId=4711.0
slurmstepd: error: *** STEP 4711.0 ON n01 CANCELLED AT 2026-03-01T12:10:00 ***
srun: error: n01: task 0: Terminated
srun: error: n03: task 2: Exited with exit code 143
"""


def told(*texts: str) -> tuple[ToldCode, ...]:
    reader = LogReader(Catalogue.built_in())
    for number, text in enumerate(texts):
        reader.next_file(f"{number}.log")
        reader.feed(text.encode())
    reader.finish()
    return reader.told_codes(T0)


@pytest.mark.parametrize("code", [93, 16])
def test_the_first_tasks_code_is_told_and_not_those_that_srun_ended(code: int) -> None:
    assert told(STEP.format(1) + KILLED.format(code=code)) == (ToldCode(code=code, node="n02"),)


def test_a_code_that_the_training_survived_asks_for_nothing() -> None:
    steps = "".join(STEP.format(step) for step in range(2, 8))
    assert told("srun: error: n02: task 1: Exited with exit code 93\n" + steps) == ()


def test_only_sruns_own_words_count() -> None:
    assert told("Exited with exit code 93\nexit code: 16\n") == ()


def advice(*codes: int, nodes: tuple[str, ...] = ("n02",), policy: Policy | None = None, **more: Any) -> Advice:
    """A four-node job that Slurm holds for killed by signal 15, while srun told those codes."""
    told = tuple(ToldCode(code=code, node=node) for code, node in zip(codes, nodes, strict=False))
    current = attempt(0, submit_time=T0, start_time=at(10), end_time=at(600), exit_code=15, told_codes=told)
    job = view(exit_code=15)
    usual: dict[str, Any] = {"attempts": (current,), "verdict": verdict(FaultClass.UNKNOWN)}
    return decide(situation(job, **{**usual, **more}), policy or Policy())


def test_a_stop_code_that_srun_told_stops_the_job() -> None:
    one = advice(93)
    assert (one.action, one.rule) == (Action.STOP, "stop_code")
    assert "exit code 93, by which it asks not to be restarted; srun told it in the log, Slurm has 15:0" in one.reason
    assert "exit codes that srun told: 93 on n02" in one.facts


def test_an_elsewhere_code_that_srun_told_keeps_off_the_node_whose_task_asked() -> None:
    one = advice(16)
    assert (one.action, one.rule, one.exclude) == (Action.RESTART, "asks_elsewhere", ("n02",))


def test_stop_is_stronger_than_elsewhere() -> None:
    assert advice(16, 93, nodes=("n02", "n03")).rule == "stop_code"


def test_a_node_that_is_not_the_jobs_is_not_excluded_whatever_the_log_says() -> None:
    one = advice(16, nodes=("n07",))
    assert (one.rule, one.exclude) == ("asks_elsewhere", ())
    assert "which node it means is not known" in one.reason


def test_a_job_of_one_node_that_asks_for_another_gets_another() -> None:
    job = view(exit_code=16, nodes=("n03",), min_nodes=1)
    current = attempt(0, submit_time=T0, end_time=at(600), nodes=("n03",), exit_code=16)
    one = decide(situation(job, attempts=(current,), verdict=verdict(FaultClass.UNKNOWN)), Policy())
    assert (one.rule, one.exclude) == ("asks_elsewhere", ("n03",))


def test_codes_are_configurable_and_a_job_may_bring_its_own() -> None:
    assert advice(93, policy=Policy(stop_codes=())).rule == "unknown"
    assert advice(42, policy=Policy(elsewhere_codes=(42,))).rule == "asks_elsewhere"
    assert advice(42, directive=Directive(stop_codes=(42,))).rule == "stop_code"


@pytest.mark.parametrize("how", [{"exit_code": 16}, {"exit_code": 15, "told_codes": (ToldCode(code=16, node="n02"),)}])
def test_an_attempt_that_asked_for_other_hardware_is_not_counted_as_lack_of_progress(how: dict[str, Any]) -> None:
    cause = {"fault_class": FaultClass.HARDWARE, "signature": "xid.79", "last_step": 5, "restarted_by": "relight"}
    usual = [attempt(number, **cause) for number in range(3)]
    asked = [usual[0], attempt(1, **{**cause, **how}), usual[2]]
    used = {one.name: one.used for one in budgets(usual, Policy(), Directive(), at(3000))}
    less = {one.name: one.used for one in budgets(asked, Policy(), Directive(), at(3000))}
    for name in (SAME_CAUSE, NO_NEW_CHECKPOINT):
        assert (used[name], less[name]) == (2, 1)
    assert less[NODE_HOURS] == pytest.approx(used[NODE_HOURS] / 2)
