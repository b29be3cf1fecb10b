"""Where the sweep takes a job's log from: its files, the log store, or the store for jobs without a readable file."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from temporalio.client import Client

from activities.audit.records import Watched
from activities.site import Site
from activities.slurm.answers import SweepRow
from activities.sweep_cursor import SweepCursor
from activities.sweeping import SweepingActivities
from activities.telemetry.store_follow import LogStore
from recovery.faults.catalogue import Catalogue
from recovery.policy_file import PolicyFile, parse
from recovery.records import JobState
from tests.activities.telemetry.memory_store import SINCE, MemoryStore
from tests.recovery.logs import steps

CATALOGUE = Catalogue.built_in()


@dataclass
class Policies:
    file: PolicyFile = field(default_factory=lambda: parse("", "built-in"))

    def current(self) -> PolicyFile:
        return self.file


@dataclass
class FakeSite:
    """What a look at one job uses of a site."""

    logs: dict[str, LogStore]
    catalogue: Catalogue = CATALOGUE
    policies: Policies = field(default_factory=Policies)
    sweep_interval_s: float = 2.0

    def reads_files(self, cluster: str) -> bool:
        return Site.reads_files(cast(Site, self), cluster)


class Sweep:
    """One job that is looked at as a sweep does, with the cursor that was written down."""

    def __init__(self, store: MemoryStore | None, file: Path, *, files_first: bool = False) -> None:
        logs = {"prod": LogStore(store.reader(), files_first)} if store is not None else {}
        self.activities = SweepingActivities(cast(Site, FakeSite(logs)), cast(Client, None))
        self.known = Watched(cluster="prod", job_id="7", life_id=1, uid=os.getuid(), stdout=str(file), seen="x")
        self.comment = "relight"

    async def __call__(self, state: JobState = JobState.RUNNING, **more: Any) -> Watched:
        usual = {"restarts": 0, "uid": os.getuid(), "seen": "x", "start": int(SINCE.timestamp())}
        row = SweepRow(job_id="7", raw_id=7, state=state, comment=self.comment, **{**usual, **more})
        cursor = SweepCursor.model_validate_json(self.known.cursor or "{}")
        feeds = await self.activities._feeds("prod", [row], {"7": self.known}, {"7": cursor})
        self.seen = await self.activities._look_at(self.known, cursor, row, {}, None, feeds)
        self.known = self.seen.row
        return self.known

    @property
    def cursor(self) -> SweepCursor:
        return SweepCursor.model_validate_json(self.known.cursor)


async def test_without_a_store_the_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "job.out").write_text(steps(1, 5))
    assert (await Sweep(None, tmp_path / "job.out")()).step == 5


async def test_the_store_counts_and_the_file_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "job.out").write_text(steps(1, 5))
    store = MemoryStore()
    sweep = Sweep(store, tmp_path / "job.out")
    assert (await sweep()).step is None
    store.prints("7", steps(1, 3))
    assert (await sweep()).step == 3
    assert sweep.cursor.logs == ()
    assert sweep.cursor.store is not None


async def test_where_files_come_first_the_store_stands_in_until_one_can_be_read(tmp_path: Path) -> None:
    file, store = tmp_path / "job.out", MemoryStore()
    store.prints("7", steps(1, 3))
    sweep = Sweep(store, file, files_first=True)
    assert (await sweep()).step == 3
    file.write_text(steps(1, 9))
    assert (await sweep()).step == 9
    assert len(sweep.cursor.logs) == 1
    asked = store.asked
    await sweep()
    assert store.asked == asked


async def test_a_fault_in_the_store_is_news_and_so_is_the_first_step(tmp_path: Path) -> None:
    store = MemoryStore()
    sweep = Sweep(store, tmp_path / "job.out")
    store.prints("7", steps(1, 3), age_s=2)
    await sweep()
    assert sweep.seen.news == ["progress"]
    store.prints("7", "RuntimeError: CUDA error: uncorrectable ECC error encountered")
    await sweep()
    assert sweep.seen.news == ["fault"]


async def test_a_jobs_own_expression_is_used_on_lines_of_the_store(tmp_path: Path) -> None:
    store = MemoryStore()
    sweep = Sweep(store, tmp_path / "job.out")
    sweep.comment = '{"relight": {"progress": "done=(?P<step>\\\\d+)"}}'
    store.prints("7", "done=12 of many")
    assert (await sweep()).step == 12


async def test_an_outage_is_blind_time_in_the_cursor_and_not_news(tmp_path: Path) -> None:
    store = MemoryStore()
    sweep = Sweep(store, tmp_path / "job.out")
    store.prints("7", steps(1, 3), age_s=2)
    await sweep()
    store.away = "cannot be reached"
    await sweep()
    (blind,) = sweep.cursor.blind
    assert (blind.end, blind.why) == (None, "blind: memory:7: cannot be reached")
    assert sweep.seen.news == []
    assert sweep.cursor.hang is None


async def test_a_job_that_waits_for_its_next_attempt_is_not_looked_for_in_files(tmp_path: Path) -> None:
    sweep = Sweep(MemoryStore(), tmp_path / "job.out")
    before = sweep.known
    assert await sweep(JobState.PENDING, restarts=1, start=None) == before
