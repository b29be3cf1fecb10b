"""Several files of one attempt: one order, by the times in them."""

from __future__ import annotations

import pytest

from tests.recovery.logs import hosts, lost, told

ECC = "[rank3]: RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
FULL = "OSError: [Errno 28] No space left on device\n"


def at(second: int, text: str) -> str:
    return f"2026-11-12 03:{second // 60:02d}:{second % 60:02d} {text}"


def steps_at(first: int, last: int) -> str:
    """One step a second, from second `first` on."""
    return "".join(at(number, f"step {number} loss 2.1\n") for number in range(first, last + 1))


def test_a_fault_in_another_file_is_survived_when_steps_came_later() -> None:
    out, err = ("out", steps_at(1, 60)), ("err", at(30, ECC))
    assert told(out, err).fault is told(err, out).fault is False


def test_a_fault_in_another_file_counts_when_no_steps_came_later() -> None:
    out, err = ("out", steps_at(1, 60)), ("err", at(61, ECC))
    assert told(out, err).signature == told(err, out).signature == "cuda.ecc"


def test_a_fault_without_a_time_is_never_survived_by_earlier_steps() -> None:
    out = ("out", steps_at(1, 60))
    err = ("err", at(1, "start\n") + ECC + at(61, "launcher: gave up\n"))
    assert told(out, err).signature == told(err, out).signature == "cuda.ecc"
    assert told(("err", ECC), out).signature == "cuda.ecc"


def test_steps_without_times_say_nothing_of_another_file() -> None:
    out = ("out", "".join(f"step {number} loss 2.1\n" for number in range(60)))
    assert told(("err", at(1, ECC)), out).signature == "cuda.ecc"
    assert told(out, ("err", at(1, ECC))).signature == "cuda.ecc"


def test_the_first_cause_is_the_earliest_over_all_files() -> None:
    full, ecc = ("a.err", at(61, FULL)), ("b.err", at(59, ECC))
    assert told(full, ecc).signature == told(ecc, full).signature == "cuda.ecc"
    later = ("b.err", at(63, ECC))
    assert told(full, later).signature == told(later, full).signature == "storage.full"


def test_within_one_file_its_own_order_stands_though_clocks_differ() -> None:
    skewed = at(70, FULL) + at(65, ECC)
    assert told(("a", skewed)).signature == "storage.full"
    assert told(("a", skewed), ("b", steps_at(1, 60))).signature == "storage.full"


@pytest.mark.parametrize("skew_s", [-8, -3, 0, 3, 8])
def test_clocks_that_differ_by_seconds_do_not_make_a_fault_look_survived(skew_s: int) -> None:
    crash = at(60 + skew_s, ECC)
    out = steps_at(1, 60) + at(61, lost(0))
    for files in ([("n01", out), ("n02", crash)], [("n02", crash), ("n01", out)]):
        found = told(*files)
        assert (found.signature, found.exclude) == ("cuda.ecc", ("n02",))
    assert told(("n01", steps_at(1, 90)), ("n02", crash)).fault is False


def test_a_finding_names_its_own_file_and_line() -> None:
    found = told(("out", hosts() + steps_at(1, 9)), ("err", "x\n" + at(61, ECC)))
    assert found.first_cause is not None
    assert (found.first_cause.source, found.first_cause.line) == ("err", 2)
    assert found.exclude == ("n02",)
    assert found.lines == 8 + 9 + 2


def test_a_rotated_log_is_read_in_any_order() -> None:
    older, newer = ("job.log.1", steps_at(1, 30) + at(30, ECC)), ("job.log", steps_at(31, 60))
    assert told(older, newer).fault is told(newer, older).fault is False
    assert told(newer, older).last_step == 60


def test_a_failure_table_stays_together_when_files_are_mixed() -> None:
    table = (
        "  time      : 2026-11-12_03:01:01\n  host      : {}\n  rank      : {} (local_rank: 0)\n"
        "  exitcode  : {} (pid: 7)\n"
    )
    files = [("n01.log", table.format("n01", 0, -15)), ("n02.log", table.format("n02", 2, -9))]
    found = told(("out", steps_at(1, 9)), *files)
    assert (found.signature, found.first_cause and found.first_cause.nodes) == ("torchelastic.exit.9", ("n02",))
