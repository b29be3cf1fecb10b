"""Recorded output of both supported Slurm releases means the same to us."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from activities.slurm import gate, parse
from recovery.records import JobState, JobView

SAMPLES = Path(__file__).with_name("samples")
MARK = b"~0123456789ab~"
FORGED = "two\n102|FAILED\n   JobState=COMPLETED Restarts=9 ExcNodeList=n04"

pytestmark = pytest.mark.parametrize("release", ["22.05", "24.11"])


def sample(release: str, name: str) -> bytes:
    return (SAMPLES / release / name).read_bytes()


def rows(release: str) -> dict[str, dict[str, bytes]]:
    found = gate.split_rows(sample(release, "squeue.txt"), MARK, gate.JOB_FIELDS)
    return {gate.job_name(row): row for row in found}


def view(release: str, job: str, base: str | None = None) -> JobView:
    row = rows(release)[job]
    show = gate.read_show(sample(release, f"show-job-{job}.txt"), row)
    assert show is not None
    state = base or row["State"].decode()
    raw: dict[str, Any] = {"id": job, "row": gate.texts(row), "show": show, "base": state, "at": 1795990100.0}
    return parse.job_view("prod", raw)


def test_every_job_is_one_row_whatever_it_is_called(release: str) -> None:
    assert sorted(rows(release)) == ["101", "102", "103", "104_1", "104_2", "106", "107"]
    assert rows(release)["102"]["Name"].decode() == FORGED


def test_a_restarted_job(release: str) -> None:
    job = view(release, "101")
    assert (job.state, job.restarts, job.nodes, job.excluded) == (JobState.RUNNING, 1, ("n02", "n03"), ("n01",))
    assert (job.comment, job.user, job.min_nodes) == ('{"relight": {"policy": "pretraining"}}', "alice", 2)
    assert (job.exit_code, job.end_time, job.time_limit_s) == (0, None, None)
    assert job.start_time is not None
    assert job.start_time > datetime(2026, 11, 29, tzinfo=UTC)
    assert (job.stdout, job.stderr) == ("/cluster/jobs/alice/train-101.out",) * 2


def test_gpus_are_those_that_slurm_tells_of_the_whole_job(release: str) -> None:
    assert view(release, "101").gpus is None
    row = rows(release)["101"]
    shown = sample(release, "show-job-101.txt")
    for told in (
        shown.replace(b"node=2,", b"node=2,gres/gpu=16,"),
        shown.replace(b"\n   MinCPUs", b"\n   JOB_GRES=gpu:16\n   MinCPUs"),
    ):
        show = gate.read_show(told, row)
        assert show is not None
        raw: dict[str, Any] = {"id": "101", "row": gate.texts(row), "show": show, "base": "RUNNING", "at": 1795990100.0}
        assert parse.job_view("prod", raw).gpus == 16


def test_a_forged_name_and_comment_change_no_field(release: str) -> None:
    job = view(release, "102")
    assert (job.name, job.comment) == (FORGED, "a=b | c\n   StdOut=/etc/passwd")
    assert (job.state, job.restarts, job.excluded) == (JobState.FAILED, 0, ())
    assert (job.exit_code, job.exit_signal) == (143, 0)
    assert job.stdout == f"/cluster/jobs/alice/{FORGED}-102.out"


def test_a_held_job(release: str) -> None:
    job = view(release, "103")
    assert (job.state, job.held, job.reason) == (JobState.PENDING, True, "job requeued in held state")
    assert (job.nodes, job.batch_host, job.start_time, job.exit_code, job.comment) == ((), "", None, 0, "")


def test_an_array_task(release: str) -> None:
    job = view(release, "104_1")
    assert (job.raw_id, job.array_job_id, job.array_task_id, job.min_memory_mb) == (105, 104, 1, 100)
    assert job.stdout == "/cluster/jobs/bob/slurm-104_1.out"


def test_a_job_that_waits_for_others(release: str) -> None:
    job = view(release, "106")
    # Slurm tells what it plans to give (3), not the least that was asked for: the careful side for exclusions.
    assert (job.state, job.reason, job.min_nodes) == (JobState.PENDING, "Dependency", 3)
    assert job.dependency.startswith("afterok:101(unfulfilled)")


def test_a_job_in_its_epilog_is_as_somebody_else_says(release: str) -> None:
    assert gate.has_ended(rows(release)["107"])
    for base, state in (("CANCELLED", JobState.CANCELLED), ("COMPLETING", JobState.COMPLETING)):
        job = view(release, "107", base)
        assert (job.state, job.completing) == (state, True)
        assert job.end_time is not None


def test_attempts_in_accounting(release: str) -> None:
    def attempts(job: str) -> list[tuple[JobState, int, tuple[str, ...]]]:
        found = parse.attempt_rows(gate.split_attempts(sample(release, "sacct.txt"), MARK, job))
        return [(row.state, row.exit_code, row.nodes) for row in found]

    first = (JobState.REQUEUED, 3, ("n01", "n02"))
    assert attempts("101") == [first, (JobState.RUNNING, 0, ("n02", "n03"))]
    assert attempts("102") == [(JobState.FAILED, 15, ("n02",))]
    assert attempts("104_1") == [(JobState.RUNNING, 0, ("n02",))]
    (gone,) = parse.attempt_rows(gate.split_attempts(sample(release, "sacct.txt"), MARK, "107"))
    assert gone.state is JobState.CANCELLED
    assert gone.cancelled_by in {1001, 1002}
    assert gone.comment == "relight"


def test_nodes_and_settings(release: str) -> None:
    idle, drained = (parse.node_view(entry) for entry in gate.read_nodes(sample(release, "show-nodes.txt")))
    assert (idle.name, idle.state, idle.is_usable, idle.reason, idle.cpus) == ("n01", "IDLE", True, "", 4)
    assert (drained.name, drained.flags, drained.is_usable) == ("n04", ("DRAIN",), False)
    assert drained.reason == "xid 79: [GPU] fell off"
    facts = parse.cluster_facts(gate.read_config(sample(release, "show-config.txt")))
    assert (facts.cluster_name, facts.accounting, facts.stores_comment) == ("prod", True, True)
    assert (facts.min_job_age_s, facts.cred_expire_s, facts.kill_wait_s, facts.requeue_exit) == (300, 5, 2, ())
    assert facts.slurm_version.startswith(release)


def test_the_sweep_leaves_tasks_out_that_wait_together(release: str) -> None:
    found = gate.split_rows(sample(release, "squeue.txt"), MARK, gate.JOB_FIELDS)
    cells = [gate.sweep_cells({field: row[field] for field in gate.SWEEP_FIELDS}) for row in found]
    raw = {"fields": list(gate.SWEEP_FIELDS), "rows": cells, "links": [["106", "afterok", "101"]]}
    (waiting,) = [row for row in cells if row[2] == "2"]
    waiting[2] = "2-9%1"
    told = {row.job_id: row for row in parse.sweep_rows(raw)}
    assert sorted(told) == ["101", "102", "103", "104_1", "106", "107"]
    assert [(link.child, link.kind) for link in told["101"].dependents] == [("106", "afterok")]
    assert (told["102"].exit_code, told["102"].name, told["103"].held) == (143, FORGED, True)
    assert (told["107"].state, told["107"].completing) == (JobState.COMPLETING, True)
