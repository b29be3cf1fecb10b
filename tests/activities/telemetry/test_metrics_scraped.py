"""From exporter to finding: a real Prometheus scrapes fake exporters while a job goes through trouble."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta

import pytest

from activities.telemetry.metric_queries import QueryShape
from activities.telemetry.metrics import MetricsSource, MetricsWatch
from activities.telemetry.prometheus import PrometheusAccess
from recovery.faults.catalogue import Catalogue
from recovery.measured import JobMetrics, MeasuredJob
from tests.services.exporter import FakeExporter
from tests.services.prometheus import PrometheusServer

SHAPE = QueryShape(idle_s=6, lookback_s=300)
PATIENCE_S = 90


class Scene:
    """Two hosts with a GPU exporter each, one of them of the older and one of the newer kind, and a job on both."""

    def __init__(self) -> None:
        self.exporters = {host: FakeExporter() for host in ("n1", "n2")}
        self.labels = {"n1": {"Hostname": "n1", "gpu": "0"}, "n2": {"hostname": "n2.cluster.example", "gpu": "0"}}
        for host in self.exporters:
            self.both(host, "DCGM_FI_DEV_SM_CLOCK", 1700)
            self.both(host, "DCGM_FI_DEV_GPU_UTIL", 100)
            self.both(host, "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", 0.5)
        self.both("n1", "DCGM_FI_DEV_XID_ERRORS", 79)  # an old one that is kept
        self.both("n2", "DCGM_FI_DEV_XID_ERRORS", 0, err_code="0", err_msg="No Error")
        self.job = MeasuredJob(job_id="1", nodes=("n1", "n2"), start_time=datetime.now(UTC) - timedelta(minutes=10))
        self.server: PrometheusServer
        self.watch: MetricsWatch

    def both(self, host: str, metric: str, value: float, **more: str) -> None:
        self.exporters[host].set(metric, value, **self.labels[host], **more)

    async def until(self, true: Callable[[JobMetrics], object], what: str) -> JobMetrics:
        """Looks until it is so."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            found = (await self.watch.look([self.job], fresh=True))["1"]
            if true(found):
                return found
            assert time.monotonic() < deadline, f"{what}: not within {PATIENCE_S} s; last seen: {found}"
            await asyncio.sleep(0.2)

    async def scraped(self, host: str, times: int = 3) -> None:
        """Waits until the exporter was scraped so often from now on."""
        goal, deadline = self.exporters[host].scrapes + times, time.monotonic() + PATIENCE_S
        while self.exporters[host].scrapes < goal:
            assert time.monotonic() < deadline, f"{host} was not scraped {times} times within {PATIENCE_S} s"
            await asyncio.sleep(0.05)


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    made = Scene()
    with ExitStack() as stack:
        for exporter in made.exporters.values():
            stack.enter_context(exporter)
        targets = {
            exporter.address: {"instance": f"{host}:9400", "job": "dcgm"} for host, exporter in made.exporters.items()
        }
        # The newer exporter runs in a container: scraped at a name that no node has.
        targets[made.exporters["n2"].address]["instance"] = "10.0.0.7:9400"
        made.server = stack.enter_context(PrometheusServer(targets))
        access = PrometheusAccess(url=made.server.url, deadline_s=60)
        made.watch = MetricsWatch(MetricsSource(access=access, shape=SHAPE, interval_s=0.2), Catalogue.built_in())
        yield made
        made.watch.close()


async def test_a_job_goes_through_xids_an_exporters_gap_and_a_hang(scene: Scene) -> None:
    healthy = await scene.until(lambda found: found.tensor_idle is False, "both hosts are measured and at work")
    await scene.scraped("n1")
    assert healthy.findings == ()

    # A new Xid on the newer exporter: the old series ends and another begins.
    scene.exporters["n2"].drop("DCGM_FI_DEV_XID_ERRORS")
    scene.both("n2", "DCGM_FI_DEV_XID_ERRORS", 94, err_code="94", err_msg="Contained ECC error")
    found = await scene.until(lambda found: found.findings, "the Xid is found")
    (one,) = found.findings
    assert (one.signature, one.nodes, one.gpu) == ("xid.94", ("n2",), "0")
    assert one.at is not None
    assert abs(datetime.now(UTC) - one.at) < timedelta(seconds=PATIENCE_S)

    # The other exporter goes away: nothing is concluded from that, and it is told.
    scene.exporters["n1"].go_away()
    gone = await scene.until(lambda found: "no GPU metrics of n1" in found.blind, "the gap is told")
    assert gone.tensor_idle is not True
    # It comes back with the old Xid, which is still no event; the other finding is the same as before.
    scene.exporters["n1"].come_back()
    back = await scene.until(lambda found: "no GPU metrics of n1" not in found.blind, "the exporter is back")
    await scene.scraped("n1")
    back = await scene.until(lambda found: found.tensor_idle is False, "it is measured again")
    assert [finding.id for finding in back.findings] == [one.id]

    # A hang: the tensor cores stop. GPUs look fully used, since they wait by spinning.
    for host in scene.exporters:
        scene.both(host, "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", 0)
    idle = await scene.until(lambda found: found.tensor_idle, "the job is idle")
    assert idle.idle_since is not None
    assert idle.fabric_idle is None

    # And goes on.
    scene.both("n2", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", 0.5)
    working = await scene.until(lambda found: found.tensor_idle is False, "it works again")
    assert working.idle_since is None


async def test_a_server_that_dies_and_comes_back_makes_the_watch_blind_and_see_again(scene: Scene) -> None:
    await scene.until(lambda found: found.tensor_idle is False, "both hosts are measured and at work")
    scene.server.stop()
    blind = (await scene.watch.look([scene.job], fresh=True))["1"]
    assert blind.tensor_idle is None
    assert blind.findings == ()
    assert "metrics: cannot be reached: [Errno 111] Connection refused" in blind.blind
    scene.server.start()
    seen = await scene.until(lambda found: found.tensor_idle is False, "it is seen again")
    assert not any(line.startswith("metrics:") for line in seen.blind)
