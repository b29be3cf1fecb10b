"""Keeps the histories of a cluster's closed runs, before the namespace deletes them. Started by a Schedule.

One bounded round of one activity; what is left over is the next round's.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from activities import contracts as c
    from workflows import timings


def keeper_id(cluster: str) -> str:
    """Id of the cluster's Schedule, and beginning of the ids of its workflows; never one a job could have."""
    return f"relight-keeper-{cluster}"


@workflow.defn(name="HistoryKeeper")
class HistoryKeeper:
    """One round for one cluster."""

    @workflow.run
    async def run(self, raw: Any = None) -> c.KeptReport:
        cluster = raw.get("cluster") if isinstance(raw, dict) else None
        if not isinstance(cluster, str) or not cluster:
            raise ApplicationError(
                'HistoryKeeper needs {"cluster": NAME}; its Schedule is made by the worker',
                type="BadInput",
                non_retryable=True,
            )
        request = c.KeepHistories(cluster=cluster)
        report: c.KeptReport = await workflow.execute_activity(
            c.KEEP_HISTORIES,
            request,
            task_queue=c.slurm_queue(cluster),
            result_type=c.KeptReport,
            start_to_close_timeout=timedelta(seconds=2 * request.within_s),
            schedule_to_close_timeout=timings.KEEPING_LIMIT,
            heartbeat_timeout=timings.HEARTBEAT,
            retry_policy=timings.KEEPING_RETRY,
            summary=f"keep histories of {cluster}",
        )
        until = f"{report.until:%Y-%m-%d %H:%M}Z" if report.until is not None else "never"
        late = f"; too late for {report.late}" if report.late else ""
        workflow.set_current_details(f"kept {report.kept} histories; all that closed before {until} are kept{late}")
        return report
