"""The diagnosis of whole logs, offline: what broke first, who is suspected and how that was derived, what was ignored.

What a job prints is testimony: it decides about this job only. No I/O here; text comes in (`log_reader.py` reads it).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta, timezone, tzinfo

from pydantic import Field

from recovery.blame import attribute
from recovery.context import Weighed
from recovery.faults.catalogue import Catalogue, Says
from recovery.faults.moments import dated
from recovery.faults.places import in_slurms_order
from recovery.faults.scanner import BRIEF, Hit, Scanner
from recovery.log_reader import LogReader, examine_log, log_scanner
from recovery.progress import Dialect
from recovery.records import (
    Confidence,
    FaultClass,
    Finding,
    JobState,
    JobView,
    Nodes,
    Record,
    Retry,
    Role,
    Time,
    Verdict,
)
from recovery.stopped import ZONES_S, stopped

__all__ = ["Diagnosed", "Diagnosis", "Ignored", "LogReader", "diagnose", "diagnose_files", "examine_log", "log_scanner"]

IGNORED = 40
"""Most ignored lines that are told; lines of one signature with the same reason are told once."""

MOST_HOSTS = 4_096
"""Most hosts that a log is believed to have run on, where nobody tells the allocation."""

START_SLACK = timedelta(minutes=30)
"""Longest from the start of a job to the first line of its log that tells a time, to find out whose clock it was."""


class Diagnosed(Record):
    """A node under suspicion, for people."""

    host: str
    rank: int | None = None
    gpu: str | None = None
    how: str
    confidence: Confidence


class Ignored(Record):
    """A line that looks like trouble and does not count."""

    signature: str
    line: int
    source: str = ""
    text: str
    why: str
    lines: int = Field(default=1, description="so many such lines")


class Diagnosis(Record):
    """What a log tells. `exclude` are the suspects that are sure enough to be left out of the next attempt."""

    fault: bool
    fault_class: FaultClass
    signature: str = ""
    retry: Retry
    suspects: tuple[Diagnosed, ...] = ()
    exclude: Nodes = ()
    reason: str
    first_cause: Finding | None = None
    findings: tuple[Finding, ...] = ()
    ignored: tuple[Ignored, ...] = ()
    first_step: int | None = None
    last_step: int | None = None
    total_steps: int | None = None
    last_checkpoint: int | None = None
    lines: int = 0
    bytes_read: int = 0
    hosts: Nodes = Field(default=(), description="the allocation, or the hosts the log itself names")
    catalogue_hash: str = ""
    at: Time


def diagnose(
    chunks: Iterable[bytes],
    catalogue: Catalogue,
    *,
    allocation: Nodes | None,
    now: datetime,
    own: Dialect | None = None,
    source: str = "",
    scanner: Scanner | None = None,
) -> Diagnosis:
    """What a log alone tells while it may still be written. See `diagnose_files`."""
    return diagnose_files([(source, chunks)], catalogue, allocation=allocation, now=now, own=own, scanner=scanner)


def diagnose_files(
    files: Iterable[tuple[str, Iterable[bytes]]],
    catalogue: Catalogue,
    *,
    allocation: Nodes | None,
    now: datetime,
    own: Dialect | None = None,
    complete: bool = False,
    written: datetime | None = None,
    started: datetime | None = None,
    zone: tzinfo = UTC,
    scanner: Scanner | None = None,
) -> Diagnosis:
    """What the log of one attempt tells, in one or several files (name and text of each).

    Without an allocation, the hosts that the log names stand for it. `complete`: the text is all there is now, so that
    a log which just stops is told; `written` is when the files were last written to, `started` when the job was, as far
    as known. `zone` is the clock of times in the log that tell none, unless `started` shows another one.
    """
    view = JobView(
        cluster="",
        job_id="0",
        raw_id=0,
        state=JobState.UNKNOWN,
        nodes=allocation or (),
        batch_host=in_slurms_order(allocation)[0] if allocation else "",
        looked_at=now,
    )
    _, reader = examine_log(files, catalogue, view, now, own=own, scanner=scanner)
    if allocation is None:
        view = view.model_copy(update={"nodes": _hosts(reader.hits)})
    first_at = reader.first_at()
    if started is not None and first_at is not None:
        zone = _zone_of(first_at, started, zone, now)
    evidence = reader.evidence(0, view, now, zone=zone)
    findings = evidence.findings
    if complete and not any(one.counts for one in evidence.weighed):
        end = reader.end(zone=zone, now=now)
        quiet = stopped(end, written=written, started=started, zone=zone, now=now)
        findings = (*findings, quiet) if quiet is not None else findings
    verdict = attribute(view, findings)
    first = next((one for one in findings if one.id == verdict.first_cause), None)
    progress = reader.progress
    return Diagnosis(
        fault=is_fault(verdict),
        fault_class=verdict.fault_class,
        signature=verdict.signature,
        retry=verdict.retry,
        suspects=tuple(_diagnosed(verdict, findings)),
        exclude=tuple(one.node for one in verdict.suspects if one.confidence is not Confidence.LOW),
        reason=verdict.reason,
        first_cause=first,
        findings=findings,
        ignored=tuple(_ignored(evidence.weighed)),
        first_step=progress.first.step if progress.first else None,
        last_step=progress.highest,
        total_steps=progress.total,
        last_checkpoint=progress.checkpoint,
        lines=reader.lines,
        bytes_read=reader.bytes_read,
        hosts=view.nodes,
        catalogue_hash=catalogue.hash,
        at=now,
    )


def _zone_of(first_at: datetime, started: datetime, zone: tzinfo, now: datetime) -> tzinfo:
    """The clock by which the first line was written a little after the job started."""
    if first_at.tzinfo is not None:
        return zone
    apart = (dated(first_at, zone=UTC, now=now + timedelta(days=1)) - started).total_seconds()
    fitting = [shift for one in ZONES_S for shift in (one, -one) if -60 <= apart - shift <= START_SLACK.total_seconds()]
    return timezone(timedelta(seconds=min(fitting, key=lambda shift: abs(apart - shift)))) if fitting else zone


def _ignored(weighed: Sequence[Weighed]) -> Iterable[Ignored]:
    """Lines that do not count, each kind once, with the reason."""
    first: dict[tuple[str, str], Weighed] = {}
    lines: Counter[tuple[str, str]] = Counter()
    for one in weighed:
        if not one.counts:
            key = (one.hit.signature.id, one.why_not)
            first.setdefault(key, one)
            lines[key] += 1
    for (signature, why), one in list(first.items())[:IGNORED]:
        hit = one.hit
        yield Ignored(
            signature=signature,
            line=hit.line,
            source=hit.source,
            text=hit.text[:BRIEF],
            why=why,
            lines=lines[signature, why],
        )


def is_fault(verdict: Verdict) -> bool:
    """True when something broke; a finished, cancelled or preempted job is no fault."""
    return verdict.fault_class is not FaultClass.NONE


def _hosts(hits: Sequence[Hit]) -> Nodes:
    """The hosts on which a log says that it ran, and those it could not reach by their names."""
    names = {hit.fields["node"] for hit in hits if "node" in hit.fields}
    peers = {hit.fields["peer"] for hit in hits if hit.signature.node is Says.PEER and "peer" in hit.fields}
    return tuple(sorted(names | {peer for peer in peers if peer[:1].isalpha() and peer != "localhost"})[:MOST_HOSTS])


def _diagnosed(verdict: Verdict, findings: Sequence[Finding]) -> Iterable[Diagnosed]:
    for suspect in verdict.suspects:
        about = next((one for one in findings if suspect.node in one.nodes and one.role is Role.ROOT), None)
        yield Diagnosed(
            host=suspect.node,
            rank=about.rank if about else None,
            gpu=about.gpu if about else None,
            how=suspect.how,
            confidence=suspect.confidence,
        )
