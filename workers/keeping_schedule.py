"""The Schedule that keeps histories, one for each cluster: made, changed or removed as the configuration says."""

from __future__ import annotations

from datetime import timedelta

from temporalio.client import (
    Client,
    Schedule,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleIntervalSpec,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleSpec,
    ScheduleUpdate,
    ScheduleUpdateInput,
)
from temporalio.service import RPCError, RPCStatusCode

from activities.contracts import workflow_queue
from workflows.history_keeper import HistoryKeeper, keeper_id


async def ensure_schedule(client: Client, cluster: str, every_h: float) -> None:
    """0 hours: there is none. Raises RPCError."""
    handle = client.get_schedule_handle(keeper_id(cluster))
    if every_h <= 0:
        try:
            await handle.delete()
        except RPCError as error:
            if error.status is not RPCStatusCode.NOT_FOUND:
                raise
        return
    spec = ScheduleSpec(intervals=[ScheduleIntervalSpec(every=timedelta(hours=every_h))])
    action = ScheduleActionStartWorkflow(
        HistoryKeeper.run,
        {"cluster": cluster},
        id=keeper_id(cluster),
        task_queue=workflow_queue(cluster),
        static_summary=f"keeps histories of {cluster}",
    )
    wanted = Schedule(action=action, spec=spec, policy=SchedulePolicy(overlap=ScheduleOverlapPolicy.SKIP))
    try:
        await client.create_schedule(keeper_id(cluster), wanted)
    except ScheduleAlreadyRunningError:

        def change(found: ScheduleUpdateInput) -> ScheduleUpdate | None:
            known = found.description.schedule
            if known.spec.intervals == spec.intervals:
                return None
            known.spec = spec
            return ScheduleUpdate(schedule=known)

        await handle.update(change)
