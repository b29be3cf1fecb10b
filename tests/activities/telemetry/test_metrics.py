"""What metrics tell of jobs, asked of a real Prometheus that remembers forty minutes of a cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta

import pytest

from activities.telemetry.metric_queries import QueryShape
from activities.telemetry.metrics import MetricsSource, MetricsWatch
from activities.telemetry.prometheus import PrometheusAccess
from recovery.faults.catalogue import Catalogue
from recovery.measured import JobMetrics, MeasuredJob
from recovery.records import Certainty, FaultClass, Retry, Role
from tests.activities.telemetry.fleet import Fleet, dcgm, node, since
from tests.services.prometheus import PrometheusServer

Jobs = Callable[..., MeasuredJob]

BOTH = "DCGM_EXP_XID_ERRORS_COUNT"


def _err_code(fleet: Fleet, host: str, gpu: int, codes: dict[str, tuple[float, float]]) -> None:
    """A newer exporter: the code is also a label, so that each code is a series of its own. Ages from, to."""
    base = {"hostname": host, "instance": f"{host}:9400", "job": "dcgm", "gpu": str(gpu), "UUID": f"GPU-{host}-{gpu}"}
    fleet.add("DCGM_FI_DEV_SM_CLOCK", 1700, base)
    fleet.add("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", 0.4, base)
    for code, (begin, end) in codes.items():
        fleet.add(
            "DCGM_FI_DEV_XID_ERRORS",
            lambda ago, code=code, begin=begin, end=end: float(code) if end <= ago <= begin else None,
            {**base, "err_code": code, "err_msg": "words"},
        )


def _gap(end: float, begin: float, before: float, after: float) -> Callable[[float], float | None]:
    """No samples between these ages."""
    return lambda ago: before if ago > begin else after if ago < end else None


def _past() -> Fleet:
    fleet = Fleet()
    # A healthy job.
    for host in ("well1", "well2", "well3", "well4"):
        fleet.gpus(host)
        fleet.machine(host)
    # An Xid in the middle of a job; a GPU that keeps an old one; one that got it just before the job.
    fleet.gpus("xid1", xid={1: since(300, 0, 79)})
    fleet.gpus("xid2", xid={0: 79, 1: since(1_700, 0, 48)})
    fleet.gpus("nvl1", xid={0: since(300, 0, 145)})
    # Codes as labels; a GPU that has no series before its first Xid; an old one that came back after an exporter's gap.
    _err_code(fleet, "label1", 0, {"0": (2_400, 320), "94": (310, 0)})
    _err_code(fleet, "label2", 0, {"31": (290, 0)})
    _err_code(fleet, "label3", 0, {"79": (2_400, 0)})
    fleet.gpus("gap1", xid={0: _gap(1_500, 2_100, 79, 79)}, clock=_gap(1_500, 2_100, 1700, 1700))
    # Between these samples nobody knows; the job of the test began within.
    fleet.gpus("gap2", 1, xid={0: _gap(600, 1_600, 0, 79)}, clock=_gap(600, 1_600, 1700, 1700))
    # The same Xid again shows in the count alone.
    fleet.gpus("again1", xid={0: 31})
    again = {**dcgm("again1"), "gpu": "0", "UUID": "GPU-again1-0", "device": "nvidia0", "window_size_in_ms": "300000"}
    fleet.add(BOTH, lambda ago: 1 if 200 < ago <= 500 else 2 if ago <= 200 else None, {**again, "xid": "31"})
    fleet.add(BOTH, lambda ago: 0 if ago > 500 else None, again)
    # Two jobs share a host; the exporter tells whose GPU it was.
    for gpu, number in (("0", "501"), ("1", "502")):
        mine = {**dcgm("shared1"), "gpu": gpu, "UUID": f"GPU-shared1-{gpu}", "hpc_job": number}
        fleet.add("DCGM_FI_DEV_XID_ERRORS", since(300, 0, 79) if gpu == "1" else 0, mine)
    # Memory, links, host memory.
    fleet.gpus("ecc1")
    fleet.add("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", since(400, 3, 5), {**dcgm("ecc1"), "gpu": "1", "UUID": "GPU-ecc1-1"})
    fleet.add("DCGM_FI_DEV_ROW_REMAP_FAILURE", since(350, 0, 1), {**dcgm("ecc1"), "gpu": "1", "UUID": "GPU-ecc1-1"})
    fleet.gpus("nv1")
    link = {**dcgm("nv1"), "gpu": "0", "UUID": "GPU-nv1-0", "nvlink": "3"}
    fleet.add("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", since(200, 0, 1), link)
    fleet.add("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", since(200, 0, 50), link)
    fleet.machine("ib1", links_down=since(240, 7, 8), oom_kills=since(180, 2, 3))
    fleet.machine("ib2", links_down=7)
    port = {**node("ib2"), "device": "mlx5_1", "port": "1"}
    fleet.add("node_infiniband_state_id", since(120, 4, 1), port)
    for host in ("switch1", "switch2", "switch3"):
        fleet.machine(host, links_down=since(240, 0, 1))
    # Idle: hung for ten minutes; never worked; two of three; the third without samples; a gap just now.
    for host in ("idle1", "idle2", "idle3"):
        fleet.gpus(host, tensor=since(600, 0.4, 0))
        fleet.machine(host, traffic=lambda ago: 1e10 if ago > 600 else 2e3)
    for host in ("never1", "never2"):
        fleet.gpus(host, tensor=0)
        fleet.machine(host, traffic=lambda ago: 2e3)
    fleet.gpus("part1", tensor=since(600, 0.4, 0))
    fleet.gpus("part2", tensor=since(600, 0.4, None))
    fleet.gpus("part3", tensor=since(600, 0.4, None))
    fleet.machine("part1", traffic=None)
    # Slow ones.
    for host in ("slow1", "slow2", "slow3", "slow5"):
        fleet.gpus(host)
    fleet.gpus("slow4", clock=1_100, power=350)
    for host in ("slow1", "slow2", "slow3", "slow4", "slow5"):
        hot = {**dcgm(host), "gpu": "1", "UUID": f"GPU-{host}-1", "device": "nvidia1"}
        fleet.add("DCGM_FI_DEV_THERMAL_VIOLATION", (lambda ago: (2_400 - ago) * 1e6) if host == "slow4" else 0, hot)
    # A hang in which all wait by spinning, except for one host; one more whose GPU was never used.
    stopped = since(400, 0.4, 0)
    for host in ("spin1", "spin2", "spin3"):
        fleet.gpus(host, tensor=stopped)
    fleet.gpus("still1", tensor=stopped, used=since(400, 100, 0))
    fleet.gpus("spare1", 1, tensor=stopped)
    fleet.add("DCGM_FI_DEV_GPU_UTIL", 0, {**dcgm("spare1"), "gpu": "1", "UUID": "GPU-spare1-1"})
    # Rebooted; only its clock was set; silent; only one exporter silent.
    fleet.machine("boot1", booted_ago=lambda ago: 400 if ago < 400 else 86_400)
    fleet.machine("boot2", clock_off=lambda ago: 3_600 if ago < 400 else 0)
    fleet.add("up", since(400, 1, 0), {"instance": "silent1:9400", "job": "dcgm"})
    fleet.add("up", since(400, 1, 0), {"instance": "silent1:9100", "job": "node"})
    fleet.add("up", since(400, 1, 0), {"instance": "well1:9999", "job": "odd"})
    # Names of hosts: long names, addresses with and without a name, two scrapes of one exporter.
    fleet.gpus("Name1.cluster.example", xid={0: since(300, 0, 79)})
    fleet.gpus("name2", labels=lambda _: {"instance": "10.1.1.2:9400", "job": "dcgm"}, xid={0: since(300, 0, 79)})
    fleet.add("node_uname_info", 1, {"instance": "10.1.1.2:9100", "nodename": "name2.example", "job": "node"})
    fleet.gpus("name3", labels=lambda _: {"instance": "10.1.1.3:9400", "job": "dcgm"}, xid={0: since(300, 0, 79)})
    fleet.gpus("twice1", xid={0: since(300, 0, 79)})
    fleet.gpus("twice1", xid={0: since(300, 0, 79)}, labels=lambda host: {**dcgm(host), "job": "dcgm-too"})
    fleet.gpus("twice2", xid={0: 79})
    fleet.gpus("twice2", xid={0: 0}, labels=lambda host: {**dcgm(host), "job": "dcgm-too"})
    return fleet


@pytest.fixture(scope="module")
def past() -> Fleet:
    return _past()


@pytest.fixture(scope="module")
def server(past: Fleet) -> Iterator[PrometheusServer]:
    with PrometheusServer(past=past.lines) as started:
        yield started


@pytest.fixture
def job(past: Fleet) -> Jobs:
    """Makes jobs; their ages count as those of the scenario."""
    return past.job


@pytest.fixture
async def watch(server: PrometheusServer) -> AsyncIterator[MetricsWatch]:
    source = MetricsSource(access=PrometheusAccess(url=server.url, deadline_s=60), shape=QueryShape())
    made = MetricsWatch(source, Catalogue.built_in())
    yield made
    made.close()


async def told(watch: MetricsWatch, one: MeasuredJob) -> JobMetrics:
    return (await watch.look([one], fresh=True))[one.job_id]


def kinds(found: JobMetrics) -> list[tuple[str, str, str | None]]:
    return [(one.signature, one.nodes[0], one.gpu) for one in found.findings]


async def test_a_healthy_job_has_no_findings_and_is_at_work(watch: MetricsWatch, job: Jobs) -> None:
    found = await told(watch, job("1", "well1", "well2", "well3", "well4"))
    assert found.findings == ()
    assert found.tensor_idle is False
    assert found.fabric_idle is False
    assert found.idle_since is None
    assert found.slow_nodes == ()
    assert found.blind == ("well1: odd does not answer scrapes",)


async def test_an_xid_is_a_finding_on_its_gpu_with_the_catalogues_words(
    watch: MetricsWatch, job: Jobs, past: Fleet
) -> None:
    found = await told(watch, job("2", "xid1", "well2", attempt=3))
    (one,) = found.findings
    assert (one.signature, one.nodes, one.gpu, one.attempt) == ("xid.79", ("xid1",), "1", 3)
    assert (one.fault_class, one.role, one.retry) == (FaultClass.HARDWARE, Role.ROOT, Retry.YES)
    assert one.trusted
    assert one.certainty is Certainty.CONFIRMED
    assert one.at is not None
    assert timedelta() <= one.at - datetime.fromtimestamp(past.now - 300, UTC) <= timedelta(seconds=15)
    assert "went from 0 to 79" in one.evidence


async def test_an_nvlink_event_that_may_have_repaired_itself_is_no_cause(watch: MetricsWatch, job: Jobs) -> None:
    (one,) = (await told(watch, job("2", "nvl1", "well2"))).findings
    assert (one.signature, one.fault_class, one.role) == ("xid.145", FaultClass.INTERCONNECT, Role.SYMPTOM)


async def test_a_gpu_that_keeps_an_old_xid_is_not_blamed(watch: MetricsWatch, job: Jobs) -> None:
    assert (await told(watch, job("3", "xid2", age_s=1_500))).findings == ()


async def test_an_xid_of_the_job_before_is_not_blamed_on_the_next(watch: MetricsWatch, job: Jobs) -> None:
    assert kinds(await told(watch, job("4", "xid1", age_s=250))) == []
    assert kinds(await told(watch, job("4", "xid1", age_s=600))) == [("xid.79", "xid1", "1")]


async def test_an_xid_at_the_very_beginning_of_a_job_is_never_its_cause(watch: MetricsWatch, job: Jobs) -> None:
    (one,) = (await told(watch, job("5", "xid1", age_s=305))).findings
    assert (one.role, one.certainty) == (Role.SYMPTOM, Certainty.SUSPECTED)
    assert "began at about that time" in one.summary


async def test_an_xid_after_the_end_of_the_job_is_not_its_own(watch: MetricsWatch, job: Jobs) -> None:
    assert kinds(await told(watch, job("6", "xid1", ended_ago_s=600))) == []
    assert kinds(await told(watch, job("6", "xid1", ended_ago_s=330))) == [("xid.79", "xid1", "1")]


async def test_codes_that_come_as_labels_or_with_a_new_series_are_seen(watch: MetricsWatch, job: Jobs) -> None:
    found = await told(watch, job("7", "label1", "label2", "label3"))
    assert kinds(found) == [("xid.94", "label1", "0"), ("xid.31", "label2", "0")]
    assert found.findings[1].fault_class is FaultClass.APPLICATION


async def test_the_same_xid_before_and_after_an_exporters_gap_is_no_event(watch: MetricsWatch, job: Jobs) -> None:
    assert (await told(watch, job("8", "gap1"))).findings == ()


async def test_a_change_within_a_gap_that_spans_the_jobs_beginning_is_told_as_unknown(
    watch: MetricsWatch, job: Jobs
) -> None:
    found = await told(watch, job("9", "gap2", age_s=1_000))
    assert found.findings == ()
    assert any("DCGM_FI_DEV_XID_ERRORS of gap2 changed before" in line for line in found.blind)
    assert kinds(await told(watch, job("9", "gap2", age_s=2_000))) == [("xid.79", "gap2", "0")]


async def test_the_same_xid_again_is_seen_by_its_count(watch: MetricsWatch, job: Jobs) -> None:
    found = await told(watch, job("10", "again1", age_s=1_500))
    assert kinds(found) == [("xid.31", "again1", "0")]
    assert "2 times until" in found.findings[0].evidence
    later = await told(watch, job("10", "again1", age_s=300))
    assert kinds(later) == [("xid.31", "again1", "0")]
    assert later.findings[0].source == BOTH


async def test_an_xid_on_another_jobs_gpu_of_the_same_host_is_not_this_jobs(watch: MetricsWatch, job: Jobs) -> None:
    assert kinds(await told(watch, job("501", "shared1"))) == []
    assert kinds(await told(watch, job("502", "shared1"))) == [("xid.79", "shared1", "1")]
    task = job("400_7", "shared1")
    assert kinds(await told(watch, task)) == [("xid.79", "shared1", "1")]  # whose it is cannot be told
    assert kinds(await told(watch, task.model_copy(update={"raw_id": 501}))) == []


async def test_memory_errors_and_links_are_findings_and_everyday_replays_are_not(
    watch: MetricsWatch, job: Jobs
) -> None:
    found = await told(watch, job("11", "ecc1", "nv1"))
    assert kinds(found) == [
        ("gpu.double_bit_error", "ecc1", "1"),
        ("gpu.row_remap_failure", "ecc1", "1"),
        ("nvlink.errors", "nv1", "0"),
    ]
    assert found.findings[2].source == "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL"


async def test_fabric_links_and_killed_processes_are_findings(watch: MetricsWatch, job: Jobs) -> None:
    found = await told(watch, job("12", "ib1", "ib2"))
    assert kinds(found) == [
        ("fabric.link_down", "ib1", None),
        ("host.oom_kill", "ib1", None),
        ("fabric.link_down", "ib2", None),
    ]
    assert found.findings[0].fault_class is FaultClass.INTERCONNECT
    assert "mlx5_0:1" in found.findings[0].summary


async def test_links_that_fail_on_most_hosts_of_a_job_are_blamed_on_none_of_them(
    watch: MetricsWatch, job: Jobs
) -> None:
    found = (await told(watch, job("12", "switch1", "switch2", "switch3", "well1"))).findings
    assert [(one.signature, one.nodes) for one in found] == [("fabric.link_down", ())] * 3
    assert "on switch2 mlx5_0:1" in found[1].summary
    alone = await told(watch, job("12", "switch1", "well1", "well2", "well3"))
    assert kinds(alone) == [("fabric.link_down", "switch1", None)]


async def test_a_job_whose_tensor_cores_and_fabric_stopped_is_idle(watch: MetricsWatch, job: Jobs) -> None:
    found = await told(watch, job("13", "idle1", "idle2", "idle3"))
    assert found.tensor_idle is True
    assert found.fabric_idle is True
    assert found.idle_since is not None
    assert timedelta(0) < datetime.now(UTC) - found.idle_since < timedelta(seconds=600)


async def test_idleness_is_remembered_from_when_it_was_first_seen(watch: MetricsWatch, job: Jobs) -> None:
    one = job("14", "idle1", "idle2")
    first = await told(watch, one)
    assert (await told(watch, one)).idle_since == first.idle_since


async def test_a_job_that_never_used_tensor_cores_or_this_fabric_is_not_called_idle(
    watch: MetricsWatch, job: Jobs
) -> None:
    found = await told(watch, job("15", "never1", "never2"))
    assert (found.tensor_idle, found.fabric_idle, found.idle_since) == (None, None, None)


async def test_a_young_job_is_not_called_idle(watch: MetricsWatch, job: Jobs) -> None:
    assert (await told(watch, job("16", "idle1", "idle2", age_s=100))).tensor_idle is None


async def test_one_host_at_work_means_not_idle_and_missing_hosts_mean_unknown(watch: MetricsWatch, job: Jobs) -> None:
    assert (await told(watch, job("17", "idle1", "well1"))).tensor_idle is False
    found = await told(watch, job("18", "part1", "part2", "part3"))
    assert found.tensor_idle is None
    assert found.fabric_idle is None
    assert any("no host metrics of part2, part3" in line for line in found.blind)
    assert (await told(watch, job("19", "nowhere1"))).tensor_idle is None


async def test_a_job_on_one_host_needs_no_fabric(watch: MetricsWatch, job: Jobs) -> None:
    found = await told(watch, job("20", "idle1"))
    assert found.tensor_idle is True
    assert found.fabric_idle is None


async def test_the_one_host_that_does_not_wait_while_all_are_idle_is_told(watch: MetricsWatch, job: Jobs) -> None:
    assert (await told(watch, job("30", "spin1", "still1", "spin2", "spin3"))).absent_nodes == ("still1",)
    assert (await told(watch, job("31", "still1", "spin1"))).absent_nodes == ("still1",)
    assert (await told(watch, job("32", "spin1", "spin2", "spare1"))).absent_nodes == ()
    assert (await told(watch, job("33", "still1", "idle1", "idle2"))).absent_nodes == ("still1",)
    assert (await told(watch, job("34", "still1", "well1"))).absent_nodes == ()
    assert (await told(watch, job("35", "still1", "part2"))).absent_nodes == ()


async def test_a_slow_host_is_told_apart_with_the_reason(watch: MetricsWatch, job: Jobs) -> None:
    found = await told(watch, job("21", "slow1", "slow2", "slow3", "slow4", "slow5"))
    assert found.slow_nodes == ("slow4",)
    assert "slow4: SM clock 1100 MHz, the job's 1700 MHz" in found.slow_how
    assert "throttled (thermal)" in found.slow_how


async def test_of_two_hosts_none_is_called_slow(watch: MetricsWatch, job: Jobs) -> None:
    assert (await told(watch, job("22", "slow1", "slow4"))).slow_nodes == ()


async def test_a_reboot_under_the_job_is_seen_and_a_clock_that_was_set_is_none(watch: MetricsWatch, job: Jobs) -> None:
    found = await told(watch, job("23", "boot1", "boot2"))
    assert kinds(found) == [("node.rebooted", "boot1", None)]
    assert found.findings[0].role is Role.ROOT
    assert (await told(watch, job("23", "boot1", age_s=390))).findings == ()


async def test_a_host_that_no_scrape_reaches_is_told(watch: MetricsWatch, job: Jobs) -> None:
    found = await told(watch, job("24", "silent1", "well1"))
    assert kinds(found) == [("node.silent", "silent1", None)]
    assert found.findings[0].role is Role.SYMPTOM
    assert "dcgm, node" in found.findings[0].summary


async def test_hosts_are_found_by_long_names_and_by_the_name_an_address_gives_itself(
    watch: MetricsWatch, job: Jobs
) -> None:
    assert kinds(await told(watch, job("25", "name1", "name2"))) == [
        ("xid.79", "name1", "0"),
        ("xid.79", "name2", "0"),
    ]


async def test_an_address_without_a_name_is_nobodys(watch: MetricsWatch, job: Jobs) -> None:
    found = await told(watch, job("26", "name3"))
    assert found.findings == ()
    assert "no GPU metrics of name3" in found.blind


async def test_two_scrapes_of_one_exporter_make_one_finding(watch: MetricsWatch, job: Jobs) -> None:
    assert kinds(await told(watch, job("27", "twice1"))) == [("xid.79", "twice1", "0")]


async def test_exporters_that_disagree_about_an_old_xid_make_no_event(watch: MetricsWatch, job: Jobs) -> None:
    assert (await told(watch, job("28", "twice2"))).findings == ()


async def test_findings_are_the_same_at_every_look_and_differ_by_attempt(watch: MetricsWatch, job: Jobs) -> None:
    one = job("29", "xid1", "ecc1")
    first, second = await told(watch, one), await told(watch, one)
    assert [finding.id for finding in first.findings] == [finding.id for finding in second.findings]
    other = await told(watch, one.model_copy(update={"attempt": 1}))
    assert not {finding.id for finding in first.findings} & {finding.id for finding in other.findings}


async def test_all_jobs_are_answered_by_one_round(watch: MetricsWatch, job: Jobs) -> None:
    jobs = [job("30", "xid1"), job("31", "well1", "well2"), job("32", "idle1", "idle2")]
    await watch.look(jobs, fresh=True)
    found = await watch.look(jobs)
    assert kinds(found["30"]) == [("xid.79", "xid1", "1")]
    assert found["31"].tensor_idle is False
    assert found["32"].tensor_idle is True


async def test_a_watch_without_a_server_says_nothing(server: PrometheusServer, job: Jobs) -> None:
    watch = MetricsWatch(None, Catalogue.built_in())
    assert not watch.configured
    assert await watch.look([job("33", "xid1")]) == {}
    watch.close()


async def test_a_selector_keeps_other_clusters_out(server: PrometheusServer, job: Jobs) -> None:
    source = MetricsSource(
        access=PrometheusAccess(url=server.url, deadline_s=60), shape=QueryShape(selector='job="dcgm-too"')
    )
    watch = MetricsWatch(source, Catalogue.built_in())
    found = await told(watch, job("34", "xid1", "twice1"))
    assert kinds(found) == [("xid.79", "twice1", "0")]
    watch.close()
