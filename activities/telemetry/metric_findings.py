"""Turns what changed in the metrics into findings about one job: its hosts, its time, each fact once. Pure.

What changed before the attempt began is not its fault and is left out. Where nobody can know on which side of the
beginning it was, because samples are missing, that is said and nobody is blamed.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import Enum, auto

from activities.telemetry.metric_changes import Change
from activities.telemetry.metric_queries import Kind
from recovery.faults.catalogue import Catalogue, Signature
from recovery.measured import MeasuredJob
from recovery.records import EVIDENCE_BYTES, Certainty, FaultClass, Finding, Retry, Role

MAX_FINDINGS = 40
LAG_S = 30.0
"""dcgm-exporter collects every 30 s by default, so that what a scrape shows may be that much older."""

UNSURE_S = 180.0
"""Longest gap around the beginning of an attempt that is still told as a (weak) finding."""

FATAL_OR_NOT = range(144, 151)
"""NVLink 5 events, most of which repair themselves: the log line says which, the metric has the number alone."""

MANY_HOSTS = 3
"""From so many hosts on, trouble of links that most hosts of a job share is that of a switch."""

AFTER_END_S = 120.0
"""What killed a job may be scraped a little after its end."""


class XidTable:
    """What an Xid means, from the fault catalogue, so that log and metrics say the same."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._signature = next((one for one in catalogue.signatures if one.id == "xid"), None)
        self._known: dict[int, Signature] = {}

    def __getitem__(self, code: int) -> tuple[str, str, FaultClass, Role, Retry]:
        """Signature id, title, class, role, retry."""
        if self._signature is None:
            return f"xid.{code}", "The GPU driver reported an error", FaultClass.HARDWARE, Role.SYMPTOM, Retry.YES
        found = self._known.get(code) or self._known.setdefault(code, self._signature.variant(str(code)))
        if code in FATAL_OR_NOT:
            return found.id, "NVLink event", found.fault_class, Role.SYMPTOM, found.retry
        return found.id, found.title, found.fault_class, found.role, found.retry


def findings_of(
    job: MeasuredJob, changes: Mapping[str, Sequence[Change]], xids: XidTable, *, skew_s: float, seen_at: datetime
) -> tuple[tuple[Finding, ...], tuple[str, ...]]:
    """Findings, earliest first, and what cannot be told. `changes` are by node; `skew_s` is how far the server's clock
    is ahead."""
    start = job.start_time.timestamp() + skew_s if job.start_time is not None else None
    end = job.end_time.timestamp() + skew_s if job.end_time is not None else None
    facts: defaultdict[tuple[str, str, str], list[tuple[Change, bool]]] = defaultdict(list)
    doubts: list[str] = []
    for node in job.nodes:
        for change in changes.get(node, ()):
            if (end is not None and change.at > end + AFTER_END_S) or _is_anothers(change, job):
                continue
            side = _side(change, start)
            if side is _Side.BEFORE:
                continue
            if side is _Side.UNKNOWN:
                doubts.append(
                    f"{change.event.metric} of {node} changed before {_moment(change.at - skew_s):%H:%M:%SZ}; "
                    "whether that was before the job began cannot be told, for lack of samples"
                )
                continue
            name = xids[change.code][0] if change.code is not None else change.event.signature
            facts[node, name, _gpu(change) or _port(change)].append((change, side is _Side.AROUND))
    found = [
        made
        for (node, name, _), seen in facts.items()
        if (made := _finding(job, node, name, seen, xids, skew_s, seen_at)) is not None
    ]
    found = _without_those_of_the_fabric(found, len(job.nodes))
    found.sort(key=lambda finding: (finding.at or seen_at, finding.nodes, finding.signature))
    return tuple(found[:MAX_FINDINGS]), tuple(dict.fromkeys(doubts))


def _without_those_of_the_fabric(found: list[Finding], nodes: int) -> list[Finding]:
    """Names no node where the same link trouble was seen on most of the job's hosts: it is not theirs."""
    hosts: defaultdict[str, set[str]] = defaultdict(set)
    for one in found:
        if one.fault_class is FaultClass.INTERCONNECT:
            hosts[one.signature].update(one.nodes)
    wide = {name for name, where in hosts.items() if len(where) >= MANY_HOSTS and 2 * len(where) > nodes}
    how = "seen on most of the job's hosts, so it is the fabric and no host of its own"
    return [one.model_copy(update={"nodes": (), "how": how}) if one.signature in wide else one for one in found]


class _Side(Enum):
    """Where a change lies, as seen from the beginning of the attempt."""

    BEFORE = auto()
    AROUND = auto()
    WITHIN = auto()
    UNKNOWN = auto()


