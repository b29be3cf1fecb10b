"""A workflow that continues as new loses nothing: neither its state nor a signal or update that comes just then.

The server suggests continue-as-new after a few dozen events here instead of thousands. Temporal is real, the
activities are scripted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from temporalio.client import Client, WorkflowHandle

from activities import contracts as c
from recovery.records import JobState
from tests.services import TemporalServer
from tests.workflows.scripted import Scripted, eventually, restart_when_failed, serving, start, state_of, view

CONTINUE_AFTER = 40


@pytest.fixture(scope="module")
def server() -> Iterator[TemporalServer]:
    with TemporalServer(dynamic_config={"limit.historyCount.suggestContinueAsNew": str(CONTINUE_AFTER)}) as made:
        yield made


@pytest.fixture
async def impatient(server: TemporalServer) -> Client:
    return await server.client()


async def _run(handle: WorkflowHandle[Any, Any]) -> str:
    """The run that answers now."""
    return str((await handle.describe()).run_id)


async def test_signals_and_updates_in_flight_are_heard_once_across_many_runs(impatient: Client, cluster: str) -> None:
    script = Scripted()
    async with serving(impatient, script, cluster=cluster):
        handle = await start(impatient, cluster=cluster)
        await eventually(lambda: script.decided, "it looked")
        sent = [("pause" if number % 2 == 0 else "resume", f"signal {number}") for number in range(60)]
        answers = []
        for name, reason in sent:
            await handle.signal(name, {"by": "oncall", "reason": reason})
            await handle.signal("observe", {"changes": ["state"]})
            if reason.endswith("7"):
                answers.append(
                    asyncio.create_task(handle.execute_update("force", {"action": "stop", "reason": reason}))
                )
        told = await asyncio.gather(*answers)
        assert [answer["accepted"] for answer in told] == [True] * len(answers)
        await eventually(lambda: len(script.told(c.EventKind.OPERATOR)) >= len(sent) + len(answers), "all were heard")
        wanted = [f"{name}d: {reason}" for name, reason in sent] + [
            f"force stop: {reason}" for _, reason in sent if reason.endswith("7")
        ]
        assert sorted(script.told(c.EventKind.OPERATOR)) == sorted(wanted)
        assert (await state_of(handle))["paused"] is False
        for _ in range(600):  # all of them may have been heard by one task of the first run
            if await _run(handle) != handle.first_execution_run_id:
                break
            await asyncio.sleep(0.1)
        assert await _run(handle) != handle.first_execution_run_id
        await handle.terminate()


async def test_a_restarted_job_keeps_its_state_and_is_not_restarted_again(impatient: Client, cluster: str) -> None:
    script = Scripted(view=view(JobState.FAILED), advise=restart_when_failed)
    async with serving(impatient, script, cluster=cluster):
        handle = await start(impatient, cluster=cluster)
        await eventually(lambda: script.settled, "the restart is verified")
        looks = script.looks
        await handle.signal("observe", {"changes": ["state"]})
        await eventually(lambda: script.looks > looks and script.decided[-1].examination.view == script.view, "it runs")
        before = await state_of(handle)
        first = await _run(handle)
        for number in range(20):
            looks = script.looks
            await handle.signal("observe", {"changes": ["state"]})
            await eventually(lambda before=looks: script.looks > before, f"look {number}")
        assert await _run(handle) != first
        after = await state_of(handle)
        kept = ("life_id", "exclusions", "expected_restart", "waiting_first_step", "attempts", "paused", "mode")
        assert {name: after[name] for name in kept} == {name: before[name] for name in kept}
        assert len(script.steps) == len(script.settled) == 1
        keys = [row.key for row in script.rows]
        assert len(keys) == len(set(keys))
        script.first_step = 41
        await handle.signal("observe", {"changes": ["progress"]})
        await eventually(lambda: any("41" in text for text in script.told(c.EventKind.OUTCOME)), "the recovery ends")
        await handle.terminate()
