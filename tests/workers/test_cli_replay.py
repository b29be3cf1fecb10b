"""`relight replay`: stored histories of real jobs told to today's code and rules."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from activities.export_file import Export, ExportedLife, ExportedPolicy, ExportedRun, read_export
from activities.secrets import without_secrets
from tests.workers.conftest import Relight

HISTORIES = Path(__file__).parents[1] / "workflows" / "histories" / "0.1.0"
POLICY = "clusters: {prod: {mode: act}}\npolicies: {default: {max_excluded_share: 0.5, incident_jobs: 1000}}\n"
"""What the stored histories were made under."""


def exported(name: str, policy: str = POLICY) -> dict[str, Any]:
    """A stored history as `relight export` would write it."""
    told = json.loads((HISTORIES / f"{name}.json").read_text())
    run = ExportedRun(workflow_id=told["workflow_id"], run_id="r", history=told["history"])
    made = Export(
        relight="0.1.0",
        exported_at=datetime.now(UTC),
        cluster="prod",
        job_id="12345",
        lives=(),
        runs=(run,),
        policy=ExportedPolicy(file="/etc/relight/policy.yaml", hash="h", text=policy),
    )
    written: dict[str, Any] = without_secrets(made.model_dump(mode="json"))
    return written


@pytest.fixture
def write(tmp_path: Path) -> Callable[[Any], str]:
    def to_file(document: Any) -> str:
        path = tmp_path / "job.json"
        path.write_text(document if isinstance(document, str) else json.dumps(document))
        return str(path)

    return to_file


Write = Callable[[Any], str]


def test_every_decision_of_a_history_is_decided_again(relight: Relight, write: Write) -> None:
    told = relight("replay", write(exported("crash-restarted")), "--json")
    assert told.json["decisions"] == json.dumps(exported("crash-restarted")).count('"core_local_activity"') > 2
    assert told.json["not_replayable"] == {}
    # Rules may change between the version of the history and this one; tests/integration decides by the same ones.
    assert told.code == (1 if told.json["differ"] else 0)


def test_a_stricter_policy_shows_which_decision_would_be_another_and_why(
    relight: Relight, write: Write, tmp_path: Path
) -> None:
    strict = tmp_path / "strict.yaml"
    strict.write_text(POLICY.replace("max_excluded_share", "max_restarts: 0, max_excluded_share"))
    file = write(exported("crash-restarted"))
    told = relight("replay", file, "--policy", str(strict))
    assert told.code == 1
    assert "action: restart then, stop today" in told.out
    assert "because of the policy (default" in told.out
    differ = relight("replay", file, "--policy", str(strict), "--json").json["differ"]
    changed = [one for one in differ if one["then"].startswith("restart")]
    assert [one["today"].split()[0] for one in changed] == ["stop"]
    assert changed[0]["reason_then"] != changed[0]["reason_today"]


def test_the_policy_configured_here_counts_unless_the_one_in_the_file_is_asked_for(
    relight: Relight, write: Write, config: Path
) -> None:
    file = write(exported("crash-restarted"))
    words = ("replay", file, "--config", str(config), "--json")

    def differing(*more: str) -> set[str]:
        return {each["what"] for one in relight(*words, *more).json["differ"] for each in one["differences"]}

    assert "mode" in differing()
    assert "mode" not in differing("--recorded-policy")


def test_a_history_that_does_not_fit_the_code_is_told(relight: Relight, write: Write) -> None:
    document = exported("crash-restarted")
    for event in document["runs"][0]["history"]["events"]:
        asked = event.get("activityTaskScheduledEventAttributes", {})
        if asked.get("activityType", {}).get("name") == "settle":
            asked["activityType"]["name"] = "another"
    told = relight("replay", write(document), "--json")
    assert told.code == 2
    assert "TMPRL1100" in told.json["not_replayable"]["r"]


DAMAGED = {
    "empty": "",
    "no JSON": "{",
    "binary": "\x00\x01\x02",
    "deep": "[" * 200_000,
    "a list": [],
    "another format": {"format": "other"},
    "a newer format": exported("monitor-advised") | {"format_version": 2},
    "no runs": {key: value for key, value in exported("monitor-advised").items() if key != "runs"},
    "runs of text": exported("monitor-advised") | {"runs": ["x"]},
    "no history": exported("monitor-advised") | {"runs": []},
    "events of text": exported("monitor-advised")
    | {"runs": [{"workflow_id": "prod-1", "run_id": "r", "history": {"events": "x"}}]},
    "an event of nothing": exported("monitor-advised")
    | {"runs": [{"workflow_id": "prod-1", "run_id": "r", "history": {"events": [{"eventId": "x"}]}}]},
}


@pytest.mark.parametrize("document", DAMAGED.values(), ids=list(DAMAGED))
def test_a_damaged_file_gives_one_sentence(relight: Relight, write: Write, document: Any) -> None:
    told = relight("replay", write(document))
    assert told.code == 2
    assert len(told.err.splitlines()) == 1
    assert told.err.startswith("relight: ")
    assert len(told.err) < 500


STRANGE: dict[str, Callable[[list[dict[str, Any]]], object]] = {
    "no events": list.clear,
    "no beginning": lambda events: events.pop(0),
    "events twice": lambda events: events.extend([dict(event) for event in events]),
    "backwards": list.reverse,
    "another workflow": lambda events: events[0]["workflowExecutionStartedEventAttributes"].update(
        {"workflowType": {"name": "Other"}}
    ),
    "garbage as input": lambda events: events[0]["workflowExecutionStartedEventAttributes"].update(
        {"input": {"payloads": [{"metadata": {"encoding": "anNvbi9wbGFpbg=="}, "data": "e30K"}]}}
    ),
    "garbage as answers": lambda events: [
        event["activityTaskCompletedEventAttributes"].update(
            {"result": {"payloads": [{"metadata": {"encoding": "anNvbi9wbGFpbg=="}, "data": "WzEyXQ=="}]}}
        )
        for event in events
        if "activityTaskCompletedEventAttributes" in event
    ],
}


@pytest.mark.parametrize("change", STRANGE.values(), ids=list(STRANGE))
def test_a_history_made_up_by_somebody_ends_the_replay_with_a_word(
    relight: Relight, write: Write, change: Callable[[list[dict[str, Any]]], object]
) -> None:
    document = exported("monitor-advised")
    change(document["runs"][0]["history"]["events"])
    told = relight("replay", write(document), "--json")
    assert told.code == 2, told.out
    assert told.json["not_replayable"]["r"]


def test_a_history_that_breaks_the_sdk_itself_does_not_break_the_command(
    relight: Relight, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.replay_apart.LEAST_LIMIT_S", 10)
    document = exported("monitor-advised")
    events = document["runs"][0]["history"]["events"]
    del events[next(at for at, event in enumerate(events) if "workflowTaskCompletedEventAttributes" in event)]
    for number, event in enumerate(events, 1):
        event["eventId"] = str(number)
    told = relight("replay", write(document))
    assert told.code == 2
    assert "run r does not replay: " in told.out
    assert "panicked" not in told.out + told.err


def test_secrets_are_masked_wherever_they_stand_and_the_story_stays_the_same(tmp_path: Path) -> None:
    hidden = base64.b64encode(json.dumps({"line": "export API_KEY=sk-abcdefghijklmnop123456"}).encode()).decode()
    told = without_secrets(
        {
            "payloads": [{"metadata": {"encoding": "x"}, "data": hidden}],
            "password": "hunter2",
            "line": "Authorization: Bearer abcdefghijk",
            "count": 5,
            "buildId": "a" * 40,
        }
    )
    assert "sk-abc" not in base64.b64decode(told["payloads"][0]["data"]).decode()
    assert told["password"] == "***"
    assert "abcdefghijk" not in told["line"]
    assert (told["count"], told["buildId"]) == (5, "a" * 40)
    path = tmp_path / "job.json"
    path.write_text(json.dumps(exported("crash-restarted")))
    told_run, stored = read_export(path).runs[0], json.loads((HISTORIES / "crash-restarted.json").read_text())
    assert told_run.history == stored["history"]


def test_lives_and_policies_of_another_version_are_read_as_far_as_they_are_known() -> None:
    document = exported("monitor-advised") | {"new": 1}
    document["policy"]["new"] = {"a": 1}
    assert Export.model_validate(document).policy.text == POLICY
    assert ExportedLife.model_fields["left_out"].default == 0
