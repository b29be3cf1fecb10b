"""`relight jobs` and `relight show`, on a real audit store."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from activities.audit.store import AuditStore
from activities.contracts import EventKind, NewEvent
from recovery.records import Attempt, FaultClass, JobState, JobView
from tests.workers.conftest import Relight

T0 = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def job(job_id: str, user: str = "alice", name: str = "llama", state: JobState = JobState.RUNNING) -> JobView:
    return JobView(
        cluster="prod",
        job_id=job_id,
        raw_id=int(job_id.split("_")[0]),
        user=user,
        name=name,
        state=state,
        submit_time=T0,
        partition="gpu",
        nodes=("n01", "n02"),
        looked_at=T0,
    )


@pytest.fixture
def store(config: Path, tmp_path: Path) -> Iterator[AuditStore]:
    with AuditStore(f"sqlite:///{tmp_path}/audit.db") as opened:
        opened.migrate()
        yield opened


@pytest.fixture
def story(store: AuditStore) -> AuditStore:
    """A job that lost a GPU and came back, and another user's quiet one."""
    life = store.open_life(job("12345"), workflow_id="prod-12345", run_id="r1", now=T0)
    key = f"{life.life_id}/"
    store.append(
        "prod",
        "12345",
        life.life_id,
        [
            NewEvent(
                key=f"{key}1",
                kind=EventKind.FINDING,
                at=at(600),
                summary="GPU fell off the bus (rank 3, n02)",
                body={"evidence": "NVRM: Xid 79\nmore"},
            ),
            NewEvent(
                key=f"{key}2",
                kind=EventKind.ADVICE,
                at=at(601),
                summary="restart without n02",
                body={
                    "rule": "suspect",
                    "mode": "act",
                    "policy": "default",
                    "budgets": [
                        {"name": "restarts", "used": 1, "limit": 10},
                        {"name": "unknown", "used": 0, "limit": 2},
                    ],
                },
            ),
            NewEvent(key=f"{key}3", kind=EventKind.OUTCOME, at=at(620), summary="restarted on n01, n03"),
            NewEvent(
                key=f"{key}4",
                kind=EventKind.OPERATOR,
                at=at(700),
                summary="paused: debugging\nforged line",
                by="oncall",
            ),
        ],
        phase="recovering",
        mode="act",
        attempts=[
            Attempt(
                number=0,
                state=JobState.FAILED,
                start_time=at(10),
                end_time=at(600),
                nodes=("n01", "n02"),
                exit_code=1,
                first_step=1,
                last_step=120,
                last_checkpoint=100,
                fault_class=FaultClass.HARDWARE,
                signature="xid.79",
                suspects=("n02",),
                restarted_by="relight",
            ),
            Attempt(
                number=1,
                state=JobState.RUNNING,
                start_time=at(620),
                nodes=("n01", "n03"),
                excluded=("n02",),
                last_step=130,
            ),
        ],
    )
    store.open_life(job("12346_7", user="bob", name="tiny"), workflow_id="prod-12346_7", run_id="r2", now=T0)
    return store


def test_jobs_are_listed_with_what_relight_thinks_of_them(relight: Relight, story: AuditStore) -> None:
    listed = relight("jobs")
    assert listed.code == 0
    first = next(line for line in listed.out.splitlines() if line.startswith("prod-12345 "))
    for part in ("alice", "llama", "recovering", "act", "130", "GPU fell off the bus", "restart without n02"):
        assert part in first
    assert "prod-12346_7" in listed.out


@pytest.mark.parametrize(
    ("words", "ids"),
    [
        ((), {"12345", "12346_7"}),
        (("--user", "bob"), {"12346_7"}),
        (("--state", "recovering"), {"12345"}),
        (("--state", "RUNNING"), {"12345", "12346_7"}),
        (("--state", "FAILED"), set()),
        (("--cluster", "prod", "--limit", "1"), {"12346_7"}),
    ],
)
def test_jobs_can_be_narrowed_down(relight: Relight, story: AuditStore, words: tuple[str, ...], ids: set[str]) -> None:
    assert {row["job_id"] for row in relight("jobs", "--json", *words).json} == ids


def test_closed_jobs_are_listed_on_request(relight: Relight, story: AuditStore) -> None:
    life = story.latest_life("prod", "12345")
    assert life is not None
    story.close_life(life.life_id, "purged", at(9000))
    assert {row["job_id"] for row in relight("jobs", "--json").json} == {"12346_7"}
    assert {row["job_id"] for row in relight("jobs", "--all", "--json").json} == {"12345", "12346_7"}


def test_without_jobs_the_way_to_opt_in_is_told(relight: Relight, store: AuditStore) -> None:
    assert "#SBATCH --comment=relight" in relight("jobs").out
    assert relight("jobs", "--json").json == []


def test_the_story_of_a_job_is_told_in_order(relight: Relight, story: AuditStore) -> None:
    shown = relight("show", "12345")
    assert shown.code == 0
    parts = [
        "prod-12345  llama  user alice",
        "recovering · mode act",
        "0  FAILED",
        "for 9 min 50 s  on n[01-02]  steps 1-120  checkpoint 100  exit 1:0  hardware xid.79  suspects n02",
        "1  RUNNING",
        "without n02",
        "finding   GPU fell off the bus (rank 3, n02)",
        "> NVRM: Xid 79",
        "advice    restart without n02",
        "rule suspect, mode act, policy default",
        "budgets: restarts 1/10",
        "outcome   restarted on n01, n03",
        "operator  paused: debugging",
        "(by oncall)",
        "temporal workflow show --workflow-id prod-12345",
    ]
    places = [shown.out.find(part) for part in parts]
    assert -1 not in places, [part for part, place in zip(parts, places, strict=True) if place < 0]
    assert places == sorted(places)
    # What somebody typed stays on its own line.
    assert not any(line.startswith("forged") for line in shown.out.splitlines())


