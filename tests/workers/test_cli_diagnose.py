"""`relight diagnose` on files, compressed files, pipes, and on what is no log."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.workers.conftest import Relight
from workers import unpacking
from workers.screen import Trouble

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

LOG = (
    b" iteration        7/     100 | consumed samples:  224 | elapsed time per iteration (ms): 52.1 | lm loss: 7.8 |\n"
    b"[rank3]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
    b"srun: error: n02: task 3: Exited with exit code 1\n"
)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "slurm-12345.out"
    path.write_bytes(LOG)
    return path


def test_a_fault_is_told_for_people_and_machines(relight: Relight, log: Path) -> None:
    shown = relight("diagnose", str(log))
    assert shown.code == 0
    assert "verdict: hardware" in shown.out
    assert "first cause: line 2: " in shown.out
    machine = relight("diagnose", str(log), "--nodes", "n[01-04]", "--json").json
    assert (machine["fault"], machine["class"], machine["last_step"]) == (True, "hardware", 7)
    assert machine["hosts"] == ["n01", "n02", "n03", "n04"]


def test_a_log_without_fault_is_no_failure_of_the_command(relight: Relight, tmp_path: Path) -> None:
    path = tmp_path / "quiet.log"
    path.write_bytes(LOG.splitlines(keepends=True)[0])
    shown = relight("diagnose", str(path))
    assert shown.code == 0
    assert "no fault" in shown.out


def test_where_the_nodes_of_the_job_would_help_it_is_said(relight: Relight, tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_bytes(b"torch.distributed.DistNetworkError: The server socket has failed to listen: EADDRINUSE\n")
    assert "with --nodes (the job's own) more can be worked out" in relight("diagnose", str(path)).out
    shown = relight("diagnose", str(path), "--nodes", "n[18-21]").out
    assert "suspect: n18" in shown
    assert "--nodes" not in shown


def test_the_keys_that_scripts_ask_for_stand_first(relight: Relight, log: Path) -> None:
    machine = relight("diagnose", str(log), "--nodes", "n[01-04]", "--json").json
    keys = ["fault", "class", "retry", "suspects", "first_cause", "findings", "last_step", "last_checkpoint"]
    assert list(machine)[: len(keys)] == keys
    (suspect,) = machine["suspects"]
    assert list(suspect) == ["host", "rank", "gpu", "how", "confidence"]
    assert (suspect["host"], suspect["rank"], suspect["confidence"]) == ("n02", 3, "high")
    assert machine["retry"] == "yes"


def test_compressed_logs_and_pipes_are_read_as_they_are(
    relight: Relight, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = relight("diagnose", str(log), "--json").json
    packed = tmp_path / "renamed.log"  # its content tells, not its name
    packed.write_bytes(gzip.compress(LOG[:100]) + gzip.compress(LOG[100:]))
    assert relight("diagnose", str(packed), "--json").json["findings"][0]["line"] == plain["findings"][0]["line"]
    packed.write_bytes(zstd.compress(LOG[:100]) + zstd.compress(LOG[100:]))
    assert relight("diagnose", str(packed), "--json").json["findings"][0]["line"] == plain["findings"][0]["line"]
    for content in (LOG, gzip.compress(LOG), zstd.compress(LOG)):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(content))))
        piped = relight("diagnose", "-", "--json").json
        assert (piped["signature"], piped["lines"]) == (plain["signature"], 3)


def test_several_files_are_one_log_though_the_first_ends_in_the_middle_of_a_line(
    relight: Relight, tmp_path: Path
) -> None:
    first, second = tmp_path / "a.log", tmp_path / "b.log"
    first.write_bytes(b"no newline at the end")
    second.write_bytes(LOG)
    cause = relight("diagnose", str(first), str(second), "--json").json["first_cause"]
    assert (cause["source"], cause["line"]) == (str(second), 2)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"\x1f\x8bnot gzip at all", "Unknown compression method"),
        (gzip.compress(LOG)[:40], "damaged"),
        (b"\x28\xb5\x2f\xfdnot zstd at all", "damaged"),
        (zstd.compress(LOG)[:40], "damaged"),
    ],
    ids=["not-gzip", "cut-off-gzip", "not-zstd", "cut-off-zstd"],
)
def test_damaged_archives_are_unusable(relight: Relight, tmp_path: Path, content: bytes, told: str) -> None:
    path = tmp_path / "x.gz"
    path.write_bytes(content)
    refused = relight("diagnose", str(path))
    assert refused.code == 2
    assert str(path) in refused.err
    assert told in refused.err


def test_what_cannot_be_read_is_unusable(relight: Relight, tmp_path: Path, log: Path) -> None:
    assert "cannot be read" in relight("diagnose", str(tmp_path / "absent.log")).err
    assert "is not a file" in relight("diagnose", str(tmp_path)).err
    assert relight("diagnose", str(tmp_path / "absent.log"), "--json").code == 2
    assert "groups are not read" in relight("diagnose", str(log), "--nodes", "@all").err
    bad = tmp_path / "catalogue.yaml"
    bad.write_text("signatures: 5")
    refused = relight("diagnose", str(log), "--catalogue", str(bad))
    assert refused.code == 2
    assert str(bad) in refused.err


def test_bytes_that_are_no_text_do_no_harm(relight: Relight, tmp_path: Path) -> None:
    path = tmp_path / "noise.log"
    path.write_bytes(bytes(range(256)) * 4000 + LOG)
    shown = relight("diagnose", str(path))
    assert shown.code == 0
    assert "\x1b" not in shown.out


def test_a_packed_log_of_any_size_needs_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "job.log.zst"
    with zstd.open(path, "wb") as packed:
        for _ in range(200):
            packed.write(b"nothing of interest\n" * 50_000)
    assert path.stat().st_size < 1 << 20
    script = (
        "import os, sys\nfrom workers.cli import main\ncode = main(['diagnose', sys.argv[1], '--json'])\n"
        "print(next(line for line in open('/proc/self/status') if line.startswith('VmHWM')), file=sys.stderr)\n"
        "os._exit(code)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True)
    assert int(done.stderr.split()[1]) < 150_000  # kB, of 200 MB


def test_it_is_told_what_was_ignored_and_why(relight: Relight, tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    later = b"".join(LOG.splitlines(keepends=True)[0].replace(b" 7/", b"%2d/" % number) for number in range(8, 12))
    path.write_bytes(LOG + later)
    machine = relight("diagnose", str(path), "--json").json
    assert machine["fault"] is False
    assert [(one["signature"], one["line"], one["why"]) for one in machine["ignored"]] == [
        ("cuda.ecc", 2, "the training went on afterwards"),
        ("srun.task_exited", 3, "the training went on afterwards"),
    ]
    assert "line 2: the training went on afterwards: [rank3]" in relight("diagnose", str(path)).out


def test_a_log_that_just_stopped_is_told_by_its_age(relight: Relight, tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_bytes(LOG.splitlines(keepends=True)[0])
    assert relight("diagnose", str(path), "--json").json["fault"] is False
    old = time.time() - 4 * 3600
    os.utime(path, (old, old))
    machine = relight("diagnose", str(path), "--json").json
    assert (machine["fault"], machine["signature"], machine["suspects"]) == (True, "hang.no_step", [])


def test_a_start_up_that_hangs_is_told_from_the_start_of_the_job(relight: Relight, tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_bytes(b"2026-11-12 03:14:15 start\npyxis:     [INFO] Downloading 12 missing layers...\n")
    started = ["--start", "2026-11-12T03:14:10"]
    assert relight("diagnose", str(path), *started, "--json").json["signature"] == "hang.no_first_step"
    refused = relight("diagnose", str(path), "--start", "yesterday")
    assert refused.code == 2
    assert "'yesterday' is not a time, expected one such as" in refused.err


def test_a_jobs_own_progress_expression_is_used(relight: Relight, tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_bytes(b"epoch 3 batch 17 ok\n")
    assert relight("diagnose", str(path), "--progress", r"batch (?P<step>\d+) ok", "--json").json["last_step"] == 17
    refused = relight("diagnose", str(path), "--progress", "batch")
    assert refused.code == 2
    assert "no group named step" in refused.err


def test_one_file_a_node_is_put_in_order(relight: Relight, tmp_path: Path) -> None:
    (tmp_path / "n01.log").write_bytes(b"2026-11-12 03:14:15 " + LOG.splitlines(keepends=True)[0].strip() + b"\n")
    (tmp_path / "n02.log").write_bytes(b"RuntimeError: CUDA error: uncorrectable ECC error encountered\n")
    machine = relight("diagnose", "n01.log", "n02.log", "--nodes", "n[01-04]", "--json").json
    assert [(one["host"], one["how"].split(" (")[-1]) for one in machine["suspects"]] == [
        ("n02", "it stands in that node's file)")
    ]
    assert "n02.log line 1" in relight("diagnose", "n01.log", "n02.log", "--nodes", "n[01-04]").out
    assert relight("diagnose", "n01.log", "n01.log").code == 2


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n",
        b"\0" * 70_000,
        b"\xff\xfe\xfd" * 999,
        LOG.replace(b"\n", b"\r\n"),
        LOG[:-20],
        LOG.decode().encode("utf-16"),
    ],
    ids=["empty", "a-newline", "nul", "no-utf8", "windows", "truncated", "utf-16"],
)
def test_odd_content_is_read_all_the_same(relight: Relight, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "odd.log"
    path.write_bytes(content)
    shown = relight("diagnose", str(path), "--json")
    assert shown.code == 0
    assert shown.json["bytes_read"] == len(content)


def test_a_pipe_into_which_nobody_writes_is_told_after_a_while(
    relight: Relight, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unpacking, "QUIET_S", 0.05)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    refused = relight("diagnose", str(pipe))
    assert refused.code == 2
    assert f"{pipe} is a pipe and gave nothing for 0.05 s" in refused.err
    refused = relight("patterns", "check", str(pipe))
    assert (refused.code, f"{pipe}: is not a file" in refused.err) == (2, True)


@pytest.mark.parametrize("content", [LOG, gzip.compress(LOG), zstd.compress(LOG)], ids=["plain", "gzip", "zstd"])
def test_a_pipe_named_like_a_file_is_read_to_its_end(relight: Relight, tmp_path: Path, content: bytes) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    both = os.open(pipe, os.O_RDWR)  # so that writing waits for nobody
    os.write(both, content)
    threading.Timer(0.5, os.close, (both,)).start()
    assert relight("diagnose", str(pipe), "--json").json["lines"] == 3


def test_a_file_that_grows_while_it_is_read_has_an_end(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_bytes(LOG)
    reading = unpacking.pieces(path)
    with path.open("ab") as job:
        first = next(reading)
        job.write(LOG)
        job.flush()
        assert first + b"".join(reading) == LOG


@pytest.mark.parametrize("pack", [gzip.compress, zstd.compress])
def test_what_unpacks_to_far_more_than_a_log_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pack: Callable[[bytes], bytes]
) -> None:
    monkeypatch.setattr(unpacking, "ALWAYS_BYTES", 1 << 20)
    monkeypatch.setattr(unpacking, "MOST_TIMES", 10)
    path = tmp_path / "bomb"
    path.write_bytes(pack(bytes(16 << 20)))
    with pytest.raises(Trouble, match="unpacks to more than"):
        list(unpacking.pieces(path))
