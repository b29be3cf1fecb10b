"""Histories of closed runs as files beside the evidence, for when Temporal's namespace has deleted its own.

One compressed file for each run, written once and whole, readable by the service account alone.
"""

from __future__ import annotations

import gzip
import json
import os
import re
from datetime import datetime
from pathlib import Path
from typing import Any

from temporalio.client import WorkflowHistory

from activities.histories import HistoryGone, UnreadableHistory

FOLDER, SUFFIX = "history", ".json.gz"
LARGEST = 256 << 20
"""Unpacked: five times what Temporal lets a history become."""

_ID = re.compile(r"[0-9A-Za-z_-]{1,80}")


class KeptHistories:
    """The files of one cluster."""

    def __init__(self, evidence_dir: Path, cluster: str) -> None:
        self.folder = evidence_dir / cluster

    def place(self, job_id: str, run_id: str) -> Path:
        """Where that run's history is, or would be."""
        if not _ID.fullmatch(job_id) or not _ID.fullmatch(run_id):
            raise ValueError(f"no file can be named after job {job_id!r}, run {run_id!r}")
        return self.folder / job_id / FOLDER / f"{run_id}{SUFFIX}"

    def has(self, job_id: str, run_id: str) -> bool:
        try:
            return self.place(job_id, run_id).is_file()
        except ValueError:
            return False

    def keep(self, job_id: str, run_id: str, history: WorkflowHistory) -> int:
        """Writes the history, whole or not at all; its size in bytes. Raises OSError."""
        path = self.place(job_id, run_id)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        text = json.dumps({"workflow_id": history.workflow_id, "history": history.to_json_dict()})
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(gzip.compress(text.encode(), compresslevel=6))
        draft.replace(path)
        return path.stat().st_size

    def read(self, job_id: str, run_id: str) -> WorkflowHistory:
        """Raises HistoryGone where it was not kept, UnreadableHistory."""
        try:
            path = self.place(job_id, run_id)
            with gzip.open(path, "rb") as file:
                data = file.read(LARGEST + 1)
        except (FileNotFoundError, ValueError):
            raise HistoryGone(f"run {run_id}") from None
        except (OSError, EOFError) as error:
            raise UnreadableHistory(f"{path}: {error}") from None
        if len(data) > LARGEST:
            raise UnreadableHistory(f"{path}: larger than {LARGEST >> 20} MiB")
        try:
            return history_of(json.loads(data))
        except (ValueError, RecursionError) as error:
            raise UnreadableHistory(f"{path}: {str(error)[:200]}") from None

    @property
    def kept_until(self) -> datetime | None:
        """All runs that closed before are kept; None: nothing was ever kept."""
        try:
            return datetime.fromisoformat(self._mark.read_text().strip())
        except (OSError, ValueError):
            return None

    def mark(self, until: datetime) -> None:
        """Raises OSError."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = self._mark.with_name(f".{self._mark.name}.{os.getpid()}")
        draft.write_text(until.isoformat() + "\n")
        draft.replace(self._mark)

    @property
    def _mark(self) -> Path:
        return self.folder / "histories-kept-until"


def history_of(told: Any) -> WorkflowHistory:
    """A history from its JSON form, `{"workflow_id", "history"}`. ValueError: it is none."""
    if not isinstance(told, dict) or not isinstance(told.get("workflow_id"), str):
        raise ValueError("expected an object with workflow_id and history")
    if not isinstance(told.get("history"), dict):
        raise ValueError("history: expected an object with events")
    try:
        return WorkflowHistory.from_json(told["workflow_id"], told["history"])
    except Exception as error:  # what the parser of protocol buffers raises has many names
        raise ValueError(f"not a workflow history: {str(error)[:200]}") from None