def _side(change: Change, start: float | None) -> _Side:
    lag = LAG_S if change.event.metric.startswith("DCGM") else 0.0
    if start is None or change.since - lag >= start:
        return _Side.WITHIN
    if change.at < start:
        return _Side.BEFORE
    return _Side.AROUND if change.at - change.since <= UNSURE_S else _Side.UNKNOWN


def _is_anothers(change: Change, job: MeasuredJob) -> bool:
    """Whether the GPU belonged to another job of the same host, as far as the exporter tells."""
    number = str(job.raw_id) if job.raw_id is not None else job.job_id
    return bool(change.jobs) and number.isdecimal() and number not in change.jobs


def _finding(
    job: MeasuredJob,
    node: str,
    name: str,
    seen: Sequence[tuple[Change, bool]],
    xids: XidTable,
    skew_s: float,
    seen_at: datetime,
) -> Finding | None:
    first, around = seen[0]
    event = first.event
    if event.kind is Kind.RISE and sum(change.rise for change, _ in seen if change.event == event) < event.at_least:
        return None
    if first.code is not None:
        _, title, fault_class, role, retry = xids[first.code]
        title = f"{title} (Xid {first.code})"
    else:
        title, fault_class, role, retry = event.title, event.fault_class, event.role, event.retry
    if around and role is Role.ROOT:
        role = Role.SYMPTOM  # it may have been the job before
    place = _gpu(first) or _port(first)
    unit = f" gpu {place}" if _gpu(first) else f" {place}" if place else ""
    more = f", {len(seen)} times until {_moment(seen[-1][0].at - skew_s):%H:%M:%SZ}" if len(seen) > 1 else ""
    doubt = "; the job began at about that time" if around else ""
    return Finding(
        id=_id(job, name, node, place),
        attempt=job.attempt,
        detector="metrics",
        signature=name,
        fault_class=fault_class,
        role=role,
        retry=retry,
        certainty=Certainty.SUSPECTED if around else Certainty.CONFIRMED,
        at=_moment(first.at - skew_s),
        seen_at=seen_at,
        nodes=(node,),
        gpu=_gpu(first) or None,
        how="the metric is that host's",
        trusted=True,
        summary=f"{title} on {node}{unit}{doubt}",
        evidence=_evidence(seen, node, more, skew_s),
        source=event.metric,
    )


def _evidence(seen: Sequence[tuple[Change, bool]], node: str, more: str, skew_s: float) -> str:
    first = seen[0][0]
    since, at = _moment(first.since - skew_s), _moment(first.at - skew_s)
    labels = ", ".join(f"{label}={value}" for label, value in sorted(first.labels.items()) if label in _TOLD)
    text = (
        f"{first.event.metric} of {node} went from {first.old:g} to {first.new:g} between "
        f"{since:%Y-%m-%d %H:%M:%SZ} and {at:%H:%M:%SZ}{more} ({labels})"
    )
    return text[:EVIDENCE_BYTES]


_TOLD = {"instance", "job", "gpu", "UUID", "pci_bus_id", "device", "port", "nvlink", "xid", "err_code", "err_msg"}


def _gpu(change: Change) -> str:
    return change.labels.get("gpu", "")[:40]


def _port(change: Change) -> str:
    device, port = change.labels.get("device", ""), change.labels.get("port", "")
    return f"{device}:{port}"[:80] if device and port else device[:80]


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def of_node(
    job: MeasuredJob,
    node: str,
    signature: str,
    summary: str,
    seen_at: datetime,
    *,
    at: datetime | None = None,
    role: Role = Role.ROOT,
    source: str = "",
) -> Finding:
    """A finding about a whole host of the job."""
    return Finding(
        id=_id(job, signature, node, ""),
        attempt=job.attempt,
        detector="metrics",
        signature=signature,
        fault_class=FaultClass.HARDWARE,
        role=role,
        certainty=Certainty.CONFIRMED if role is Role.ROOT else Certainty.SUSPECTED,
        at=at,
        seen_at=seen_at,
        nodes=(node,),
        how="the metric is that host's",
        trusted=True,
        summary=summary,
        evidence=summary,
        source=source,
    )


def _id(job: MeasuredJob, signature: str, node: str, place: str) -> str:
    """One per attempt, kind, host and GPU or port, however often it is seen and however often it happens."""
    key = "\0".join((job.job_id, str(job.attempt), str(job.start_time), signature, node, place))
    return f"metrics-{hashlib.sha256(key.encode()).hexdigest()[:20]}"
