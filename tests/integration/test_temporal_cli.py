"""A person at a terminal: the stock `temporal` command with the lines of the documentation, and `relight` beside it.

One training job, number 12345 on cluster prod, runs through all of these tests in the order of the file.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from activities.contracts import EventKind
from tests.demo.__main__ import temporal_lines
from tests.stage import Stage

JOB = 12345

START = """
temporal workflow start  --type JobRecovery --task-queue relight-prod --workflow-id prod-12345 \\
                         --input '{"cluster": "prod", "job_id": 12345}'
"""
PAUSE = """
temporal workflow signal --workflow-id prod-12345 --name pause  --input '{"by": "oncall", "reason": "debugging"}'
"""
FORCE = """
temporal workflow signal --workflow-id prod-12345 --name force  --input '{"action": "restart", "exclude": ["n07"], "by": "oncall", "reason": "…"}'
"""  # noqa: E501 - as printed
LIST = """
temporal workflow list   --query 'RelightCluster="prod" AND RelightState="recovering"'
"""


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with Stage(nodes=4, accounting=False) as made:
        made.start_worker()
        faults = made.faults("train")
        job = made.train("alice", "train", nodes=2, steps=20_000, comment="relight", faults=faults, step_time=0.2)
        assert job == JOB
        made.until(lambda: made.trained(JOB, 1), "the job trains")
        made.until(lambda: made.events(JOB, EventKind.STATE, state="RUNNING"), "relight sees it")
        yield made


def _as_printed(stage: Stage, line: str) -> str:
    """Runs the line in a shell, as a person pastes it; gives what it prints."""
    done = subprocess.run(["bash", "-c", line], env=stage.env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _start(stage: Stage, workflow_id: str, *words: str) -> str:
    """Starts a workflow that must fail at once; gives the sentence it fails with."""
    done = stage.temporal.run(
        *("workflow", "execute", "--type", "JobRecovery", "--task-queue", "relight-prod"),
        *("--workflow-id", workflow_id, *words),
    )
    assert done.returncode != 0
    return done.stdout + done.stderr


def _signal(stage: Stage, name: str, raw: str | None) -> None:
    given = [] if raw is None else ["--input", raw]
    done = stage.temporal.run("workflow", "signal", "--workflow-id", f"prod-{JOB}", "--name", name, *given)
    assert done.returncode == 0, done.stderr


def _update(stage: Stage, name: str, raw: str | None) -> tuple[int, str]:
    given = [] if raw is None else ["--input", raw]
    done = stage.temporal.run(
        *("workflow", "update", "execute", "--workflow-id", f"prod-{JOB}", "--name", name, "-o", "json", *given)
    )
    return done.returncode, done.stdout + done.stderr


def _query(stage: Stage, name: str) -> Any:
    done = stage.temporal.run("workflow", "query", "--workflow-id", f"prod-{JOB}", "--type", name, "-o", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["queryResult"][0]


def _told(stage: Stage) -> list[tuple[str, str]]:
    return [(event.by, event.summary) for event in stage.events(JOB, EventKind.OPERATOR)]


def _hears(stage: Stage, words: str, before: int) -> None:
    """Waits until something that operators said since then is on record with these words."""
    stage.until(lambda: any(words in text for _, text in _told(stage)[before:]), f"{words!r} is on record")


# ------------------------------------------------------------------------------------------------ the four lines


def test_starting_the_workflow_of_a_watched_job_by_hand_starts_no_second_mind(stage: Stage) -> None:
    before = _query(stage, "state")
    assert f"prod-{JOB}" in _as_printed(stage, START)
    listed = stage.temporal.run("workflow", "list", "--query", f'WorkflowId="prod-{JOB}"', "-o", "json")
    assert len(json.loads(listed.stdout)) == 1
    assert _query(stage, "state")["life_id"] == before["life_id"]


def test_pause_by_signal(stage: Stage) -> None:
    _as_printed(stage, PAUSE)
    stage.until(lambda: _query(stage, "state")["phase"] == "paused", "it is paused")
    assert _query(stage, "state")["paused_by"] == "oncall"
    assert ("oncall", "paused: debugging") in _told(stage)
    code, said = _update(stage, "resume", '{"by": "oncall"}')
    assert (code, "resumed" in said) == (0, True)


def test_the_lines_that_the_demo_prints_run_as_they_are(stage: Stage) -> None:
    listed, described, shown, paused = (_as_printed(stage, line) for line in temporal_lines("prod", JOB))
    assert f"prod-{JOB}" in listed
    assert "JobRecovery" in described
    assert "WorkflowExecutionStarted" in shown
    assert "succeeded" in paused
    stage.until(lambda: _query(stage, "state")["phase"] == "paused", "it is paused")
    resumed = stage.relight("resume", str(JOB))
    assert resumed.stdout == f"prod-{JOB}: resumed: relight watches the job again\n"


def test_force_with_a_node_that_the_cluster_does_not_have_is_refused_on_record(stage: Stage) -> None:
    _as_printed(stage, FORCE)
    stage.until(lambda: stage.events(JOB, EventKind.ADVICE, rule="force"), "the demand is answered")
    refusal = stage.events(JOB, EventKind.ADVICE, rule="force")[0].summary
    assert "node n07 is not known in this cluster; did you mean n0" in refusal
    at_once = stage.relight("force", str(JOB), "--action", "restart", "--exclude", "n07")
    assert (at_once.returncode, at_once.stdout) == (1, "")
    assert "cluster prod has no node 'n07'; did you mean n0" in at_once.stderr
    assert ("oncall", "force restart: …") in _told(stage)
    assert stage.slurm.state(JOB) == "RUNNING"
    assert stage.restarts(JOB) == 0


def test_force_restarts_and_list_finds_the_job_while_it_recovers(stage: Stage) -> None:
    node = stage.hosts(stage.slurm.show(JOB)["NodeList"])[-1]
    _as_printed(stage, FORCE.replace("n07", node))
    stage.until(lambda: f"prod-{JOB}" in _as_printed(stage, LIST), "the list shows the job")
    stage.until(lambda: stage.events(JOB, EventKind.OUTCOME, kind="first_step"), "it takes new steps")
    assert stage.restarts(JOB) == 1
    assert stage.hosts(stage.slurm.show(JOB)["ExcNodeList"]) == [node]
    assert stage.events(JOB, EventKind.PLAN)[-1].body["approved_by"] == "oncall"
    stage.until(lambda: f"prod-{JOB}" not in _as_printed(stage, LIST), "the list is empty again")


# ------------------------------------------------------------------------------------------------ other input


@pytest.mark.parametrize(
    ("name", "raw", "words"),
    [
        ("pause", None, "paused"),
        ("resume", '"back from lunch"', "resumed: back from lunch"),
        ("pause", '{"reason": "no name"}', "paused: no name"),
        ("pause", "17", "refused pause: expected a JSON object"),
        ("pause", '{"by": ["a", "b"]}', "refused pause: by:"),
        ("resume", '{"because": "typo"}', "refused resume: because:"),
        ("resume", None, "resumed"),
        ("force", None, "refused force: action: Field required"),
        ("force", '"restart"', "refused force: action: Field required"),
        ("force", '{"action": "reboot"}', "refused force: action:"),
        ("force", '{"action": "restart", "exclude": "n[01-02]"}', "refused force: exclude:"),
        ("force", '{"action": "restart", "restart_count": 7}', "meant for restart count 7"),
        ("approve", None, "refused approve: nothing waits"),
        ("approve", '{"yes": "perhaps"}', "refused approve: yes:"),
    ],
)
def test_signals_with_any_input_are_understood_or_refused_on_record(
    stage: Stage, name: str, raw: str | None, words: str
) -> None:
    before = len(_told(stage))
    _signal(stage, name, raw)
    _hears(stage, words, before)
    assert _query(stage, "state")["closed"] is False
    assert stage.restarts(JOB) == 1


@pytest.mark.parametrize(
    ("name", "raw", "code", "words"),
    [
        ("pause", '{"by": "oncall", "reason": "debugging"}', 0, "leaves the job alone until it is resumed"),
        ("pause", None, 0, "already paused"),
        ("resume", None, 0, "watches the job again"),
        ("resume", "17", 1, "expected a JSON object such as"),
        ("force", None, 1, "action: Field required"),
        ("force", '{"action": "restart", "restart_count": 7, "by": "oncall"}', 1, "the job is at 1"),
        ("force", '{"action": "restart", "exclude": ["n07"], "by": "oncall"}', 0, "tells what came of it"),
        ("approve", '{"yes": true}', 1, "nothing waits for an approval"),
    ],
)
def test_updates_answer(stage: Stage, name: str, raw: str | None, code: int, words: str) -> None:
    answered, said = _update(stage, name, raw)
    assert (answered, words in said) == (code, True), said
    assert stage.restarts(JOB) == 1


def test_queries_tell_state_and_story(stage: Stage) -> None:
    state, story = _query(stage, "state"), _query(stage, "timeline")
    assert (state["cluster"], state["job_id"], state["mode"]) == ("prod", str(JOB), "act")
    assert state["seen"]["state"] == "RUNNING"
    assert {"at", "kind", "text"} == set(story[0])
    assert any("recovered" in line["text"] for line in story)


@pytest.mark.parametrize(
    ("workflow_id", "given", "sentence"),
    [
        ("prod-1-again", ["--input", '{"cluster": "prod", "job_id": 12345}'], "start it with --workflow-id prod-12345"),
        ("prod-1", [], "JobRecovery needs one JSON object as input, got nothing"),
        ("prod-1", ["--input", '"prod-12345"'], "JobRecovery needs one JSON object as input"),
        ("prod-1", ["--input", '{"cluster": "prod"}'], "job_id: Field required"),
        ("prod-1", ["--input", '{"cluster": "prod", "job_id": 1, "polcy": "x"}'], "polcy: Extra inputs"),
        ("prod-1", ["--input", '{"cluster": "prod", "job_id": "n07"}'], "expected a Slurm job id such as 12345"),
        ("prd-1", ["--input", '{"cluster": "prd", "job_id": 1}'], "check the cluster's name"),
        ("prod-99999", ["--input", '{"cluster": "prod", "job_id": 99999}'], "does not know job 99999"),
    ],
)
def test_a_bad_start_fails_at_once_with_the_sentence_that_helps(
    stage: Stage, workflow_id: str, given: list[str], sentence: str
) -> None:
    assert sentence in " ".join(_start(stage, workflow_id, *given).split())


def test_a_job_that_did_not_opt_in_can_be_watched_by_hand(stage: Stage) -> None:
    job = stage.slurm.submit("bob", "#!/bin/bash\nsleep 600\n", name="plain")
    line = START.replace(str(JOB), str(job)).replace(f"{job}}}", f'{job}, "mode": "monitor", "by": "bob"}}')
    _as_printed(stage, line)
    stage.until(lambda: stage.events(job, EventKind.OPENED), "it is watched")
    assert "by hand" in stage.events(job, EventKind.OPENED)[0].summary
    stage.until(lambda: stage.state(job)["mode"] == "monitor", "it is in monitor mode")
    stage.slurm.run("scancel", str(job))


# ------------------------------------------------------------------------------------------------ the relight command


def test_relight_lists_and_shows_the_job(stage: Stage) -> None:
    listed = stage.relight("jobs", "--json")
    assert listed.returncode == 0, listed.stderr
    row = next(row for row in json.loads(listed.stdout) if row["job_id"] == str(JOB))
    assert (row["cluster"], row["user"], row["state"], row["attempt"]) == ("prod", "alice", "RUNNING", 1)
    shown = stage.relight("show", str(JOB), "--json")
    assert shown.returncode == 0, shown.stderr
    kinds = {event["kind"] for event in json.loads(shown.stdout)["events"]}
    assert {"opened", "state", "operator", "advice", "plan", "step", "outcome"} <= kinds
    assert "prod-12345" in stage.relight("jobs").stdout
    assert "force restart" in stage.relight("show", f"prod-{JOB}").stdout


def test_relight_speaks_to_the_workflow(stage: Stage) -> None:
    paused = stage.relight("pause", str(JOB), "--by", "oncall", "--reason", "lunch", "--json")
    assert paused.returncode == 0, paused.stderr
    answer = json.loads(paused.stdout)
    assert (answer["job"], answer["accepted"]) == (f"prod-{JOB}", True)
    assert ("oncall", "paused: lunch") in _told(stage) or _query(stage, "state")["paused"] is True
    assert stage.relight("resume", str(JOB)).returncode == 0


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (("force", str(JOB), "--action", "restart", "--restart-count", "7"), 1, "the job is at 1"),
        (("force", str(JOB), "--action", "reboot"), 2, "expected restart, stop or release"),
        (("approve", str(JOB), "--yes"), 1, "nothing waits for an approval"),
        (("approve", str(JOB)), 2, "say --yes or --no"),
        (("pause", "99999"), 1, "relight does not watch job prod-99999"),
        (("pause", "n07"), 2, "expected CLUSTER-JOBID"),
        (("show", "99999"), 1, "no record of job prod-99999"),
    ],
)
def test_relight_says_what_is_wrong(stage: Stage, words: tuple[str, ...], code: int, sentence: str) -> None:
    said = stage.relight(*words)
    assert (said.returncode, sentence in said.stderr) == (code, True), said.stderr


def test_without_a_worker_relight_offers_the_signal_which_the_next_worker_hears(stage: Stage) -> None:
    stage.stop_worker()
    asked = stage.relight("pause", str(JOB), "--by", "oncall", "--reason", "night")
    assert asked.returncode == 1
    assert "no worker answered" in asked.stderr
    assert "--signal" in asked.stderr
    left = stage.relight("pause", str(JOB), "--by", "oncall", "--reason", "night", "--signal")
    assert left.returncode == 0, left.stderr
    assert stage.relight("show", str(JOB)).returncode == 0
    before = len(_told(stage))
    stage.start_worker()
    _hears(stage, "paused: night", before)
