"""The file of `relight export`: everything about one job in one JSON document, without secrets; and reading it back.

Format 1. Fields are only added; a reader of an older format refuses a newer one by its number.
"""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from temporalio.client import WorkflowHistory

from activities.audit.records import Event, Life
from activities.kept_histories import history_of
from recovery.records import Attempt, Time

FORMAT = "relight-export"
VERSION = 1
LARGEST = 1 << 30
MOST_LINES, LINE_LENGTH, TAIL_BYTES = 200, 2000, 256 << 10


class BadExport(Exception):
    """The file cannot be used; the text says why in one line."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class ExportedRun(_Part):
    """One run of the job's workflow, as Temporal tells its history."""

    workflow_id: str
    run_id: str
    started: Time | None = None
    closed: Time | None = None
    kept: bool = Field(default=False, description="from a file: Temporal has deleted it")
    history: dict[str, Any] | None = Field(description="None: neither Temporal nor a file has it any more")

    def replayable(self) -> WorkflowHistory:
        """Raises BadExport."""
        try:
            return history_of({"workflow_id": self.workflow_id, "history": self.history})
        except ValueError as error:
            raise BadExport(f"run {self.run_id}: {error}") from None


class ExportedLife(_Part):
    """One life of the job, with what the audit store knows of it."""

    life: Life
    attempts: tuple[Attempt, ...]
    events: tuple[Event, ...]
    left_out: int = Field(default=0, description="events beyond the longest log that is exported")


class Evidence(_Part):
    """The last lines of a log that was kept before a restart."""

    attempt: str
    file: str
    lines: tuple[str, ...]
    size: int = Field(description="bytes of the kept file")


class ExportedPolicy(_Part):
    """The policy that held for the job when it was exported."""

    file: str
    hash: str
    text: str = Field(default="", description="the policy file; empty: the built-in defaults")
    name: str = ""
    name_from: str = ""
    mode: str = ""
    mode_from: str = ""
    numbers: dict[str, Any] = Field(default_factory=dict)


class Export(_Part):
    """The whole file."""

    format: Literal["relight-export"] = "relight-export"
    format_version: int = VERSION
    relight: str = Field(description="version that wrote it")
    exported_at: Time
    cluster: str
    job_id: str
    lives: tuple[ExportedLife, ...]
    runs: tuple[ExportedRun, ...]
    evidence: tuple[Evidence, ...] = ()
    policy: ExportedPolicy


def read_export(path: Path) -> Export:
    """Raises BadExport with one sentence, whatever the file holds."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise BadExport(f"{path} is not a file")
        if found.st_size > LARGEST:
            raise BadExport(f"{path} has {found.st_size} bytes, expected at most {LARGEST}")
        told = json.loads(path.read_bytes())
    except OSError as error:
        raise BadExport(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise BadExport(f"{path} is not JSON, or damaged: {str(error)[:120]}") from None
    if not isinstance(told, dict) or told.get("format") != FORMAT:
        raise BadExport(f"{path} was not written by `relight export`: it does not begin with format {FORMAT!r}")
    version = told.get("format_version")
    if version != VERSION:
        raise BadExport(f"{path} has format version {str(version)[:20]}, and this relight reads {VERSION}")
    try:
        return Export.model_validate(told)
    except (ValidationError, RecursionError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else {"loc": (), "msg": "nested too deeply"}
        where = ".".join(str(part) for part in first["loc"])
        raise BadExport(f"{path} is damaged: {where[:120]}: {str(first['msg'])[:120]}") from None


def evidence_of(folder: Path) -> list[Evidence]:
    """The last lines of every log that was kept of a job; `folder` is the job's."""
    found = []
    for path in sorted(folder.glob("attempt-*/*.tail")):
        if path.is_symlink() or not path.is_file():
            continue
        try:
            with path.open("rb") as file:
                size = file.seek(0, 2)
                file.seek(max(0, size - TAIL_BYTES))
                text = file.read(TAIL_BYTES).decode("utf-8", "replace")
        except OSError:
            continue
        lines = tuple(line[:LINE_LENGTH] for line in text.splitlines()[-MOST_LINES:])
        found.append(Evidence(attempt=path.parent.name, file=path.name, lines=lines, size=size))
    return found
