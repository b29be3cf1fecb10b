"""Jobs that ended long ago go with everything that is theirs; what others still need stays."""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from activities.audit.records import DrainGrant, Life
from activities.audit.store import AuditStore
from activities.audit.trouble import UnknownLife
from activities.contracts import EventKind
from activities.kept_histories import KeptHistories
from activities.pruning import Pruned, Pruner
from recovery.records import Attempt, Confidence, FaultClass, Suspect, Verdict
from tests.activities.audit.samples import NOON, event, opened, request, row, view

LATER = NOON + timedelta(days=500)
BEFORE = LATER - timedelta(days=400)


@pytest.fixture
def evidence(tmp_path: Path) -> Path:
    return tmp_path / "evidence"


def ended(store: AuditStore, cluster: str, job_id: str, *, at: datetime = NOON, rows: int = 3) -> Life:
    life = opened(store, cluster, job_id)
    events = [event(f"{life.life_id}/{number}") for number in range(rows)]
    attempts = [Attempt(number=0, nodes=("n1", "n2"))]
    store.append(cluster, job_id, life.life_id, events, workflow_id="w", run_id="run-1", attempts=attempts)
    store.permit(request(cluster, f"x{job_id}").model_copy(
        update={"step_key": f"{cluster}-{job_id}:{life.life_id}:0:restart:0", "job_id": job_id}))  # fmt: skip
    store.close_life(life.life_id, "purged", at)
    return store.life(life.life_id)


def prune(store: AuditStore, evidence: Path, cluster: str, *, dry: bool = False) -> Pruned:
    opened(store, cluster, "99999")  # the newest life of all stays in any case
    return Pruner(store, evidence, cluster, dry=dry).prune(BEFORE, "oncall", LATER)


def suspected(store: AuditStore, life: Life, until: datetime) -> None:
    verdict = Verdict(
        fault_class=FaultClass.HARDWARE,
        reason="lost",
        suspects=(Suspect(node="n1", confidence=Confidence.HIGH, how="xid"),),
    )
    assert store.suspect(life.life_id, 0, verdict, NOON, until)


def gone(store: AuditStore, life: Life) -> bool:
    try:
        store.life(life.life_id)
    except UnknownLife:
        assert not store.events(life.cluster, life.job_id, life_id=life.life_id)
        assert not store.attempts(life.life_id)
        return True
    return False


def test_an_old_job_goes_with_all_that_is_its_own(store: AuditStore, cluster: str, evidence: Path) -> None:
    old, young = ended(store, cluster, "1", rows=901), ended(store, cluster, "2", at=BEFORE + timedelta(hours=1))
    alive = opened(store, cluster, "3")
    suspected(store, old, until=BEFORE)
    for job in ("1", "2"):
        folder = evidence / cluster / job / "attempt-0"
        folder.mkdir(parents=True)
        (folder / "0-out.tail").write_bytes(b"x" * 100)
    plan = prune(store, evidence, cluster, dry=True)
    assert (plan.lives, plan.events, plan.attempts, plan.others, plan.files) == (1, 901, 1, 2, 1)
    assert (plan.file_bytes, plan.row_bytes > 901 * 10) == (100, True)
    assert not gone(store, old)
    assert prune(store, evidence, cluster) == plan
    assert gone(store, old)
    assert not (evidence / cluster / "1").exists()
    assert (evidence / cluster / "2" / "attempt-0" / "0-out.tail").exists()
    assert len(store.events(cluster, "2")) == 3
    assert store.life(young.life_id)
    assert store.life(alive.life_id)
    told = store.last_event(cluster, EventKind.PRUNED)
    assert told is not None
    assert (told.by, told.body["lives"]) == ("oncall", 1)
    assert prune(store, evidence, cluster).lives == 0


def test_a_job_whose_suspicions_count_or_whose_node_is_drained_stays(
    store: AuditStore, cluster: str, evidence: Path
) -> None:
    counted, drained = ended(store, cluster, "1"), ended(store, cluster, "2")
    suspected(store, counted, until=LATER + timedelta(days=1))
    drain, why = store.grant_drain(
        DrainGrant(
            cluster=cluster,
            node="n2",
            step_key=f"{cluster}/drain",
            life_id=drained.life_id,
            job_id="2",
            expiry_s=60,
            max_share=1,
            max_per_hour=9,
            cluster_nodes=9,
            now=NOON,
        )
    )
    assert drain is not None, why
    done = prune(store, evidence, cluster)
    assert done.lives == 0
    assert sum(done.kept.values()) == 2
    assert store.suspicions(cluster, ["n1"], now=LATER)
    assert [one.drain_id for one in store.drains(cluster)] == [drain.drain_id]
    store.end_drain(drain.drain_id, "oncall", "well", NOON)
    assert prune(store, evidence, cluster).lives == 1
    assert gone(store, drained)
    assert not gone(store, counted)


def test_of_two_jobs_with_one_id_only_the_old_one_goes_with_its_own_files(
    store: AuditStore, cluster: str, evidence: Path
) -> None:
    old = ended(store, cluster, "1")
    new = store.open_life(
        view(cluster, "1", submit=10**7, name="other"),
        accounting=[row(10**7)],
        workflow_id="w",
        run_id="run-2",
        now=LATER,
    )
    assert new.life_id != old.life_id
    kept = KeptHistories(evidence, cluster)
    for number, (run, at) in enumerate((("run-1", NOON), ("run-2", LATER))):
        tail = evidence / cluster / "1" / f"attempt-{number}" / "0-out.tail"
        tail.parent.mkdir(parents=True)
        tail.touch()
        os.utime(tail, (at.timestamp(), at.timestamp()))
        history = kept.place("1", run)
        history.parent.mkdir(exist_ok=True)
        history.touch()
    assert prune(store, evidence, cluster).files == 2
    assert gone(store, old)
    left = sorted(path.name for path in (evidence / cluster / "1").rglob("*") if path.is_file())
    assert left == ["0-out.tail", "run-2.json.gz"]
    assert not (evidence / cluster / "1" / "attempt-0").exists()


def test_links_in_the_folder_lead_nowhere(store: AuditStore, cluster: str, evidence: Path, tmp_path: Path) -> None:
    ended(store, cluster, "1")
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    (evidence / cluster / "1").mkdir(parents=True)
    (evidence / cluster / "1" / "attempt-0").symlink_to(precious)
    assert prune(store, evidence, cluster).lives == 1
    assert (precious / "file").exists()


def test_the_clusters_own_old_rows_go_except_the_newest_of_each_kind(
    store: AuditStore, cluster: str, evidence: Path
) -> None:
    keys = [f"{cluster}/policy/{number}" for number in range(3)]
    store.append(cluster, "", None, [event(key, EventKind.POLICY) for key in keys])
    assert prune(store, evidence, cluster).others == 2
    newest = store.last_event(cluster, EventKind.POLICY)
    assert newest is not None
    assert newest.key == keys[2]
