"""Runs the workflow code of this relight over a stored history, and hears which decisions were asked for in it.

Nothing is decided or done: answers come from the history, and what was asked and answered is only written down.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn

from temporalio import workflow
from temporalio.client import WorkflowHistory
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.worker import (
    Interceptor,
    Replayer,
    StartLocalActivityInput,
    WorkflowInboundInterceptor,
    WorkflowInterceptorClassInput,
    WorkflowOutboundInterceptor,
)

from activities import contracts as c
from activities.kept_histories import history_of
from workers.sandbox import runner
from workflows.cluster_watch import ClusterWatch
from workflows.job_recovery import JobRecovery

WORKFLOWS = {"JobRecovery": JobRecovery, "ClusterWatch": ClusterWatch}

_HEAR = "relight_hear_decision"

Hear = Callable[[c.DecideJob, c.Decision], None]


class Replayed(NamedTuple):
    """What came of one history."""

    decisions: list[tuple[c.DecideJob, c.Decision]]
    problem: str
    """Why it does not replay; empty: it does."""


async def replay(history: WorkflowHistory) -> Replayed:
    """Replays one history. What no worker wrote may end the whole process: see replay_apart.py."""
    refusal = _refusal(history)
    if refusal:
        return Replayed([], refusal)
    heard: list[tuple[c.DecideJob, c.Decision]] = []
    replayer = Replayer(
        workflows=list(WORKFLOWS.values()),
        data_converter=pydantic_data_converter,
        workflow_runner=runner(),
        interceptors=[_Listening(lambda request, decision: heard.append((request, decision)))],
    )
    result = await replayer.replay_workflow(history, raise_on_replay_failure=False)
    failure = result.replay_failure
    return Replayed(heard, _one_line(failure) if failure is not None else "")


def main() -> NoReturn:
    """The child's part: one history as JSON on stdin, decisions and problem as JSON on stdout."""
    answer = os.dup(sys.stdout.fileno())
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the SDK's core writes its own lines there
    told = asyncio.run(replay(history_of(json.load(sys.stdin))))
    decisions = [[one.model_dump(mode="json") for one in pair] for pair in told.decisions]
    with open(answer, "w", encoding="utf-8") as out:
        json.dump({"decisions": decisions, "problem": told.problem}, out)
    os._exit(0)  # the SDK's threads may not outlive the interpreter in peace


def _refusal(history: WorkflowHistory) -> str:
    """Why these events cannot be a history of relight; the SDK would wait for ever for what is missing in some."""
    events = history.events
    if not events or not events[0].HasField("workflow_execution_started_event_attributes"):
        return "not a history: it does not begin with the start of a workflow"
    name = events[0].workflow_execution_started_event_attributes.workflow_type.name
    if name not in WORKFLOWS:
        return f"a history of workflow {name[:80]!r}, expected {' or '.join(WORKFLOWS)}"
    if [event.event_id for event in events] != list(range(1, len(events) + 1)):
        return "not a whole history: its events are not numbered from 1 on without a gap"
    return ""


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:500] or type(error).__name__


class _Listening(Interceptor):
    def __init__(self, hear: Hear) -> None:
        self._hear = hear

    def workflow_interceptor_class(self, input: WorkflowInterceptorClassInput) -> type[WorkflowInboundInterceptor]:
        input.unsafe_extern_functions[_HEAR] = self._hear
        return _Inbound


class _Inbound(WorkflowInboundInterceptor):
    def init(self, outbound: WorkflowOutboundInterceptor) -> None:
        super().init(_Outbound(outbound))


class _Outbound(WorkflowOutboundInterceptor):
    def start_local_activity(self, input: StartLocalActivityInput) -> workflow.ActivityHandle[Any]:
        handle = super().start_local_activity(input)
        if input.activity == c.DECIDE and input.args:
            hear, request = workflow.extern_functions()[_HEAR], input.args[0]

            def answered(task: asyncio.Task[Any]) -> None:
                if not task.cancelled() and task.exception() is None:
                    hear(request, task.result())

            handle.add_done_callback(answered)
        return handle


if __name__ == "__main__":
    main()
