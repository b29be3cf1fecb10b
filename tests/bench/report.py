"""What a bench found: rows for people, values for machines, and whether its goals are met."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from workers.screen import print_json, say, table

KEPT_IN = Path(__file__).resolve().parents[2] / "bench-results.jsonl"


@dataclass(frozen=True)
class Goal:
    """One thing that must be reached. `more_is_better`: reached at `goal` or above, else at `goal` or below."""

    name: str
    value: float
    goal: float
    more_is_better: bool = True

    @property
    def met(self) -> bool:
        return self.value >= self.goal if self.more_is_better else self.value <= self.goal


@dataclass(frozen=True)
class Report:
    bench: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    goals: tuple[Goal, ...]
    values: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return {
            "bench": self.bench,
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": {"cpu": _cpu(), "cores": os.cpu_count(), "python": platform.python_version()},
            "commit": _commit(),
            "goals": [{**asdict(goal), "met": goal.met} for goal in self.goals],
            **self.values,
        }


def show(report: Report, *, as_json: bool) -> None:
    if as_json:
        print_json(report.as_json())
        return
    table(list(report.columns), [list(row) for row in report.rows])
    say("")
    rows = []
    for goal in report.goals:
        sign = "at least" if goal.more_is_better else "at most"
        rows.append([goal.name, f"{goal.value:,.2f}", f"{sign} {goal.goal:,.2f}", "met" if goal.met else "MISSED"])
    table(["GOAL", "VALUE", "WANTED", ""], rows)


def keep(report: Report) -> None:
    """Appends one line to a file that is not committed."""
    with KEPT_IN.open("a", encoding="utf-8") as file:
        file.write(json.dumps(report.as_json()) + "\n")


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _commit() -> str:
    command = ["git", "-C", str(KEPT_IN.parent), "rev-parse", "--short", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip()
