"""Which metrics relight reads, what each is for, and the few fleet-wide queries that fetch them for all jobs at once.

Only text is made here. Names and habits are those of dcgm-exporter and node_exporter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from activities.telemetry.hostnames import HOST_LABELS
from recovery.records import FaultClass, Record, Retry, Role

ANSWERS = "relight"
"""The label that tells which of several joined expressions a row answers."""

DOWN_S = 120
"""A target that failed every scrape for so long is called silent."""

BUSY_PERCENT = 50
"""A GPU counts for comparison when it is in use: idle ones clock down."""

IB_ACTIVE = 4
"""Value of node_infiniband_state_id for a port that works."""


class Exporter(StrEnum):
    DCGM = "dcgm-exporter"
    NODE = "node_exporter"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric that is read. `blinds`: what cannot be seen without it."""

    name: str
    exporter: Exporter
    blinds: str
    core: bool = False
    hint: str = ""


class Kind(StrEnum):
    """How a change of the metric is to be read."""

    LAST_CODE = "last_code"  # a gauge that keeps the last code: its change tells, its level does not
    COUNT_OF_CODE = "count_of_code"  # how often a code came within the exporter's window, the code in a label
    RISE = "rise"  # a counter of something that should not happen
    PORT_STATE = "port_state"  # 4 is active


@dataclass(frozen=True, slots=True)
class Event:
    """A metric whose change is a finding."""

    metric: str
    kind: Kind
    signature: str = ""
    title: str = ""
    fault_class: FaultClass = FaultClass.HARDWARE
    role: Role = Role.ROOT
    retry: Retry = Retry.YES
    at_least: float = 1


OFF_BY_DEFAULT = "off by default: uncomment it in dcgm-exporter's counters file"
XID, XID_COUNT = "DCGM_FI_DEV_XID_ERRORS", "DCGM_EXP_XID_ERRORS_COUNT"
TENSOR, CLOCK = "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_DEV_SM_CLOCK"
USED, POWER = "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_POWER_USAGE"
SENT, RECEIVED = "node_infiniband_port_data_transmitted_bytes_total", "node_infiniband_port_data_received_bytes_total"
PORT_STATE = "node_infiniband_state_id"
BOOTED, NODE_TIME, NAMES = "node_boot_time_seconds", "node_time_seconds", "node_uname_info"
THROTTLES = (
    "DCGM_FI_DEV_THERMAL_VIOLATION",
    "DCGM_FI_DEV_POWER_VIOLATION",
    "DCGM_FI_DEV_BOARD_LIMIT_VIOLATION",
    "DCGM_FI_DEV_RELIABILITY_VIOLATION",
)

_NVLINK = ("RECOVERY", "CRC_DATA", "CRC_FLIT", "REPLAY")
_NVLINK_NAME = "DCGM_FI_DEV_NVLINK_{}_ERROR_COUNT_TOTAL"

METRICS = (
    Metric(XID, Exporter.DCGM, "GPU errors that the driver reports (Xid)", core=True),
    Metric(XID_COUNT, Exporter.DCGM, "the same Xid coming again on the same GPU", hint=OFF_BY_DEFAULT),
    Metric("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", Exporter.DCGM, "double bit memory errors of GPUs", hint=OFF_BY_DEFAULT),
    Metric("DCGM_FI_DEV_ROW_REMAP_FAILURE", Exporter.DCGM, "GPU memory that can no longer be repaired"),
    Metric("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", Exporter.DCGM, "GPU memory rows replaced after errors"),
    *(Metric(_NVLINK_NAME.format(one), Exporter.DCGM, "errors on NVLink", hint=OFF_BY_DEFAULT) for one in _NVLINK),
    Metric(TENSOR, Exporter.DCGM, "hangs seen as idle tensor cores; hosts that do less than the others", core=True),
    Metric(CLOCK, Exporter.DCGM, "hosts whose GPUs run slower than the others'", core=True),
    Metric(
        USED,
        Exporter.DCGM,
        "which GPUs are in use, so that clocks and power can be compared; which host the others of a hang wait for",
        core=True,
    ),
    Metric(POWER, Exporter.DCGM, "hosts whose GPUs draw less power than the others'"),
    *(Metric(one, Exporter.DCGM, "why GPUs run slower than the others'", hint=OFF_BY_DEFAULT) for one in THROTTLES),
    Metric(
        SENT, Exporter.NODE, "hangs seen as a silent fabric", core=True, hint="needs InfiniBand or RoCE on the nodes"
    ),
    Metric(
        RECEIVED,
        Exporter.NODE,
        "hangs seen as a silent fabric",
        core=True,
        hint="needs InfiniBand or RoCE on the nodes",
    ),
    Metric("node_infiniband_link_downed_total", Exporter.NODE, "fabric links that went down"),
    Metric(PORT_STATE, Exporter.NODE, "fabric ports that are not active"),
    Metric("node_vmstat_oom_kill", Exporter.NODE, "processes killed because the host's memory was full"),
    Metric(BOOTED, Exporter.NODE, "nodes that rebooted under a job", core=True),
    Metric(NODE_TIME, Exporter.NODE, "nodes that rebooted under a job, whatever their clocks say"),
    Metric(NAMES, Exporter.NODE, "the names of hosts that are scraped by address"),
)

