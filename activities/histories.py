"""Reads workflow histories from Temporal, a page at a time and no faster than allowed. Changes nothing there.

A history is told as the calls of activities in it, with the models that the contracts give them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from google.protobuf.timestamp_pb2 import Timestamp
from temporalio.api.common.v1 import Payload
from temporalio.api.history.v1 import HistoryEvent
from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DataConverter
from temporalio.service import RPCError, RPCStatusCode

from activities.audit.implied import SHAPES, Call
from recovery.records import Record

RECOVERY = "JobRecovery"
PAGE = 500
CALLS_PER_S = 50.0


class HistoryGone(Exception):
    """Temporal has no such run any more."""


class UnreadableHistory(Exception):
    """What stands in it cannot be understood; the message says which event."""


class Run(NamedTuple):
    """One run of a job's workflow."""

    workflow_id: str
    run_id: str
    started: datetime
    closed: datetime | None


class Histories:
    """Histories of one namespace."""

    def __init__(self, client: Client, *, per_second: float = CALLS_PER_S) -> None:
        self.client = client
        self._gap_s = 1 / per_second
        self._next = 0.0

    async def _turn(self) -> None:
        """Waits until the next call may be made."""
        now = time.monotonic()
        wait, self._next = self._next - now, max(now, self._next) + self._gap_s
        if wait > 0:
            await asyncio.sleep(wait)

    async def retention_s(self) -> float:
        """How long the namespace keeps closed histories; 0: not told."""
        await self._turn()
        told = await self.client.workflow_service.describe_namespace(
            DescribeNamespaceRequest(namespace=self.client.namespace)
        )
        return float(told.config.workflow_execution_retention_ttl.ToTimedelta().total_seconds())

    async def count(self, cluster: str, since: datetime, job_id: str | None) -> int:
        """About how many runs `runs` will tell."""
        total = 0
        for query in _queries(cluster, since, job_id):
            await self._turn()
            total += (await self.client.count_workflows(query)).count
        return total

    async def runs(self, cluster: str, since: datetime, job_id: str | None = None) -> AsyncIterator[Run]:
        """Runs of the cluster's jobs that are open or have closed since then."""
        for query in _queries(cluster, since, job_id):
            async for run in self.found(query, cluster):
                yield run

    async def found(self, query: str, cluster: str) -> AsyncIterator[Run]:
        """Runs of the cluster's jobs by a query of Temporal's visibility."""
        listed = self.client.list_workflows(query, page_size=PAGE)
        while True:
            await self._turn()
            await listed.fetch_next_page()
            for one in listed.current_page or ():
                if job_of(cluster, one.id) is not None:
                    closed = one.close_time if one.status is not WorkflowExecutionStatus.RUNNING else None
                    yield Run(one.id, one.run_id, one.start_time, closed)
            if not listed.next_page_token:
                return

    async def pages(self, workflow_id: str, run_id: str) -> AsyncIterator[Sequence[HistoryEvent]]:
        """The events of one run, page by page. Raises HistoryGone."""
        read = self.client.get_workflow_handle(workflow_id, run_id=run_id).fetch_history_events(page_size=PAGE)
        while True:
            await self._turn()
            try:
                await read.fetch_next_page()
            except RPCError as error:
                if error.status is RPCStatusCode.NOT_FOUND:
                    raise HistoryGone(f"{workflow_id}, run {run_id}") from None
                raise
            yield read.current_page or ()
            if not read.next_page_token:
                return


def _queries(cluster: str, since: datetime, job_id: str | None) -> tuple[str, str]:
    which = f'WorkflowId = "{cluster}-{job_id}"' if job_id else f'WorkflowId STARTS_WITH "{cluster}-"'
    own = f'WorkflowType = "{RECOVERY}" AND {which} AND'
    return (f'{own} ExecutionStatus = "Running"', f'{own} CloseTime >= "{_moment(since)}"')


def closed_between(cluster: str, begin: datetime, end: datetime) -> str:
    """The query for runs of the cluster's jobs that closed at `begin` or later, and before `end`."""
    _, closed = _queries(cluster, begin, None)
    return f'{closed} AND CloseTime < "{_moment(end)}"'


def _moment(at: datetime) -> str:
    """A time as Temporal's queries want it."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def job_of(cluster: str, workflow_id: str) -> str | None:
    """The job id in the workflow id of one of the cluster's jobs; None: it is not of this cluster."""
    job = workflow_id.removeprefix(f"{cluster}-")
    number, _, task = job.partition("_")
    same = job != workflow_id and number.isdecimal() and (not task or task.isdecimal())
    return job if same else None


class Reading:
    """Turns the events of one run into calls, as they come."""

    def __init__(self, converter: DataConverter = pydantic_data_converter) -> None:
        self.converter = converter
        self.last_at: datetime | None = None
        self._open: dict[int, Call] = {}

    async def calls(self, events: Iterable[HistoryEvent]) -> list[Call]:
        """Calls that ended in these events. Raises UnreadableHistory."""
        found: list[Call] = []
        for event in events:
            self.last_at = _time(event.event_time)
            if event.HasField("activity_task_scheduled_event_attributes"):
                asked = event.activity_task_scheduled_event_attributes
                name = asked.activity_type.name
                if name in SHAPES:
                    request = await self._decoded(event, asked.input.payloads, SHAPES[name][0])
                    self._open[event.event_id] = Call(name=name, request=request, at=self.last_at)
            elif event.HasField("activity_task_started_event_attributes"):
                number = event.activity_task_started_event_attributes.scheduled_event_id
                if number in self._open:
                    self._open[number] = self._open[number].model_copy(update={"at": self.last_at})
            elif event.HasField("activity_task_completed_event_attributes"):
                ended = event.activity_task_completed_event_attributes
                call = self._open.pop(ended.scheduled_event_id, None)
                if call is not None:
                    answer = await self._decoded(event, ended.result.payloads, SHAPES[call.name][1])
                    found.append(call.model_copy(update={"answer": answer}))
            else:
                number = _unanswered(event)
                if number in self._open:
                    found.append(self._open.pop(number))
        return found

    def rest(self) -> list[Call]:
        """Calls that have not ended."""
        return list(self._open.values())

    async def _decoded(self, event: HistoryEvent, payloads: Sequence[Payload], shape: type[Record]) -> Any:
        try:
            (value,) = await self.converter.decode(payloads, [shape])
        except Exception as error:
            raise UnreadableHistory(f"event {event.event_id}: no {shape.__name__}: {str(error)[:200]}") from None
        return value


def _unanswered(event: HistoryEvent) -> int:
    """The call that this event ends without an answer; 0: none."""
    for kind in ("failed", "timed_out", "canceled"):
        name = f"activity_task_{kind}_event_attributes"
        if event.HasField(name):  # type: ignore[arg-type]
            return int(getattr(event, name).scheduled_event_id)
    return 0


def _time(stamp: Timestamp) -> datetime:
    return stamp.ToDatetime(tzinfo=UTC)
