"""`relight diagnose` on files, compressed files, pipes, and on what is no log."""

from __future__ import annotations

import gzip
import io
import sys
from pathlib import Path

import pytest

from tests.workers.conftest import Relight

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


def test_compressed_logs_and_pipes_are_read_as_they_are(
    relight: Relight, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = relight("diagnose", str(log), "--json").json
    packed = tmp_path / "renamed.log"  # its content tells, not its name
    packed.write_bytes(gzip.compress(LOG[:100]) + gzip.compress(LOG[100:]))
    assert relight("diagnose", str(packed), "--json").json["findings"][0]["line"] == plain["findings"][0]["line"]
    for content in (LOG, gzip.compress(LOG)):
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
    [(b"\x1f\x8bnot gzip at all", "Unknown compression method"), (gzip.compress(LOG)[:40], "damaged")],
    ids=["not-gzip", "cut-off"],
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
