"""When a metric changed, as its samples tell: sticky codes, gaps, slips, resets, nonsense."""

from __future__ import annotations

import math

import pytest

from activities.telemetry.hostnames import HOST_LABELS
from activities.telemetry.metric_changes import changes
from activities.telemetry.metric_queries import CLOCK, PORT_STATE, XID, XID_COUNT
from activities.telemetry.prometheus import Series

GPU = {"Hostname": "n01", "instance": "n01:9400", "job": "dcgm", "gpu": "3"}
DBE = "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"


def series(metric: str, values: list[float | None], **labels: str) -> Series:
    """A sample every 15 s; None: none."""
    samples = tuple((15.0 * at, value) for at, value in enumerate(values) if value is not None)
    return Series({"__name__": metric, **GPU, **labels}, samples)


def found(*rows: Series) -> list[tuple[float, float, float, float]]:
    """(between, and, from, to) of every change."""
    return [(one.since, one.at, one.old, one.new) for one in changes(rows, HOST_LABELS)]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0, 0, 79, 79, 79], [(15, 30, 0, 79)]),
        ([79, 79, 79], []),  # sticky
        ([79], []),
        ([0, 79, 79, 43, 43], [(0, 15, 0, 79), (30, 45, 79, 43)]),
        ([79, 0, 0, 79], [(30, 45, 0, 79)]),
        ([79, 0], []),  # healed
        ([0, None, None, None, 79], [(0, 60, 0, 79)]),
        ([79, None, None, None, 79], []),
        ([0, math.nan, 79], [(0, 30, 0, 79)]),
        ([0, 2**63 - 1, 79], [(15, 30, 2**63 - 1, 79)]),  # "not known" is no Xid
        ([0, 0.5, -5, 1e300, math.inf], []),
    ],
)
def test_an_xid_is_a_change_and_never_a_level(values: list[float | None], expected: list[tuple[float, ...]]) -> None:
    assert found(series(XID, values)) == expected


def test_a_gpu_without_a_series_before_its_first_xid_had_none() -> None:
    assert found(series(XID, [None, None, None, 31, 31]), series(CLOCK, [1700] * 5)) == [(30, 45, 0, 31)]


def test_a_first_series_without_anything_before_it_is_no_event() -> None:
    assert found(series(XID, [None, None, None, 31, 31])) == []
    assert found(series(XID, [None, None, None, 31, 31]), series(CLOCK, [None, None, None, 1700, 1700])) == []


def test_another_gpus_samples_do_not_tell_that_this_one_had_no_xid() -> None:
    assert found(series(XID, [None, None, None, 31, 31]), series(CLOCK, [1700] * 5, gpu="4")) == []


def test_a_single_scrape_without_the_code_is_a_slip_and_two_are_a_reset() -> None:
    clock = series(CLOCK, [1700] * 6)
    assert found(series(XID, [79, 79, None, 79, 79, 79]), clock) == []
    assert found(series(XID, [79, 79, None, None, 79, 79]), clock) == [(45, 60, 0, 79)]


def test_a_code_in_a_label_is_the_same_gpu() -> None:
    rows = (
        series(XID, [0, 0, None, None], err_code="0", err_msg="No Error"),
        series(XID, [None, None, 94, 94], err_code="94", err_msg="Contained"),
    )
    assert found(*rows) == [(15, 30, 0, 94)]


def test_job_labels_that_come_and_go_make_no_event() -> None:
    rows = (series(XID, [79, 79, None, None], hpc_job="7"), series(XID, [None, None, 79, 79], hpc_job="8"))
    assert found(*rows) == []


def test_whose_gpu_it_was_is_told_where_the_exporter_tells_it() -> None:
    rows = (series(XID, [0, 0, None], hpc_job="7"), series(XID, [None, None, 31]))
    assert [one.jobs for one in changes(rows, HOST_LABELS)] == [{"7"}]  # the epilog took the label away
    assert [one.jobs for one in changes([series(XID, [0, 31])], HOST_LABELS)] == [set()]


def test_two_exporters_of_one_gpu_are_not_mixed() -> None:
    assert found(series(XID, [79, 79, 79]), series(XID, [0, 0, 0], job="other")) == []


def test_a_count_of_codes_tells_each_rise_with_its_code() -> None:
    clock = series(CLOCK, [1700] * 8)
    one = changes([series(XID_COUNT, [None, 1, 1, 2, 2, 1, None, None], xid="31"), clock], HOST_LABELS)
    assert [(change.at, change.code) for change in one] == [(15, 31), (45, 31)]
    assert found(series(XID_COUNT, [0, 0, 0]), clock) == []
    assert changes([series(XID_COUNT, [0, 1], err_code="79")], HOST_LABELS)[0].code == 79
    assert changes([series(XID_COUNT, [0, 1], xid="79;drop")], HOST_LABELS) == []


def test_a_counter_tells_rises_and_no_resets() -> None:
    assert found(series(DBE, [5, 5, 6, 6])) == [(15, 30, 5, 6)]
    assert found(series(DBE, [5, 0, 0, 2])) == [(30, 45, 0, 2)]
    assert found(series(DBE, [5, 5, 5])) == []
    assert found(series(DBE, [None, None, 5]), series(CLOCK, [1700] * 3)) == []  # no zero is made up for counters


def test_a_port_that_leaves_the_active_state_is_an_event_once() -> None:
    assert found(series(PORT_STATE, [4, 4, 1, 1, 4, 4])) == [(15, 30, 4, 1)]
    assert found(series(PORT_STATE, [1, 1, 4])) == []


def test_metrics_that_are_not_known_are_passed_over() -> None:
    assert found(series("something_else", [0, 1])) == []
    assert found() == []
