"""What a restart does about nodes beside its exclusions. Temporal is real, the activities are scripted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial

from temporalio.client import Client

from activities import contracts as c
from recovery.records import JobState
from tests.workflows.scripted import Scripted, eventually, restart_when_failed, serving, start, state_of, view

FAILED = JobState.FAILED


async def test_bad_nodes_are_drained_beside_the_restart_and_healthy_ones_held(client: Client, cluster: str) -> None:
    advise = partial(restart_when_failed, drain=("n02", "n03"), keep_nodes=("n01",), signature="xid.79")
    script = Scripted(view=view(FAILED), advise=advise)
    async with serving(client, script, cluster=cluster):
        handle = await start(client, cluster=cluster)
        await eventually(lambda: script.told(c.EventKind.OUTCOME), "the restart is verified")
        ((_, step),) = script.steps
        assert step.hold == ("n01",)
        (drain,) = script.drains
        assert (drain.nodes, drain.step_key, drain.signature) == (("n02", "n03"), step.step_key, "xid.79")
        timeline = [entry["text"] for entry in await handle.query("timeline")]
        assert "drained n02; n03 not drained: as many as allowed" in timeline
        await handle.terminate()


async def test_a_refused_restart_drains_nothing(client: Client, cluster: str) -> None:
    script = Scripted(view=view(FAILED), advise=partial(restart_when_failed, drain=("n02",)), step_fails=6)
    async with serving(client, script, cluster=cluster):
        handle = await start(client, cluster=cluster)
        await eventually(lambda: len(script.steps) >= 2, "it is tried again")
        assert script.drains == []
        await handle.terminate()


async def test_an_exclusion_whose_node_was_called_well_is_given_up_at_the_next_restart(
    client: Client, cluster: str
) -> None:
    script = Scripted(view=view(FAILED), advise=restart_when_failed)
    async with serving(client, script, cluster=cluster):
        handle = await start(client, cluster=cluster)
        await eventually(lambda: script.settled and script.told(c.EventKind.OUTCOME), "the restart is verified")
        assert (await state_of(handle))["exclusions"] == ["n02"]
        script.cleared = {"n02": datetime.now(UTC) + timedelta(seconds=60)}
        script.advise = partial(restart_when_failed, exclude=("n04",))
        script.view = view(FAILED, 1, nodes=("n03", "n04"))
        await handle.signal("observe", {"changes": ["state"]})
        await eventually(lambda: len(script.steps) == 2, "it is restarted again")
        step = script.steps[1][1]
        assert (step.exclude, step.keep_excluded, step.give_up) == (("n04",), (), ("n02",))
        await handle.terminate()
