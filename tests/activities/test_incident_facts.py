"""What sweep and examination tell of a failed attempt, so that it can be compared with those of other jobs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from activities.audit.records import Watched
from activities.correlating import by_feature
from activities.failing import examined, seen_by_sweep
from activities.slurm.answers import SweepRow
from activities.slurm.gate import read_topology
from activities.slurm.parse import switches
from activities.sweep_cursor import SweepCursor
from recovery.faults.catalogue import Catalogue
from recovery.incident_records import Failure
from recovery.incidents import REMEMBERED
from recovery.records import FaultClass, JobState, NodeView, Retry
from tests.recovery.situations import T0, at, verdict, view

CATALOGUE = Catalogue.built_in()
BEFORE = Watched(cluster="prod", job_id="7", life_id=3, seen="RUNNING|0")


def told(state: JobState, *faults: str, attempt: int = 0, seen: str = "", **more: object) -> Failure | None:
    row = SweepRow(
        job_id="7", raw_id=7, state=state, restarts=0, uid=1, user="alice", seen=seen or f"{state.value}|0",
        node_list="n[01-02]", **more,  # type: ignore[arg-type]
    )  # fmt: skip
    cursor = SweepCursor(attempt=attempt, faults=faults).model_dump_json()
    return seen_by_sweep(BEFORE, BEFORE.model_copy(update={"cursor": cursor}), row, CATALOGUE, T0)


def test_the_sweep_tells_a_failure_with_what_the_log_said() -> None:
    found = told(JobState.FAILED, "storage.io_error", end=int(at(-3).timestamp()))
    assert found is not None
    assert (found.job_id, found.attempt, found.life_id, found.user, found.nodes) == ("7", 0, 3, "alice", ("n01", "n02"))
    assert [(one.signature, one.fault_class) for one in found.signs] == [("storage.io_error", FaultClass.STORAGE)]
    assert (found.at, found.seen_at) == (at(-3), T0)


def test_a_failed_node_is_the_schedulers_own_word() -> None:
    found = told(JobState.NODE_FAIL)
    assert found is not None
    assert found.trusted
    assert [one.signature for one in found.signs] == ["scheduler.node_fail"]


@pytest.mark.parametrize("state", [JobState.COMPLETED, JobState.CANCELLED, JobState.TIMEOUT, JobState.RUNNING])
def test_what_did_not_fail_is_not_told(state: JobState) -> None:
    assert told(state, "storage.io_error") is None


def test_a_completing_job_is_told_only_where_it_cannot_be_a_cancelled_one() -> None:
    assert told(JobState.COMPLETING, completing=True, exit_signal=15) is None
    assert told(JobState.COMPLETING, completing=True, exit_code=1) is not None


def test_a_failure_is_told_once_by_the_sweep() -> None:
    assert told(JobState.FAILED, seen=BEFORE.seen) is None


def test_a_full_disk_and_words_of_an_earlier_attempt_say_nothing_about_others() -> None:
    for found in (told(JobState.FAILED, "storage.full"), told(JobState.FAILED, "storage.io_error", attempt=4)):
        assert found is not None
        assert found.signs == ()


def test_an_examination_tells_the_cause_it_found() -> None:
    cause = verdict(FaultClass.STORAGE, signature="storage.stale_handle")
    found = examined(view(), 3, cause, at(601), root=True, stuck=False)
    assert found is not None
    assert (found.at, found.seen_at, found.state) == (at(600), at(601), JobState.FAILED)
    assert [(one.signature, one.root) for one in found.signs] == [("storage.stale_handle", True)]


def test_an_examination_tells_nothing_of_what_is_long_over_or_no_failure() -> None:
    cause = verdict(FaultClass.STORAGE)
    assert examined(view(), 3, cause, at(600) + REMEMBERED + timedelta(seconds=1), root=True, stuck=False) is None
    assert examined(view(JobState.RUNNING), 3, cause, at(601), root=True, stuck=False) is None
    assert examined(view(JobState.RUNNING), 3, cause, at(601), root=True, stuck=True) is not None
    hopeless = examined(view(), 3, verdict(FaultClass.STORAGE, retry=Retry.NO), at(601), root=True, stuck=False)
    assert hopeless is not None
    assert hopeless.signs == ()


def test_leaf_switches_are_read_from_topology() -> None:
    shown = (
        b"SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[01-02]\n"
        b"SwitchName=s2 Level=0 LinkSpeed=1 Nodes=n03\n"
        b"SwitchName=top Level=1 LinkSpeed=1 Nodes=n[01-03] Switches=s[1-2]\n"
        b"BlockName=b1 BlockIndex=0 Nodes=n[05-06] BlockSize=2\n"
        b"(null)\n"
    )
    found = switches(read_topology(shown))
    assert found == {"s1": ("n01", "n02"), "s2": ("n03",), "b1": ("n05", "n06")}
    assert switches(read_topology(b"")) == {}


def test_without_topology_a_feature_may_name_the_switch() -> None:
    nodes = [
        NodeView(name=name, state="IDLE", features=features)
        for name, features in (("n1", ("a100", "rack7")), ("n2", ("rack7",)), ("n3", ("switch-2", "nvlink")))
    ]
    assert by_feature(nodes) == {"rack7": ("n1", "n2"), "switch-2": ("n3",)}


def test_an_end_that_lies_ahead_is_now() -> None:
    found = told(JobState.FAILED, end=int(datetime.now(UTC).timestamp()))
    assert found is not None
    assert found.at == T0, "an end that lies ahead of the sweep is the sweep's moment"
