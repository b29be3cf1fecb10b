"""Slurm's words for states, exit codes, times and sizes, turned into ours; the one place that knows them.

Covers the forms of 22.05 to 24.11. An unknown word becomes UNKNOWN or None and is never guessed at.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import lru_cache

from recovery.records import JobState

# Flags that squeue and scontrol print in place of the base state.
_FLAGS = {
    "REQUEUE_FED": JobState.PENDING,
    "REQUEUE_HOLD": JobState.PENDING,
    "RESV_DEL_HOLD": JobState.PENDING,
    "EXPEDITING": JobState.PENDING,
    "SIGNALING": JobState.RUNNING,
    "POWER_UP_NODE": JobState.CONFIGURING,
    "STAGE_OUT": JobState.COMPLETING,
}
_CANCELLED_BY = re.compile(r"CANCELLED by ([0-9]+)\Z")
_GPUS = re.compile(r"(?:gres/)?gpu(?::([^:=(]+))?[:=]([0-9]{1,7})(?:\(.*\))?")
_EXIT = re.compile(r"([0-9]+):([0-9]+)\Z")
_DURATION = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)\Z")
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)([KMGTP]?)n?c?\Z")
_MEBIBYTES = {"K": 1 / 1024, "M": 1.0, "": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}


@lru_cache(maxsize=256)
def job_state(text: str) -> JobState:
    """`FAILED`, `CANCELLED by 1001`, `COMPLETING`, `CANCELLED+` (cut off by a narrow column)."""
    word = text.strip().split(" ")[0].rstrip("+")
    if word in _FLAGS:
        return _FLAGS[word]
    return JobState(word) if word in JobState.__members__ else JobState.UNKNOWN


def cancelled_by(text: str) -> int | None:
    """The uid in sacct's `CANCELLED by 1001`."""
    match = _CANCELLED_BY.match(text.strip())
    return int(match.group(1)) if match else None


def exit_status(text: str) -> tuple[int, int]:
    """(code, signal) from `3:0` (scontrol, sacct) or from squeue's raw wait status `768`.

    A batch script that saw its task die of SIGTERM ends with 143: scontrol and squeue say 143:0, sacct takes 128 off
    and says 15:0. Both are passed on as said; compare them with `same_exit`.
    """
    match = _EXIT.match(text.strip())
    if match:
        return int(match.group(1)), int(match.group(2))
    if text.strip().isdigit():
        raw = int(text)
        return (raw >> 8) & 0xFF, raw & 0x7F
    return 0, 0


def same_exit(scheduler: tuple[int, int], accounting: tuple[int, int]) -> bool:
    """True when slurmctld's and accounting's exit status can be of the same end."""
    code, signal = scheduler
    return accounting in {(code, signal), (code - 128 if code >= 128 else code, signal), (0, 0)}


def moment(text: str) -> datetime | None:
    """Epoch seconds, as Slurm prints times with SLURM_TIME_FORMAT=%s. `N/A`, `Unknown`, `NONE` and 0 are None."""
    text = text.strip()
    return datetime.fromtimestamp(int(text), UTC) if text.isdigit() and int(text) > 0 else None


def duration_s(text: str) -> int | None:
    """`365-00:00:00`, `1:00:00` or `10:00` (minutes and seconds). None: no limit, or none told."""
    match = _DURATION.match(text.strip())
    if not match:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def seconds(text: str) -> int | None:
    """`300 sec`, as `scontrol show config` prints it."""
    word = text.strip().split(" ")[0]
    return int(word) if word.isdigit() else None


def mebibytes(text: str) -> int:
    """`500M`, `1.50G`, `0`. Rounded up: it is a demand."""
    match = _SIZE.match(text.strip())
    if not match:
        return 0
    value = float(match.group(1)) * _MEBIBYTES[match.group(2)]
    return int(value) + (value > int(value))


def gpus(tres: str) -> int | None:
    """GPUs in `cpu=8,gres/gpu=8,gres/gpu:a100=8` (TRES) or `gpu:a100:8,gpu:2` (GRES). None: none are told."""
    kinds: dict[str, int] = {}
    for part in tres.split(","):
        match = _GPUS.fullmatch(part.strip())
        if match:
            kinds[match.group(1) or ""] = kinds.get(match.group(1) or "", 0) + int(match.group(2))
    if "/" in tres and "" in kinds:  # TRES tell the sum beside the kinds
        return kinds[""]
    return sum(kinds.values()) if kinds else None


def optional(text: str) -> str:
    """Slurm's words for nothing as the empty string."""
    return "" if text in {"(null)", "N/A", "n/a"} else text


def number(text: str) -> int | None:
    return int(text) if text.isdigit() else None
