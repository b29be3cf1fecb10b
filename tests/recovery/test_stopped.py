"""Logs that just stop: what can be told of them, and what cannot."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from recovery.diagnose import Diagnosis
from recovery.records import FaultClass, Retry
from tests.recovery import logs
from tests.recovery.logs import hosts, lost, step

BEGUN = datetime(2026, 11, 12, 3, 14, 15, tzinfo=UTC)
HOUR = timedelta(hours=1)


def steps(count: int, every_s: float = 5, total: int = 50_000, zone_h: float = 0) -> str:
    lines = []
    for number in range(1, count + 1):
        at = BEGUN + timedelta(seconds=number * every_s, hours=zone_h)
        lines.append(step(number, total).replace("2026-11-12 03:14:15", f"{at:%Y-%m-%d %H:%M:%S}"))
    return "".join(lines)


def told(
    text: str,
    *,
    quiet: timedelta,
    written: datetime | None = None,
    started: datetime | None = None,
    complete: bool = True,
    every_s: float = 5,
    count: int = 21,
) -> Diagnosis:
    last = BEGUN + timedelta(seconds=every_s * count)
    now = last + quiet
    return logs.told(("job.log", text), now=now, complete=complete, written=written, started=started)


def test_steps_that_stopped_long_ago_without_a_word_are_a_fault_without_a_suspect() -> None:
    found = told(hosts() + steps(21), quiet=2 * HOUR)
    assert (found.fault, found.fault_class, found.retry) == (True, FaultClass.INTERCONNECT, Retry.YES)
    assert (found.signature, found.suspects, found.last_step) == ("hang.no_step", (), 21)
    assert found.first_cause is not None
    assert found.first_cause.line == 8 + 21


@pytest.mark.parametrize("quiet", [timedelta(0), timedelta(minutes=29)])
def test_a_log_that_was_written_to_lately_is_no_fault(quiet: timedelta) -> None:
    assert told(hosts() + steps(21), quiet=quiet).fault is False


def test_slow_steps_need_a_longer_silence() -> None:
    slow = steps(21, every_s=1200)
    assert told(slow, quiet=HOUR, every_s=1200).fault is False
    assert told(slow, quiet=2 * HOUR, every_s=1200).fault is True


def test_a_training_at_its_last_step_has_not_stopped() -> None:
    assert told(steps(21, total=21), quiet=9 * HOUR).fault is False


def test_a_training_of_unknown_length_has_not_stopped() -> None:
    text = "2026-11-12 03:14:15 step 7 loss 2.1\n"
    assert told(text, quiet=9 * HOUR).fault is False


def test_a_line_cut_in_the_middle_may_be_a_copy_of_the_beginning() -> None:
    assert told(steps(21)[:-30], quiet=9 * HOUR).fault is False


def test_a_live_log_is_not_judged_here() -> None:
    assert told(hosts() + steps(21), quiet=9 * HOUR, complete=False).fault is False


@pytest.mark.parametrize(
    "ending",
    [
        "slurmstepd: error: *** JOB 4711 ON n01 CANCELLED AT 2026-11-12T03:16:00 DUE TO TIME LIMIT ***\n",
        "[exiting program after 1190.03 minutes] datetime: 2026-11-12 03:16:00\n",
    ],
)
def test_what_was_told_to_end_has_not_stopped_by_itself(ending: str) -> None:
    assert told(steps(21) + ending, quiet=9 * HOUR).fault is False


def test_a_fault_that_is_told_goes_before_the_silence_after_it() -> None:
    found = told(hosts() + steps(21) + lost(1), quiet=9 * HOUR)
    assert (found.fault, found.fault_class) == (True, FaultClass.UNKNOWN)


def test_a_copied_file_is_dated_by_the_times_in_it() -> None:
    copied = BEGUN + timedelta(hours=2, minutes=40, seconds=37)
    assert told(steps(21), quiet=3 * HOUR, written=copied).fault is True


@pytest.mark.parametrize("zone_h", [-8, 2, 5.5, 9])
def test_a_log_of_another_time_zone_that_is_being_written_is_no_fault(zone_h: float) -> None:
    last = BEGUN + timedelta(seconds=105)
    assert told(steps(21, zone_h=zone_h), quiet=timedelta(seconds=3), written=last).fault is False


def test_without_times_in_the_log_the_files_own_time_counts() -> None:
    text = "".join(f" iteration {number:8d}/ 50000 | lm loss: 7.8E+00 |\n" for number in range(1, 30))
    last = BEGUN + timedelta(seconds=105)
    assert told(text, quiet=2 * HOUR, written=last).fault is True
    assert told(text, quiet=timedelta(minutes=5), written=last).fault is False
    assert told(text, quiet=2 * HOUR, written=None).fault is False


def test_the_start_of_the_job_tells_whose_clock_it_was() -> None:
    shifted = steps(21, zone_h=9)
    for started, expected in ((BEGUN - timedelta(minutes=2), True), (None, False)):
        found = logs.told(("job.log", shifted), now=BEGUN + 3 * HOUR, complete=True, started=started, zone=UTC)
        assert found.fault is expected


def starting(text: str, quiet: timedelta) -> Diagnosis:
    return told(f"2026-11-12 03:14:15 start\n{text}", quiet=quiet, count=0)


@pytest.mark.parametrize(
    "last",
    [
        "pyxis:     [INFO] Downloading 12 missing layers...\n",
        hosts(),
        "W1112 03:14:15.053000 257 torch/distributed/run.py:865] node_rank is only used for static rdzv_backend.\n",
        hosts() + "[before the start of training step] datetime: 2026-11-12 03:14:15\n",
    ],
)
def test_a_start_up_that_never_comes_to_a_step_is_a_fault(last: str) -> None:
    found = starting(last, 2 * HOUR)
    assert (found.fault, found.signature) == (True, "hang.no_first_step")
    assert (found.fault_class, found.retry) == (FaultClass.SYSTEM_SOFTWARE, Retry.YES)
    assert starting(last, timedelta(minutes=50)).fault is False


def test_a_log_without_steps_that_goes_on_for_long_is_not_starting() -> None:
    assert starting(hosts() + "doing something else\n" * 100, 9 * HOUR).fault is False
    launched = (
        "W1112 03:14:15.053000 257 torch/distributed/run.py:865] node_rank is only used for static rdzv_backend.\n"
    )
    assert starting(launched + "accuracy 0.91\n", 9 * HOUR).fault is False
