"""`relight audit` on a real audit store; what it compares with a real Temporal is in tests/activities."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from activities.audit.store import AuditStore
from activities.contracts import EventKind, NewEvent
from tests.workers.conftest import Relight
from tests.workers.test_cli_jobs import job

LONG_AGO = datetime.now(UTC) - timedelta(days=500)


@pytest.fixture
def store(config: Path, tmp_path: Path) -> Iterator[AuditStore]:
    config.write_text(config.read_text() + f"evidence_dir: {tmp_path}/evidence\n")
    with AuditStore(f"sqlite:///{tmp_path}/audit.db") as opened:
        opened.migrate()
        yield opened


def purged(store: AuditStore, job_id: str, at: datetime) -> int:
    life = store.open_life(job(job_id), workflow_id=f"prod-{job_id}", run_id="r", now=at).life_id
    row = NewEvent(key=f"{life}/a", kind=EventKind.STATE, at=at, summary="RUNNING")
    store.append("prod", job_id, life, [row], workflow_id=f"prod-{job_id}", run_id="r")
    store.close_life(life, "purged", at)
    return life


def test_prune_tells_first_and_deletes_then(relight: Relight, store: AuditStore, tmp_path: Path) -> None:
    purged(store, "1", LONG_AGO)
    purged(store, "2", datetime.now(UTC))
    tail = tmp_path / "evidence" / "prod" / "1" / "attempt-0" / "0-out.tail"
    tail.parent.mkdir(parents=True)
    tail.write_text("the end")
    told = relight("audit", "prune", "--dry-run")
    assert told.code == 0
    assert "prod: 1 jobs that ended before" in told.out
    assert "would be deleted, with 1 rows" in told.out
    assert "1 files (7 bytes)" in told.out
    assert tail.exists()
    done = relight("audit", "prune", "--json", "--by", "oncall").json["clusters"]["prod"]
    assert (done["lives"], done["events"], done["files"]) == (1, 1, 1)
    assert not tail.exists()
    assert [row.job_id for row in store.jobs("prod", include_closed=True)] == ["2"]
    row = store.last_event("prod", EventKind.PRUNED)
    assert row is not None
    assert row.by == "oncall"


@pytest.mark.parametrize("span", ["29d", "0d", "x", "-5d"])
def test_what_is_young_is_never_pruned(relight: Relight, store: AuditStore, span: str) -> None:
    purged(store, "1", datetime.now(UTC) - timedelta(days=29, hours=1))
    told = relight("audit", "prune", f"--older-than={span}")
    assert told.code == 2
    assert "--older-than" in told.err
    assert len(store.jobs("prod", include_closed=True)) == 1


def test_that_nothing_could_be_compared_is_not_taken_for_gaps(
    relight: Relight, store: AuditStore, config: Path, tmp_path: Path
) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{probe.getsockname()[1]}"
    config.write_text(config.read_text() + f"temporal: {{address: '{nobody}'}}\n")
    told = relight("audit", "verify")
    assert told.code == 2
    assert nobody in told.err
    (tmp_path / "audit.db").unlink()
    told = relight("audit", "verify")
    assert told.code == 2
    assert "database.url" in told.err


@pytest.mark.parametrize(
    "words", [("--since", "soon"), ("--job", "other-1"), ("--cluster", "other"), ("--rate", "0"), ("--job", "x")]
)
def test_wrong_words_end_with_2(relight: Relight, store: AuditStore, words: tuple[str, str]) -> None:
    assert relight("audit", "verify", *words).code == 2


def test_a_job_without_a_record_cannot_be_exported(relight: Relight, store: AuditStore) -> None:
    told = relight("export", "12345")
    assert told.code == 1
    assert "no record of job prod-12345" in told.err
