"""Histories of released versions replay with today's code, whatever the policy file says today."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from temporalio.client import WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer

from recovery.policy import Policy, decide
from workers.sandbox import runner
from workflows.cluster_watch import ClusterWatch
from workflows.job_recovery import JobRecovery

STORED = sorted((Path(__file__).parent / "histories").glob("*/*.json"))


def load(path: Path) -> tuple[str, dict[str, Any]]:
    told = json.loads(path.read_text())
    return told["workflow_id"], told["history"]


def _replayer() -> Replayer:
    return Replayer(
        workflows=[JobRecovery, ClusterWatch], data_converter=pydantic_data_converter, workflow_runner=runner()
    )


def test_there_are_stored_histories_of_each_way_a_job_goes() -> None:
    assert {path.stem for path in STORED} >= {
        *("crash-restarted", "user-error-stopped", "monitor-advised", "approved", "node-failed", "cluster-watch"),
        *("continued-first", "continued-last"),
    }


@pytest.mark.parametrize("path", STORED, ids=lambda path: f"{path.parent.name}-{path.stem}")
async def test_a_stored_history_replays(path: Path) -> None:
    workflow_id, history = load(path)
    await _replayer().replay_workflow(WorkflowHistory.from_json(workflow_id, history))


async def test_a_policy_that_would_decide_otherwise_today_changes_no_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*arguments: Any) -> Any:
        raise AssertionError("a replay must take the recorded decision, not decide again")

    monkeypatch.setattr("activities.deciding.decide", refuses)
    assert decide is not refuses
    assert Policy(max_restarts=0).hash != Policy().hash
    workflow_id, history = load(next(path for path in STORED if path.stem == "crash-restarted"))
    await _replayer().replay_workflow(WorkflowHistory.from_json(workflow_id, history))


async def test_a_history_with_another_decision_in_it_does_not_replay() -> None:
    """The check itself can fail: a restart that is turned into 'leave alone' no longer fits the steps that follow."""
    workflow_id, history = load(next(path for path in STORED if path.stem == "crash-restarted"))
    text = json.dumps(history)
    changed = 0
    for event in history["events"]:
        for payload in _payloads(event):
            told = base64.b64decode(payload["data"]).decode()
            if '"action":"restart"' in told and '"verdict"' in told and "step_key" not in told:
                told = told.replace('"action":"restart"', '"action":"leave_alone"')
                payload["data"] = base64.b64encode(told.encode()).decode()
                changed += 1
    assert changed, text[:500]
    with pytest.raises(Exception, match="TMPRL1100"):
        await _replayer().replay_workflow(WorkflowHistory.from_json(workflow_id, history))


@pytest.mark.parametrize("path", STORED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_stored_histories_name_no_machine(path: Path) -> None:
    _, history = load(path)
    words = [base64.b64decode(payload["data"]).decode() for event in history["events"] for payload in _payloads(event)]
    text = " ".join([json.dumps(history), *words])
    assert "/tmp/" not in text
    assert "site-packages" not in text


def _payloads(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, dict):
        if "data" in value and "metadata" in value:
            return [value]
        return [found for inner in value.values() for found in _payloads(inner)]
    if isinstance(value, list):
        return [found for inner in value for found in _payloads(inner)]
    return []
