"""What is read for the scorecard: recommendations by time, with what became of their jobs; quick in a long log."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import insert, text

from activities.audit import hindsight
from activities.audit.database import Database
from activities.audit.store import AuditStore
from activities.audit.tables import events
from activities.contracts import EventKind, NewEvent
from recovery.hindsight_records import Story
from recovery.records import Action, Advice, Attempt, JobState, Mode
from tests.activities.audit.samples import NOON, at, event, opened, view


def advised(store: AuditStore, cluster: str, job_id: str, second: float = 0, **more: Any) -> int:
    """Opens a life of that job, if there is none, and advises a restart of its first attempt."""
    life = opened(store, cluster, job_id).life_id
    advice = Advice(action=Action.RESTART, rule="suspect", reason="xid 79", exclude=("n1",), **more)
    row = NewEvent(
        key=f"{cluster}-{job_id}:advice:{second}",
        kind=EventKind.ADVICE,
        at=at(second),
        summary="restart",
        body=advice.model_dump(mode="json") | {"stopped": False},
    )
    attempts = (
        Attempt(number=0, state=JobState.FAILED, end_time=at(second), nodes=("n1",), restarted_by="other"),
        Attempt(number=1, state=JobState.COMPLETED, submit_time=at(second + 600)),
    )
    store.append(cluster, job_id, life, [row, event(f"{cluster}-{job_id}:{second}")], attempts=attempts)
    return life


def told(stories: list[Story]) -> list[tuple[str, list[float]]]:
    return [(one.life.job_id, [(each.at - NOON).total_seconds() for each in one.told]) for one in stories]


def test_jobs_are_told_with_their_attempts_and_advice(store: AuditStore, cluster: str) -> None:
    life = advised(store, cluster, "7")
    opened(store, cluster, "8")
    (story,), truncated = store.stories(cluster, NOON)
    assert not truncated
    assert (story.life.life_id, story.life.user, story.life.partition) == (life, "alice", "gpu")
    assert [(one.number, one.state, one.restarted_by) for one in story.attempts] == [
        (0, JobState.FAILED, "other"),
        (1, JobState.COMPLETED, ""),
    ]
    assert [(one.advice.action, one.advice.exclude) for one in story.told] == [(Action.RESTART, ("n1",))]
    assert store.stories(f"{cluster}-b", NOON) == ([], False)


def test_only_the_newest_are_told_when_there_are_too_many(
    store: AuditStore, cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hindsight, "PIECE", 2)
    for number in range(1, 6):
        advised(store, cluster, str(number), second=10 * number)
    advised(store, cluster, "5", second=50.5)
    advised(store, cluster, "4", second=50.5)
    everything, truncated = store.stories(cluster, at(20))
    assert (sorted(told(everything)), truncated) == (
        [("2", [20]), ("3", [30]), ("4", [50.5, 40]), ("5", [50.5, 50])],
        False,
    )
    newest, truncated = store.stories(cluster, at(0), most=3)
    assert (sorted(told(newest)), truncated) == ([("4", [50.5]), ("5", [50.5, 50])], True)


def test_a_job_submitted_again_is_found_with_its_first_attempt(store: AuditStore, cluster: str) -> None:
    life = opened(store, cluster, "1").life_id
    advice = Advice(action=Action.RESTART, rule="suspect", reason="xid 79").model_dump(mode="json")
    row = event(f"{cluster}:a", EventKind.ADVICE, at=at(11), body=advice)
    store.append(cluster, "1", life, [row], attempts=[Attempt(number=0, state=JobState.FAILED, end_time=at(10))])
    later = store.open_life(
        view(cluster, "2", submit=900), workflow_id=f"{cluster}-2", run_id="r", now=NOON + timedelta(seconds=901)
    )
    ran = [Attempt(number=0, last_step=3), Attempt(number=1)]
    store.append(cluster, "2", later.life_id, [], attempts=ran)
    (story,), _ = store.stories(cluster, NOON)
    assert story.again is not None
    assert (story.again.job_id, story.again.submitted) == ("2", at(900))
    assert story.again_first is not None
    assert story.again_first.last_step == 3


def test_a_persons_answer_belongs_to_the_advice_that_asked(store: AuditStore, cluster: str) -> None:
    life = advised(store, cluster, "1", needs_approval=True, mode=Mode.APPROVE)
    rows = [
        event(f"{cluster}:o1", EventKind.OPERATOR, "paused: lunch", at=at(4)),
        event(f"{cluster}:o2", EventKind.OPERATOR, "rejected restart: not now", at=at(5)),
    ]
    store.append(cluster, "1", life, rows)
    advised(store, cluster, "2")
    approved = {one.life.job_id: one.told[0].approved for one in store.stories(cluster, NOON)[0]}
    assert approved == {"1": False, "2": None}


def test_advice_that_cannot_be_read_is_passed_over(store: AuditStore, cluster: str) -> None:
    life = advised(store, cluster, "1")
    newer = event(f"{cluster}:newer", EventKind.ADVICE, at=at(9), body={"action": "levitate", "rule": "x"})
    store.append(cluster, "1", life, [newer])
    assert told(store.stories(cluster, NOON)[0]) == [("1", [0])]


def test_a_long_log_is_read_along_an_index(store: AuditStore, url: str, cluster: str) -> None:
    life = advised(store, cluster, "1")
    shared = {"cluster": cluster, "job_id": "1", "life_id": life, "kind": EventKind.FINDING, "recorded_at": NOON}
    plain = {"by_whom": "relight", "summary": "noise", "attempt": 0, "body": {}, "workflow_id": "", "run_id": ""}
    noise = [{**shared, **plain, "event_key": f"{cluster}:{second}", "at": at(second)} for second in range(5000)]
    database = Database(url, timeout_s=30)
    database.write(lambda c: c.execute(insert(events), noise))
    query = f"SELECT id FROM events WHERE cluster = '{cluster}' AND kind = 'advice' ORDER BY at DESC, id DESC LIMIT 5"
    explain = {"sqlite": "EXPLAIN QUERY PLAN", "postgresql": "EXPLAIN", "mysql": "EXPLAIN"}[database.dialect]
    if database.dialect != "sqlite":
        analyze = "ANALYZE TABLE events" if database.dialect == "mysql" else "ANALYZE events"
        database.write(lambda c: c.execute(text(analyze)))
    plan = database.read(lambda c: [str(row) for row in c.execute(text(f"{explain} {query}"))])
    database.close()
    assert any("ix_events_kind" in line for line in plan), plan
    assert told(store.stories(cluster, NOON)[0]) == [("1", [0])]
