"""The policy on a real cluster: a file replaced under the running worker, and what it makes of jobs of every kind.

All jobs are submitted at once and each test looks at what became of one of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from activities.audit.records import Event
from activities.contracts import EventKind
from tests.stage import Stage

PARTITION = "main"
NUMBERS = {"max_excluded_share": 0.5, "before_restart": {"signal": "USR1", "wait_s": 4, "to": "batch"}}


def policy(**more: Any) -> dict[str, Any]:
    """Act in one partition only; nothing else is named."""
    place = {"mode": "monitor", "partitions": {PARTITION: {"mode": "act"}}, **more}
    return {"policies": {"default": NUMBERS}, "clusters": {"prod": place}}


def file_of(stage: Stage) -> Path:
    return stage.config.parent / "policy.yaml"


def replace(stage: Stage, text: str) -> None:
    """As an editor does: written beside it and moved over it."""
    draft = file_of(stage).with_suffix(".new")
    draft.write_text(text)
    draft.rename(file_of(stage))


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    with Stage(nodes=6, kill_wait_s=2, cred_expire_s=20) as made:
        replace(made, yaml.safe_dump(policy()))
        made.start_worker()
        yield made


@pytest.fixture(scope="module")
def jobs(stage: Stage) -> dict[str, int]:
    home = stage.slurm.home("alice")
    saves = f'{{"relight": {{"checkpoint_dir": "{home}/saves", "max_restarts": 2, "max_restarts_per_day": 99}}}}'
    fails = "sleep 4; exit 9"
    again = f'[ -n "$SLURM_RESTART_COUNT" ] && exec sleep 600; {fails}'
    asks = "#!/bin/bash\nsleep 3; exec srun --kill-on-bad-exit=1 bash -c '[ $SLURM_PROCID = 1 ] && exit 93; sleep 60'\n"
    hears = f"#!/bin/bash\ntrap 'touch {home}/heard' USR1\nwhile sleep 0.3; do :; done\n"
    keeps = f"mkdir -p {home}/saves/iter_0000070; echo w > {home}/saves/iter_0000070/shard; " + (
        f"echo 70 > {home}/saves/latest_checkpointed_iteration.txt"
    )
    submit = stage.slurm.submit
    return {
        "asks": submit("alice", asks, "--nodes=2", "--ntasks-per-node=1", comment="relight", name="asks"),
        "het": submit("alice", f"#!/bin/bash\n{fails}\n", "--nodes=1", ":", "--nodes=1", comment="relight", name="het"),
        "first": submit("alice", f"#!/bin/bash\n{keeps}\n{again}\n", comment=saves, name="sweep"),
        "second": submit("alice", "#!/bin/bash\nsleep 600\n", comment="relight", name="sweep"),
        "hears": submit("alice", hears, comment="relight", name="hears"),
    }


def advice(stage: Stage, job: int, rule: str) -> Event:
    stage.until(lambda: stage.events(job, EventKind.ADVICE, rule=rule), f"the advice by rule {rule} for job {job}")
    return stage.events(job, EventKind.ADVICE, rule=rule)[-1]


def explained(stage: Stage, job: int) -> dict[str, Any]:
    asked = stage.relight("policy", "explain", str(job), "--json")
    assert asked.returncode == 0, asked.stderr
    told: dict[str, Any] = json.loads(asked.stdout)
    return told


def test_a_task_that_asks_not_to_be_restarted_is_heard_though_srun_was_killed(
    stage: Stage, jobs: dict[str, int]
) -> None:
    job = jobs["asks"]
    told = advice(stage, job, "stop_code")
    assert "exit code 93" in told.summary
    assert stage.restarts(job) == 0
    explanation = explained(stage, job)
    assert explanation["last"]["rule"] == "stop_code"
    assert any("exit codes that srun told: 93" in fact for fact in explanation["last"]["facts"])
    assert explanation["policy"]["mode_from"] == f"partition {PARTITION}"


def test_a_heterogeneous_job_is_refused_with_the_reason(stage: Stage, jobs: dict[str, int]) -> None:
    told = advice(stage, jobs["het"], "heterogeneous")
    assert "restarts all its components" in told.summary
    assert told.body["action"] == "leave_alone"
    assert stage.events(jobs["het"], EventKind.STEP) == []
    counts = stage.slurm.run("squeue", "-h", "-t", "all", "-j", str(jobs["het"]), "-O", "RestartCnt").stdout
    assert counts.split() == ["0", "0"]  # one row a component


def test_runs_side_by_side_do_not_stand_aside_for_each_other_and_files_show_progress(
    stage: Stage, jobs: dict[str, int]
) -> None:
    job = jobs["first"]
    stage.until(lambda: stage.events(job, EventKind.OUTCOME, kind="restarted"), "it is restarted")
    life = stage.store.latest_life("prod", str(job))
    assert life is not None
    assert stage.store.attempts(life.life_id)[0].last_checkpoint == 70
    (refused,) = stage.events(job, EventKind.DIRECTIVE)
    assert "policies.default.max_restarts_per_day: the job asks for relight.max_restarts_per_day 99" in refused.summary
    explanation = explained(stage, job)
    assert explanation["refused"] == [refused.summary]
    assert {one["name"]: one["limit"] for one in explanation["last"]["budgets"]}["restarts"] == 2
    assert stage.restarts(jobs["second"]) == 0


def test_a_running_job_is_told_before_it_is_restarted(stage: Stage, jobs: dict[str, int]) -> None:
    job = jobs["hears"]
    stage.until(lambda: stage.events(job, EventKind.STATE, state="RUNNING"), "relight sees it run")
    asked = stage.relight("force", str(job), "--action", "restart", "--by", "oncall")
    assert asked.returncode == 0, asked.stderr
    stage.until((stage.slurm.home("alice") / "heard").exists, "its script hears the signal")
    stage.until(lambda: stage.restarts(job) == 1, "and then it is restarted")
    assert [event.summary for event in stage.events(job, EventKind.STEP) if "signal" in event.summary] == [
        "signal USR1 to batch before the restart"
    ]


def test_a_bad_policy_file_is_refused_and_the_last_good_one_kept_and_told(stage: Stage) -> None:
    def rows(problem: bool) -> list[Event]:
        found = stage.store.events("prod", "")
        return [one for one in found if one.kind == EventKind.POLICY and bool(one.body["problem"]) == problem]

    good = stage.relight("policy", "show")
    assert good.returncode == 0, good.stdout
    replace(
        stage, "policies:\n  default:\n    max_restarts: -1\n    max_restart: 2\n  a: {extends: b}\n  b: {extends: a}\n"
    )
    stage.until(lambda: rows(problem=True), "the worker tells of the bad file")
    bad = rows(problem=True)[-1]
    assert bad.body["hash"] == rows(problem=False)[0].body["hash"]
    assert "the last good one" in bad.summary
    assert "policy.yaml:6: policies.b.extends: goes in a circle (a -> b -> a)" in str(bad.body["problem"])
    assert "the last good one is kept" in stage.worker_log.read_text()
    shown = stage.relight("policy", "show")
    assert shown.returncode != 0
    assert "goes in a circle" in shown.stdout
    # A file that is right again is taken up: a maintenance window begins in half an hour.
    now = datetime.now(UTC).replace(microsecond=0)
    begins, ends = now + timedelta(minutes=25), now + timedelta(hours=2)
    windows = [{"from": begins.isoformat(), "to": ends.isoformat(), "reason": "new switches"}]
    replace(stage, yaml.safe_dump(policy(maintenance=windows)))
    stage.until(lambda: len(rows(problem=False)) == 2, "the worker takes up the good file")
    assert stage.relight("policy", "show").returncode == 0
    job = stage.slurm.submit("alice", "#!/bin/bash\nsleep 3; exit 9\n", comment="relight", name="late")
    stage.until(lambda: stage.events(job, EventKind.STEP, done=True), "it is restarted behind the window")
    assert "new switches" in advice(stage, job, "unknown").summary
    stage.until(lambda: stage.events(job, EventKind.OUTCOME, kind="waiting"), "and that is verified")
    starts = datetime.fromisoformat(stage.slurm.show(job)["StartTime"]).astimezone(UTC)
    assert abs((starts - ends).total_seconds()) <= 10
