"""A scripted site for workflow tests: the activities of JobRecovery, answering from a small model of one job.

This is a double for the activities only; Temporal is real. What the real activities do to a real Slurm is tested in
tests/integration.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from temporalio import activity
from temporalio.client import Client, WorkflowHandle
from temporalio.worker import Worker

from activities import contracts as c
from recovery.records import (
    Action,
    Advice,
    FaultClass,
    Finding,
    JobState,
    JobView,
    Mode,
    Outcome,
    OutcomeKind,
    Progress,
    Verdict,
)
from workers.sandbox import runner
from workflows.job_recovery import JobRecovery

CLUSTER = "prod"


def view(state: JobState = JobState.RUNNING, restarts: int = 0, **more: Any) -> JobView:
    fields: dict[str, Any] = {
        "cluster": CLUSTER,
        "job_id": "12345",
        "raw_id": 12345,
        "name": "train",
        "user": "alice",
        "uid": 1000,
        "state": state,
        "restarts": restarts,
        "nodes": ("n01", "n02") if state is not JobState.PENDING else (),
        "looked_at": datetime.now(UTC),
    }
    return JobView(**{**fields, **more})


def finding(attempt: int = 0) -> Finding:
    return Finding(
        id=f"f{attempt}",
        attempt=attempt,
        detector="scheduler",
        signature="scheduler.failed",
        fault_class=FaultClass.HARDWARE,
        seen_at=datetime.now(UTC),
        summary="the job failed",
    )


@dataclass
class Scripted:
    """One job and what is decided about it. Change the fields during a test, then signal `observe`."""

    view: JobView | None = field(default_factory=view)
    mode: Mode = Mode.ACT
    refused: str = ""
    advise: Callable[[c.DecideJob], Advice] = field(default=lambda request: keep_calm(request))
    outcomes: list[OutcomeKind] = field(default_factory=list)
    permits: list[c.PermitAnswer] = field(default_factory=list)
    permit_wait_s: int = 20
    plan_takes_s: float = 0
    park: bool = False
    steps: list[tuple[str, c.StepRequest]] = field(default_factory=list)
    plans: list[c.PlanStep] = field(default_factory=list)
    rows: list[c.NewEvent] = field(default_factory=list)
    looks: int = 0
    settled: list[c.SettleRequest] = field(default_factory=list)
    closed: list[c.CloseJob] = field(default_factory=list)
    decided: list[c.DecideJob] = field(default_factory=list)
    step_fails: int = 0
    first_step: int | None = None
    wanted: c.AttributionWanted | None = None
    answer: Callable[[c.AttributeJob], Awaitable[c.AttributionAnswers]] | None = None
    """None: nobody serves the queue of attribution."""
    questions: list[c.AttributeJob] = field(default_factory=list)
    drains: list[c.DrainRequest] = field(default_factory=list)
    cleared: dict[str, datetime] = field(default_factory=dict)

    @activity.defn(name=c.OPEN_JOB)
    async def open_job(self, request: c.OpenJob) -> c.JobOpening:
        return c.JobOpening(refused=self.refused, life_id=None if self.refused else 7, view=self.view)

    @activity.defn(name=c.EXAMINE)
    async def examine(self, request: c.ExamineJob) -> c.Examination:
        self.looks += 1
        found = (finding(self.view.restarts),) if self.view is not None and self.view.state.is_final else ()
        attempt = self.view.restarts if self.view is not None else 0
        progress = Progress(attempt=attempt, first_step=self.first_step, step=self.first_step)
        return c.Examination(
            view=self.view,
            findings=found,
            accounting=True,
            progress=progress,
            attribution=self._asks(),
            nodes_cleared=self.cleared,
        )

    def _asks(self) -> c.AttributionWanted | None:
        """As the real one: asked about the end of an attempt, at every look at it."""
        if self.wanted is None or self.view is None or self.view.state is not JobState.FAILED:
            return None
        return self.wanted.model_copy(update={"subject": self.view})

    @activity.defn(name=c.ATTRIBUTE)
    async def attribute(self, request: c.AttributeJob) -> c.AttributionAnswers:
        self.questions.append(request)
        assert self.answer is not None
        return await self.answer(request)

    @activity.defn(name=c.DECIDE)
    async def decide(self, request: c.DecideJob) -> c.Decision:
        self.decided.append(request)
        verdict = Verdict(fault_class=FaultClass.HARDWARE, signature="xid.79", reason="a GPU fell off the bus")
        return c.Decision(
            verdict=verdict,
            advice=self.advise(request).model_copy(update={"mode": self.mode}),
            mode=self.mode,
            policy="default",
            park=self.park,
            permit_wait_s=self.permit_wait_s,
        )

    @activity.defn(name=c.PLAN)
    async def plan(self, request: c.PlanStep) -> c.PermitAnswer:
        self.plans.append(request)
        takes_s, self.plan_takes_s = self.plan_takes_s, 0  # the first answer only
        await asyncio.sleep(takes_s)
        return self.permits.pop(0) if self.permits else c.PermitAnswer(granted=True)

    async def _step(self, name: str, request: c.StepRequest) -> c.StepResult:
        self.steps.append((name, request))
        if self.step_fails:
            self.step_fails -= 1
            return c.StepResult(done=False, refused="late", message="too late")
        assert self.view is not None
        restarts = request.restart_count
        if name == c.RESTART:
            restarts += 1
            self.view = view(JobState.PENDING, restarts, excluded=request.exclude)
        if name == c.STOP:
            self.view = view(JobState.CANCELLED, restarts)
        return c.StepResult(done=True, restarts=restarts, excluded=request.exclude, acted_at=datetime.now(UTC))

    @activity.defn(name=c.RESTART)
    async def restart(self, request: c.StepRequest) -> c.StepResult:
        return await self._step(c.RESTART, request)

    @activity.defn(name=c.GUARD)
    async def guard(self, request: c.StepRequest) -> c.StepResult:
        return await self._step(c.GUARD, request)

    @activity.defn(name=c.STOP)
    async def stop(self, request: c.StepRequest) -> c.StepResult:
        return await self._step(c.STOP, request)

    @activity.defn(name=c.RELEASE)
    async def release(self, request: c.StepRequest) -> c.StepResult:
        return await self._step(c.RELEASE, request)

    @activity.defn(name=c.ARM)
    async def arm(self, request: c.StepRequest) -> c.StepResult:
        return await self._step(c.ARM, request)

    @activity.defn(name=c.DRAIN)
    async def drain(self, request: c.DrainRequest) -> c.DrainResult:
        self.drains.append(request)
        return c.DrainResult(drained=request.nodes[:1], refused=dict.fromkeys(request.nodes[1:], "as many as allowed"))

    @activity.defn(name=c.SETTLE)
    async def settle(self, request: c.SettleRequest) -> Outcome:
        self.settled.append(request)
        kind = self.outcomes.pop(0) if self.outcomes else OutcomeKind.RESTARTED
        if kind is OutcomeKind.RESTARTED:
            self.view = view(JobState.RUNNING, request.restarts, nodes=("n03", "n04"))
        if kind is OutcomeKind.DIED_AT_START:
            self.view = view(JobState.FAILED, request.restarts, nodes=("n03", "n04"), exit_code=1)
        return Outcome(kind=kind, step_key=request.step_key, restarts=request.restarts, nodes=("n03", "n04"))

    @activity.defn(name=c.SAVE_EVIDENCE)
    async def save_evidence(self, request: c.SaveEvidence) -> c.Done:
        return c.Done()

    @activity.defn(name=c.RECORD)
    async def record(self, request: c.RecordEvents) -> c.Done:
        known = {row.key for row in self.rows}
        self.rows += [row for row in request.events if row.key not in known]
        return c.Done()

    @activity.defn(name=c.CLOSE_JOB)
    async def close_job(self, request: c.CloseJob) -> c.Done:
        self.closed.append(request)
        return c.Done()

    def all_activities(self) -> list[Callable[..., Any]]:
        return [
            getattr(self, name)
            for name in (
                *("open_job", "examine", "plan", "restart", "guard", "stop", "release", "arm", "settle"),
                *("drain", "save_evidence", "record", "close_job"),
            )
        ]

    def told(self, kind: str) -> list[str]:
        return [row.summary for row in self.rows if row.kind == kind]


def keep_calm(request: c.DecideJob) -> Advice:
    return Advice(action=Action.LEAVE_ALONE, rule="running", reason="runs", restart_count=_count(request), routine=True)


def restart_when_failed(request: c.DecideJob, exclude: tuple[str, ...] = ("n02",), **more: Any) -> Advice:
    seen = request.examination.view
    assert seen is not None
    if seen.state is not JobState.FAILED:
        return keep_calm(request)
    return Advice(
        action=Action.RESTART,
        rule="hardware",
        reason="another node may help",
        restart_count=seen.restarts,
        exclude=exclude,
        **more,
    )


def _count(request: c.DecideJob) -> int:
    assert request.examination.view is not None
    return request.examination.view.restarts


@contextlib.asynccontextmanager
async def serving(
    client: Client, script: Scripted, *, cluster: str = CLUSTER, workflow: type = JobRecovery
) -> AsyncIterator[None]:
    """Workers for one cluster with the scripted activities; `workflow`: another version of JobRecovery."""
    async with contextlib.AsyncExitStack() as stack:
        for queue, flows, acts in (
            (c.workflow_queue(cluster), [workflow], [script.decide]),
            (c.slurm_queue(cluster), [], script.all_activities()),
            (c.EVIDENCE_QUEUE, [], [script.save_evidence]),
            *([(c.ATTRIBUTION_QUEUE, [], [script.attribute])] if script.answer is not None else []),
        ):
            worker = Worker(client, task_queue=queue, workflows=flows, activities=acts, workflow_runner=runner())
            await stack.enter_async_context(worker)
        yield


async def start(client: Client, raw: Any = None, *, workflow_id: str | None = None, cluster: str = CLUSTER) -> Any:
    """Starts JobRecovery as the stock command would; gives the handle."""
    if raw is None:
        raw = {"cluster": cluster, "job_id": 12345}
    return await client.start_workflow(
        "JobRecovery", raw, id=workflow_id or f"{cluster}-12345", task_queue=c.workflow_queue(cluster)
    )


async def eventually(ready: Callable[[], Any], what: str, timeout_s: float = 30) -> None:
    deadline = asyncio.get_running_loop().time() + timeout_s
    while not ready():
        assert asyncio.get_running_loop().time() < deadline, f"{what}: not within {timeout_s} s"
        await asyncio.sleep(0.02)


async def state_of(handle: WorkflowHandle[Any, Any]) -> dict[str, Any]:
    told: dict[str, Any] = await handle.query("state")
    return told


def unique_cluster() -> str:
    """A cluster name of its own, so that tests on one server do not meet."""
    return f"c{uuid.uuid4().hex[:8]}"