def test_the_story_as_json_holds_everything(relight: Relight, story: AuditStore) -> None:
    told = relight("show", "prod-12345", "--json").json
    assert told["job"] == "prod-12345"
    assert [attempt["number"] for attempt in told["attempts"]] == [0, 1]
    assert [event["kind"] for event in told["events"]] == ["finding", "advice", "outcome", "operator"]
    assert told["life"]["phase"] == "recovering"


def test_long_stories_are_told_whole(relight: Relight, store: AuditStore) -> None:
    life = store.open_life(job("5"), workflow_id="prod-5", run_id="r", now=T0)
    events = [
        NewEvent(key=f"{life.life_id}/{n}", kind=EventKind.STATE, at=at(n), summary=f"event {n}") for n in range(1203)
    ]
    store.append("prod", "5", life.life_id, events)
    assert len(relight("show", "5", "--json").json["events"]) == 1203


def test_an_array_task_has_its_own_story(relight: Relight, story: AuditStore) -> None:
    assert "prod-12346_7  tiny  user bob" in relight("show", "12346_7").out


@pytest.mark.parametrize(
    ("job_id", "code", "told"),
    [
        ("999", 1, "no record of job prod-999"),
        ("mars-1", 2, "cluster 'mars' is not configured, expected one of: prod"),
        ("prod", 2, "is not a job, expected CLUSTER-JOBID such as prod-12345"),
        ("prod-0", 2, "is not a job"),
        ("prod-1;rm", 2, "is not a job"),
    ],
)
def test_a_job_that_is_not_there_is_told_with_the_next_move(
    relight: Relight, store: AuditStore, job_id: str, code: int, told: str
) -> None:
    shown = relight("show", job_id)
    assert shown.code == code
    assert told in shown.err
    assert shown.out == ""


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("show", "12435"), 1, "no record of job prod-12435; did you mean 12345?"),
        (("show", "7"), 1, "no record of job prod-7; known: 12345, 12346_7."),
        (("policy", "explain", "12435"), 1, "did you mean 12345?"),
        (("jobs", "--state", "runing"), 2, "--state 'runing' is neither a state of Slurm nor a phase; did you mean"),
        (("incidents", "close", "i1"), 1, "there is no incident 'i1'; `relight incidents --all`"),
    ],
)
def test_an_unknown_name_is_refused_with_those_that_are_near(
    relight: Relight, story: AuditStore, words: tuple[str, ...], code: int, told: str
) -> None:
    refused = relight(*words)
    assert (refused.code, refused.out) == (code, "")
    assert told in refused.err


def test_an_empty_list_says_why_it_is_empty(relight: Relight, story: AuditStore) -> None:
    assert "no jobs of user 'alcie'; did you mean alice?" in relight("jobs", "--user", "alcie").out
    assert "no such jobs; without the filter there are 2" in relight("jobs", "--state", "FAILED").out


def test_a_bare_number_needs_a_single_cluster(relight: Relight, tmp_path: Path) -> None:
    path = tmp_path / "two.yaml"
    path.write_text("clusters: {prod: {}, lab: {}}\n")
    told = relight("show", "12345", "-c", str(path))
    assert told.code == 2
    assert "2 clusters are configured, expected one of them, as in lab-12345" in told.err


def test_an_audit_store_that_is_away_ends_the_command_with_the_reason(relight: Relight, tmp_path: Path) -> None:
    path = tmp_path / "away.yaml"
    path.write_text("database: {url: 'postgresql://u:sesame@127.0.0.1:1/db'}\nclusters: {prod: {}}\n")
    for words in (("jobs",), ("show", "prod-1")):
        told = relight(*words, "-c", str(path))
        assert told.code == 1
        assert "127.0.0.1:1" in told.err
        assert "sesame" not in told.err


@pytest.mark.parametrize(
    "words",
    [
        ("jobs",), ("show", "1"), ("nodes",), ("node", "show", "n01"), ("incidents",), ("incidents", "close", "i1"),
        ("scorecard",), ("policy", "show"), ("policy", "explain", "1"), ("node", "clear", "n01", "--reason", "x"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_wrong_path_of_the_database_is_told_and_nothing_is_created(
    relight: Relight, tmp_path: Path, words: tuple[str, ...]
) -> None:
    path = tmp_path / "relight.yaml"
    path.write_text(f"database: {{url: 'sqlite:///{tmp_path}/misspelt/audit.db'}}\nclusters: {{prod: {{}}}}\n")
    (tmp_path / "misspelt").mkdir()
    told = relight(*words)
    assert told.code == 1
    assert f"there is no SQLite file {tmp_path}/misspelt/audit.db" in told.err
    assert "relight config check" in told.err
    assert list((tmp_path / "misspelt").iterdir()) == []


def test_a_database_of_somebody_else_stays_as_it_is(relight: Relight, config: Path, tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "audit.db")) as other:
        other.execute("CREATE TABLE mine (x)")
    before = (tmp_path / "audit.db").read_bytes()
    assert "start a worker, which creates them" in relight("jobs").err
    assert (tmp_path / "audit.db").read_bytes() == before


def test_a_store_without_tables_and_a_wrong_url_are_told(relight: Relight, config: Path, tmp_path: Path) -> None:
    assert "start a worker, which creates the file" in relight("jobs").err
    path = tmp_path / "odd.yaml"
    path.write_text("database: {url: 'oracle://u:sesame@h/db'}\nclusters: {prod: {}}\n")
    told = relight("jobs", "-c", str(path), "--json")
    assert told.code == 2
    assert "database.url" in told.json["error"]
    assert "sesame" not in told.out
