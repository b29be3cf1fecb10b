"""`relight policy explain` and `relight policy show`, on a real audit store."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from activities.audit.store import AuditStore
from activities.contracts import EventKind, NewEvent
from recovery.policy import Policy, decide
from recovery.records import Attempt, FaultClass, JobState, JobView
from tests.recovery.situations import attempt, situation, verdict, view
from tests.workers.conftest import Relight

T0 = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
POLICY = "policies: {default: {max_restarts: 4}}\nclusters: {prod: {partitions: {gpu: {mode: act}}}}\n"


@pytest.fixture
def store(config: Path, tmp_path: Path) -> Iterator[AuditStore]:
    (tmp_path / "policy.yaml").write_text(POLICY)
    config.write_text(config.read_text() + f"policy_file: {tmp_path}/policy.yaml\n")
    with AuditStore(f"sqlite:///{tmp_path}/audit.db") as opened:
        opened.migrate()
        yield opened


def opened(store: AuditStore, job_id: str, *events: NewEvent, attempts: tuple[Attempt, ...] = ()) -> None:
    job = JobView(cluster="prod", job_id=job_id, raw_id=int(job_id), user="alice", state=JobState.RUNNING, looked_at=T0)
    life = store.open_life(job, workflow_id=f"prod-{job_id}", run_id="r", now=T0)
    state = NewEvent(
        key=f"{job_id}/state",
        kind=EventKind.STATE,
        at=T0,
        summary="RUNNING",
        body={"partition": "gpu", "nodes": ["n01", "n02"], "min_nodes": 2, "directive": {"max_restarts": 2}},
    )
    store.append("prod", job_id, life.life_id, [state, *events], attempts=attempts)


def follows(store: AuditStore, config: Path, problem: str = "", hash: str = "") -> None:
    from recovery.policy_file import parse

    told = parse(POLICY, "p").hash
    body = {"hash": hash or told, "problem": problem, "names": ["default"]}
    store.append(
        "prod", "", None, [NewEvent(key=f"p{problem}{hash}", kind=EventKind.POLICY, at=T0, summary="p", body=body)]
    )


def test_an_unknown_job_and_one_that_never_failed(relight: Relight, store: AuditStore, config: Path) -> None:
    unknown = relight("policy", "explain", "prod-9", "-c", str(config))
    assert unknown.code == 1
    assert "has no record of job prod-9" in unknown.err
    opened(store, "10")
    quiet = relight("policy", "explain", "10", "-c", str(config))
    assert quiet.code == 0
    assert "No decision yet" in quiet.out
    assert "mode act (set by partition gpu)" in quiet.out
    told = relight("policy", "explain", "10", "-c", str(config), "--json").json
    assert told["last"] is None
    ahead = {one["case"]: (one["advice"]["action"], one["advice"]["rule"]) for one in told["next"]}
    assert ahead["broken hardware, the node known"] == ("restart", "suspect")
    assert ahead["an error of the user's code"] == ("stop", "cannot_help")
    # The job's own, tighter number holds.
    assert {b["name"]: b["limit"] for b in told["next"][0]["advice"]["budgets"]}["restarts"] == 2


def test_a_decision_is_told_with_rule_facts_budgets_and_what_comes_next(
    relight: Relight, store: AuditStore, config: Path
) -> None:
    past = tuple(attempt(number, fault_class=FaultClass.HARDWARE, signature="xid.79", restarted_by="relight",
                         suspects=("n02",), last_step=5) for number in range(2))  # fmt: skip
    one = decide(situation(view(restarts=1), attempts=past, verdict=verdict(), expected_restart=True), Policy())
    event = NewEvent(key="10/a", kind=EventKind.ADVICE, at=T0, summary="restart", body=one.model_dump(mode="json"))
    opened(store, "10", event, attempts=past)
    follows(store, config)
    told = relight("policy", "explain", "10", "-c", str(config))
    words = " ".join(told.out.split())
    assert f"rule {one.rule}:" in words
    assert one.facts[0] in words
    assert "same_cause" in words
    machine = relight("policy", "explain", "10", "-c", str(config), "--json").json
    assert machine["decisions"][-1]["rule"] == one.rule
    assert {b["name"]: b["left"] for b in machine["decisions"][-1]["budgets"]}["same_cause"] == 2
    again = next(one for one in machine["next"] if one["case"].startswith("the same cause"))
    # Two restarts were made, and the job itself asked for no more than two.
    assert (again["advice"]["action"], again["advice"]["rule"]) == ("stop", "budget_spent")


def test_the_policy_that_workers_follow_is_shown_and_a_bad_file_told(
    relight: Relight, store: AuditStore, config: Path, tmp_path: Path
) -> None:
    assert "no worker has told yet" in relight("policy", "show", "-c", str(config)).out
    follows(store, config)
    fine = relight("policy", "show", "-c", str(config))
    assert (fine.code, "in force since" in fine.out) == (0, True)
    follows(store, config, problem="policy.yaml:1: policies: is wrong")
    kept = relight("policy", "show", "-c", str(config))
    assert kept.code == 1
    assert "the last good version is kept: policy.yaml:1: policies: is wrong" in " ".join(kept.out.split())
    (tmp_path / "policy.yaml").write_text(POLICY.replace("4", "5"))
    follows(store, config, hash="abc")
    changed = relight("policy", "show", "-c", str(config), "--json")
    assert changed.code == 1
    assert (changed.json["clusters"][0]["in_force"], changed.json["clusters"][0]["is_the_file"]) == ("abc", False)
