"""Reads the log of one attempt: what was found in it, and how far the training came.

The same for the live path and for `relight diagnose`. No I/O here; text comes in. Nothing is concluded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, tzinfo

from recovery.evidence import Evidence, evidence_of
from recovery.exit_codes import told_codes
from recovery.faults.blocks import Block, BlockCutter
from recovery.faults.catalogue import Catalogue
from recovery.faults.moments import dated, first_moment, last_moment
from recovery.faults.scanner import Hit, Scanner
from recovery.merging import in_time
from recovery.progress import CHECKPOINT_MARK, Dialect, ProgressReader, StepMark
from recovery.records import Finding, JobView, ToldCode
from recovery.stopped import LogEnd

FILE_SPAN = 1 << 44
"""Files of one attempt are told apart by where their offsets begin: each has this much room (16 TiB)."""

LAUNCHING = "run.launching"

START_LINES = 30
"""A log that ends within so many lines of its start-up is still starting."""


class LogReader:
    """Reads the log of one attempt piece by piece: hits and progress. For one thread.

    An attempt may write several files (stdout, stderr, one a node): `next_file` begins another one. Within a file,
    order is time. Files are put in order by the times in them; where one tells none, a later file counts as if it came
    after, so read the one with the progress lines first.
    """

    def __init__(self, catalogue: Catalogue, *, own: Dialect | None = None, scanner: Scanner | None = None) -> None:
        """`scanner` may be one that `log_scanner` made for this thread: making one takes a while."""
        self._scanner = scanner if scanner is not None else log_scanner(catalogue)
        self._scanner.reset()
        self._cutter = BlockCutter()
        self._base = 0
        self._head = b""
        self._last = b""
        self._ends: list[bytes] = []
        self._files: list[str] = []
        self.hits: list[Hit] = []
        self.progress = ProgressReader(own=own)
        self.lines = 0
        self.bytes_read = 0
        self.whole = True
        """Whether the last line that was read had its end."""

    def next_file(self, source: str, *, offset: int = 0, line: int = 1) -> None:
        """Ends the current file; what is fed from here on comes from `source`, from that offset and line on."""
        if self.bytes_read:
            self.finish()
            self._base += FILE_SPAN
            self._ends.append(self._last)
        self._scanner.source = source
        self._files.append(source)
        self._cutter = BlockCutter(offset=self._base + offset, line=line)

    def feed(self, data: bytes) -> None:
        self.bytes_read += len(data)
        for block in self._cutter.feed(data):
            self._read(block)

    def finish(self) -> None:
        """Takes in the last line, though it may have no end."""
        self.whole = True
        for block in self._cutter.finish():
            self._read(block)
            self.lines += 1
            self.whole = False
        self.progress.finish()

    @property
    def seen(self) -> Counter[str]:
        """Matching lines by signature id."""
        return self._scanner.seen

    def findings(self, attempt: int, view: JobView, seen_at: datetime) -> tuple[Finding, ...]:
        return self.evidence(attempt, view, seen_at).findings

    def evidence(self, attempt: int, view: JobView, seen_at: datetime, *, zone: tzinfo = UTC) -> Evidence:
        """What counts and what does not. `zone` is the clock of times in the log that tell none."""
        hits, marks = self._in_order(seen_at, zone)
        return evidence_of(hits, attempt, view, seen_at, marks=marks, files=self._files)

    def told_codes(self, seen_at: datetime, *, zone: tzinfo = UTC) -> tuple[ToldCode, ...]:
        """Exit codes of tasks, as srun told them; not of what the training survived, nor of what srun itself ended."""
        return told_codes(*self._in_order(seen_at, zone))

    def _in_order(self, seen_at: datetime, zone: tzinfo) -> tuple[list[Hit], list[StepMark]]:
        """Hits and steps of all files, as they happened."""
        hits, marks = self.hits, list(self.progress.marks)
        return in_time(hits, marks, file_span=FILE_SPAN, zone=zone, now=seen_at) if self._base else (hits, marks)

    def first_at(self) -> datetime | None:
        """The first time that is written in the log."""
        return first_moment(self._head)

    def end(self, *, zone: tzinfo = UTC, now: datetime) -> LogEnd:
        """What the end of the log shows."""
        progress = self.progress
        times = [last_moment(text) for text in (*self._ends, self._last)]
        last_at = max(
            (at for at in times if at is not None), key=lambda at: dated(at, zone=zone, now=now), default=None
        )
        first, last = progress.first, progress.last
        steps_per_s = None
        begin, end = (first.at, last.at) if first is not None and last is not None else (None, None)
        if first is not None and last is not None and begin is not None and end is not None:
            seconds = (dated(end, zone=zone, now=now) - dated(begin, zone=zone, now=now)).total_seconds()
            steps_per_s = (last.step - first.step) / seconds if seconds > 0 and last.step > first.step else None
        return LogEnd(
            step=last.step if last is not None else None,
            total=progress.total,
            steps_per_s=steps_per_s,
            last_at=last_at,
            starting=self._starting(),
            whole_line=self.whole,
            source=self._scanner.source,
            line=self.lines,
        )

    def _starting(self) -> str:
        """What the last lines say of a start-up."""
        if self._base:
            return ""
        late = [hit for hit in self.hits if hit.line > self.lines - START_LINES]
        if late and late[-1].signature.id == LAUNCHING and late[-1].line >= self.lines:
            return "its processes were still finding each other"
        names = {hit.signature.id for hit in late}
        return next((words for name, words in _STARTING.items() if name in names), "")

    def _read(self, block: Block) -> None:
        hits, marks = self._scanner.scan(block)
        self.hits += hits
        self.progress.read(block, every=bool(hits), checkpoints=marks.get(0, ()))
        self.lines += block.lines
        self._head = self._head or block.text
        self._last = block.text


_STARTING = {
    "run.started": "its training was about to begin",
    "where.rank_on_host": "its ranks had started",
    "container.downloading": "it was fetching its container image",
}


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
