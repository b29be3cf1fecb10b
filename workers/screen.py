"""What every command says and how it ends: tables and text for people, JSON for machines, one sentence for errors.

Output to a pipe is plain; NO_COLOR is honoured. Text that came from a job is never taken for markup or control codes.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

REFUSED = 1
"""Exit code: refused, failed, not found."""
UNUSABLE = 2
"""Exit code: wrong usage, configuration or input."""


class Trouble(Exception):
    """Ends a command with one message on stderr and an exit code."""

    def __init__(self, message: str, code: int = REFUSED) -> None:
        super().__init__(message)
        self.code = code


def console() -> Console:
    return Console(highlight=False, soft_wrap=True)


def say(text: str | Text) -> None:
    """One line (or several) for people."""
    console().print(text if isinstance(text, Text) else Text(clean(text)))


def print_json(value: Any) -> None:
    """`value` as JSON, on stdout; times as ISO 8601, models as objects."""
    sys.stdout.write(json.dumps(value, indent=2, default=_plain, ensure_ascii=False) + "\n")


def _plain(value: Any) -> Any:
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Rows under headings; on a pipe as plain columns that are never cut."""
    out = console()
    cleaned = [[clean(cell).replace("\n", " ") for cell in row] for row in rows]
    if out.is_terminal:
        drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        for column in columns:
            drawn.add_column(column, overflow="fold")
        for row in cleaned:
            drawn.add_row(*(Text(cell) for cell in row))
        out.print(drawn)
        return
    lines = [list(columns), *cleaned]
    widths = [max(len(line[at]) for line in lines) for at in range(len(columns))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def clean(text: str) -> str:
    """Text without control characters: a job's name must not be able to move the cursor or forge a line."""
    return "".join(char if char == "\n" or char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def one_line(text: str) -> str:
    """The same without line ends, for what stands beside other words: it must not begin a line of its own."""
    return clean(text.replace("\n", "\N{REPLACEMENT CHARACTER}"))


def moment(time: datetime | None) -> str:
    """A time in UTC to the second."""
    return time.strftime("%Y-%m-%d %H:%M:%SZ") if time else "-"


def age(time: datetime | None, now: datetime) -> str:
    """How long ago, in the largest unit that fits."""
    if time is None:
        return "-"
    seconds = max(0, int((now - time).total_seconds()))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def ending(error: Exception, *, as_json: bool) -> int:
    """Ends a command that could not do its work: prints why, returns the exit code. Bugs keep their traceback."""
    if isinstance(error, BrokenPipeError):
        # The reader (head, less) has enough; nothing more may be flushed into the closed pipe at exit.
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        return REFUSED
    if not isinstance(error, Trouble):
        raise error
    if as_json:
        print_json({"error": str(error)})
    else:
        print(f"relight: {clean(str(error))}", file=sys.stderr)
    return error.code
