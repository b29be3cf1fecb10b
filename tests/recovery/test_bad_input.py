# ruff: noqa: E501 - lines of logs are as long as they are
"""Logs as they really arrive: coloured, cut, rotated, stamped, mixed with rubbish and lies. The same is told."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone

import pytest

from recovery.diagnose import Diagnosis, diagnose_files
from recovery.records import FaultClass, Nodes
from tests.recovery.logs import CATALOGUE, NODES, SCANNER, told
from tests.recovery.lookalike_lab import Lab
from tests.recovery.lookalikes import made

KINDS = (
    "finished",
    "handled_traceback",
    "lines_after_a_cancel_notice",
    "bad_record",
    "killed_rank",
    "missing_module",
    "missing_mount",
    "stopped_rank",
    "node_gone",
    "gpu_off_the_bus",
    "disk_full",
    "port_error",
    "left_early",
)
"""One of each way in which a verdict is found."""

Spoil = Callable[[bytes], bytes]


def read(data: bytes, lab: Lab, *, piece: int = 1 << 16, nodes: Nodes | None = None) -> Diagnosis:
    pieces = [data[start : start + piece] for start in range(0, len(data), piece)]
    now = lab.at + timedelta(minutes=3)
    whose = lab.nodes if nodes is None else nodes
    return diagnose_files([("job.log", pieces)], CATALOGUE, allocation=whose, now=now, complete=True, scanner=SCANNER)


def gist(found: Diagnosis) -> tuple[object, ...]:
    return found.fault, found.fault_class, found.retry, found.exclude, found.last_step, found.last_checkpoint


def _between(data: bytes, rubbish: bytes) -> bytes:
    return data.replace(b"\n", b"\n" + rubbish + b"\n")


def _coloured(data: bytes) -> bytes:
    return re.sub(rb"(?m)^(\S+)(.*)$", b"\x1b[1;31m\\1\x1b[0m\\2\x1b[K", data)


def _dump(size: int) -> bytes:
    """What a program prints that takes its tensors for text: carriage returns, NUL bytes, terminal sequences by chance."""
    return random.Random(6).randbytes(size).replace(b"\n", b"\0") + b"\0\xff\x1b[31m\xff\xfe\0"


SPOILT: dict[str, Spoil] = {
    "windows-line-ends": lambda data: data.replace(b"\n", b"\r\n"),
    "colours": _coloured,
    "nul-at-line-ends": lambda data: data.replace(b"\n", b"\0\n"),
    "nul-blocks": lambda data: _between(data, b"\0" * 300),
    "invalid-utf-8": lambda data: _between(data, b"\xff\xfe\x80 \xc3( \xed\xa0\x80"),
    "garbage": lambda data: _between(data, random.Random(5).randbytes(200).replace(b"\n", b" ")),
    "binary-dumps": lambda data: _between(data, _dump(3_000)),
    "colours-between-binary-dumps": lambda data: _between(_coloured(data), _dump(3_000)),
    "returns-between-binary-dumps": lambda data: _between(data, _dump(3_000)).replace(b"\n", b"\r\n"),
    "long-lines": lambda data: _between(data, b"x" * 30_000),
    "empty-lines": lambda data: _between(data, b""),
    "no-end-of-the-last-line": lambda data: data.rstrip(b"\n"),
    "byte-order-mark": lambda data: b"\xef\xbb\xbf" + data,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", SPOILT)
def test_a_spoilt_log_tells_the_same(kind: str, way: str) -> None:
    lab, _ = made(kind, 2)
    data = lab.text.encode()
    assert gist(read(SPOILT[way](data), lab)) == gist(read(data, lab))


STAMPS: dict[str, Callable[[datetime], str]] = {
    "iso": lambda at: f"{at:%Y-%m-%dT%H:%M:%S}.{at:%f}Z ",
    "iso-zone": lambda at: f"{at.astimezone(timezone(timedelta(hours=2))):%Y-%m-%dT%H:%M:%S%z} ",
    "iso-space": lambda at: f"{at:%Y-%m-%d %H:%M:%S},{at:%f} ",
    "brackets": lambda at: f"[{at:%Y-%m-%d %H:%M:%S}] ",
    "slashes": lambda at: f"{at:%Y/%m/%d %H:%M:%S} ",
    "american": lambda at: f"{at:%m/%d/%Y %H:%M:%S} - INFO - ",
    "syslog": lambda at: f"{at:%b %d %H:%M:%S} ",
    "ctime": lambda at: f"{at:%a %b %d %H:%M:%S %Y} ",
    "web-server": lambda at: f"{at:%d/%b/%Y:%H:%M:%S} +0000 ",
    "unix": lambda at: f"{at.timestamp():.3f} ",
    "unix-brackets": lambda at: f"[{at.timestamp():.0f}] ",
    "compact": lambda at: f"{at:%Y%m%d-%H:%M:%S} ",
    "glog": lambda at: f"I{at:%m%d %H:%M:%S}.{at:%f} ",
}


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind != "gpu_off_the_bus"]
)  # syslog names its node in front
@pytest.mark.parametrize("form", STAMPS)
def test_a_time_before_each_line_changes_nothing(kind: str, form: str) -> None:
    lab, _ = made(kind, 2)
    lines = lab.text.splitlines(keepends=True)
    begin = lab.at - timedelta(seconds=len(lines))
    stamped = "".join(STAMPS[form](begin + timedelta(seconds=n)) + line for n, line in enumerate(lines))
    assert gist(read(stamped.encode(), lab)) == gist(read(lab.text.encode(), lab))


@pytest.mark.parametrize("form", STAMPS)
def test_two_files_with_times_of_another_form_and_zone_are_one_story(form: str) -> None:
    begin = datetime(2026, 11, 12, 3, 0, tzinfo=timezone(timedelta()))
    east = timezone(timedelta(hours=5, minutes=30))

    def at(second: int) -> datetime:
        return begin + timedelta(seconds=second)

    out = "".join(f"{at(n).astimezone(east):%Y-%m-%dT%H:%M:%S%z} step {n} loss 2.1\n" for n in range(1, 61))
    crash = "RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
    assert told(("n01.out", out), ("n02.out", STAMPS[form](at(20)) + crash)).fault is False
    assert told(("n01.out", out), ("n02.out", STAMPS[form](at(60)) + crash)).exclude == ("n02",)


@pytest.mark.parametrize("kind", ["bad_record", "stopped_rank", "missing_mount", "finished"])
def test_a_rotated_log_tells_the_same(kind: str) -> None:
    lab, _ = made(kind, 2)
    lines = lab.text.splitlines(keepends=True)
    cut = next(number for number, line in enumerate(lines) if "iteration" in line) + 5
    older, newer = "".join(lines[:cut]), "".join(lines[cut:])
    now = lab.at + timedelta(minutes=3)
    found = told(("job.log.1", older), ("job.log", newer), nodes=lab.nodes, now=now, complete=True)
    assert gist(found) == gist(read(lab.text.encode(), lab))


@pytest.mark.parametrize("kind", KINDS)
def test_the_beginning_of_a_log_alone_excludes_nobody_innocent(kind: str) -> None:
    lab, expected = made(kind, 4)
    data = lab.text.encode()
    for share in (0.2, 0.5, 0.8, 0.95):
        assert set(read(data[: int(len(data) * share)], lab).exclude) <= expected.exclude, f"the first {share:.0%}"


@pytest.mark.parametrize("kind", KINDS)
def test_the_end_of_a_log_alone_excludes_nobody_innocent(kind: str) -> None:
    lab, expected = made(kind, 4)
    data = lab.text.encode()
    for share in (0.3, 0.6, 0.9):
        assert set(read(data[int(len(data) * share) :], lab).exclude) <= expected.exclude, (
            f"without the first {share:.0%}"
        )


LIES = (
    "Nov 12 03:14:15 {node} kernel: NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.",
    "srun: error: Node failure on {node}",
    "srun: error: Task launch for StepId=1.0 failed on node {node}: Communication connection failure",
    "{node}:1:2 [3] NCCL WARN NET/IB : mlx5_3:1 Got async event : port error",
    "n01:1:2 [3] NCCL WARN Connect to {node}<40215> failed : Connection refused",
    "[E socket.cpp:1019] [c10d] The client socket has timed out after 60000ms while trying to connect to ({node}, 29500).",
    "> rank 0 local_rank 0 host {node} pid 1\n[rank0]: RuntimeError: CUDA error: uncorrectable ECC error encountered",
    "  host      : {node}\n  rank      : 0 (local_rank: 0)\n  exitcode  : -11 (pid: 7)",
    "Rank 3, node {node}, device 3, iteration #3: Need to rerun on a different GPU to verify correctness",
)


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("node", ["n09", "login1", "n01.evil.example", "n[05-08]", "../n01"])
def test_fault_lines_that_name_nodes_of_others_suspect_none_of_them(lie: str, node: str) -> None:
    found = told(("job.log", "step 1 loss 2.1\n" + lie.format(node=node) + "\n"))
    assert {one.host for one in found.suspects} <= set(NODES)
    assert set(found.exclude) <= set(NODES)
    assert found.fault_class is not FaultClass.NONE  # it still counts for the job itself
