"""What people and the sweep say to a job's workflow: signals, updates and queries.

Handlers only change the state and queue a row; the main loop acts. Signals never raise; updates validate and answer.
"""

from __future__ import annotations

from typing import Any

from temporalio import workflow
from temporalio.exceptions import ApplicationError

with workflow.unsafe.imports_passed_through():
    from activities import contracts as c
    from recovery.records import Mode
    from workflows.ledger import Ledger
    from workflows.messages import Answer, ApproveRequest, ForceRequest, PauseRequest, parse
    from workflows.state import Phase


SOMEBODY = "somebody who gave no name"


class Conversation(Ledger):
    """The handlers of JobRecovery."""

    def _pause(self, request: PauseRequest, paused: bool) -> str:
        state = self.state
        if state.paused == paused:
            return "already paused" if paused else "was not paused"
        state.paused = paused
        state.paused_by = request.by if paused else ""
        word = "paused" if paused else "resumed"
        self._heard(f"{word}{_because(request.reason)}", request.by)
        return f"{word}: relight {'leaves the job alone until it is resumed' if paused else 'watches the job again'}"

    def _force(self, request: ForceRequest) -> str:
        self.state.permit_wait = None
        self.state.force = c.Force(
            action=request.action,
            exclude=request.exclude,
            restart_count=request.restart_count,
            by=request.by,
            reason=request.reason,
        )
        self._heard(f"force {request.action}{_because(request.reason)}", request.by)
        job = f"{self.state.cluster}-{self.state.job_id}"
        return f"{request.action} is asked for; `relight show {job}` tells what came of it"

    def _force_refusal(self, request: ForceRequest) -> str:
        state = self.state
        if state.closed:
            return "the job's workflow has closed: Slurm has purged the job"
        if state.life_id is not None and state.policy and state.mode is Mode.MONITOR:
            return (
                f"cluster {state.cluster} is in monitor mode for this job: relight records advice and touches nothing"
            )
        if request.restart_count is not None and state.seen and request.restart_count != state.seen.restarts:
            return f"it was meant for restart count {request.restart_count}, but the job is at {state.seen.restarts}"
        return ""

    def _approve(self, request: ApproveRequest) -> str:
        state = self.state
        assert state.approval is not None
        state.approval = state.approval.model_copy(update={"answer": request.yes, "by": request.by or "somebody"})
        word = "approved" if request.yes else "rejected"
        self._heard(f"{word} {state.approval.action.value}{_because(request.reason)}", request.by)
        return f"{word}: {state.approval.action.value}"

    def _approve_refusal(self) -> str:
        approval = self.state.approval
        if approval is None:
            return "nothing waits for an approval"
        if approval.answer is not None:
            return f"it was answered already, by {approval.by or 'somebody'}"
        return ""

    def _heard(self, text: str, by: str) -> None:
        self._woken = True
        self._note(c.EventKind.OPERATOR, text, by=by or SOMEBODY)

    def _refused(self, what: str, why: str) -> None:
        """A signal has nobody to answer to: its refusal is recorded."""
        self._woken = True
        self._note(c.EventKind.OPERATOR, f"refused {what}: {why}", by=SOMEBODY)

    @workflow.signal(name="observe", description="the sweep saw a change")
    def on_observe(self, raw: Any = None) -> None:
        self._woken = True
        if isinstance(raw, dict):
            changes = raw.get("changes")
            if isinstance(changes, list) and "fault" in changes:
                self.state.read_log = True

    @workflow.signal(name="pause", description='leave the job alone: {"by", "reason"}')
    def on_pause(self, raw: Any = None) -> None:
        request, problem = parse(PauseRequest, raw)
        if request is None:
            self._refused("pause", problem)
        else:
            self._pause(request, True)

    @workflow.signal(name="resume", description='end a pause: {"by", "reason"}')
    def on_resume(self, raw: Any = None) -> None:
        request, problem = parse(PauseRequest, raw)
        if request is None:
            self._refused("resume", problem)
        else:
            self._pause(request, False)

    @workflow.signal(name="force", description='{"action": "restart|stop|release", "exclude": [], "by", "reason"}')
    def on_force(self, raw: Any = None) -> None:
        request, problem = parse(ForceRequest, raw)
        refusal = problem if request is None else self._force_refusal(request)
        if request is None or refusal:
            self._refused("force", refusal)
        else:
            self._force(request)

    @workflow.signal(name="approve", description='answer a waiting advice: {"yes": true, "by", "reason"}')
    def on_approve(self, raw: Any = None) -> None:
        request, problem = parse(ApproveRequest, raw)
        refusal = problem if request is None else self._approve_refusal()
        if request is None or refusal:
            self._refused("approve", refusal)
        else:
            self._approve(request)

    @workflow.update(name="pause", description='leave the job alone: {"by", "reason"}')
    async def update_pause(self, raw: Any = None) -> Answer:
        request = _require(PauseRequest, raw)
        return self._answer(self._pause(request, True), Phase.PAUSED)

    @update_pause.validator
    def check_pause(self, raw: Any = None) -> None:
        _require(PauseRequest, raw)

    @workflow.update(name="resume", description='end a pause: {"by", "reason"}')
    async def update_resume(self, raw: Any = None) -> Answer:
        request = _require(PauseRequest, raw)
        return self._answer(self._pause(request, False))

    @update_resume.validator
    def check_resume(self, raw: Any = None) -> None:
        _require(PauseRequest, raw)

    @workflow.update(name="force", description='{"action": "restart|stop|release", "exclude": [], "by", "reason"}')
    async def update_force(self, raw: Any = None) -> Answer:
        return self._answer(self._force(_require(ForceRequest, raw)))

    @update_force.validator
    def check_force(self, raw: Any = None) -> None:
        refusal = self._force_refusal(_require(ForceRequest, raw))
        if refusal:
            raise ApplicationError(refusal, type="Refused")

    @workflow.update(name="approve", description='answer a waiting advice: {"yes": true, "by", "reason"}')
    async def update_approve(self, raw: Any = None) -> Answer:
        return self._answer(self._approve(_require(ApproveRequest, raw)))

    @update_approve.validator
    def check_approve(self, raw: Any = None) -> None:
        _require(ApproveRequest, raw)
        refusal = self._approve_refusal()
        if refusal:
            raise ApplicationError(refusal, type="Refused")

    def _answer(self, message: str, phase: Phase | None = None) -> Answer:
        """Names no phase where the next look tells what it will be: the present one is over."""
        return Answer(accepted=True, message=message, state=phase.value if phase is not None else "")

    @workflow.query(name="state", description="all the workflow knows of the job")
    def query_state(self) -> dict[str, Any]:
        return self.state.shown()

    @workflow.query(name="timeline", description="the story, oldest first")
    def query_timeline(self) -> list[dict[str, Any]]:
        return [entry.model_dump(mode="json") for entry in self.state.timeline]


def _require(model: type[Any], raw: Any) -> Any:
    request, problem = parse(model, raw)
    if request is None:
        raise ApplicationError(problem, type="BadInput")
    return request


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""
