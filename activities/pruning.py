"""Deletes what is older than the retention of the site: lives in the audit store, and their files beside it.

Files go before the rows that tell of them, so that what was interrupted is found again. Nothing of a job that is
alive, watched, suspected from or part of an open incident is touched.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pydantic import Field

from activities.audit.pruning import Belongings
from activities.audit.records import Life
from activities.audit.store import AuditStore
from activities.contracts import EventKind, NewEvent
from activities.kept_histories import FOLDER, SUFFIX
from recovery.records import Record

AFTERWARDS = timedelta(minutes=10)
"""Evidence of a life is written at the latest so long after it was closed."""


class Pruned(Record):
    """What went, or would go."""

    lives: int = 0
    events: int = 0
    attempts: int = 0
    others: int = Field(default=0, description="suspicions, drains, permits, told failures, incidents, cluster rows")
    files: int = 0
    row_bytes: int = Field(default=0, description="text in the rows, without what the database needs around it")
    file_bytes: int = 0
    kept: dict[str, int] = Field(default_factory=dict, description="old lives that stay, by reason")


class Pruner:
    """One round through one cluster."""

    def __init__(self, store: AuditStore, evidence_dir: Path, cluster: str, *, dry: bool) -> None:
        self.store, self.cluster, self.dry = store, cluster, dry
        self.done = Pruned()
        self._evidence = evidence_dir

    def prune(self, before: datetime, by: str, now: datetime | None = None) -> Pruned:
        """Everything that ended before that time. Raises AuditUnavailable, OSError."""
        at = now or datetime.now(UTC)
        upkeep, kept = self.store.upkeep, Counter[str]()
        for life in upkeep.ended(self.cluster, before):
            why = upkeep.still_needed(life, at)
            if why:
                kept[why] += 1
            else:
                self._one(life, before)
        others = (
            upkeep.old_of_cluster(self.cluster, before) if self.dry else upkeep.delete_of_cluster(self.cluster, before)
        )
        self.done = self.done.model_copy(update={"kept": dict(kept), "others": self.done.others + others})
        if not self.dry and (self.done.lives or others):
            self._tell(before, by, at)
        return self.done

    def _one(self, life: Life, before: datetime) -> None:
        what = self.store.upkeep.belongings(life)
        files = list(self._files(life, what))
        size = sum(path.lstat().st_size for path in files)
        if not self.dry:
            for path in files:
                path.unlink(missing_ok=True)
            self._remove_empty(life)
            if not self.store.upkeep.delete(life, before):
                return
        done = self.done
        self.done = done.model_copy(
            update={
                "lives": done.lives + 1,
                "events": done.events + what.events,
                "attempts": done.attempts + what.attempts,
                "others": done.others + what.others,
                "row_bytes": done.row_bytes + what.text_bytes,
                "files": done.files + len(files),
                "file_bytes": done.file_bytes + size,
            }
        )

    def _files(self, life: Life, what: Belongings) -> Iterator[Path]:
        """Files of the life. Where its job id was given to other jobs, only what is older than its own end."""
        folder = self._evidence / self.cluster / life.job_id
        own = {f"{run}{SUFFIX}" for run in what.run_ids}
        latest = (life.closed_at or life.updated_at) + AFTERWARDS
        for path in sorted(folder.rglob("*")) if folder.is_dir() and not folder.is_symlink() else ():
            if path.is_dir() and not path.is_symlink():
                continue
            if what.shares_id:
                written = datetime.fromtimestamp(path.lstat().st_mtime, UTC)
                if path.name not in own if path.parent.name == FOLDER else written > latest:
                    continue
            yield path

    def _remove_empty(self, life: Life) -> None:
        folder = self._evidence / self.cluster / life.job_id
        if not folder.is_dir() or folder.is_symlink():
            return
        inside = sorted((path for path in folder.rglob("*") if path.is_dir()), reverse=True)
        for path in (*inside, folder):
            if not any(path.iterdir()):
                shutil.rmtree(path)

    def _tell(self, before: datetime, by: str, now: datetime) -> None:
        done = self.done
        event = NewEvent(
            key=f"pruned:{self.cluster}:{now.isoformat()}",
            kind=EventKind.PRUNED,
            at=now,
            by=by,
            summary=f"{done.lives} jobs that ended before {before:%Y-%m-%d %H:%M}Z were deleted, "
            f"with {done.events} rows and {done.files} files",
            body={"before": before.isoformat(), **done.model_dump(mode="json")},
        )
        self.store.append(self.cluster, "", None, [event])
