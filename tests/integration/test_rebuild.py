"""What the audit store has lost comes back from the histories; a job's whole story goes into a file and is told again.

On a real cluster, with a real Temporal server.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from activities.contracts import EventKind
from tests.stage import Stage


@pytest.fixture(scope="module")
def job(stage: Stage) -> Iterator[int]:
    """A job that crashed, was restarted and has finished; a person paused and resumed it then. No worker runs."""
    faults = stage.faults("rebuild")
    job = stage.train("alice", "rebuild", nodes=2, steps=25, comment="relight", faults=faults, step_time=0.2)
    stage.until(lambda: stage.trained(job, 5), "it trains")
    shown = stage.slurm.show(job)
    victim = next(node for node in stage.hosts(shown["NodeList"]) if node != shown["BatchHost"])
    (faults / victim).write_text("gpu")
    stage.until(lambda: stage.events(job, EventKind.STATE, state="COMPLETED"), "relight has seen its end", 150)
    for verb in ("pause", "resume"):
        answered = stage.relight(verb, str(job), "--by", "oncall", "--reason", "a look")
        assert answered.returncode == 0, answered.stderr
    stage.until(lambda: len(stage.events(job, EventKind.OPERATOR)) == 2, "both are on record")
    stage.stop_worker()
    yield job
    stage.start_worker()


def _verify(stage: Stage, *words: str) -> tuple[int, Any]:
    told = stage.relight("audit", "verify", "--json", *words)
    assert told.stdout, told.stderr
    return told.returncode, json.loads(told.stdout)


def test_what_relight_wrote_agrees_with_the_history(stage: Stage, job: int) -> None:
    code, told = _verify(stage)
    assert told["found"] == []
    assert code == 0
    tally = told["clusters"][stage.cluster_name]
    assert tally["runs"] >= 1
    families = {"opened", "state", "finding", "verdict", "advice", "plan", "step", "outcome", "operator"}
    assert families <= {event.kind for event in stage.events(job)}
    assert tally["rows"] >= len(families)


def test_a_job_is_exported_whole_and_replays_to_the_same_decisions(stage: Stage, job: int, tmp_path: Path) -> None:
    file = tmp_path / "job.json"
    told = stage.relight("export", str(job), "-o", str(file))
    assert told.returncode == 0, told.stderr
    assert file.stat().st_mode & 0o077 == 0
    export = json.loads(file.read_text())
    assert (export["format"], export["format_version"], export["job_id"]) == ("relight-export", 1, str(job))
    (life,) = export["lives"]
    assert [event["key"] for event in life["events"]] == [event.key for event in stage.events(job)]
    assert len(life["attempts"]) == 2
    assert all(run["history"]["events"] for run in export["runs"])
    assert any("iteration" in line for one in export["evidence"] for line in one["lines"])
    assert export["policy"]["mode"] == "act"
    assert export["policy"]["numbers"]["max_restarts"] > 0
    replayed = stage.relight("replay", str(file), "--json")
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    assert json.loads(replayed.stdout)["decisions"] > 2


def test_lost_rows_come_back_as_they_were_and_others_are_told(stage: Stage, job: int) -> None:
    before = {event.key: event for event in stage.events(job)}
    life = before[next(iter(before))].life_id
    assert life is not None
    attempts = stage.store.attempts(life)
    with sqlite3.connect(stage.database.removeprefix("sqlite:///")) as database:
        kinds = ("verdict", "advice", "plan", "operator", "finding")
        database.execute(f"DELETE FROM events WHERE kind IN {kinds} AND job_id = ?", (str(job),))
        database.execute("DELETE FROM attempts WHERE number = 0")
        forged = "UPDATE events SET summary = 'nothing happened' WHERE kind = 'outcome' AND job_id = ?"
        changed = database.execute(forged, (str(job),)).rowcount
        database.execute(
            "UPDATE events SET kind = 'plan', event_key = event_key || 'x', recorded_at = '2025-01-01 00:00:00.000000' "
            "WHERE kind = 'opened' AND job_id = ?",
            (str(job),),
        )
    code, told = _verify(stage, "--job", str(job))
    problems = told["clusters"][stage.cluster_name]["problems"]
    assert code == 1
    lost = [key for key, event in before.items() if event.kind in kinds]
    assert problems == {"gap": len(lost) + 1, "attempt": 1, "different": changed, "untold": 1}
    code, told = _verify(stage, "--repair")
    tally = told["clusters"][stage.cluster_name]
    assert code == 1, "what was forged is told, and stays as it is"
    assert (tally["repaired"], tally["problems"]) == (len(lost) + 2, {"different": changed, "untold": 1})
    after = {event.key: event for event in stage.events(job)}
    for key in lost:
        same = ("kind", "summary", "by", "attempt", "life_id", "workflow_id", "run_id")
        assert {name: getattr(after[key], name) for name in same} == {name: getattr(before[key], name) for name in same}
        if before[key].kind != "finding":
            assert after[key].body == before[key].body
        assert abs((after[key].at - before[key].at).total_seconds()) < 5
    restored = stage.store.attempts(life)
    assert [one.number for one in restored] == [one.number for one in attempts]
    assert restored[0].nodes == attempts[0].nodes
    assert _verify(stage, "--repair")[1]["clusters"][stage.cluster_name]["repaired"] == 0
