"""A step that waits for its permit says so on the job's record: once for each reason, and when it is over."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from temporalio.testing import ActivityEnvironment

from activities import contracts as c
from activities.audit.store import AuditStore
from activities.recording import RecordingActivities
from activities.site import PolicySource, Site
from recovery.faults.catalogue import Catalogue
from recovery.records import Action, Advice, FaultClass, JobState, JobView, NodeView, Verdict
from workers.story import story

POLICY = "policies: {default: {max_restarts_at_once: 1, permit_wait_s: 240}}\n"


class Slurm:
    """Stands in for a client: four nodes."""

    async def nodes(self) -> tuple[NodeView, ...]:
        return tuple(NodeView(name=f"n{number:02d}", state="IDLE") for number in range(1, 5))


class Jobs:
    """Failed jobs of one cluster whose restarts are asked for."""

    def __init__(self, store: AuditStore, folder: Path) -> None:
        self.store = store
        policy = folder / "policy.yaml"
        policy.write_text(POLICY)
        clients: Any = {"prod": Slurm()}
        site = Site(store, clients, PolicySource(policy), Catalogue(()), folder)
        self.plan = RecordingActivities(site).plan

    async def ask(self, job_id: str) -> c.PermitAnswer:
        """As the workflow does; the same step however often it is called."""
        view = JobView(
            cluster="prod", job_id=job_id, raw_id=int(job_id), state=JobState.FAILED, looked_at=datetime.now(UTC)
        )
        life = self.store.latest_life("prod", job_id) or self.store.open_life(view, workflow_id="w", run_id="r")
        request = c.PlanStep(
            cluster="prod",
            job_id=job_id,
            life_id=life.life_id,
            step_key=f"prod-{job_id}:{life.life_id}:0:restart:0",
            verdict=Verdict(fault_class=FaultClass.UNKNOWN, reason="nothing tells"),
            advice=Advice(action=Action.RESTART, rule="unknown", reason="cause unknown", restart_count=0),
            workflow_id="w",
            run_id="r",
        )
        answer: c.PermitAnswer = await ActivityEnvironment().run(self.plan, request)
        return answer

    def waits(self, job_id: str) -> list[str]:
        return [event.summary for event in self.store.events("prod", job_id) if event.kind == c.EventKind.WAITS]

    def row(self, job_id: str) -> Any:
        return next(row for row in self.store.jobs() if row.job_id == job_id)

    def free(self, job_id: str) -> None:
        life = self.store.latest_life("prod", job_id)
        assert life is not None
        self.store.release_permit(f"prod-{job_id}:{life.life_id}:0:restart:0")


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Jobs]:
    with AuditStore(f"sqlite:///{tmp_path}/audit.db") as store:
        store.migrate()
        yield Jobs(store, tmp_path)


async def test_a_wait_for_a_permit_is_told_once_for_each_reason_and_its_end_too(jobs: Jobs) -> None:
    assert (await jobs.ask("1")).granted
    for _ in range(3):
        assert (await jobs.ask("2")).until is not None
    (told,) = jobs.waits("2")
    assert told.startswith("for a permit: 1 restarts are under way on prod")
    assert "at most until" in told
    life = jobs.store.latest_life("prod", "2")
    assert life is not None
    assert life.phase == "waiting_permit"
    assert jobs.row("2").waits == told
    shown = [str(line) for line in story(life, (), jobs.store.events("prod", "2"))]
    assert f"  waits {told}" in shown
    jobs.free("1")
    assert (await jobs.ask("2")).granted
    assert (await jobs.ask("2")).granted
    assert len(jobs.waits("2")) == 2
    assert "granted after" in jobs.waits("2")[-1]
    assert (jobs.row("2").phase, jobs.row("2").waits) == ("recovering", "")


async def test_another_reason_is_told_too_with_the_same_deadline(jobs: Jobs, tmp_path: Path) -> None:
    await jobs.ask("1")
    await jobs.ask("2")
    jobs.free("1")
    (tmp_path / "policy.yaml").write_text("policies: {default: {max_actions_per_hour: 1, permit_wait_s: 240}}\n")
    await jobs.ask("2")
    await jobs.ask("2")
    first, second = jobs.waits("2")
    assert "max_restarts_at_once" in first
    assert "max_actions_per_hour" in second
    assert first.partition("(since")[2] == second.partition("(since")[2]


async def test_a_step_that_is_granted_at_once_says_nothing_of_waiting(jobs: Jobs) -> None:
    await jobs.ask("1")
    assert jobs.waits("1") == []
    assert jobs.row("1").waits == ""
