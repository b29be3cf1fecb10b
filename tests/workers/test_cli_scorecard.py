"""`relight scorecard` on a real audit store."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from activities.audit.store import AuditStore
from activities.contracts import EventKind, NewEvent
from recovery.records import Action, Advice, Attempt, FaultClass, JobState
from tests.workers.conftest import Relight
from tests.workers.test_cli_jobs import job


@pytest.fixture
def store(config: Path, tmp_path: Path) -> Iterator[AuditStore]:
    with AuditStore(f"sqlite:///{tmp_path}/audit.db") as opened:
        opened.migrate()
        yield opened


def failed(store: AuditStore, job_id: str, then: JobState, *, by: str = "other", hours_ago: float = 2) -> None:
    """A job that lost a GPU and was to be restarted; somebody did, an hour later."""
    ended = datetime.now(UTC) - timedelta(hours=hours_ago)
    back = ended + timedelta(hours=1)
    life = store.open_life(job(job_id), workflow_id=f"prod-{job_id}", run_id="r", now=ended).life_id
    fault = {"fault_class": FaultClass.HARDWARE, "signature": "xid.79"}
    advice = Advice.model_validate({"action": Action.RESTART, "rule": "suspect", "reason": "a GPU is lost", **fault})
    row = NewEvent(
        key=f"{life}/a", kind=EventKind.ADVICE, at=ended, summary="restart", body=advice.model_dump(mode="json")
    )
    cause = fault if then is JobState.FAILED else {}
    attempts = [
        {"number": 0, "state": JobState.FAILED, "end_time": ended, "last_step": 10, "restarted_by": by, **fault},
        {"number": 1, "state": then, "submit_time": back, "start_time": back + timedelta(minutes=3), "nodes": ("n1",),
         "end_time": back + timedelta(minutes=33), **cause},
    ]  # fmt: skip
    store.append("prod", job_id, life, [row], attempts=[Attempt.model_validate(one) for one in attempts])


def test_with_nothing_to_compare_that_is_said(relight: Relight, store: AuditStore) -> None:
    told = relight("scorecard")
    assert told.code == 0
    assert "nothing to compare yet" in told.out
    assert relight("scorecard", "--json").json["cases"] == []


def test_a_class_that_proved_right_is_safe_to_turn_on(relight: Relight, store: AuditStore) -> None:
    for number in range(1, 6):
        failed(store, str(number), JobState.COMPLETED)
    told = relight("scorecard").out
    assert told.startswith("5 recommendations about 5 jobs within 30d\n")
    row = next(line for line in told.splitlines() if line.startswith("hardware"))
    assert row.split() == ["hardware", "restart", "5", "5", "0", "5", "0", "0", "0", "0", "5.0", "h"]
    assert "10 s for relight (assumed" in told
    assert "(0.0 node-hours)" in told, "nothing is known of their nodes"
    assert "safe to turn on act for: hardware in prod/gpu (5 cases of 5 jobs, none wrong)" in told
    card = relight("scorecard", "--json", "--cluster", "prod", "--since", "3h").json
    assert [(one["fault_class"], one["safe"]) for one in card["trust"]] == [("hardware", True)]


def test_what_would_have_been_wrong_is_named_and_keeps_it_off(relight: Relight, store: AuditStore) -> None:
    for number in range(1, 6):
        failed(store, str(number), JobState.COMPLETED)
    failed(store, "66", JobState.FAILED)
    told = relight("scorecard").out
    assert "wrong: prod-66 attempt 1, hardware: restart by rule suspect (monitor)" in told
    assert "a person requeued it and it failed the same way again" in told
    assert "safe to turn on act for: nothing yet" in told
    assert "not yet: hardware in prod/gpu (1 of 6 would have been wrong: prod-66)" in told


def test_relights_own_restarts_have_their_costs_told(relight: Relight, store: AuditStore) -> None:
    failed(store, "1", JobState.FAILED, by="relight")
    told = relight("scorecard").out
    assert "relight's own restarts: 1; 1 failed again without getting further and burnt 0.5 node-hours" in told
    assert "3.0 min in the queue\n" in told
    assert "1 recommendation about 1 job within 30d" in told
    assert "(as its own one restart took)" in told


def test_what_is_older_does_not_count(relight: Relight, store: AuditStore) -> None:
    failed(store, "1", JobState.COMPLETED, hours_ago=30)
    assert "nothing to compare yet" in relight("scorecard", "--since", "1d").out
    assert len(relight("scorecard", "--since", "2d", "--json").json["cases"]) == 1


@pytest.mark.parametrize("since", ["30", "d", "-1d", "1y", "0d", "yesterday"])
def test_a_span_that_is_none_is_refused_with_an_example(relight: Relight, config: Path, since: str) -> None:
    told = relight("scorecard", f"--since={since}")
    assert told.code == 2
    assert "as in 30d" in told.err


def test_a_cluster_that_is_not_configured_is_refused(relight: Relight, config: Path) -> None:
    assert relight("scorecard", "--cluster", "mars").code == 2
