"""CSV for spreadsheets. A cell that a spreadsheet would take for a formula is made plain text."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from datetime import datetime
from enum import Enum

from workers.console.words import flat

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def csv_of(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_cell(value) for value in row])
    return out.getvalue()


def _cell(value: object) -> object:
    if value is None or isinstance(value, int | float):
        return value
    if isinstance(value, datetime):
        return value.isoformat()
    text = flat(value.value if isinstance(value, Enum) else value, 2_000)
    return f"'{text}" if text.startswith(_FORMULA) else text
