"""How fast a log is scanned, beside `grep -E` and a loop of compiled expressions; memory; hostile input; many patterns.

CPU time, best of several rounds that take turns, so that other work on the machine does the same to all.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from recovery.faults.catalogue import Catalogue
from tests.bench import megatron
from tests.bench.report import Goal, Report

MOST_MB = 100.0
SLICE_BYTES = 3_000_000
HOSTILE_SLOWER = 1.5
"""Hostile input may take at most so many times the CPU of healthy text, for the noise of measuring."""

COUNTS = (0, 500, 1_000, 2_000)


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mb", type=int, default=200, help="size of the healthy log in MB (default 200)")
    parser.add_argument("--rounds", type=int, default=5, help="rounds, of which the best counts (default 5)")
    parser.add_argument("--patterns", type=int, default=COUNTS[-1], help="most patterns that are tried (default 2000)")


def run(given: argparse.Namespace) -> Report:
    """Scanning: full pass against grep -E and a loop of re, memory, hostile input, up to 2,000 patterns."""
    with tempfile.TemporaryDirectory(prefix="relight-bench-") as folder:
        return _measured(Path(folder), given)


def _measured(folder: Path, given: argparse.Namespace) -> Report:
    log, quarter, long_lines, noise = (folder / name for name in ("log", "quarter", "long", "noise"))
    size = megatron.write(log, given.mb)
    quarter_size = megatron.write(quarter, max(1, given.mb // 4))
    hostile_bytes = max(1 << 20, size // 4)
    _write_long_lines(long_lines, hostile_bytes)
    noise.write_bytes(random.Random(7).randbytes(hostile_bytes))
    words = _literals()

    grep, full, per_line, garbage, lines, quarters = [], [], [], [], [], []
    for _ in range(max(1, given.rounds)):
        grep.append(_grep_s(words, log))
        full.append(_pass("full", log))
        per_line.append(_pass("line_by_line", log, min(SLICE_BYTES, size)))
        garbage.append(_pass("full", noise)["cpu_s"])
        lines.append(_pass("full", long_lines)["cpu_s"])
        quarters.append(_pass("full", quarter))
    counts = [number for number in COUNTS if number <= given.patterns]
    many = {one["patterns"]: one for one in (_best("full", log, number, given.rounds) for number in counts)}

    def speed(seconds: float, count: int = size) -> float:
        return count / seconds / 1e6

    healthy = min(one["cpu_s"] for one in full)
    looped = min(one["cpu_s"] / one["bytes"] for one in per_line)
    healthy_mbs, grep_mbs, loop_mbs = speed(healthy), speed(min(grep)), 1 / looped / 1e6
    # Hostile input is compared with as much healthy text right beside it, round by round: a short scan bears more of
    # what every scan costs, and the machine is not the same from one minute to the next.
    beside = [one["cpu_s"] / quarter_size * hostile_bytes for one in quarters]
    slower = {
        name: statistics.median(cost / healthy for cost, healthy in zip(costs, beside, strict=True))
        for name, costs in (("lines", lines), ("garbage", garbage))
    }
    small_mbs = speed(min(one["cpu_s"] for one in quarters), quarter_size)
    noise_mbs, long_mbs = speed(min(garbage), hostile_bytes), speed(min(lines), hostile_bytes)
    peak = max(one["peak_mb"] for one in full)
    small_peak = max(one["peak_mb"] for one in quarters)
    base = min(many)
    growth = max(
        (one["cpu_s"] / many[base]["cpu_s"] / (number / base) for number, one in many.items() if number > base),
        default=0,
    )
    rows = [
        ("full pass: catalogue and progress", f"{healthy_mbs:,.0f}", f"{peak:.0f}", f"{full[0]['patterns']} patterns"),
        ("grep -E, as many alternations", f"{grep_mbs:,.0f}", "", f"{len(words)} words"),
        ("one compiled re per pattern and line", f"{loop_mbs:,.1f}", "", f"{per_line[0]['bytes'] / 1e6:.1f} MB of it"),
        ("full pass, a quarter of it", f"{small_mbs:,.0f}", f"{small_peak:.0f}", ""),
        ("full pass, lines of 1 MB", f"{long_mbs:,.0f}", "", f"{hostile_bytes / 1e6:.0f} MB"),
        ("full pass, random bytes", f"{noise_mbs:,.0f}", "", f"{hostile_bytes / 1e6:.0f} MB"),
    ]  # fmt: skip
    for number, one in many.items():
        note = f"ready after {one['start_s']:.2f} s of CPU"
        rows.append((f"full pass, {number} patterns", f"{speed(one['cpu_s']):,.0f}", f"{one['peak_mb']:.0f}", note))
    goals = (
        Goal("full pass against grep -E (times as fast)", healthy_mbs / grep_mbs, 1.0),
        Goal("full pass against a loop of re (times as fast)", healthy_mbs / loop_mbs, 50.0),
        Goal("most memory (MB)", peak, MOST_MB, more_is_better=False),
        Goal("lines of 1 MB against healthy text (times the CPU)", slower["lines"], HOSTILE_SLOWER, False),
        Goal("random bytes against healthy text (times the CPU)", slower["garbage"], HOSTILE_SLOWER, False),
        Goal("growth with the number of patterns, against linear", growth, 1.0, more_is_better=False),
    )
    values = {
        "log_mb": size / 1e6,
        "rounds": given.rounds,
        "full_mb_s": healthy_mbs,
        "grep_mb_s": grep_mbs,
        "loop_mb_s": loop_mbs,
        "long_lines_mb_s": long_mbs,
        "random_bytes_mb_s": noise_mbs,
        "peak_mb": peak,
        "quarter_mb_s": small_mbs,
        "peak_mb_quarter": small_peak,
        "start_s": min(one["start_s"] for one in full),
        "patterns": {
            str(number): {"mb_s": speed(one["cpu_s"]), "start_s": one["start_s"]} for number, one in many.items()
        },
        "patterns_built_in": full[0]["patterns"],
        "last_step": full[0]["step"],
        "last_checkpoint": full[0]["checkpoint"],
        "hits": full[0]["hits"],
    }
    return Report("scan", ("WHAT", "MB/s of CPU", "PEAK MB", ""), tuple(rows), goals, values)


def _pass(kind: str, path: Path, number: int = 0) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.bench.passes", kind, str(path), str(number)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"bench: {' '.join(command)} failed:\n{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def _best(kind: str, path: Path, number: int, rounds: int) -> dict[str, Any]:
    return min((_pass(kind, path, number) for _ in range(min(3, rounds))), key=lambda one: float(one["cpu_s"]))


def _grep_s(words: list[str], path: Path) -> float:
    """CPU of grep with one alternation for each pattern of the catalogue, in the quick C locale."""
    command = ["grep", "-c", "-E", "|".join(words), str(path)]
    environment = {**os.environ, "LC_ALL": "C"}
    # Not to /dev/null: then it ends at the first line that matches.
    child = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
    assert child.stdout is not None
    with child.stdout:
        child.stdout.read()
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode not in {0, 1}:
        raise SystemExit(f"bench: {command[0]} ended with {child.returncode}")
    return used.ru_utime + used.ru_stime


def _literals() -> list[str]:
    """The longest plain text of each pattern: what is quickest for grep."""
    words = []
    for one in Catalogue.built_in().signatures:
        plain = re.sub(r"\(\?[a-zA-Z:]*|\\[A-Za-z]|[][(){}|?*+^$.]|\\.", "\n", one.pattern)
        words.append(re.escape(max(plain.split("\n"), key=len).strip()).replace("\\ ", " ").replace("\\-", "-"))
    return words


def _write_long_lines(path: Path, size: int) -> None:
    source = random.Random(11)
    with path.open("wb") as file:
        left = size
        while left > 0:
            left -= file.write(base64.b64encode(source.randbytes(750_000)) + b"\n")
