"""Rows that got lost come back under their own keys and moments; what stands there is never changed."""

from __future__ import annotations

import pytest
from sqlalchemy import delete

from activities.audit.database import Database
from activities.audit.store import AuditStore, KeyTaken
from activities.audit.tables import attempts, events, lives
from recovery.records import Attempt, JobState
from tests.activities.audit.samples import NOON, at, event, opened, view


def test_only_what_is_missing_is_inserted(store: AuditStore, cluster: str) -> None:
    life = opened(store, cluster)
    first, second = event(f"{life.life_id}/a", summary="as it was"), event(f"{life.life_id}/b", at=at(7))
    store.append(cluster, "12345", life.life_id, [first], attempts=[Attempt(number=0, state=JobState.FAILED)])
    lost = [first.model_copy(update={"summary": "other words"}), second]
    ran = [Attempt(number=0, state=JobState.RUNNING), Attempt(number=1)]
    for done in ((1, 1), (0, 0)):
        assert store.upkeep.restore(life, lost, ran, workflow_id="w", run_id="r") == done
    rows = {row.key: row for row in store.events(cluster, "12345")}
    assert [rows[one.key].summary for one in (first, second)] == ["as it was", second.summary]
    assert (rows[second.key].at, rows[second.key].run_id) == (at(7), "r")
    assert [one.state for one in store.attempts(life.life_id)] == [JobState.FAILED, JobState.UNKNOWN]
    assert store.life(life.life_id).updated_at == store.life(life.life_id).updated_at


def test_a_key_of_another_life_is_never_taken_over(store: AuditStore, cluster: str) -> None:
    mine, theirs = opened(store, cluster, "1"), opened(store, cluster, "2")
    store.append(cluster, "2", theirs.life_id, [event(f"{cluster}/x")])
    with pytest.raises(KeyTaken):
        store.upkeep.restore(mine, [event(f"{cluster}/x")], [], workflow_id="w", run_id="r")


def test_a_missing_life_comes_back_under_its_id_and_new_ones_get_others(
    store: AuditStore, cluster: str, url: str
) -> None:
    life = opened(store, cluster)
    database = Database(url, timeout_s=30)

    def lose(connection: object) -> None:
        for table, column in ((events, events.c.life_id), (attempts, attempts.c.life_id), (lives, lives.c.id)):
            connection.execute(delete(table).where(column == life.life_id))  # type: ignore[attr-defined]

    database.write(lose)
    words = {"workflow_id": "w", "run_id": "r", "opened_at": NOON, "standing": {"paused": True, "paused_by": "bob"}}
    assert store.upkeep.restore_life(life.life_id, view(cluster), closed=(at(60), "purged"), **words)  # type: ignore[arg-type]
    again = store.life(life.life_id)
    assert (again.job_id, again.user, again.closed_at, again.close_reason) == ("12345", "alice", at(60), "purged")
    assert (again.paused, again.paused_by) == (True, "bob")
    assert store.upkeep.restore_life(life.life_id, view(cluster, name="x"), **words)  # type: ignore[arg-type]
    assert store.life(life.life_id).name == again.name
    assert opened(store, cluster, "777").life_id > life.life_id
    database.close()


def test_rows_are_found_by_key_by_run_and_by_life(store: AuditStore, cluster: str) -> None:
    life = opened(store, cluster)
    many = [event(f"{life.life_id}/{number}", kind="plan" if number % 2 else "state") for number in range(1001)]
    store.append(cluster, "12345", life.life_id, many[:900], workflow_id="w", run_id="r1")
    store.append(cluster, "12345", life.life_id, many[900:], workflow_id="w", run_id="r2")
    upkeep = store.upkeep
    assert set(upkeep.by_keys([one.key for one in many] + ["no such"])) == {one.key for one in many}
    assert sum(len(page) for page in upkeep.of_run(cluster, "12345", "r1", ["plan"])) == 450
    assert {run.run_id: run.rows for run in upkeep.runs_of(life)} == {"r1": 900, "r2": 101}
    assert [one.life_id for one in upkeep.lives_since(cluster, NOON)] == [life.life_id]
    assert not list(upkeep.lives_since(cluster, NOON, "1"))
