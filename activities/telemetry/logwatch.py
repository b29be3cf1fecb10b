"""Follows the logs of running jobs, a little further at each sweep: last completed step, and whether a fault was told.

It reads whole new lines only and keeps no file open. What it sees wakes a job's workflow; the workflow reads the
attempt's log again before anything is concluded.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import UTC, datetime

from activities.audit.records import Watched
from activities.sweep_cursor import MAX_LOGS, SweepCursor
from activities.telemetry.joblog import BLIND, LogCursor, job_files, read_new
from recovery.diagnose import LogReader, log_scanner
from recovery.faults.catalogue import Catalogue
from recovery.faults.scanner import Scanner
from recovery.records import JobState, JobView, Progress, Role

MAX_FAULTS = 20
READ_BYTES = 8 << 20


@dataclass(frozen=True)
class LogLook:
    """What is new in a job's logs."""

    cursor: SweepCursor
    progress: Progress
    new_faults: tuple[str, ...]


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
        self, known: Watched, cursor: SweepCursor, attempt: int, before: Progress, *, waiting: bool = False
    ) -> LogLook | None:
        """What the logs say since the last look; None when nothing changed.

        `waiting`: the attempt has not started yet; only where it will begin is taken down.
        """
        logs = {log.path: log for log in cursor.logs}
        faults = cursor.faults if cursor.attempt == attempt else ()
        progress, told, note = before, [], ""
        after: list[LogCursor] = []
        for path in _paths(known)[:MAX_LOGS]:
            data, new, trouble = read_new(
                path, logs.get(path), known.uid, max_bytes=READ_BYTES, attempt=attempt, waiting=waiting
            )
            after.append(new)
            note = note or (trouble if trouble.startswith(BLIND) else "")
            if not data or waiting:
                continue
            reader = LogReader(self._catalogue, scanner=self._scanner())
            reader.next_file(path, offset=new.offset - len(data))
            reader.feed(data)
            reader.finish()
            progress = _further(progress, reader.progress.progress(attempt, at=datetime.now(UTC)))
            told += [hit.signature.id for hit in reader.hits if hit.signature.role is Role.ROOT]
        new_faults = tuple(dict.fromkeys(name for name in told if name not in faults))[:MAX_FAULTS]
        fresh = cursor.model_copy(
            update={
                "logs": tuple(after),
                "attempt": attempt,
                "faults": (*faults, *new_faults)[:MAX_FAULTS],
                "note": note[:300],
            }
        )
        if fresh == cursor and progress == before:
            return None
        return LogLook(cursor=fresh, progress=progress, new_faults=new_faults)


def _paths(known: Watched) -> tuple[str, ...]:
    view = JobView(
        cluster=known.cluster,
        job_id=known.job_id,
        raw_id=0,
        state=JobState.RUNNING,
        stdout=known.stdout,
        stderr=known.stderr,
        looked_at=datetime.now(UTC),
    )
    return job_files(view)


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
