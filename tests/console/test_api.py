"""The read-only API, over a real store."""

from __future__ import annotations

import threading

import pytest

from activities.audit.store import AuditStore, AuditUnavailable
from recovery.records import FaultClass, JobState
from tests.console.conftest import Client, Grounds


def test_jobs_are_paged_by_cursor_without_gaps_or_repetition(grounds: Grounds, client: Client) -> None:
    for number in range(1, 8):
        grounds.job(str(number))
    api = client(grounds.viewer)
    first = api.get("/api/v1/jobs", params={"limit": 3}).json()
    assert first["total"] == 7
    grounds.job("100")  # what comes meanwhile shifts no page
    seen, cursor = [row["job_id"] for row in first["items"]], first["next"]
    while cursor:
        page = api.get("/api/v1/jobs", params={"limit": 3, "cursor": cursor}).json()
        seen += [row["job_id"] for row in page["items"]]
        cursor = page["next"]
    assert seen == ["7", "6", "5", "4", "3", "2", "1"]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"user": "bob"}, {"2"}),
        ({"cluster": "lab"}, {"3"}),
        ({"partition": "cpu"}, {"2"}),
        ({"state": "PENDING"}, {"4"}),
        ({"state": "recovering"}, {"5"}),
        ({"mode": "monitor"}, {"3"}),
        ({"fault": "storage"}, {"5"}),
        ({"q": "LLAMA_"}, {"1"}),  # % and _ are letters like any other
        ({"q": "%"}, set()),
        ({"q": "bob"}, {"2"}),
        ({"q": "prod-4"}, {"4", "44"}),
        ({"q": "4"}, {"4", "44"}),
        ({"closed": True}, {"1", "2", "3", "4", "5", "44", "6"}),
    ],
)
def test_jobs_are_filtered_on_the_server(
    asked: dict[str, object], expected: set[str], grounds: Grounds, client: Client
) -> None:
    grounds.job("1", name="Llama_7b")
    grounds.job("2", user="bob", partition="cpu")
    grounds.job("3", cluster="lab", mode="monitor")
    grounds.job("4", state=JobState.PENDING)
    grounds.job("5", phase="recovering", fault=FaultClass.STORAGE)
    grounds.job("44")
    grounds.store.close_life(grounds.job("6"), "purged")
    found = client(grounds.viewer).get("/api/v1/jobs", params=asked).json()
    assert {row["job_id"] for row in found["items"]} == expected
    assert found["total"] == len(expected)


def test_a_job_is_told_with_attempts_and_its_log_page_by_page(grounds: Grounds, client: Client) -> None:
    grounds.story()
    api = client(grounds.viewer)
    told = api.get("/api/v1/jobs/prod-12345").json()
    assert [(one["number"], one["state"]) for one in told["attempts"]] == [(0, "FAILED"), (1, "RUNNING")]
    assert told["progress"]["step"] == 150
    assert "cursor" not in told["progress"]
    kinds, cursor = [], ""
    while cursor is not None:
        page = api.get("/api/v1/jobs/prod-12345/events", params={"limit": 4, "cursor": cursor}).json()
        kinds += [event["kind"] for event in page["items"]]
        cursor = page["next"]
    assert kinds == ["finding", "verdict", "advice", "step", "outcome", "operator"]


def test_what_the_next_failure_would_get_is_told(grounds: Grounds, client: Client) -> None:
    grounds.story()
    told = client(grounds.viewer).get("/api/v1/jobs/prod-12345/policy").json()
    assert told["last"]["rule"] == "suspect"
    assert {"restart", "leave_alone"} & {one["advice"]["action"] for one in told["next"]}


