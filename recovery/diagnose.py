"""Reads whole logs: what was found in them, how far the training came, and the diagnosis of that.

The same for the live path (`examine_log`) and for `relight diagnose` on a file (`diagnose`). What a job prints is
testimony: it decides about this job only. No I/O here; text comes in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime

from pydantic import Field

from recovery.blame import attribute
from recovery.evidence import findings_of_attempt
from recovery.faults.blocks import Block, BlockCutter
from recovery.faults.catalogue import Catalogue
from recovery.faults.scanner import Hit, Scanner
from recovery.progress import CHECKPOINT_MARK, Dialect, ProgressReader
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

FILE_SPAN = 1 << 44
"""Files of one attempt are told apart by where their offsets begin: each has this much room (16 TiB)."""


class Diagnosed(Record):
    """A node under suspicion, for people."""

    host: str
    rank: int | None = None
    gpu: str | None = None
    how: str
    confidence: Confidence


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
    first_step: int | None = None
    last_step: int | None = None
    total_steps: int | None = None
    last_checkpoint: int | None = None
    lines: int = 0
    bytes_read: int = 0
    hosts: Nodes = Field(default=(), description="the allocation, or the hosts the log itself names")
    catalogue_hash: str = ""
    at: Time


class LogReader:
    """Reads the log of one attempt piece by piece: hits and progress. For one thread.

    An attempt may write several files (stdout, stderr): `next_file` begins another one. Within a file, order is time;
    a later file counts as if it came after, so read the one with the progress lines first.
    """

    def __init__(self, catalogue: Catalogue, *, own: Dialect | None = None, scanner: Scanner | None = None) -> None:
        """`scanner` may be one that `log_scanner` made for this thread: making one takes milliseconds."""
        self._scanner = scanner if scanner is not None else log_scanner(catalogue)
        self._scanner.reset()
        self._cutter = BlockCutter()
        self._base = 0
        self.hits: list[Hit] = []
        self.progress = ProgressReader(own=own)
        self.lines = 0
        self.bytes_read = 0

    def next_file(self, source: str, *, offset: int = 0, line: int = 1) -> None:
        """Ends the current file; what is fed from here on comes from `source`, from that offset and line on."""
        if self.bytes_read:
            self.finish()
            self._base += FILE_SPAN
        self._scanner.source = source
        self._cutter = BlockCutter(offset=self._base + offset, line=line)

    def feed(self, data: bytes) -> None:
        self.bytes_read += len(data)
        for block in self._cutter.feed(data):
            self._read(block)

    def finish(self) -> None:
        """Takes in the last line, though it may have no end."""
        for block in self._cutter.finish():
            self._read(block)
            self.lines += 1

    @property
    def seen(self) -> Counter[str]:
        """Matching lines by signature id."""
        return self._scanner.seen

    def findings(self, attempt: int, view: JobView, seen_at: datetime) -> tuple[Finding, ...]:
        return findings_of_attempt(self.hits, attempt, view, seen_at, marks=self.progress.marks)

    def _read(self, block: Block) -> None:
        hits, marks = self._scanner.scan(block)
        self.hits += hits
        self.progress.read(block, every=bool(hits), checkpoints=bool(marks))
        self.lines += block.lines


def log_scanner(catalogue: Catalogue) -> Scanner:
    """A scanner fit for LogReader; one a thread."""
    return Scanner(catalogue, marks=(CHECKPOINT_MARK,))


def examine_log(
    files: Iterable[tuple[str, Iterable[bytes]]],
    catalogue: Catalogue,
    view: JobView,
    seen_at: datetime,
    *,
    attempt: int | None = None,
    own: Dialect | None = None,
    scanner: Scanner | None = None,
) -> tuple[tuple[Finding, ...], LogReader]:
    """Findings of one attempt (of the view's, if not told) and the reader that knows its progress.

    `files` are name and text of each file, stdout first.
    """
    reader = LogReader(catalogue, own=own, scanner=scanner)
    for source, chunks in files:
        reader.next_file(source)
        for chunk in chunks:
            reader.feed(chunk)
    reader.finish()
    return reader.findings(view.restarts if attempt is None else attempt, view, seen_at), reader


def diagnose(
    chunks: Iterable[bytes],
    catalogue: Catalogue,
    *,
    allocation: Nodes | None,
    now: datetime,
    own: Dialect | None = None,
    source: str = "",
) -> Diagnosis:
    """What a log alone tells. Without an allocation, the hosts that the log names stand for it."""
    view = JobView(cluster="", job_id="0", raw_id=0, state=JobState.UNKNOWN, nodes=allocation or (), looked_at=now)
    _, reader = examine_log([(source, chunks)], catalogue, view, now, own=own)
    if allocation is None:
        view = view.model_copy(update={"nodes": _hosts(reader.hits)})
    findings = reader.findings(0, view, now)
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


def is_fault(verdict: Verdict) -> bool:
    """True when something broke; a finished, cancelled or preempted job is no fault."""
    return verdict.fault_class is not FaultClass.NONE


def _hosts(hits: Sequence[Hit]) -> Nodes:
    """The hosts on which a log says that it ran."""
    names = {hit.fields["node"] for hit in hits if "node" in hit.fields}
    return tuple(sorted(names))


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
