"""Reading one attempt's log where it counts: files, the store, or the store for what the files do not show."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import cast

import pytest

from activities.attempt_log import LogWords, words_of_attempt
from activities.site import Site
from activities.sweep_cursor import SweepCursor
from activities.telemetry.joblog import AttemptLog
from activities.telemetry.store_follow import LogStore
from recovery.records import Certainty, FaultClass, Finding, JobState, JobView, Progress, Retry, Role
from tests.activities.telemetry.memory_store import MemoryStore

NOW = datetime.now(UTC)


@dataclass
class FakeSite:
    """What is used of a site."""

    logs: dict[str, LogStore] = field(default_factory=dict)


class Reader:
    """Reads attempts; what it understands is the text itself, and a finding wherever that says `ecc on NODE`."""

    def __init__(self, store: MemoryStore | None, *, files_first: bool = False, settle_s: float = 0.0) -> None:
        self.store = store
        logs = {"prod": LogStore(store.reader(), files_first, settle_s)} if store is not None else {}
        self.site = cast(Site, FakeSite(logs))
        self.texts: list[bytes] = []
        self.late = ""

    async def __call__(self, view: JobView) -> LogWords:
        return await words_of_attempt(self.site, view, SweepCursor(), self._understood)

    def _understood(self, log: AttemptLog) -> LogWords:
        text = b"".join(part.data for part in log.parts)
        self.texts.append(text)
        if self.store is not None and self.late and len(self.texts) == 2:
            self.store.prints("7", self.late)
        sources = tuple(part.path for part in log.parts)
        found = (_finding(text),) if b"ecc on n2" in text else ()
        return LogWords(found, Progress(), log.blind or bool(text), (*log.notes, *sources))


def _finding(text: bytes) -> Finding:
    return Finding(
        id="1",
        attempt=0,
        detector="log",
        signature="cuda.ecc",
        fault_class=FaultClass.HARDWARE,
        role=Role.ROOT,
        retry=Retry.YES,
        certainty=Certainty.CONFIRMED,
        seen_at=NOW,
        nodes=("n2",),
        summary="ecc",
    )


def attempt(path: Path | str = "/nowhere/job.out", *, state: JobState = JobState.FAILED) -> JobView:
    ended = None if state.is_alive else datetime.now(UTC)
    return JobView(
        cluster="prod",
        job_id="7",
        raw_id=7,
        state=state,
        uid=os.getuid(),
        stdout=str(path),
        start_time=NOW - timedelta(minutes=5),
        end_time=ended,
        looked_at=NOW,
    )


@pytest.fixture
async def store() -> MemoryStore:
    made = MemoryStore()
    made.prints("7", "from the store", age_s=60)
    return made


async def test_without_a_store_the_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "job.out").write_text("from the file\n")
    reader = Reader(None)
    await reader(attempt(tmp_path / "job.out"))
    assert reader.texts == [b"from the file\n"]


async def test_the_store_counts_though_there_is_a_file(tmp_path: Path, store: MemoryStore) -> None:
    (tmp_path / "job.out").write_text("from the file\n")
    reader = Reader(store)
    words = await reader(attempt(tmp_path / "job.out"))
    assert reader.texts == [b"from the store\n"]
    assert words.notes == ("memory:7",)


async def test_where_files_come_first_the_store_is_read_only_without_them(tmp_path: Path, store: MemoryStore) -> None:
    reader = Reader(store, files_first=True)
    (tmp_path / "job.out").write_text("from the file\n")
    await reader(attempt(tmp_path / "job.out"))
    words = await reader(attempt(tmp_path / "gone.out"))
    assert reader.texts == [b"from the file\n", b"from the store\n"]
    assert any("gone.out does not exist" in note for note in words.notes)


async def test_last_lines_that_are_on_their_way_are_waited_for(store: MemoryStore) -> None:
    reader = Reader(store, settle_s=60)
    reader.late = "ecc on n2"
    words = await reader(attempt())
    assert [finding.nodes for finding in words.findings] == [("n2",)]
    assert len(reader.texts) == 3


async def test_nobody_waits_for_more_of_an_attempt_that_runs_or_is_over_for_long(store: MemoryStore) -> None:
    reader = Reader(store, settle_s=60)
    await reader(attempt(state=JobState.RUNNING))
    await reader(attempt().model_copy(update={"end_time": NOW - timedelta(seconds=61)}))
    assert len(reader.texts) == 2


async def test_when_the_store_is_away_that_is_blind_and_no_empty_log(store: MemoryStore) -> None:
    store.away = "cannot be reached"
    words = await Reader(store)(attempt())
    assert words.has_output
    assert words.notes == ("blind: memory:7: cannot be reached",)
