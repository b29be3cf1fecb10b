"""Asking outside from a job's workflow: only where configured, never for long, and nothing depends on it."""

from __future__ import annotations

import asyncio
from typing import Any

from temporalio.client import Client, WorkflowHandle

from activities import contracts as c
from recovery.attribution import AskedPhase, Attribution
from recovery.records import JobState, Mode
from tests.recovery.questions import answered
from tests.workflows.scripted import Scripted, eventually, restart_when_failed, serving, start, state_of, view

FAILED = JobState.FAILED


def wanted(**more: Any) -> c.AttributionWanted:
    usual: dict[str, Any] = {"signal": "failed", "subject": view(FAILED), "wait_s": 20.0, "counts": True}
    return c.AttributionWanted(**{**usual, **more})


def says(*answers: Attribution) -> Any:
    async def answer(request: c.AttributeJob) -> c.AttributionAnswers:
        told = tuple(one.model_copy(update={"phase": request.phase}) for one in answers)
        return c.AttributionAnswers(attributions=told)

    return answer


async def observed(handle: Any, script: Scripted) -> None:
    """Another look at the job has been taken and decided upon."""
    decided = len(script.decided)
    await handle.signal("observe", {"changes": ["state"]})
    await eventually(lambda: len(script.decided) > decided, "it looked again")


async def scheduled(handle: WorkflowHandle[Any, Any]) -> list[str]:
    """The activities the workflow has asked for, in order."""
    events = (await handle.fetch_history()).events
    names = [event.activity_task_scheduled_event_attributes.activity_type.name for event in events]
    return [name for name in names if name]


async def test_where_nobody_is_configured_nothing_is_asked(client: Client, cluster: str) -> None:
    script = Scripted(view=view(FAILED), advise=restart_when_failed, answer=says(answered("n01")))
    async with serving(client, script, cluster=cluster):
        handle = await start(client, cluster=cluster)
        await eventually(lambda: script.told(c.EventKind.OUTCOME), "the restart is verified")
        assert c.ATTRIBUTE not in await scheduled(handle)
        assert script.decided[0].attributions == ()
        await handle.terminate()


async def test_a_quick_answer_reaches_the_decision(client: Client, cluster: str) -> None:
    script = Scripted(
        view=view(FAILED), advise=restart_when_failed, wanted=wanted(), answer=says(answered("n01", session="s-1"))
    )
    async with serving(client, script, cluster=cluster):
        handle = await start(client, cluster=cluster)
        await eventually(lambda: script.told(c.EventKind.OUTCOME), "the restart is verified")
        (asked,) = script.questions
        assert (asked.phase, asked.deadline_s, asked.wanted.subject.restarts) == (AskedPhase.FAST, 20.0, 0)
        assert [line.text for line in asked.lines] == ["the job failed"]
        assert [one.suspects[0].node for one in script.decided[0].attributions] == ["n01"]
        names = await scheduled(handle)
        assert names.index(c.EXAMINE) < names.index(c.ATTRIBUTE) < names.index(c.PLAN)
        await handle.terminate()


async def test_one_fault_is_asked_about_once(client: Client, cluster: str) -> None:
    script = Scripted(
        view=view(FAILED), advise=restart_when_failed, mode=Mode.MONITOR, wanted=wanted(), answer=says(answered("n01"))
    )
    async with serving(client, script, cluster=cluster):
        handle = await start(client, cluster=cluster)
        await eventually(lambda: script.told(c.EventKind.ADVICE), "it is advised upon")
        for _ in range(3):
            await observed(handle, script)
        assert len(script.questions) == 1
        assert all(one.attributions for one in script.decided)  # the answer keeps its say
        script.view = view(FAILED, 1)
        await observed(handle, script)
        assert [one.wanted.subject.restarts for one in script.questions] == [0, 1]
        await handle.terminate()


