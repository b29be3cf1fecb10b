"""A server that hangs, fails or answers too much never holds a sweep up nor raises: the watch says that it is blind."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler

import pytest

from activities.telemetry import metrics
from activities.telemetry.metrics import MetricsSource, MetricsWatch
from activities.telemetry.prometheus import PrometheusAccess
from recovery.faults.catalogue import Catalogue
from recovery.measured import MeasuredJob
from tests.activities.telemetry.double import Double

JOB = MeasuredJob(job_id="1", nodes=("n1", "n2"), start_time=datetime.now(UTC) - timedelta(hours=1))


@pytest.fixture
def double() -> Iterator[Double]:
    with Double() as made:
        yield made


def source(double: Double, *, interval_s: float = 0.1, max_answer_bytes: int = 1 << 20) -> MetricsSource:
    access = PrometheusAccess(url=f"http://{double.address}", deadline_s=30, max_answer_bytes=max_answer_bytes)
    return MetricsSource(access=access, interval_s=interval_s)


@pytest.fixture
async def made() -> AsyncIterator[list[MetricsWatch]]:
    """Watches that are closed at the end."""
    watches: list[MetricsWatch] = []
    yield watches
    for watch in watches:
        watch.close()


async def test_a_look_does_not_wait_for_a_server_that_hangs(
    double: Double, made: list[MetricsWatch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "PATIENCE_S", 0.05)
    double.say = lambda handler: double.ending.wait(60) and None
    made.append(watch := MetricsWatch(source(double), Catalogue.built_in()))
    assert (await watch.look([JOB]))["1"].blind == ("metrics: no answer yet",)
    # The second look goes by the same round: it is still under way.
    asked = len(double.asked)
    assert (await watch.look([JOB]))["1"].blind == ("metrics: no answer yet",)
    assert len(double.asked) <= max(asked, 4)


async def test_every_way_to_fail_is_blindness_in_words(double: Double, made: list[MetricsWatch]) -> None:
    made.append(watch := MetricsWatch(source(double, max_answer_bytes=2_000), Catalogue.built_in()))
    for status, body, told in (
        (500, b"oops", "metrics: refused with HTTP 500: oops"),
        (200, b"no json", "metrics: the answer is not JSON"),
        (200, b" " * 3_000, "metrics: the answer is larger than"),
        (200, b'{"data": {"result": [{}]}}', "metrics: the answer is not what Prometheus says"),
    ):
        double.say = lambda handler, status=status, body=body: double.send(handler, body, status)
        await asyncio.sleep(0.11)  # the round before has failed: it is asked again only after the interval
        found = (await watch.look([JOB], fresh=True))["1"]
        assert found.blind[0].startswith(told)
        assert (found.tensor_idle, found.fabric_idle, found.findings, found.slow_nodes) == (None, None, (), ())


async def test_numbers_that_make_no_sense_do_no_harm(double: Double, made: list[MetricsWatch]) -> None:
    def say(handler: BaseHTTPRequestHandler) -> None:
        now, query = time.time(), double.asked[-1][1]
        rows: list[object] = [
            {"metric": {"instance": "n1:9100", "relight": level}, "value": [now, value]}
            for level in ("booted", "clock", "power", "tensor", "gpus", "tensor_most", "DCGM_FI_DEV_XID_ERRORS", "odd")
            for value in ("NaN", "+Inf", "-1e308", "1e308")
        ]
        if query.endswith("s]"):
            labels = {"__name__": "DCGM_FI_DEV_XID_ERRORS", "instance": "n1:9400"}
            rows = [{"metric": labels, "values": [[1e20, "0"], [2e20, "79"]]}]
        double.send(handler, json.dumps({"data": {"result": rows}}).encode())

    double.say = say
    made.append(watch := MetricsWatch(source(double), Catalogue.built_in()))
    found = (await watch.look([JOB], fresh=True))["1"]
    assert found.findings == ()
    assert found.blind


async def test_one_query_that_fails_blinds_for_its_own_part_only(double: Double, made: list[MetricsWatch]) -> None:
    def say(handler: BaseHTTPRequestHandler) -> None:
        if "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE" in double.asked[-1][1] and "relight" in double.asked[-1][1]:
            double.send(handler, b'{"error": "too many samples"}', 422)
            return
        double.send(handler, json.dumps({"data": {"result": []}}).encode())

    double.say = say
    made.append(watch := MetricsWatch(source(double), Catalogue.built_in()))
    found = (await watch.look([JOB], fresh=True))["1"]
    assert "metrics: GPU levels: refused with HTTP 422: too many samples" in found.blind


async def test_after_a_failure_a_crashed_job_does_not_wait_for_another_one(
    double: Double, made: list[MetricsWatch]
) -> None:
    slow = source(double, interval_s=600)
    double.say = lambda handler: double.send(handler, b"", 503)
    made.append(watch := MetricsWatch(slow, Catalogue.built_in()))
    await watch.look([JOB], fresh=True)
    asked = len(double.asked)
    found = (await watch.look([JOB], fresh=True))["1"]
    assert found.blind[0].startswith("metrics: refused with HTTP 503")
    assert len(double.asked) == asked


async def test_looks_between_rounds_ask_nothing(double: Double, made: list[MetricsWatch]) -> None:
    double.say = lambda handler: double.send(handler, json.dumps({"data": {"result": []}}).encode())
    made.append(watch := MetricsWatch(source(double, interval_s=600), Catalogue.built_in()))
    await watch.look([JOB], fresh=True)
    asked = len(double.asked)
    for _ in range(20):
        await watch.look([JOB])
    assert len(double.asked) == asked
    assert asked <= 6  # a handful for the whole fleet


async def test_a_hundred_crashed_jobs_share_two_rounds(double: Double, made: list[MetricsWatch]) -> None:
    double.say = lambda handler: double.send(handler, json.dumps({"data": {"result": []}}).encode())
    made.append(watch := MetricsWatch(source(double), Catalogue.built_in()))
    jobs = [JOB.model_copy(update={"job_id": str(number)}) for number in range(100)]
    found = await asyncio.gather(*(watch.look([one], fresh=True) for one in jobs))
    assert [list(one) for one in found] == [[job.job_id] for job in jobs]
    assert len(double.asked) <= 2 * 6


async def test_a_server_with_another_clock_tells_times_in_ours(double: Double, made: list[MetricsWatch]) -> None:
    ahead = 7_200.0

    def say(handler: BaseHTTPRequestHandler) -> None:
        now, query = time.time() + ahead, double.asked[-1][1]
        labels = {"Hostname": "n1", "instance": "n1:9400", "gpu": "0"}
        xid = {"__name__": "DCGM_FI_DEV_XID_ERRORS", **labels}
        rows: list[object] = []
        if query.endswith("s]"):
            rows = [{"metric": xid, "values": [[now - 400, "0"], [now - 300, "0"], [now - 290, "79"], [now, "79"]]}]
        elif "changes(" in query:
            rows = [{"metric": {**labels, "relight": "DCGM_FI_DEV_XID_ERRORS"}, "value": [now, "1"]}]
        double.send(handler, json.dumps({"data": {"result": rows}}).encode())

    double.say = say
    made.append(watch := MetricsWatch(source(double), Catalogue.built_in()))
    (one,) = (await watch.look([JOB], fresh=True))["1"].findings
    assert one.at is not None
    assert abs((datetime.now(UTC) - one.at).total_seconds() - 290) < 60
    young = JOB.model_copy(update={"start_time": datetime.now(UTC) - timedelta(seconds=100)})
    assert (await watch.look([young], fresh=True))["1"].findings == ()


async def test_many_sources_that_change_at_once_are_read_up_to_a_bound(
    double: Double, made: list[MetricsWatch]
) -> None:
    nodes = tuple(f"n{number:03}" for number in range(300))

    def say(handler: BaseHTTPRequestHandler) -> None:
        rows = []
        if "changes(" in double.asked[-1][1]:
            rows = [
                {
                    "metric": {"instance": f"{node}:9400", "relight": "DCGM_FI_DEV_XID_ERRORS"},
                    "value": [time.time(), "1"],
                }
                for node in nodes
            ]
        double.send(handler, json.dumps({"data": {"result": rows}}).encode())

    double.say = say
    made.append(watch := MetricsWatch(source(double), Catalogue.built_in()))
    found = (await watch.look([JOB.model_copy(update={"nodes": nodes})], fresh=True))["1"]
    assert "metrics: 300 sources changed at once, 200 of them are read" in found.blind
    assert len(double.asked) == 6 + 8