EVENTS = (
    Event(XID, Kind.LAST_CODE),
    Event(XID_COUNT, Kind.COUNT_OF_CODE),
    Event(
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL",
        Kind.RISE,
        signature="gpu.double_bit_error",
        title="Double bit memory error of the GPU",
    ),
    Event(
        "DCGM_FI_DEV_ROW_REMAP_FAILURE",
        Kind.RISE,
        signature="gpu.row_remap_failure",
        title="GPU memory can no longer be repaired",
    ),
    Event(
        "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
        Kind.RISE,
        signature="gpu.rows_remapped",
        title="GPU memory rows were replaced after uncorrectable errors",
        role=Role.SYMPTOM,
    ),
    *(
        Event(
            _NVLINK_NAME.format(one),
            Kind.RISE,
            signature="nvlink.errors",
            title="Errors on NVLink",
            fault_class=FaultClass.INTERCONNECT,
            role=Role.SYMPTOM,
            # Single CRC errors and replays are everyday corrections.
            at_least=1 if one == "RECOVERY" else 100,
        )
        for one in _NVLINK
    ),
    Event(
        "node_infiniband_link_downed_total",
        Kind.RISE,
        signature="fabric.link_down",
        title="A fabric link went down",
        fault_class=FaultClass.INTERCONNECT,
    ),
    Event(
        PORT_STATE,
        Kind.PORT_STATE,
        signature="fabric.link_down",
        title="A fabric link went down",
        fault_class=FaultClass.INTERCONNECT,
    ),
    Event(
        "node_vmstat_oom_kill",
        Kind.RISE,
        signature="host.oom_kill",
        title="The kernel killed a process because the host's memory was full",
        fault_class=FaultClass.OUT_OF_MEMORY,
        role=Role.SYMPTOM,
        retry=Retry.ONCE,
    ),
)

SOURCE_LABELS = ("job", "instance", "gpu", "UUID", "uuid", "GPU_I_ID", "nvlink", "nvswitch", "device", "port")
"""With the host labels, what tells one thing that is measured from another. Others (err_code, hpc_job, pod) come and go
while it stays the same GPU."""


class Level(StrEnum):
    """What is compared, per host."""

    TENSOR_MOST = "tensor_most"  # highest tensor-core activity of any GPU in the window (0..1)
    TENSOR = "tensor"  # mean tensor-core activity of all GPUs
    CLOCK = "clock"  # mean clock of the slowest GPU in use (MHz)
    POWER = "power"  # mean power of the GPUs in use (W)
    USED = "used"  # mean use of the least used of the GPUs that worked before (percent)
    THROTTLED = "throttled"  # throttled time per second, of the worst GPU (the exporter's unit)
    GPUS = "gpus"  # number of GPUs seen now
    TRAFFIC = "traffic"  # bytes per second on the fabric, both ways
    BOOTED = "booted"  # when it booted, by the server's clock (seconds since 1970)


class QueryShape(Record):
    """What the site can say about its queries."""

    selector: str = ""
    """Matchers put into every query, such as `cluster="prod"`."""
    host_labels: tuple[str, ...] = HOST_LABELS
    idle_s: int = 180
    lookback_s: int = 1_800