async def test_where_nobody_serves_it_the_restart_goes_on_without(client: Client, cluster: str) -> None:
    script = Scripted(view=view(FAILED), advise=restart_when_failed, wanted=wanted(wait_s=0.3))
    async with serving(client, script, cluster=cluster):
        handle = await start(client, cluster=cluster)
        await eventually(lambda: script.told(c.EventKind.OUTCOME), "the restart is verified")
        assert script.decided[0].attributions == ()
        assert [name for name, _ in script.steps] == [c.RESTART]
        await handle.terminate()


async def test_an_answer_that_hangs_or_breaks_is_not_waited_for(client: Client, cluster: str) -> None:
    ends = asyncio.Event()

    async def answer(request: c.AttributeJob) -> c.AttributionAnswers:
        if request.wanted.subject.restarts == 0:
            await ends.wait()
        raise RuntimeError("a bug")

    script = Scripted(view=view(FAILED), advise=restart_when_failed, wanted=wanted(wait_s=0.3), answer=answer)
    async with serving(client, script, cluster=cluster):
        handle = await start(client, cluster=cluster)
        await eventually(lambda: script.told(c.EventKind.OUTCOME), "the first restart is verified")
        script.view = view(FAILED, 1)
        await observed(handle, script)
        await eventually(lambda: len(script.steps) == 2, "the second restart")
        assert len(script.questions) == 2
        assert all(one.attributions == () for one in script.decided)
        ends.set()
        await handle.terminate()


async def test_the_thorough_question_runs_beside_and_is_told_when_it_comes(client: Client, cluster: str) -> None:
    ends = asyncio.Event()

    async def answer(request: c.AttributeJob) -> c.AttributionAnswers:
        if request.phase is AskedPhase.SLOW:
            await ends.wait()
        return c.AttributionAnswers(attributions=(answered("n01", phase=request.phase, session="s-1"),))

    script = Scripted(view=view(FAILED), advise=restart_when_failed, wanted=wanted(slow_s=60.0), answer=answer)
    async with serving(client, script, cluster=cluster):
        handle = await start(client, cluster=cluster)
        await eventually(lambda: script.told(c.EventKind.OUTCOME), "the restart is verified")
        await eventually(lambda: len(script.questions) == 2, "the thorough question is asked")
        slow = script.questions[1]
        assert (slow.phase, slow.deadline_s, slow.sessions) == (AskedPhase.SLOW, 60.0, {"http": "s-1"})
        assert slow.verdict is not None
        assert slow.verdict.signature == "xid.79"
        ends.set()
        await told(handle, "http (slow)")
        assert (await state_of(handle))["exclusions"] == ["n02"]  # too late to change what was done
        await handle.terminate()


async def told(handle: Any, words: str) -> None:
    deadline = asyncio.get_running_loop().time() + 30
    while words not in str(await handle.query("timeline")):
        assert asyncio.get_running_loop().time() < deadline, f"{words!r} is not in the timeline"
        await asyncio.sleep(0.05)


async def test_where_the_rules_can_tell_nothing_waits(client: Client, cluster: str) -> None:
    script = Scripted(
        view=view(FAILED), advise=restart_when_failed, wanted=wanted(wait_s=0.0, slow_s=60.0), answer=says(answered())
    )
    async with serving(client, script, cluster=cluster):
        handle = await start(client, cluster=cluster)
        await eventually(lambda: script.told(c.EventKind.OUTCOME), "the restart is verified")
        await eventually(lambda: script.questions, "the thorough question is asked")
        assert [one.phase for one in script.questions] == [AskedPhase.SLOW]
        assert script.decided[0].attributions == ()
        await handle.terminate()


async def test_an_operators_demand_waits_for_nobody(client: Client, cluster: str) -> None:
    script = Scripted(view=view(FAILED), wanted=wanted(wait_s=600.0), answer=says(answered("n01")))
    async with serving(client, script, cluster=cluster):
        handle = await client.start_workflow(
            "JobRecovery",
            {"cluster": cluster, "job_id": 12345},
            id=f"{cluster}-12345",
            task_queue=c.workflow_queue(cluster),
            start_signal="force",
            start_signal_args=[{"action": "restart", "by": "oncall"}],
        )
        await eventually(lambda: script.decided, "it is decided")
        assert script.decided[0].force is not None
        assert script.questions == []
        await handle.terminate()
