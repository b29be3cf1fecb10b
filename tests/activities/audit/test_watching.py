"""The table `watched`: workflows add and remove, the sweep updates, and neither undoes the other's work."""

from typing import Any

import pytest
from sqlalchemy import insert

from activities.audit import watching
from activities.audit.columns import EXACT_LIMIT
from activities.audit.records import Watched
from activities.audit.store import AuditStore
from activities.audit.tables import watched
from tests.activities.audit.samples import NOON, all_at_once, at


def watched_job(cluster: str, job_id: str = "12345", **fields: Any) -> Watched:
    known: dict[str, object] = {
        "cluster": cluster,
        "job_id": job_id,
        "life_id": 1,
        "workflow_id": f"{cluster}-{job_id}",
        "uid": 1001,
        "user": "alice",
        "stdout": f"/scratch/slurm-{job_id}.out",
        "stderr": f"/scratch/slurm-{job_id}.out",
    }
    return Watched.model_validate(known | fields)


SWEPT: dict[str, Any] = {
    "seen": "RUNNING|0|n[01-04]",
    "cursor": '{"stdout": 4096}',
    "attempt": 0,
    "first_step": 1,
    "first_step_at": at(1),
    "step": 70,
    "step_at": at(70),
    "total_steps": 1000,
    "checkpoint": 50,
    "checkpoint_at": at(50),
}


def test_a_watched_job_comes_back_as_it_was_written(store: AuditStore, cluster: str) -> None:
    rows = [watched_job(cluster, "1", paused=True, restarts=3, **SWEPT), watched_job(cluster, "2_7")]
    for row in rows:
        store.watch(row)
    assert store.watched(cluster) == rows
    assert store.watched("another cluster") == []
    store.unwatch(cluster, "1")
    store.unwatch(cluster, "1")
    assert store.watched(cluster) == rows[1:]


@pytest.mark.parametrize(
    "path", ["/tmp/caf\udce9/out", "/tmp/new\nline\ttab", "/tmp/\\udc80", "/tmp/naïve 😀", "C:\\x \0", "p" * 4096]
)
def test_paths_and_cursors_come_back_to_the_byte(store: AuditStore, cluster: str, path: str) -> None:
    row = watched_job(cluster, stdout=path, stderr=path, seen=path, cursor=path)
    store.watch(row)
    store.save_cursors(cluster, [row])
    assert store.watched(cluster) == [row]


def test_a_cursor_beyond_all_measure_is_forgotten(store: AuditStore, cluster: str) -> None:
    store.watch(watched_job(cluster, cursor="x" * EXACT_LIMIT))
    assert len(store.watched(cluster)[0].cursor) == EXACT_LIMIT
    store.save_cursors(cluster, [watched_job(cluster, cursor="x" * (EXACT_LIMIT + 1), step=10**30)])
    assert store.watched(cluster)[0].cursor == ""
    assert store.watched(cluster)[0].step == 2**63 - 1


def test_the_sweep_saves_its_part_and_nothing_else(store: AuditStore, cluster: str) -> None:
    kept = watched_job(cluster, paused=True, restarts=1)
    store.watch(kept)
    stale = watched_job(cluster, paused=False, restarts=0, stdout="/old", workflow_id="old", **SWEPT)
    store.save_cursors(cluster, [stale])
    assert store.watched(cluster) == [kept.model_copy(update=SWEPT)]


def test_watching_again_keeps_what_the_sweep_has_written(store: AuditStore, cluster: str) -> None:
    store.watch(watched_job(cluster))
    store.save_cursors(cluster, [watched_job(cluster, **SWEPT)])
    store.watch(watched_job(cluster, paused=True, restarts=2, step=90))
    (row,) = store.watched(cluster)
    assert (row.paused, row.restarts, row.step) == (True, 2, 90)
    assert (row.seen, row.cursor, row.checkpoint_at) == (SWEPT["seen"], SWEPT["cursor"], at(50))


def test_a_new_life_under_the_same_id_starts_without_the_old_cursors(store: AuditStore, cluster: str) -> None:
    store.watch(watched_job(cluster, **SWEPT))
    new = watched_job(cluster, life_id=2)
    store.watch(new)
    assert store.watched(cluster) == [new]
    store.save_cursors(cluster, [watched_job(cluster, **SWEPT)])  # of a sweep that had read the old row
    assert store.watched(cluster) == [new]
    store.unwatch(cluster, "12345", life_id=1)
    assert store.watched(cluster) == [new]
    store.unwatch(cluster, "12345", life_id=2)
    assert store.watched(cluster) == []


def test_a_late_save_does_not_bring_a_removed_job_back(store: AuditStore, cluster: str) -> None:
    for job_id in ("1", "2"):
        store.watch(watched_job(cluster, job_id))
    swept = [row.model_copy(update=SWEPT) for row in store.watched(cluster)]
    store.unwatch(cluster, "1")
    store.save_cursors(cluster, swept)
    assert [row.job_id for row in store.watched(cluster)] == ["2"]
    store.save_cursors(cluster, [])


def test_ten_thousand_jobs_are_saved_together(store: AuditStore, cluster: str) -> None:
    new = [watching._values(watched_job(cluster, str(number))) for number in range(10_000)]
    store._database.write(lambda connection: connection.execute(insert(watched), new))
    rows = store.watched(cluster)
    assert len(rows) == 10_000
    store.save_cursors(cluster, [row.model_copy(update=SWEPT) for row in rows])
    assert {(row.seen, row.step, row.step_at) for row in store.watched(cluster)} == {(SWEPT["seen"], 70, at(70))}


def test_many_who_watch_one_job_at_once_leave_one_row(store: AuditStore, cluster: str) -> None:
    all_at_once([lambda: store.watch(watched_job(cluster, first_step_at=NOON))] * 12)
    assert len(store.watched(cluster)) == 1
