"""Times in logs: the forms in use, and what is no time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from recovery.faults.moments import NO_YEAR, dated, first_moment, last_moment, moment

AT = datetime(2026, 11, 12, 3, 14, 15)
NO_YEAR_AT = AT.replace(year=NO_YEAR)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (" [2026-11-12 03:14:15] iteration        7/     100 |", AT),
        ("2026-11-12T03:14:15.250Z n07 kernel: x", AT.replace(microsecond=250_000, tzinfo=UTC)),
        ("2026-11-12 03:14:15,250 INFO x", AT.replace(microsecond=250_000)),
        ("2026-11-12 03:14:15+01:00 x", AT.replace(tzinfo=timezone(timedelta(hours=1)))),
        ("2026-11-12T03:14:15-0330 x", AT.replace(tzinfo=timezone(-timedelta(hours=3, minutes=30)))),
        ("2026/11/12 03:14:15 x", AT),
        ("  time      : 2026-11-12_03:14:15", AT),
        ("slurmstepd: error: *** JOB 4711 ON n01 CANCELLED AT 2026-11-12T03:14:15 ***", AT),
        ("W1112 03:14:15.250000 25457 torch/distributed/run.py:865] x", NO_YEAR_AT.replace(microsecond=250_000)),
        ("[rank4]:[E1112 03:14:15.25 ProcessGroupNCCL.cpp:616] x", NO_YEAR_AT.replace(microsecond=250_000)),
        ("I20261112 03:14:15.250 x", AT.replace(microsecond=250_000)),
        ("20261112-03:14:15 x", AT),
        ("Nov 12 03:14:15 n07 kernel: x", NO_YEAR_AT),
        ("Nov  2 03:14:15 n07 kernel: x", NO_YEAR_AT.replace(day=2)),
        ("Thu Nov 12 03:14:15 2026 x", AT),
        ("Thu Nov 12 03:14:15 UTC 2026", AT.replace(tzinfo=UTC)),
        ("Thu 12 Nov 2026 03:14:15 x", AT),
        ("12/Nov/2026:03:14:15 +0100 x", AT.replace(tzinfo=timezone(timedelta(hours=1)))),
        ("12-Nov-2026 03:14:15 x", AT),
        ("11/12/2026 03:14:15 - INFO - trainer", AT),
        ("1794453255.25 x", AT.replace(microsecond=250_000, tzinfo=UTC)),
        ("[1794453255] x", AT.replace(tzinfo=UTC)),
        ('{"ts": 1794453255250, "msg": "x"}', AT.replace(microsecond=250_000, tzinfo=UTC)),
    ],
)
def test_a_time_is_read(line: str, expected: datetime) -> None:
    found = moment(line.encode())
    assert found == expected
    assert found is not None
    assert found.tzinfo == expected.tzinfo


@pytest.mark.parametrize(
    "line",
    [
        "",
        "no time at 12:13:14 alone",
        "[88123.410021] NVRM: Xid (PCI:0000:9b:00): 79",
        "step 1794453255 done",
        "2026-11-31 03:14:15 there is no such day",
        "2026-13-01 03:14:15",
        "2026-11-12 27:14:15",
        "version 2026.11.12",
        "\x00\xff",
        "x" * 5_000 + " 2026-11-12 03:14:15",
    ],
)
def test_what_is_no_time_is_none(line: str) -> None:
    assert moment(line.encode()) is None


def test_first_and_last_time_of_a_text() -> None:
    text = b"start\n2026-11-12 03:14:15 a\nb\n2026-11-12 03:14:20 c\nno time\n"
    assert first_moment(text) == AT
    assert last_moment(text) == AT.replace(second=20)
    assert first_moment(b"x\n" * 500 + text) is None  # not farther than it looks
    assert last_moment(text + b"x\n" * 500) is None
    assert first_moment(b"") is last_moment(b"") is None


def test_a_time_without_year_is_the_latest_that_can_be() -> None:
    now = datetime(2027, 1, 3, tzinfo=UTC)
    assert dated(NO_YEAR_AT, zone=UTC, now=now) == AT.replace(tzinfo=UTC)
    assert dated(NO_YEAR_AT.replace(month=1, day=2), zone=UTC, now=now).year == 2027
    assert dated(NO_YEAR_AT.replace(month=2, day=29), zone=UTC, now=now).year == 2024


def test_a_time_without_zone_is_of_the_given_clock() -> None:
    zone = timezone(timedelta(hours=9))
    assert dated(AT, zone=zone, now=datetime(2027, 1, 1, tzinfo=UTC)) == AT.replace(tzinfo=zone)
    aware = AT.replace(tzinfo=UTC)
    assert dated(aware, zone=zone, now=aware) == aware
