"""Slurm's words for states, exit codes, times and sizes."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from activities.slurm import states
from activities.slurm.parse import exit_codes, node_state
from recovery.records import JobState


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("FAILED", JobState.FAILED),
        ("CANCELLED by 1001", JobState.CANCELLED),
        ("CANCELLED+", JobState.CANCELLED),
        ("NODE_FAIL", JobState.NODE_FAIL),
        ("OUT_OF_MEMORY", JobState.OUT_OF_MEMORY),
        ("SPECIAL_EXIT", JobState.SPECIAL_EXIT),
        ("REQUEUE_HOLD", JobState.PENDING),
        ("SIGNALING", JobState.RUNNING),
        ("STAGE_OUT", JobState.COMPLETING),
        ("REVOKED", JobState.UNKNOWN),
        ("", JobState.UNKNOWN),
        ("A_NEW_STATE", JobState.UNKNOWN),
    ],
)
def test_states(text: str, state: JobState) -> None:
    assert states.job_state(text) is state


def test_who_cancelled() -> None:
    assert states.cancelled_by("CANCELLED by 1001") == 1001
    assert states.cancelled_by("CANCELLED") is None
    assert states.cancelled_by("FAILED") is None


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("3:0", (3, 0)),
        ("0:15", (0, 15)),
        ("768", (3, 0)),  # squeue of 22.05: a raw wait status
        ("15", (0, 15)),
        ("139", (0, 11)),  # with the bit for a core dump
        ("36608", (143, 0)),
        ("", (0, 0)),
    ],
)
def test_exit_status(text: str, status: tuple[int, int]) -> None:
    assert states.exit_status(text) == status


def test_accounting_takes_128_off_and_forgets_the_signal_of_a_time_limit() -> None:
    assert states.same_exit((143, 0), (15, 0))
    assert states.same_exit((3, 0), (3, 0))
    assert states.same_exit((0, 15), (0, 0))
    assert not states.same_exit((3, 0), (4, 0))


def test_times_and_durations() -> None:
    assert states.moment("1795990024") == datetime.fromtimestamp(1795990024, UTC)
    assert [states.moment(text) for text in ("N/A", "Unknown", "NONE", "0", "")] == [None] * 5
    durations = {"10:00": 600, "1:02:03": 3723, "365-00:00:00": 31_536_000, "UNLIMITED": None, "INVALID": None}
    assert {text: states.duration_s(text) for text in durations} == durations
    assert (states.seconds("300 sec"), states.seconds("(null)")) == (300, None)


def test_sizes_are_rounded_up() -> None:
    sizes = {"500M": 500, "1.50G": 1536, "0": 0, "2T": 2_097_152, "100": 100, "1K": 1, "(null)": 0}
    assert {text: states.mebibytes(text) for text in sizes} == sizes


def test_exit_codes_of_a_setting_are_bounded() -> None:
    assert exit_codes("100-102,5") == (5, 100, 101, 102)
    assert exit_codes("(null)") == ()
    assert exit_codes("250-999999999") == (250, 251, 252, 253, 254, 255)


@pytest.mark.parametrize(
    ("told", "gpus"),
    [
        ("cpu=64,mem=1T,node=2,billing=64,gres/gpu=16,gres/gpu:a100=16", 16),
        ("cpu=64,node=2,gres/gpu:a100=8,gres/gpu:h100=4", 12),
        ("gpu:a100:8", 8),
        ("gpu:2,nic:1", 2),
        ("gpu:h100:4(IDX:0-3)", 4),
        ("cpu=2,node=2,billing=2,gres/gpumem=80G", None),
        ("(null)", None),
        ("", None),
    ],
)
def test_gpus_are_counted_once(told: str, gpus: int | None) -> None:
    assert states.gpus(told) == gpus


def test_node_states_have_one_spelling() -> None:
    assert node_state("IDLE+DRAIN") == ("IDLE", ("DRAIN",))
    assert node_state("DOWN*+DRAIN") == ("DOWN", ("DRAIN", "NOT_RESPONDING"))
    assert node_state("IDLE+CLOUD+POWERED_DOWN") == ("IDLE", ("CLOUD", "POWERED_DOWN"))
    assert node_state("IDLE~") == ("IDLE", ("POWERED_DOWN",))
    assert node_state("ALLOCATED+MAINT+REBOOT_ISSUED") == ("ALLOCATED", ("MAINTENANCE", "REBOOT"))