def test_nodes_incidents_policy_and_reports_are_told(grounds: Grounds, client: Client) -> None:
    grounds.story()
    api = client(grounds.viewer)
    nodes = api.get("/api/v1/nodes").json()["items"]
    assert [(one["node"], one["suspicions"][0]["signature"]) for one in nodes] == [("n02", "xid.79")]
    assert api.get("/api/v1/nodes/prod/n02").json()["suspicions"][0]["job_id"] == "12345"
    assert api.get("/api/v1/incidents").json()["items"] == []
    assert [one["cluster"] for one in api.get("/api/v1/policy").json()["clusters"]] == ["lab", "prod"]
    rules = [one["id"] for one in api.get("/api/v1/policy/table").json()["items"]]
    assert rules.index("not_opted_in") == 0
    reports = api.get("/api/v1/reports").json()
    assert (reports["faults"], reports["restarted"]) == (1, 1)
    assert reports["nodes"][0]["node"] == "n02"
    card = api.get("/api/v1/reports/scorecard").json()
    assert [(one["job_id"], one["action"]) for one in card["cases"]] == [("12345", "restart")]
    now = {one["cluster"]: one for one in api.get("/api/v1/now").json()["clusters"]}
    assert (now["prod"]["watched"], now["prod"]["phases"]) == (1, {"recovering": 1})
    assert now["lab"]["watched"] == 0


def test_who_has_an_answer_already_gets_it_once(grounds: Grounds, client: Client) -> None:
    grounds.story()
    api = client(grounds.viewer)
    first = api.get("/api/v1/jobs/prod-12345")
    again = api.get("/api/v1/jobs/prod-12345", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    grounds.store.append("prod", "12345", 1, [], phase="watching")
    assert api.get("/api/v1/jobs/prod-12345", headers={"If-None-Match": first.headers["etag"]}).status_code == 200


@pytest.mark.parametrize(
    ("path", "status", "says"),
    [
        ("/api/v1/jobs/prod-999", 404, "no record of job prod-999"),
        ("/api/v1/jobs/nonsense", 400, "expected CLUSTER-JOBID"),
        ("/api/v1/jobs/prod-1;rm", 400, "expected CLUSTER-JOBID"),
        ("/api/v1/jobs/mars-1", 400, "is not configured"),
        ("/api/v1/jobs?limit=0", 400, "limit"),
        ("/api/v1/jobs?cursor=nonsense", 400, "cursor"),
        ("/api/v1/nodes/prod/@all", 400, ""),
        ("/api/v1/reports?since=yesterday", 400, "not a time span"),
        ("/api/v1/live?topic=everything", 400, "topic"),
        ("/api/v1/nothing", 404, ""),
    ],
)
def test_errors_are_problems_in_one_form(path: str, status: int, says: str, grounds: Grounds, client: Client) -> None:
    told = client(grounds.viewer).get(path)
    assert (told.status_code, told.headers["content-type"]) == (status, "application/problem+json")
    assert told.json()["status"] == status
    assert says in told.json()["detail"]


def test_a_store_that_does_not_answer_is_said_to_be_away_after_the_deadline(
    grounds: Grounds, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = threading.Event()
    grounds.write(", deadline_s: 0.3")
    api = client(grounds.viewer)
    monkeypatch.setattr(AuditStore, "listed", lambda *_, **__: ends.wait(30))
    told = api.get("/api/v1/jobs")
    ends.set()
    assert (told.status_code, told.headers["retry-after"]) == (503, "5")
    assert "has not answered within 0.3 s" in told.json()["detail"]


def test_an_unreachable_store_names_itself_without_its_password(
    grounds: Grounds, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **__: object) -> None:
        raise AuditUnavailable("audit database postgresql://relight:***@db: it does not answer.")

    api = client(grounds.viewer)
    monkeypatch.setattr(AuditStore, "ping", away)
    monkeypatch.setattr(AuditStore, "listed", away)
    assert api.get("/api/v1/jobs").status_code == 503
    assert api.get("/readyz").status_code == 503
    assert api.get("/healthz").status_code == 200


def test_the_description_names_every_path_and_fetches_nothing_from_elsewhere(grounds: Grounds, client: Client) -> None:
    api = client(grounds.viewer)
    paths = set(api.get("/api/v1/openapi.json").json()["paths"])
    assert {"/api/v1/jobs", "/api/v1/jobs/{job}", "/api/v1/jobs/{job}/{verb}", "/api/v1/live", "/metrics"} <= paths
    assert api.get("/docs").status_code == 404
