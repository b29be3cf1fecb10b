"""The stock `temporal` command and the `relight` command against a site named prod whose first job is 12345."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest

from activities.contracts import EventKind
from tests.stage import Stage


@pytest.fixture(scope="module")
def prod() -> Iterator[Stage]:
    """Act mode; job 12345 of alice runs and can be restarted."""
    with Stage(nodes=4, cluster_name="prod", first_job_id=12345) as made:
        made.start_worker()
        faults = made.faults("long")
        job = made.train("alice", "long", nodes=2, steps=5_000, comment="relight", faults=faults, step_time=0.2)
        assert job == 12345
        made.until(lambda: made.trained(job, 2), "it trains")
        made.until(lambda: made.events(job, EventKind.STATE, state="RUNNING"), "relight sees it run")
        yield made


def _shell(stage: Stage, line: str) -> subprocess.CompletedProcess[str]:
    """Runs the line as a person would paste it."""
    return subprocess.run(["bash", "-c", line], env=stage.env, capture_output=True, text=True, timeout=60, check=False)


def test_a_start_by_hand_of_a_watched_job_finds_its_one_workflow(prod: Stage) -> None:
    told = _shell(
        prod,
        "temporal workflow start  --type JobRecovery --task-queue relight-prod --workflow-id prod-12345 "
        """--input '{"cluster": "prod", "job_id": 12345}'""",
    )
    assert told.returncode == 0, told.stderr
    assert "prod-12345" in told.stdout
    count = json.loads(prod.temporal.run("workflow", "list", "--query", 'RelightJobId="12345"', "-o", "json").stdout)
    assert len(count) == 1


def test_the_pause_line_pauses_and_is_on_record(prod: Stage) -> None:
    line = (
        "temporal workflow signal --workflow-id prod-12345 --name pause  "
        """--input '{"by": "oncall", "reason": "debugging"}'"""
    )
    assert _shell(prod, line).returncode == 0
    prod.until(lambda: prod.state("12345")["paused"], "the pause is known")
    prod.until(
        lambda: any(event.summary == "paused: debugging" for event in prod.events(12345, EventKind.OPERATOR)),
        "the pause is on record",
    )
    assert prod.events(12345, EventKind.OPERATOR)[-1].by == "oncall"
    assert prod.relight("resume", "prod-12345", "--by", "oncall").returncode == 0
    assert prod.state("12345")["paused"] is False


def test_the_force_line_with_an_unknown_node_is_refused_on_record(prod: Stage) -> None:
    line = (
        "temporal workflow signal --workflow-id prod-12345 --name force  "
        """--input '{"action": "restart", "exclude": ["n07"], "by": "oncall", "reason": "…"}'"""
    )
    assert _shell(prod, line).returncode == 0

    def refused() -> bool:
        return any("n07" in event.summary for event in prod.events(12345, EventKind.ADVICE))

    prod.until(refused, "the refusal is on record")
    assert prod.restarts(12345) == 0


def test_the_list_line_finds_jobs_by_cluster_and_state(prod: Stage) -> None:
    told = _shell(prod, """temporal workflow list   --query 'RelightCluster="prod" AND RelightState="recovering"'""")
    assert told.returncode == 0, told.stderr
    watching = """temporal workflow list -o json --query 'RelightCluster="prod" AND RelightState="watching"'"""
    found = json.loads(_shell(prod, watching).stdout)
    assert "prod-12345" in [entry["execution"]["workflowId"] for entry in found]


@pytest.mark.parametrize("name", ["pause", "resume", "force", "approve", "observe"])
@pytest.mark.parametrize("given", ["", "--input '\"text\"'", "--input '{\"action\": 7}'", "--input '{\"by\": null}'"])
def test_no_line_with_wrong_or_no_input_harms_the_workflow(prod: Stage, name: str, given: str) -> None:
    _shell(prod, f"temporal workflow signal --workflow-id prod-12345 --name {name} {given}")
    told = prod.state("12345")
    assert told["closed"] is False
    assert prod.restarts(12345) == 0
    prod.relight("resume", "prod-12345")


def test_updates_answer_and_refuse(prod: Stage) -> None:
    update = "temporal workflow update execute --workflow-id prod-12345 -o json "
    done = _shell(prod, update + """--name pause --input '{"by": "oncall"}'""")
    assert done.returncode == 0, done.stderr
    assert '"accepted": true' in done.stdout.replace('"accepted":true', '"accepted": true')
    assert _shell(prod, update + "--name resume").returncode == 0
    for words, expected in (
        ("""--name force --input '{"action": "explode"}'""", "action"),
        ("""--name force --input '{"action": "restart", "restart_count": 99}'""", "restart count 99"),
        ("""--name force --input '{"action": "restart", "exclude": ["n[1-4]"]}'""", "not a node name"),
        ("--name approve", "nothing waits"),
    ):
        refused = _shell(prod, update + words)
        assert refused.returncode != 0
        assert expected in refused.stdout + refused.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--workflow-id prod-1", "needs one JSON object"),
        ('--workflow-id prod-1 --input \'{"cluster": "prod"}\'', "job_id"),
        ('--workflow-id mine --input \'{"cluster": "prod", "job_id": 12345}\'', "prod-12345"),
        ('--workflow-id nope-1 --input \'{"cluster": "nope", "job_id": 1}\'', "nope"),
        ('--workflow-id prod-999999 --input \'{"cluster": "prod", "job_id": 999999}\'', "does not know job 999999"),
    ],
)
def test_a_wrong_start_fails_with_the_sentence_that_helps(prod: Stage, words: str, sentence: str) -> None:
    line = f"temporal workflow execute --type JobRecovery --task-queue relight-prod {words}"
    told = _shell(prod, line)
    assert told.returncode != 0
    assert sentence in told.stdout + told.stderr


def test_relight_lists_and_shows_the_job(prod: Stage) -> None:
    listed = json.loads(prod.relight("jobs", "--json").stdout)
    rows = listed["jobs"] if isinstance(listed, dict) else listed
    assert any(row["job_id"] == "12345" and row["user"] == "alice" for row in rows)
    shown = prod.relight("show", "12345")
    assert shown.returncode == 0, shown.stderr
    assert "opened" in shown.stdout
    assert json.loads(prod.relight("show", "prod-12345", "--json").stdout)
    missing = prod.relight("show", "prod-777")
    assert missing.returncode != 0
    assert "777" in missing.stdout + missing.stderr


def test_a_restart_forced_by_relight_happens_once_and_avoids_the_node(prod: Stage) -> None:
    node = prod.hosts(prod.slurm.show(12345)["NodeList"])[-1]
    told = prod.relight("force", "12345", "--action", "restart", "--exclude", node, "--by", "oncall", "--reason", "try")
    assert told.returncode == 0, told.stderr
    prod.until(lambda: prod.restarts(12345) == 1 and prod.slurm.state(12345) == "RUNNING", "it runs again", 120)
    assert node not in prod.hosts(prod.slurm.show(12345)["NodeList"])
    prod.until(lambda: prod.events(12345, EventKind.OUTCOME, kind="first_step"), "it trains again")
    assert prod.restarts(12345) == 1


def test_without_a_worker_an_update_gives_up_and_names_the_signal(prod: Stage) -> None:
    prod.stop_worker()
    told = prod.relight("pause", "12345", "--reason", "night")
    assert told.returncode == 1
    assert "--signal" in told.stdout + told.stderr
    sent = prod.relight("pause", "12345", "--reason", "night", "--signal")
    assert sent.returncode == 0, sent.stderr
    prod.start_worker()
    prod.until(lambda: prod.state("12345")["paused"], "the pause was kept for the next worker")
