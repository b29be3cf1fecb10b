"""What a watch over a restart gives up when exclusions strand the job: the oldest first, and no more than it must."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from activities import contracts as c
from activities import settling
from activities.audit.store import AuditStore
from activities.settling import Settling
from activities.site import PolicySource, Site
from activities.slurm.answers import Relatives
from activities.slurm.placement import newest_first
from recovery.faults.catalogue import Catalogue
from recovery.records import JobState, JobView, NodeView, OutcomeKind

NOW = datetime.now(UTC)
OURS = ("n01", "n02", "n03")
AGE_H = {"n01": 1, "n02": 9, "n03": 5}
"""n02 is excluded for the longest time."""


class Slurm:
    """Stands in for a client: a waiting job that runs once enough nodes are left."""

    def __init__(self, *, needs: int, strands: int, features: str = "") -> None:
        self.needs, self.strands, self.features = needs, strands, features
        self.excluded: tuple[str, ...] = OURS
        self.updates: list[tuple[str, ...]] = []

    async def job(self, job_id: str) -> JobView:
        stuck = len(self.excluded) > self.strands
        return JobView(
            cluster="prod",
            job_id=job_id,
            raw_id=1,
            partition="main",
            state=JobState.PENDING if stuck else JobState.RUNNING,
            reason="BadConstraints" if stuck else "None",
            restarts=1,
            min_nodes=self.needs,
            excluded=self.excluded,
            features=self.features,
            eligible_time=NOW - timedelta(minutes=1),
            start_time=None if stuck else NOW - timedelta(minutes=1),
            nodes=() if stuck else ("n04",),
            looked_at=NOW,
        )

    async def relatives(self, job_id: str, children: Iterable[str] = ()) -> Relatives:
        return Relatives(view=await self.job(job_id))

    async def nodes(self) -> tuple[NodeView, ...]:
        return tuple(NodeView(name=f"n0{n}", state="IDLE", partitions=("main",), cpus=4) for n in range(1, 6))

    async def lease(self, job_id: str, count: int, *, exclude: tuple[str, ...] | None = None, **more: Any) -> None:
        if exclude is not None:
            self.excluded = exclude
            self.updates.append(exclude)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[AuditStore]:
    with AuditStore(f"sqlite:///{tmp_path}/audit.db") as made:
        made.migrate()
        yield made


async def watched(store: AuditStore, tmp_path: Path, slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(settling, "PATIENCE_WITH_REASON", timedelta(0))
    monkeypatch.setattr(settling, "LOOK_EVERY_S", 0.01)
    view = await slurm.job("7")
    life = store.open_life(view, workflow_id="prod-7", run_id="r")
    clients: Any = {"prod": slurm}
    site = Site(store, clients, PolicySource(None), Catalogue(()), tmp_path)
    request = c.SettleRequest(
        cluster="prod",
        job_id="7",
        life_id=life.life_id,
        step_key="s",
        restarts=1,
        excluded=OURS,
        ours=OURS,
        excluded_at={node: NOW - timedelta(hours=hours) for node, hours in AGE_H.items()},
        acted_at=NOW - timedelta(minutes=1),
        deadline=datetime.now(UTC) + timedelta(seconds=60),
    )
    return await Settling(site, request).watch()


async def test_the_oldest_exclusion_is_given_up_first_and_the_operator_is_told(
    store: AuditStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = Slurm(needs=3, strands=2)
    outcome = await watched(store, tmp_path, slurm, monkeypatch)
    assert (outcome.kind, outcome.relaxed) == (OutcomeKind.RESTARTED, ("n02",))
    assert slurm.updates == [("n01", "n03")]
    told = [event.summary for event in store.events("prod", "7") if event.kind == c.EventKind.WATCHDOG]
    assert told == ["the job cannot be placed (BadConstraints): gives up excluding n02"]


async def test_where_arithmetic_cannot_tell_the_older_half_goes_at_a_time(
    store: AuditStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = Slurm(needs=1, strands=0)
    outcome = await watched(store, tmp_path, slurm, monkeypatch)
    assert (outcome.kind, outcome.relaxed) == (OutcomeKind.RESTARTED, OURS)
    assert slurm.updates == [("n01",), ()]


def test_exclusions_without_a_time_are_taken_for_new() -> None:
    since = {"n02": NOW, "n03": NOW + timedelta(hours=1)}
    assert newest_first(("n02", "n01", "n03"), since) == ("n01", "n03", "n02")
