"""`relight doctor telemetry`: what exists, what is missing, what that blinds, by a real Prometheus."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from activities.telemetry.metric_queries import METRICS, Exporter
from tests.activities.telemetry.fleet import Fleet
from tests.services.loki_double import LokiDouble
from tests.services.prometheus import PrometheusServer
from tests.workers.conftest import Relight

Write = Callable[[str], Path]


def _everything(fleet: Fleet, host: str, cluster: str) -> None:
    """A host of a cluster with every metric that relight reads."""
    for metric in METRICS:
        port = 9400 if metric.exporter is Exporter.DCGM else 9100
        labels = {"instance": f"{host}:{port}", "job": metric.exporter.value, "cluster": cluster}
        if metric.exporter is Exporter.DCGM:
            labels |= {"Hostname": host, "gpu": "0"}
        if metric.name == "node_uname_info":
            labels["nodename"] = host
        fleet.add(metric.name, 1, labels, span_s=300)


def _past() -> Fleet:
    fleet = Fleet()
    for host in ("n01", "n02"):
        _everything(fleet, host, "full")
    # A cluster whose dcgm-exporter has its default metrics only, no node_exporter, and addresses for names.
    bare = {"instance": "10.0.0.5:9400", "job": "dcgm", "gpu": "0", "cluster": "bare"}
    for name in ("DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_GPU_UTIL"):
        fleet.add(name, 0, bare, span_s=300)
    fleet.add("up", 0, {"instance": "10.0.0.6:9400", "job": "dcgm", "cluster": "bare"}, span_s=300)
    return fleet


@pytest.fixture(scope="module")
def server() -> Iterator[PrometheusServer]:
    with PrometheusServer(past=_past().lines) as started:
        yield started


@pytest.fixture
def config(tmp_path: Path) -> Write:
    def write(prometheus: str) -> Path:
        path = tmp_path / "relight.yaml"
        path.write_text(
            f"database: {{url: 'sqlite:///{tmp_path}/audit.db'}}\nclusters: {{full: {{}}, bare: {{}}}}\n{prometheus}"
        )
        return path

    return write


@pytest.fixture
def both(config: Write, server: PrometheusServer) -> str:
    """A configuration in which one server holds both clusters."""
    text = f"telemetry: {{prometheus: {{url: '{server.url}', deadline_s: 60, selector: 'cluster=\"{{cluster}}\"'}}}}\n"
    return str(config(text))


def test_a_cluster_with_everything_is_fine(relight: Relight, both: str) -> None:
    done = relight("doctor", "telemetry", "--config", both, "--cluster", "full", "--nodes", "n[01-02]")
    assert done.code == 0, done.out + done.err
    assert "all that relight needs is there" in done.out
    assert "missing" not in done.out
    assert "dcgm-exporter: 2 of 2 given nodes have metrics" in done.out
    assert "node_exporter: 2 of 2 given nodes have metrics" in done.out
    for metric in METRICS:
        assert metric.name in done.out
    assert any(line.split()[:3] == ["dcgm-exporter", "Hostname", "2"] for line in done.out.splitlines())


def test_what_is_missing_is_told_once_with_what_it_blinds(relight: Relight, both: str) -> None:
    done = relight("doctor", "telemetry", "--config", both, "--cluster", "bare")
    assert done.code == 1
    problems = [line for line in done.out.splitlines() if line.startswith("problem: ")]
    notes = [line for line in done.out.splitlines() if line.startswith("note: ")]
    (gone,) = (line for line in problems if "node_exporter" in line and "none of its" in line)
    assert "nodes that rebooted under a job" in gone
    (tensor,) = (line for line in problems if "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE" in line)
    assert "hangs seen as idle tensor cores" in tensor
    assert any("known by address only, as 10.0.0.5:9400" in line for line in problems)
    (again,) = (line for line in notes if "DCGM_EXP_XID_ERRORS_COUNT" in line)
    assert "off by default" in again
    assert any("1 targets do not answer: 10.0.0.6:9400 (dcgm)" in line for line in notes)
    lines = problems + notes
    assert len(lines) == len(set(lines))
    assert not any("node_vmstat_oom_kill is missing" in line for line in lines)  # told with its exporter


def test_nodes_without_metrics_are_named(relight: Relight, both: str) -> None:
    done = relight("doctor", "telemetry", "--config", both, "--cluster", "full", "--nodes", "n[01-04]")
    assert done.code == 1
    assert "problem: dcgm-exporter: no series of n03, n04 (of 4 nodes)" in done.out


def test_json_has_all_of_it_by_cluster(relight: Relight, both: str) -> None:
    done = relight("doctor", "telemetry", "--config", both, "--json")
    assert done.code == 1
    assert done.json["ok"] is False
    full, bare = done.json["clusters"]["full"], done.json["clusters"]["bare"]
    assert (full["ok"], bare["ok"]) == (True, False)
    assert {one["name"] for one in full["metrics"]} == {metric.name for metric in METRICS}
    assert {one["label"]: one["hosts"] for one in full["labels"] if one["exporter"] == "dcgm-exporter"} == {
        "Hostname": 2,
        "instance": 2,
    }
    assert bare["labels"][0]["addresses"] == 1
    assert abs(full["clock_ahead_s"]) < 45


def test_a_server_that_is_away_is_told(relight: Relight, config: Write) -> None:
    path = config("telemetry: {prometheus: {url: 'http://127.0.0.1:9'}}\n")
    done = relight("doctor", "telemetry", "--config", str(path))
    assert done.code == 1
    assert "http://127.0.0.1:9: cannot be reached: [Errno 111] Connection refused" in done.out
    assert len(done.out.splitlines()) == 3
    assert relight("doctor", "telemetry", "--config", str(path), "--json").json["ok"] is False


def test_without_a_server_it_is_told_what_that_blinds(relight: Relight, config: Write) -> None:
    done = relight("doctor", "telemetry", "--config", str(config("")))
    assert done.code == 1
    assert "telemetry.prometheus is not configured" in done.err
    assert "hang" in done.err


def test_unknown_clusters_and_bad_host_lists_are_refused(relight: Relight, both: str) -> None:
    assert relight("doctor", "telemetry", "--config", both, "--cluster", "other").code == 2
    assert relight("doctor", "telemetry", "--config", both, "--nodes", "n[1-").code == 2


def test_a_log_store_is_tried_and_what_its_lines_say_is_told(relight: Relight, config: Write) -> None:
    with LokiDouble() as loki:
        path = str(config(f"telemetry: {{logs: {{kind: loki, url: '{loki.url}'}}}}\n"))
        empty = relight("doctor", "telemetry", "--config", path)
        assert empty.code == 1
        assert "problem: no line of the last 15 minutes has slurm_job_id (telemetry.logs.job_field)" in empty.out
        loki.push({"slurm_job_id": "12345", "hostname": "n07"}, time.time_ns(), "hello")
        done = relight("doctor", "telemetry", "--config", path)
        assert f"job logs: only loki at {loki.url} (telemetry.logs.prefer: store)" in done.out
        assert "1 lines of 1 jobs from 1 nodes" in done.out
        assert "a line is read as: job 12345, node n07, stream n07" in done.out
        assert "problem" not in done.out
        assert "telemetry.prometheus is not configured" in done.err
        told = relight("doctor", "telemetry", "--config", path, "--json").json["logs"]
        assert {name: one["ok"] for name, one in told.items()} == {"bare": True}
        loki.push({"slurm_job_id": "train-7b"}, time.time_ns(), "hello")
        strange = relight("doctor", "telemetry", "--config", path)
        assert "problem: slurm_job_id is 'train-7b' in some lines, expected a job's number" in strange.out


def test_a_log_store_that_is_away_is_told(relight: Relight, config: Write) -> None:
    path = config("telemetry: {logs: {kind: victorialogs, url: 'http://127.0.0.1:9', prefer: files}}\n")
    done = relight("doctor", "telemetry", "--config", str(path))
    assert done.code == 1
    assert "job logs: files where relight can read them, else victorialogs at http://127.0.0.1:9" in done.out
    assert "cluster bare: victorialogs cannot be reached" in done.out
