"""A new version of the workflow code takes over running jobs; one that could not fails the replay, not production.

Temporal is real, the activities are scripted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import Client, WorkflowHandle, WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import Replayer

from activities import contracts as c
from recovery.records import JobState
from tests.workflows.scripted import Scripted, eventually, restart_when_failed, serving, start, state_of, view
from tests.workflows.test_replay import STORED, load
from tests.workflows.upgraded import NOTED, PatchedRecovery, UnpatchedRecovery
from workers.sandbox import runner

JOBS = [path for path in STORED if path.stem != "cluster-watch"]
STEPPED = [path for path in JOBS if '"name":"plan"' in path.read_text()]
FAILED = EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED


async def test_a_new_worker_takes_over_a_running_job_and_does_what_comes_in_the_new_way(
    client: Client, cluster: str
) -> None:
    script = Scripted(advise=restart_when_failed)
    async with serving(client, script, cluster=cluster):
        handle = await start(client, cluster=cluster)
        await handle.execute_update("pause", {"by": "oncall"})
        await handle.execute_update("resume", {"by": "oncall"})
        await eventually(lambda: len(script.told(c.EventKind.OPERATOR)) == 2, "both are on record")
    before = len((await handle.fetch_history()).events)
    async with serving(client, script, cluster=cluster, workflow=PatchedRecovery):
        await _fail(handle, script, restarts=0)
        assert script.told(c.EventKind.WATCHDOG) == [NOTED]
    told = (await handle.fetch_history()).events
    assert not [event for event in told if event.event_type == FAILED], "no task failed on the way"
    patched = [event.event_id for event in told if event.HasField("marker_recorded_event_attributes")
               and event.marker_recorded_event_attributes.marker_name == "core_patch"]  # fmt: skip
    assert min(patched) > before
    await handle.terminate()


async def test_a_run_that_came_past_the_place_before_stays_with_the_old_way(client: Client, cluster: str) -> None:
    script = Scripted(advise=restart_when_failed)
    async with serving(client, script, cluster=cluster):
        handle = await start(client, cluster=cluster)
        await eventually(lambda: script.decided, "it looked")
        await _fail(handle, script, restarts=0)
    async with serving(client, script, cluster=cluster, workflow=PatchedRecovery):
        await _fail(handle, script, restarts=1)
    assert NOTED not in script.told(c.EventKind.WATCHDOG)
    assert not [event for event in (await handle.fetch_history()).events if event.event_type == FAILED]
    await handle.terminate()


async def _fail(handle: WorkflowHandle[Any, Any], script: Scripted, *, restarts: int) -> None:
    """The job fails and is restarted."""
    script.view = view(JobState.FAILED, restarts)
    await handle.signal("observe", {"changes": ["state"]})
    await eventually(lambda: len(script.settled) == restarts + 1, f"restart {restarts + 1} is verified")
    await eventually(lambda: script.decided[-1].examination.view == script.view, "it runs again")
    assert (await state_of(handle))["expected_restart"] == restarts + 1
    assert len(script.steps) == restarts + 1


@pytest.mark.parametrize("path", JOBS, ids=lambda path: f"{path.parent.name}-{path.stem}")
async def test_the_patched_change_replays_what_earlier_versions_did(path: Path) -> None:
    await _replay(path, PatchedRecovery)


@pytest.mark.parametrize("path", STEPPED, ids=lambda path: f"{path.parent.name}-{path.stem}")
async def test_the_same_change_without_a_patch_fails_the_replay_of_all_that_made_a_step(path: Path) -> None:
    with pytest.raises(Exception, match="TMPRL1100"):
        await _replay(path, UnpatchedRecovery)


async def _replay(path: Path, workflow: type) -> None:
    workflow_id, history = load(path)
    replayer = Replayer(workflows=[workflow], data_converter=pydantic_data_converter, workflow_runner=runner())
    await replayer.replay_workflow(WorkflowHistory.from_json(workflow_id, history))
