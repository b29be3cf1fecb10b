"""Follows the logs of running jobs, a little further at each sweep: last completed step, and whether a fault was told.

It reads whole new lines only and keeps no file open; what a log store gave is handed to it. What it sees wakes a job's
workflow; the workflow reads the attempt's log again before anything is concluded.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from activities.audit.records import Watched
from activities.sweep_cursor import MAX_LOGS, SweepCursor
from activities.telemetry.joblog import BLIND, MIB, LogCursor, job_files, read_new
from activities.telemetry.logsource import Gap
from activities.telemetry.store_feed import StoreFeed
from recovery.diagnose import LogReader, log_scanner
from recovery.faults.catalogue import Catalogue
from recovery.faults.scanner import Scanner
from recovery.pace import Phase
from recovery.phases import announced
from recovery.progress import Dialect
from recovery.records import JobState, JobView, Progress, Role

MAX_FAULTS = 20
READ_BYTES = 8 << 20
NOTE_LENGTH = 300


@dataclass(frozen=True)
class LogLook:
    """What is new in a job's logs."""

    cursor: SweepCursor
    progress: Progress
    new_faults: tuple[str, ...] = ()
    changed: bool = True
    """Cursor or progress differ from what they were."""
    readable: bool = True
    """False: a file that was read before, or all of them, cannot be read; that nothing is new says nothing then."""
    grew: bool = False
    step: int | None = None
    """Of the last new line that tells a completed step. Unlike the highest step it may jump back."""
    phase: Phase | None = None
    """What was announced after that line."""
    words: tuple[str, ...] = ()
    """Faults told after that line, by signature."""
    gaps: tuple[Gap, ...] = ()
    """Time that was missed for good."""
    asked: bool = True
    """False: nobody looked this time, since the log store was asked a moment ago or has not answered yet."""


@dataclass(frozen=True)
class _New:
    """What is new in one file, or in a log store."""

    path: str
    data: bytes
    begins: int
    late: int = 0
    """So many bytes at the beginning were printed before what is known: they tell faults, but not how it goes now."""


class LogWatch:
    """Reads on in the logs of one cluster's jobs. Called from threads; scanning state is kept per thread."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._local = threading.local()

    def _scanner(self) -> Scanner:
        """This thread's own: two threads may not share one."""
        scanner: Scanner | None = getattr(self._local, "scanner", None)
        if scanner is None:
            scanner = self._local.scanner = log_scanner(self._catalogue)
        return scanner

    def look(
        self,
        known: Watched,
        cursor: SweepCursor,
        attempt: int,
        before: Progress,
        *,
        waiting: bool = False,
        own: Dialect | None = None,
    ) -> LogLook:
        """What the job's files say since the last look.

        `waiting`: the attempt has not started yet; only where it will begin is taken down. `own`: how the job itself
        says that its steps are written.
        """
        logs = {log.path: log for log in cursor.logs}
        note = ""
        after: list[LogCursor] = []
        pieces: list[_New] = []
        newest = _Newest()
        for path in watched_files(known):
            data, new, trouble = read_new(
                path, logs.get(path), known.uid, max_bytes=READ_BYTES, attempt=attempt, waiting=waiting
            )
            after.append(new)
            newest.saw_file(lost=trouble.startswith(BLIND), known=new.inode != 0, behind=new.behind)
            note = note or (trouble if trouble.startswith(BLIND) else "")
            if data and not waiting:
                pieces.append(_New(path, data, new.offset - len(data)))
        update = {"logs": tuple(after), "note": note[:NOTE_LENGTH]}
        return self._told(cursor, update, attempt, before, pieces, newest, own)

    def look_at_feed(
        self,
        feed: StoreFeed | None,
        cursor: SweepCursor,
        attempt: int,
        before: Progress,
        *,
        own: Dialect | None = None,
    ) -> LogLook:
        """What a log store gave since the last look; `feed` None: it has not answered yet."""
        if feed is None or not (feed.asked or feed.trouble):
            return LogLook(cursor=cursor, progress=before, changed=False, asked=False)
        newest = _Newest()
        newest.saw_file(lost=feed.trouble.startswith(BLIND), known=feed.cursor.inode != 0, behind=feed.cursor.behind)
        pieces = [_New(feed.path, feed.data, feed.cursor.offset - len(feed.data), feed.late)] if feed.data else []
        note = feed.trouble[:NOTE_LENGTH]
        if note.startswith(BLIND) and cursor.note.startswith(BLIND):
            note = cursor.note  # an outage is told in ever new words, and each would be written down for every job
        update = {"store": feed.store or cursor.store, "note": note}
        return self._told(cursor, update, attempt, before, pieces, newest, own, gaps=feed.gaps)

    def _told(
        self,
        cursor: SweepCursor,
        update: dict[str, Any],
        attempt: int,
        before: Progress,
        pieces: Sequence[_New],
        newest: _Newest,
        own: Dialect | None,
        *,
        gaps: tuple[Gap, ...] = (),
    ) -> LogLook:
        """The look, once what is new was understood."""
        faults = cursor.faults if cursor.attempt == attempt else ()
        progress, told = before, []
        for new in pieces:
            reader = LogReader(self._catalogue, own=own, scanner=self._scanner())
            reader.next_file(new.path, offset=new.begins)
            reader.feed(new.data)
            reader.finish()
            progress = _further(progress, reader.progress.progress(attempt, at=datetime.now(UTC)))
            told += [hit.signature.id for hit in reader.hits if hit.signature.role is Role.ROOT]
            # A symptom that the training went on after is none; the job is looked at where it may have stopped.
            told += newest.read(reader, new)
        new_faults = tuple(dict.fromkeys(name for name in told if name not in faults))[:MAX_FAULTS]
        fresh = cursor.model_copy(update={"attempt": attempt, "faults": (*faults, *new_faults)[:MAX_FAULTS], **update})
        return LogLook(
            cursor=fresh,
            progress=progress,
            new_faults=new_faults,
            changed=fresh != cursor or progress != before,
            readable=newest.readable,
            grew=newest.grew,
            step=newest.step,
            phase=newest.phase,
            words=tuple(dict.fromkeys(newest.words)),
            gaps=gaps,
        )


