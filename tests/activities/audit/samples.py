"""Jobs, events and requests for the tests of the audit store, made in one line."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from threading import Barrier
from typing import Any, TypeVar

from activities.audit.records import Life, PermitRequest
from activities.audit.store import AuditStore
from activities.contracts import EventKind, NewEvent
from recovery.records import Action, AttemptRow, JobState, JobView

T = TypeVar("T")

NOON = datetime(2026, 3, 29, 12, 0, 0, 123456, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def view(cluster: str, job_id: str = "12345", *, submit: float | None = 0, **fields: Any) -> JobView:
    """A running job of alice, submitted `submit` seconds after noon."""
    known: dict[str, object] = {
        "cluster": cluster,
        "job_id": job_id,
        "raw_id": 12345,
        "name": "pretrain",
        "user": "alice",
        "uid": 1001,
        "partition": "gpu",
        "state": JobState.RUNNING,
        "submit_time": None if submit is None else at(submit),
        "looked_at": NOON,
    }
    return JobView.model_validate(known | fields)


def row(submit: float, state: JobState = JobState.REQUEUED) -> AttemptRow:
    """One attempt as accounting knows it."""
    return AttemptRow(raw_id=12345, state=state, submit_time=at(submit))


def opened(store: AuditStore, cluster: str, job_id: str = "12345", *, run_id: str = "run-1") -> Life:
    return store.open_life(view(cluster, job_id), workflow_id=f"{cluster}-{job_id}", run_id=run_id, now=NOON)


def event(key: str, kind: str = EventKind.FINDING, summary: str = "a GPU is lost", **fields: Any) -> NewEvent:
    return NewEvent.model_validate({"key": key, "kind": kind, "at": NOON, "summary": summary} | fields)


def request(cluster: str, step: str, action: Action = Action.RESTART, **fields: Any) -> PermitRequest:
    """A request without caps, for a job of its own."""
    known: dict[str, object] = {
        "cluster": cluster,
        "step_key": f"{cluster}/{step}",
        "job_id": step,
        "action": action,
        "cluster_nodes": 100,
        "now": NOON,
    }
    return PermitRequest.model_validate(known | fields)


def all_at_once(calls: list[Callable[[], T]]) -> list[T]:
    """Runs every call in a thread of its own, none before all are ready."""
    start = Barrier(len(calls))

    def run(call: Callable[[], T]) -> T:
        start.wait(timeout=60)
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))