class Queries:
    """The texts, for one shape."""

    def __init__(self, shape: QueryShape) -> None:
        self.shape = shape
        self._by = ", ".join(shape.host_labels)

    def _pick(self, metric: str, *more: str) -> str:
        matchers = ", ".join(part for part in (self.shape.selector, *more) if part)
        return f"{metric}{{{matchers}}}"

    def events(self) -> str:
        """Series whose value changed within the lookback, with the metric's name in the label `relight`."""
        return _joined((event.metric, self._changed(event)) for event in EVENTS)

    def _changed(self, event: Event) -> str:
        metric, span = self._pick(event.metric), f"[{self.shape.lookback_s}s]"
        if event.kind is Kind.RISE:
            return f"max_over_time({metric}{span}) - min_over_time({metric}{span}) >= {event.at_least:g}"
        if event.kind is Kind.PORT_STATE:
            return f"min_over_time({metric}{span}) < {IB_ACTIVE} and max_over_time({metric}{span}) == {IB_ACTIVE}"
        if event.kind is Kind.COUNT_OF_CODE:
            return f"max_over_time({metric}{span}) > 0"  # it falls back to 0 by itself
        # Exporters that put the code into a label begin a new series with it; some have none before the first Xid.
        fresh = f"max_over_time({metric}{span}) > 0 unless {metric} offset {self.shape.lookback_s}s"
        return f"(changes({metric}{span}) > 0) or ({fresh})"

    def samples(self, metrics: Iterable[str], label: str, values: Iterable[str]) -> str:
        """All samples of these metrics of some sources (`label` is one of theirs) within the lookback."""
        wanted = self._pick("", _one_of("__name__", {*metrics, CLOCK}), _one_of(label, values))
        return f"{wanted}[{self.shape.lookback_s}s]"

    def gpu_levels(self) -> str:
        span = f"[{self.shape.idle_s}s]"
        tensor = self._pick(TENSOR)
        in_use = f"(avg_over_time({self._pick(USED)}{span}) > {BUSY_PERCENT} or avg_over_time({tensor}{span}) > 0.01)"
        worked = f"max_over_time({tensor}[{self.shape.lookback_s}s]) > 0.01"
        throttled = " or ".join(self._labelled(f"rate({self._pick(one)}{span})", "why", one) for one in THROTTLES)
        return _joined(
            (
                (Level.TENSOR_MOST, self._covering(f"max_over_time({tensor}{span})", tensor)),
                (Level.TENSOR, f"avg by ({self._by}) (avg_over_time({tensor}{span}))"),
                (
                    Level.CLOCK,
                    f"min by ({self._by}) ({self._used(f'avg_over_time({self._pick(CLOCK)}{span})', in_use)})",
                ),
                (
                    Level.POWER,
                    f"avg by ({self._by}) ({self._used(f'avg_over_time({self._pick(POWER)}{span})', in_use)})",
                ),
                (
                    Level.USED,
                    f"min by ({self._by}) ({self._used(f'avg_over_time({self._pick(USED)}{span})', worked)})",
                ),
                (Level.THROTTLED, f"max by ({self._by}, why) ({throttled})"),
                (Level.GPUS, f"count by ({self._by}) ({self._pick(CLOCK)})"),
            )
        )

    def _used(self, what: str, in_use: str) -> str:
        return f"{what} and on ({self._by}, gpu, GPU_I_ID) {in_use}"

    def _labelled(self, expression: str, label: str, value: str) -> str:
        return f'label_replace({expression}, "{label}", "{value}", "", "")'

    def _covering(self, what: str, metric: str, how: str = "max") -> str:
        """Per host, and only where there are samples in both halves of the window: a gap proves nothing."""
        half = max(1, self.shape.idle_s // 2)
        early, late = f"present_over_time({metric}[{half}s] offset {half}s)", f"present_over_time({metric}[{half}s])"
        return f"{how} by ({self._by}) ({what}) and max by ({self._by}) ({early}) and max by ({self._by}) ({late})"

    def node_levels(self) -> str:
        span = f"[{self.shape.idle_s}s]"
        sent, received = self._pick(SENT), self._pick(RECEIVED)
        booted = self._pick(BOOTED)
        # Uptime by the node's own clock, taken off the moment of the scrape: a clock that is set does not look like a
        # reboot.
        up_since = f"timestamp({booted}) - ({self._pick(NODE_TIME)} - {booted})"
        return _joined(
            (
                (Level.TRAFFIC, self._covering(f"rate({sent}{span}) + rate({received}{span})", sent, "sum")),
                (Level.BOOTED, f"max by ({self._by}) ({up_since})"),
            )
        )

    def down(self) -> str:
        """Targets that failed every scrape lately."""
        up, by = self._pick("up"), f"max by ({self._by}, job)"
        return (
            f"{by} (max_over_time({up}[{DOWN_S}s])) == 0 and {by} ({up}) == 0"
            f" and {by} (present_over_time({up}[{DOWN_S // 2}s] offset {DOWN_S // 2}s))"
        )

    def names(self) -> str:
        return f"max by (instance, nodename) ({self._pick(NAMES)})"

    def inventory(self) -> str:
        """Number of series of each metric."""
        return f"count by (__name__) ({self._pick('', _one_of('__name__', (metric.name for metric in METRICS)))})"

    def labels_of(self, metric: str) -> str:
        """One row for each set of host labels that the metric's series carry."""
        return f"count by ({self._by}) ({self._pick(metric)})"

    def worked(self, level: Level, label: str, values: Iterable[str], span_s: int) -> str:
        """What some hosts did over a longer time: their highest tensor-core activity, or their mean traffic."""
        some, span = _one_of(label, values), f"[{span_s}s]"
        if level is Level.TRAFFIC:
            return (
                f"sum by ({self._by}) (rate({self._pick(SENT, some)}{span}) + rate({self._pick(RECEIVED, some)}{span}))"
            )
        return f"max by ({self._by}) (max_over_time({self._pick(TENSOR, some)}{span}))"


def _one_of(label: str, values: Iterable[str]) -> str:
    """A matcher for any of the values."""
    some = "|".join(re.escape(value) for value in sorted(set(values)))
    return f'{label}=~"' + some.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _joined(parts: Iterable[tuple[str, str]]) -> str:
    """Several expressions as one query; a label tells whose a row is."""
    return " or ".join(f'label_replace({text}, "{ANSWERS}", "{name}", "", "")' for name, text in parts)
