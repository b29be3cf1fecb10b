"""Reads when a line was written, in the forms that trainers, launchers, NCCL, kernels and Slurm use. Pure.

A time without a zone stays without one: whose clock it was is not known here. A time without a year gets the year 4,
until `dated` is told when the log was read.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone, tzinfo

from recovery.faults.expressions import expression

MOST_BYTES = 400
"""How much of a line's beginning is looked at."""

NO_YEAR = 4
"""A leap year, so that the 29th of February can stand for itself."""

_ANY = expression(r"\d:[0-5]\d:[0-5]\d|(?:^|^\[|\": ?)(?:1[4-9]|2\d)\d{8}")
"""What every form holds; told quickly, since most lines have no time."""

_CLOCK = r"(?P<hour>[01]\d|2[0-3]):(?P<minute>[0-5]\d):(?P<second>[0-5]\d)(?:[.,](?P<fraction>\d{1,9}))?"
_ZONE = r"(?: ?(?P<zone>Z\b|UTC\b|GMT\b|[+-]\d{2}:?\d{2}\b))?"
_MONTHS = {
    name: number
    for number, name in enumerate(
        (b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov", b"Dec"), start=1
    )
}
_MONTH = rf"(?P<month>{'|'.join(name.decode() for name in _MONTHS)})"
_YEAR = r"(?P<year>20\d{2})"
_DAY = r"(?P<day>0?[1-9]|[12]\d|3[01])"

_FORMS = tuple(
    expression(text)
    for text in (
        # 2026-11-12T03:14:15Z, 2026-11-12 03:14:15,123 +0100, 2026/11/12 03:14:15, 2026-11-12_03:14:15
        rf"\b{_YEAR}[-/](?P<month>\d{{2}})[-/]{_DAY}[T _:-]{_CLOCK}{_ZONE}",
        # E1112 03:14:15.123456789, I20261112 03:14:15.123
        rf"(?:^|[^A-Za-z])[IWEFV]{_YEAR}?(?P<month>0[1-9]|1[0-2])(?P<day>\d{{2}}) {_CLOCK}",
        # 20261112 03:14:15
        rf"\b{_YEAR}(?P<month>0[1-9]|1[0-2])(?P<day>[0-3]\d)[T _-]{_CLOCK}{_ZONE}",
        # Thu Nov 12 03:14:15 2026, Thu Nov 12 03:14:15 UTC 2026
        rf"\b{_MONTH} +{_DAY} {_CLOCK} (?:(?P<zone>UTC|GMT|[+-]\d{{4}}) |[A-Z]{{3,4}} )?{_YEAR}\b",
        # Thu 12 Nov 2026 03:14:15, 12/Nov/2026:03:14:15 +0100, 12-Nov-2026 03:14:15
        rf"\b{_DAY}[ /-]{_MONTH}[ /-]{_YEAR}[ :T]{_CLOCK}{_ZONE}",
        # Nov 12 03:14:15 n07 kernel:
        rf"\b{_MONTH} +{_DAY} {_CLOCK}\b",
        # 11/12/2026 03:14:15 (month first, as Hugging Face and DeepSpeed write it)
        rf"\b(?P<month>0[1-9]|1[0-2])/(?P<day>\d{{2}})/{_YEAR},? {_CLOCK}",
        # [1795983600.031], 1795983600.031 n07, "ts": 1795983600031
        r'(?:^|^\[|"(?:ts|time|timestamp)": ?)(?P<epoch>1[4-9]\d{8}|2\d{9})(?P<thousandths>\d{3})?'
        r"(?:\.(?P<fraction>\d{1,9}))?\b",
    )
)


def moment(line: bytes) -> datetime | None:
    """When the line was written; aware where the line tells its zone, in the year 4 where it tells none."""
    head = line[:MOST_BYTES]
    if _ANY.search(head) is None:
        return None
    for form in _FORMS:
        if (match := form.search(head)) is not None:
            named = {name.decode(): match.group(index) for name, index in form.groupindex.items()}
            found = _of({name: value for name, value in named.items() if value is not None})
            if found is not None:
                return found
    return None


def last_moment(text: bytes, *, lines: int = 40) -> datetime | None:
    """The last time that is written in `text`, looked for from its end over so many lines."""
    end = len(text)
    for _ in range(lines):
        if end <= 0:
            return None
        start = text.rfind(b"\n", 0, end) + 1
        if (found := moment(text[start:end])) is not None:
            return found
        end = start - 1
    return None


def first_moment(text: bytes, *, lines: int = 200) -> datetime | None:
    """The first time that is written in `text`, looked for over so many lines."""
    start = 0
    for _ in range(lines):
        if start >= len(text):
            return None
        end = text.find(b"\n", start)
        end = len(text) if end < 0 else end
        if (found := moment(text[start:end])) is not None:
            return found
        start = end + 1
    return None


def dated(at: datetime, *, zone: tzinfo, now: datetime) -> datetime:
    """A moment in UTC. `zone` is the clock of times that tell none; a year that was not told is the latest possible."""
    aware = at if at.tzinfo is not None else at.replace(tzinfo=zone)
    if aware.year == NO_YEAR:
        for year in (now.year + 1, now.year, now.year - 1, now.year - 2, now.year - 3, now.year - 4):
            try:
                found = aware.replace(year=year)
            except ValueError:
                continue  # the 29th of February
            if found <= now + timedelta(days=2):
                return found.astimezone(UTC)
    return aware.astimezone(UTC)


def _of(named: Mapping[str, bytes]) -> datetime | None:
    try:
        fraction = timedelta(seconds=float(b"0." + named["fraction"])) if "fraction" in named else timedelta()
        if "epoch" in named:
            thousandths = timedelta(milliseconds=int(named.get("thousandths", b"0")))
            return datetime.fromtimestamp(int(named["epoch"]), UTC) + thousandths + fraction
        month = named["month"]
        found = datetime(
            int(named.get("year", NO_YEAR)),
            _MONTHS.get(month) or int(month),
            int(named["day"]),
            int(named["hour"]),
            int(named["minute"]),
            int(named["second"]),
        )
        return (found + fraction).replace(tzinfo=_zone(named.get("zone")))
    except (ValueError, OverflowError):
        return None  # the 31st of a month that has 30 days


def _zone(text: bytes | None) -> timezone | None:
    if text is None:
        return None
    if text[:1].isalpha():
        return UTC
    digits = text[1:].replace(b":", b"")
    apart = timedelta(hours=int(digits[:2]), minutes=int(digits[2:]))
    return timezone(-apart if text[:1] == b"-" else apart)
