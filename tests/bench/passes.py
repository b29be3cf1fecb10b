"""One pass over a log, in a process of its own so that its CPU time and memory are its own. Prints JSON.

`python -m tests.bench.passes KIND FILE [NUMBER]`; the kinds are the functions in KINDS.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHUNK = 1 << 19


def full(path: Path, patterns: int) -> dict[str, Any]:
    """What relight does with a log: catalogue and progress. With `patterns`, the catalogue is filled up to so many."""
    begun = time.process_time()
    from recovery.faults.catalogue import Catalogue
    from recovery.log_reader import LogReader, log_scanner

    catalogue = Catalogue.built_in()
    if patterns:
        catalogue = Catalogue([*catalogue.signatures, *_made(catalogue, patterns)], catalogue.prefixes)
    scanner = log_scanner(catalogue)
    start_s = time.process_time() - begun
    best = float("inf")
    for _ in range(2):  # the first one also warms up
        reader = LogReader(catalogue, scanner=scanner)
        begun = time.process_time()
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                reader.feed(chunk)
        reader.finish()
        best = min(best, time.process_time() - begun)
    return {
        "cpu_s": best,
        "start_s": start_s,
        "patterns": len(catalogue.signatures),
        "lines": reader.lines,
        "hits": len(reader.hits),
        "step": reader.progress.highest,
        "checkpoint": reader.progress.checkpoint,
    }


def line_by_line(path: Path, size: int) -> dict[str, Any]:
    """What a tool does that tries one compiled expression after another on each line, over the first `size` bytes."""
    from recovery.faults.catalogue import Catalogue

    patterns = [re.compile(one.pattern.encode("latin-1")) for one in Catalogue.built_in().signatures]
    with path.open("rb") as file:
        data = file.read(size)
    begun = time.process_time()
    found = 0
    for line in data.split(b"\n"):
        for pattern in patterns:
            if pattern.search(line):
                found += 1
    return {"cpu_s": time.process_time() - begun, "patterns": len(patterns), "hits": found, "bytes": len(data)}


def _made(catalogue: Any, patterns: int) -> list[Any]:
    """More entries, each with a text of its own."""
    model = catalogue["cuda.ecc"]
    count = max(0, patterns - len(catalogue.signatures))
    return [
        model.model_copy(
            update={"id": f"made.{number}", "pattern": f"unit {number * 7919 % 100_003}: (?:fault|alarm) code [0-9a-f]"}
        )
        for number in range(count)
    ]


def _peak_mb() -> float:
    """Most memory this process ever had, since it was started (not its parent's)."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1000


KINDS: dict[str, Callable[[Path, int], dict[str, Any]]] = {"full": full, "line_by_line": line_by_line}


def main() -> None:
    kind, path, *number = sys.argv[1:]
    result = KINDS[kind](Path(path), int(number[0]) if number else 0)
    print(json.dumps({**result, "peak_mb": _peak_mb()}))


if __name__ == "__main__":
    main()
