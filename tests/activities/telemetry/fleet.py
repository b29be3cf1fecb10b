"""Hosts with a past: the samples that exporters of a cluster would have left in Prometheus. For tests of metrics.

Ages are in seconds before the scenario was made, so that it reads as "changed 300 s ago". Each one has its own host
names, so that one server can hold all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from recovery.measured import MeasuredJob
from tests.services.prometheus import Line

STEP_S = 15
SPAN_S = 2_400
AHEAD_S = 900
"""Samples go on into the future, so that tests on a slow machine do not run out of them."""

Value = float | Callable[[float], float | None]
"""A constant, or what the metric showed so many seconds ago; None: no sample."""


def since(age: float, before: float | None, after: float | None) -> Callable[[float], float | None]:
    """`before` until `age` seconds ago, `after` since then."""
    return lambda ago: before if ago > age else after


class Fleet:
    """Collects what a server shall know before it starts."""

    def __init__(self) -> None:
        self.now = float(int(time.time()))
        self.lines: list[Line] = []

    def add(self, metric: str, value: Value, labels: Mapping[str, str], *, span_s: int = SPAN_S) -> None:
        """One series, a sample every 15 s."""
        samples = []
        for ago in range(span_s, -AHEAD_S, -STEP_S):
            shown = value(ago) if callable(value) else value
            if shown is not None:
                samples.append((self.now - ago, shown))
        self.lines.append(Line(metric, dict(labels), samples))

    def gpus(
        self,
        host: str,
        count: int = 2,
        *,
        xid: Mapping[int, Value] | None = None,
        tensor: Value | None = 0.4,
        clock: Value | None = 1700,
        power: Value | None = 600,
        used: Value | None = 100,
        labels: Callable[[str], Mapping[str, str]] | None = None,
    ) -> None:
        """A host with a dcgm-exporter. `xid` by GPU; others show 0. None leaves a metric out."""
        named = (labels or dcgm)(host)
        self.add("up", lambda ago: 1, {key: named[key] for key in ("instance", "job")})
        for gpu in range(count):
            each = {**named, "gpu": str(gpu), "UUID": f"GPU-{host}-{gpu}", "device": f"nvidia{gpu}"}
            shown: dict[str, Value | None] = {
                "DCGM_FI_DEV_XID_ERRORS": (xid or {}).get(gpu, 0),
                "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": tensor,
                "DCGM_FI_DEV_SM_CLOCK": clock,
                "DCGM_FI_DEV_GPU_UTIL": used,
                "DCGM_FI_DEV_POWER_USAGE": power,
            }
            for metric, value in shown.items():
                if value is not None:
                    self.add(metric, value, each)

    def machine(
        self,
        host: str,
        *,
        traffic: Callable[[float], float] | None = lambda ago: 1e10,
        booted_ago: Callable[[float], float] = lambda ago: 86_400,
        clock_off: Callable[[float], float] = lambda ago: 0,
        oom_kills: Value = 0,
        links_down: Value = 0,
        labels: Callable[[str], Mapping[str, str]] | None = None,
    ) -> None:
        """A host with a node_exporter. `booted_ago`: how long before now it had booted, as known at that time;
        `clock_off`: how wrong its own clock was."""
        named = (labels or node)(host)
        self.add("up", lambda ago: 1, {key: named[key] for key in ("instance", "job")})
        self.add("node_time_seconds", lambda ago: self.now - ago + clock_off(ago), named)
        self.add("node_boot_time_seconds", lambda ago: self.now - booted_ago(ago) + clock_off(ago), named)
        self.add("node_vmstat_oom_kill", oom_kills, named)
        port = {**named, "device": "mlx5_0", "port": "1"}
        self.add("node_infiniband_link_downed_total", links_down, port)
        if traffic is not None:
            sums = _summed(traffic)
            self.add("node_infiniband_port_data_transmitted_bytes_total", lambda ago: sums[int(ago)], port)
            self.add("node_infiniband_port_data_received_bytes_total", lambda ago: sums[int(ago)], port)

    def job(
        self, name: str, *hosts: str, age_s: float = 1_500, attempt: int = 0, ended_ago_s: float | None = None
    ) -> MeasuredJob:
        """A job that began so long ago and runs, or ended some time ago."""
        return MeasuredJob(
            job_id=name,
            nodes=hosts,
            start_time=datetime.fromtimestamp(self.now - age_s, UTC),
            end_time=datetime.fromtimestamp(self.now - ended_ago_s, UTC) if ended_ago_s is not None else None,
            attempt=attempt,
        )


def _summed(rate: Callable[[float], float]) -> dict[int, float]:
    total, sums = 1e15, {}
    for ago in range(SPAN_S, -AHEAD_S, -STEP_S):
        total += rate(ago) * STEP_S
        sums[ago] = total
    return sums


def dcgm(host: str) -> dict[str, str]:
    """Labels of an older dcgm-exporter."""
    return {"Hostname": host, "instance": f"{host}:9400", "job": "dcgm"}


def node(host: str) -> dict[str, str]:
    return {"instance": f"{host}:9100", "job": "node"}