class _Newest:
    """What stands last in a job's new lines, over all of its files."""

    def __init__(self) -> None:
        self.grew = False
        self.step: int | None = None
        self.phase: Phase | None = None
        self.words: list[str] = []
        self._files, self._lost, self._missed = 0, 0, False

    @property
    def readable(self) -> bool:
        return not self._missed and self._lost < self._files

    def saw_file(self, *, lost: bool, known: bool, behind: int) -> None:
        self._files += 1
        self._lost += lost
        self._missed |= (lost and known) or behind > MIB  # steps may stand in what is not read yet

    def read(self, reader: LogReader, new: _New) -> list[str]:
        """Takes in what was new in one file; gives the symptoms told behind its last step. Two files are not ordered
        in time: what one says does not end the other's words."""
        self.grew = True
        last = reader.progress.last
        at = -1
        if last is not None:
            at = max(0, min(last.offset - new.begins, len(new.data)))
        if last is not None and at >= new.late:
            self.step = last.step if self.step is None else max(self.step, last.step)
        begins = max(at, new.late - 1)
        tail = new.data[begins:].partition(b"\n")[2] if begins >= 0 else new.data
        if (phase := announced(tail)) is not None or (last is not None and at >= new.late):
            self.phase = phase
        behind = [hit for hit in reader.hits if hit.offset - new.begins > begins]
        self.words += [hit.signature.id for hit in behind if hit.signature.role in _FAULTS]
        return [hit.signature.id for hit in behind if hit.signature.role is Role.SYMPTOM]


_FAULTS = frozenset({Role.ROOT, Role.SYMPTOM, Role.CASCADE})


def watched_files(known: Watched) -> tuple[str, ...]:
    """The files of a job that are followed."""
    view = JobView(
        cluster=known.cluster,
        job_id=known.job_id,
        raw_id=0,
        state=JobState.RUNNING,
        stdout=known.stdout,
        stderr=known.stderr,
        looked_at=datetime.now(UTC),
    )
    return job_files(view)[:MAX_LOGS]


def _further(known: Progress, newer: Progress) -> Progress:
    """The progress after more of the same attempt's log was read."""
    update: dict[str, object] = {}
    if known.first_step is None and newer.first_step is not None:
        update |= {"first_step": newer.first_step, "first_step_at": newer.first_step_at}
    if newer.step is not None and (known.step is None or newer.step > known.step):
        update |= {"step": newer.step, "step_at": newer.step_at}
    if newer.checkpoint is not None and (known.checkpoint is None or newer.checkpoint > known.checkpoint):
        update |= {"checkpoint": newer.checkpoint, "checkpoint_at": newer.checkpoint_at}
    if newer.total_steps is not None:
        update["total_steps"] = newer.total_steps
    return known.model_copy(update=update) if update else known
