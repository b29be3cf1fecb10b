"""The audit store against the histories of a real Temporal server, and histories that outlive it as files."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from temporalio.api.common.v1 import WorkflowExecution
from temporalio.api.workflowservice.v1 import DeleteWorkflowExecutionRequest
from temporalio.client import Client, WorkflowHandle
from temporalio.service import RPCError
from temporalio.worker import Worker

from activities import contracts as c
from activities.audit.comparing import Discrepancy, Problem
from activities.audit.store import AuditStore
from activities.histories import Histories, job_of
from activities.keeping import KeepingActivities
from activities.kept_histories import KeptHistories
from activities.site import Site
from activities.verifying import Tally, Verifier
from recovery.records import JobState
from tests.services import TemporalServer
from tests.workflows.scripted import Scripted, eventually, restart_when_failed, serving, start, unique_cluster, view
from workers.keeping_schedule import ensure_schedule
from workers.sandbox import runner
from workflows.history_keeper import HistoryKeeper, keeper_id

LIFE = 7
"""The life that scripted activities answer with."""


@pytest.fixture
async def client(temporal_server: TemporalServer) -> Client:
    return await temporal_server.client()


@pytest.fixture
def cluster() -> str:
    return unique_cluster()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[AuditStore]:
    with AuditStore(f"sqlite:///{tmp_path}/audit.db") as made:
        made.migrate()
        yield made


async def _story(client: Client, cluster: str) -> WorkflowHandle[Any, Any]:
    """A job that fails, is restarted and is purged; its workflow has closed."""
    script = Scripted(view=view(JobState.FAILED, cluster=cluster), advise=restart_when_failed)
    async with serving(client, script, cluster=cluster):
        handle = await start(client, cluster=cluster)
        await eventually(lambda: script.settled, "the restart is verified")
        script.view = None
        await handle.signal("observe", {"changes": ["gone"]})
        await handle.result()
    return handle


async def _verify(
    client: Client, store: AuditStore, folder: Path, cluster: str, *, repair: bool = False
) -> tuple[Tally, list[Discrepancy]]:
    found: list[Discrepancy] = []
    histories = Histories(client, per_second=1000)
    verifier = Verifier(store, histories, KeptHistories(folder, cluster), cluster, found.append, repair=repair)
    return await verifier.verify(datetime.now(UTC) - timedelta(days=1)), found


async def _listed(client: Client, cluster: str, handle: WorkflowHandle[Any, Any]) -> None:
    """Temporal lists a run a moment after it has closed."""
    query = f'WorkflowId = "{handle.id}" AND ExecutionStatus = "Completed"'
    for _ in range(600):
        if (await client.count_workflows(query)).count:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"{handle.id} is not listed as closed")


async def test_a_database_that_is_empty_is_filled_from_the_histories(
    client: Client, store: AuditStore, cluster: str, tmp_path: Path
) -> None:
    handle = await _story(client, cluster)
    await _listed(client, cluster, handle)
    tally, found = await _verify(client, store, tmp_path, cluster)
    kinds = {one.kind for one in found}
    assert {"opened", "state", "finding", "verdict", "advice", "plan", "step", "outcome", "closed"} <= kinds
    assert {one.problem for one in found} == {Problem.LIFE, Problem.GAP}
    assert not store.upkeep.by_keys([one.key for one in found]), "without --repair nothing is written"
    tally, again = await _verify(client, store, tmp_path, cluster, repair=True)
    assert (tally.clean, tally.repaired) == (True, len(found))
    assert all(one.repaired for one in again)
    life = store.life(LIFE)
    assert (life.phase, life.mode) == ("closed", "act")
    assert (life.job_id, life.closed_at is not None, "purged" in life.close_reason) == ("12345", True, True)
    rows = store.events(cluster, "12345")
    assert {row.run_id for row in rows} == {handle.first_execution_run_id}
    tally, found = await _verify(client, store, tmp_path, cluster)
    assert (tally.clean, found, tally.runs) == (True, [], 1)


async def test_a_life_that_is_another_jobs_in_this_database_is_told_and_left_alone(
    client: Client, store: AuditStore, cluster: str, tmp_path: Path
) -> None:
    handle = await _story(client, cluster)
    await _listed(client, cluster, handle)
    other = view(JobState.RUNNING, cluster="elsewhere", job_id="1")
    store.upkeep.restore_life(LIFE, other, workflow_id="w", run_id="r", opened_at=datetime.now(UTC), standing={})
    tally, found = await _verify(client, store, tmp_path, cluster, repair=True)
    assert (tally.clean, tally.repaired) == (False, 0)
    assert [one.detail for one in found if one.problem is Problem.LIFE] == [
        f"life {LIFE} is of job elsewhere-1 in this database: was it restored from a backup?"
    ]
    assert store.life(LIFE).cluster == "elsewhere"
    assert not store.events(cluster, "12345")


async def test_rows_whose_history_was_deleted_are_told_unless_it_was_kept_as_a_file(
    client: Client, store: AuditStore, cluster: str, tmp_path: Path
) -> None:
    handle = await _story(client, cluster)
    await _listed(client, cluster, handle)
    await _verify(client, store, tmp_path, cluster, repair=True)
    report = await _keep(client, tmp_path, cluster, "first")
    assert (report.kept, report.finished) == (1, True)
    assert (await _keep(client, tmp_path, cluster, "again")).kept == 0
    await _delete(client, handle)
    tally, found = await _verify(client, store, tmp_path, cluster)
    assert (tally.clean, tally.runs, found) == (True, 1, [])
    tally, found = await _verify(client, store, tmp_path / "nothing kept", cluster)
    assert [one.problem for one in found] == [Problem.NO_HISTORY]
    assert "was it deleted, or Temporal set up anew?" in found[0].detail


async def test_a_round_is_bounded_and_the_next_one_goes_on(client: Client, cluster: str, tmp_path: Path) -> None:
    for _ in range(3):
        handle = await _story(client, cluster)
    for _ in range(600):
        if (await client.count_workflows(f'WorkflowId = "{handle.id}" AND ExecutionStatus = "Completed"')).count == 3:
            break
        await asyncio.sleep(0.1)
    rounds = [await _keep(client, tmp_path, cluster, f"round {number}", most=2) for number in range(2)]
    assert [(one.kept, one.known, one.finished) for one in rounds] == [(2, 0, False), (1, 2, True)]
    kept = KeptHistories(tmp_path, cluster)
    assert kept.read("12345", handle.first_execution_run_id or "").events
    assert kept.kept_until == rounds[-1].until


async def test_the_schedule_follows_the_configuration_and_starts_rounds(
    client: Client, cluster: str, tmp_path: Path
) -> None:
    await ensure_schedule(client, cluster, 6)
    await ensure_schedule(client, cluster, 2)
    handle = client.get_schedule_handle(keeper_id(cluster))
    (interval,) = (await handle.describe()).schedule.spec.intervals
    assert interval.every == timedelta(hours=2)
    story = await _story(client, cluster)
    await _listed(client, cluster, story)
    acts = KeepingActivities(cast(Site, _Folder(tmp_path)), client, settled=timedelta(0))
    async with (
        Worker(client, task_queue=c.workflow_queue(cluster), workflows=[HistoryKeeper], workflow_runner=runner()),
        Worker(client, task_queue=c.slurm_queue(cluster), activities=[acts.keep_histories]),
    ):
        await handle.trigger()
        run = story.first_execution_run_id or ""
        await eventually(lambda: KeptHistories(tmp_path, cluster).has("12345", run), "the round has kept it", 60)
    await ensure_schedule(client, cluster, 0)
    with pytest.raises(RPCError):
        await handle.describe()
    await ensure_schedule(client, cluster, 0)


@pytest.mark.parametrize(
    ("workflow_id", "job"),
    [("prod-1", "1"), ("prod-12_3", "12_3"), ("prod-2-1", None), ("prod", None), ("prod-", None), ("prod-x", None)],
)
def test_only_the_clusters_own_jobs_are_looked_at(workflow_id: str, job: str | None) -> None:
    assert job_of("prod", workflow_id) == job


class _Folder:
    def __init__(self, path: Path) -> None:
        self.evidence_dir = path


async def _keep(client: Client, folder: Path, cluster: str, name: str, most: int = 100) -> c.KeptReport:
    """One round, run as Temporal runs activities."""
    acts = KeepingActivities(cast(Site, _Folder(folder)), client, settled=timedelta(0))
    queue = f"{cluster}-keep"
    async with Worker(client, task_queue=queue, activities=[acts.keep_histories]):
        return await client.execute_activity(
            c.KEEP_HISTORIES,
            c.KeepHistories(cluster=cluster, most=most),
            id=f"{cluster} {name}",
            task_queue=queue,
            result_type=c.KeptReport,
            start_to_close_timeout=timedelta(seconds=60),
        )


async def _delete(client: Client, handle: WorkflowHandle[Any, Any]) -> None:
    """As the namespace's retention would."""
    run = WorkflowExecution(workflow_id=handle.id, run_id=handle.first_execution_run_id or "")
    request = DeleteWorkflowExecutionRequest(namespace=client.namespace, workflow_execution=run)
    await client.workflow_service.delete_workflow_execution(request)
    for _ in range(600):
        try:
            await handle.describe()
        except RPCError:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"{handle.id} is still there")
