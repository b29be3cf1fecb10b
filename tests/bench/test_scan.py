"""The bench itself: it runs, and tells what it measured. How fast anything is is not asked here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from recovery.faults.blocks import BlockCutter
from recovery.progress import ProgressReader
from tests.bench import megatron, report, scan
from tests.bench.__main__ import main


def test_the_healthy_log_has_its_size_and_its_steps(tmp_path: Path) -> None:
    log = tmp_path / "log"
    size = megatron.write(log, 2)
    assert size == log.stat().st_size
    assert 1_900_000 < size <= 2_000_000
    reader, cutter = ProgressReader(), BlockCutter()
    for block in (*cutter.feed(log.read_bytes()), *cutter.finish()):
        reader.read(block)
    steps = log.read_bytes().count(b"] iteration ")
    assert (reader.highest, reader.checkpoint) == (steps, steps // megatron.SAVE_EVERY * megatron.SAVE_EVERY)


def test_the_scan_bench_measures_and_keeps_what_it_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = tmp_path / "bench-results.jsonl"
    monkeypatch.setattr(report, "KEPT_IN", kept)
    monkeypatch.setattr(scan, "SLICE_BYTES", 50_000)
    main(["scan", "--mb", "1", "--rounds", "1", "--patterns", "200", "--json"])
    shown = json.loads(capsys.readouterr().out)
    (line,) = kept.read_text().splitlines()
    assert json.loads(line)["goals"] == shown["goals"]
    assert shown["bench"] == "scan"
    assert shown["hits"] == 1  # the line that says that training begins
    assert shown["last_step"] > shown["last_checkpoint"] > 0
    assert all(isinstance(goal["met"], bool) and goal["value"] >= 0 for goal in shown["goals"])
    assert list(shown["patterns"]) == [str(shown["patterns_built_in"])]


def test_a_table_for_people_says_what_was_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    goals = (report.Goal("speed", 3.0, 2.0), report.Goal("memory", 120.0, 100.0, more_is_better=False))
    report.show(report.Report("any", ("WHAT", "MB/s"), (("a", "1"),), goals), as_json=False)
    shown = capsys.readouterr().out
    assert "at least 2.00" in shown
    assert [line.split()[-1] for line in shown.splitlines() if line.startswith(("speed", "memory"))] == [
        "met",
        "MISSED",
    ]
