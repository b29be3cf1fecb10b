"""`relight incidents`, and incidents in `relight jobs`, on a real audit store."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from activities.audit.store import AuditStore
from recovery.incident_records import ClusterLook, Failure, Incident, Sign
from recovery.policy import Policy
from recovery.records import FaultClass
from tests.workers.conftest import Relight
from tests.workers.test_cli_jobs import job

IO_ERROR = Sign(signature="storage.io_error", fault_class=FaultClass.STORAGE)


@pytest.fixture
def store(config: Path, tmp_path: Path) -> AuditStore:
    made = AuditStore(f"sqlite:///{tmp_path}/audit.db")
    made.migrate()
    return made


@pytest.fixture
def incident(store: AuditStore) -> Incident:
    """Three jobs of two users lost a file system a moment ago."""
    now = datetime.now(UTC)
    failures = []
    for number, user in ((1, "alice"), (2, "bob"), (3, "alice")):
        life = store.open_life(job(str(number), user=user), workflow_id=f"prod-{number}", run_id="r", now=now).life_id
        failures.append(
            Failure(
                job_id=str(number),
                attempt=0,
                life_id=life,
                user=user,
                at=now,
                seen_at=now,
                nodes=(f"n0{number}",),
                signs=(IO_ERROR,),
            )
        )
    store.open_life(job("4"), workflow_id="prod-4", run_id="r", now=now)
    began = now + timedelta(seconds=1)
    (found,) = store.correlate("prod", ClusterLook(), Policy(), began=began, failures=failures)
    return found


def test_without_incidents_that_is_said(relight: Relight, store: AuditStore) -> None:
    assert "no open incidents" in relight("incidents").out
    assert relight("incidents", "--json").json == []


def test_open_incidents_are_listed(relight: Relight, incident: Incident) -> None:
    listed = relight("incidents")
    assert listed.code == 0
    line = next(line for line in listed.out.splitlines() if line.startswith(incident.id))
    for part in ("prod", "open", "3 jobs failed with a file system error"):
        assert part in line
    told = relight("incidents", "--json", "--cluster", "prod").json
    assert [(one["id"], one["kind"], one["jobs"]) for one in told] == [(incident.id, "file_system", 3)]


def test_jobs_name_the_incident_they_are_part_of(relight: Relight, incident: Incident) -> None:
    listed = relight("jobs").out
    assert listed.startswith(f"incident {incident.id}: 3 jobs failed with a file system error")
    assert f"[{incident.id}]" in next(line for line in listed.splitlines() if line.startswith("prod-1 "))
    assert f"[{incident.id}]" not in next(line for line in listed.splitlines() if line.startswith("prod-4 "))
    rows = {row["job_id"]: row["incident"] for row in relight("jobs", "--json").json}
    assert rows == {"1": incident.id, "2": incident.id, "3": incident.id, "4": ""}


def test_an_incident_is_closed_by_hand(relight: Relight, incident: Incident) -> None:
    closed = relight("incidents", "close", incident.id, "--by", "oncall", "--reason", "fs1 is back")
    assert (closed.code, closed.out.strip()) == (0, f"{incident.id} is closed by oncall: fs1 is back")
    assert relight("incidents", "--json").json == []
    told = relight("incidents", "--all", "--json").json
    assert [(one["closed_by"], one["close_reason"]) for one in told] == [("oncall", "fs1 is back")]
    assert "incident" not in relight("jobs").out


def test_an_incident_that_is_not_there_is_told_with_the_next_move(relight: Relight, incident: Incident) -> None:
    told = relight("incidents", "close", "switch-00000000")
    assert told.code == 1
    assert "`relight incidents --all`" in told.err
    assert relight("incidents", "--cluster", "mars").code == 2
