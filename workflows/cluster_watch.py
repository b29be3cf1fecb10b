"""One workflow per cluster that keeps the sweep going.

It loops over sweep activities of about ten minutes, so that new code and settings are taken up, and continues as new.
The sweep starts and signals the jobs' workflows; a sweep that stops heartbeating is run again elsewhere.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from activities import contracts as c
    from workflows import timings

SWEEP_S = 600.0


def watch_id(cluster: str) -> str:
    """The workflow id of a cluster's watch; never one a job could have, since job ids are numbers."""
    return f"relight-watch-{cluster}"


@workflow.defn(name="ClusterWatch")
class ClusterWatch:
    """Sweeps one cluster for as long as it runs."""

    @workflow.run
    async def run(self, raw: Any = None) -> None:
        cluster = raw.get("cluster") if isinstance(raw, dict) else None
        if not isinstance(cluster, str) or workflow.info().workflow_id != watch_id(cluster):
            raise ApplicationError(
                "ClusterWatch is started by the worker itself, with the id relight-watch-<cluster>",
                type="BadInput",
                non_retryable=True,
            )
        while True:
            report: c.SweepReport = await workflow.execute_activity(
                c.SWEEP,
                c.SweepRequest(cluster=cluster, duration_s=SWEEP_S),
                task_queue=c.sweep_queue(cluster),
                result_type=c.SweepReport,
                start_to_close_timeout=timedelta(seconds=2 * SWEEP_S),
                heartbeat_timeout=timings.SWEEP_HEARTBEAT,
                retry_policy=timings.SWEEP_RETRY,
                summary=f"watch all opted-in jobs of {cluster}",
            )
            workflow.set_current_details(_details(cluster, report))
            if workflow.info().is_continue_as_new_suggested() or workflow.info().get_current_history_length() > 500:
                workflow.continue_as_new({"cluster": cluster})


def _details(cluster: str, report: c.SweepReport) -> str:
    return (
        f"Cluster **{cluster}**: {report.watched} jobs watched of {report.jobs} seen; in the last sweep activity "
        f"{report.sweeps} sweeps, {report.started} workflows started, {report.signals} signals, "
        f"{report.errors} errors, blind for {report.blind_s:.0f} s"
        + (f". Last error: `{report.last_error[:200]}`" if report.last_error else "")
    )
