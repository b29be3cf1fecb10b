"""Situations to decide upon, built from what differs from an ordinary one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from recovery.records import (
    Attempt,
    AttemptRow,
    Confidence,
    FaultClass,
    Finding,
    JobState,
    JobView,
    Mode,
    Retry,
    Suspect,
    Verdict,
)
from recovery.situation import Situation

T0 = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
NODES = ("n01", "n02", "n03", "n04")
CLUSTER = (*NODES, "n05", "n06", "n07", "n08")


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def view(state: JobState = JobState.FAILED, **more: Any) -> JobView:
    """A four-node job that was submitted at T0 and, when it has ended, ended 600 s later."""
    usual: dict[str, Any] = {
        "cluster": "prod",
        "job_id": "12345",
        "raw_id": 12345,
        "user": "alice",
        "state": state,
        "submit_time": T0,
        "start_time": at(10),
        "end_time": at(600) if state.is_final or state is JobState.COMPLETING else None,
        "nodes": () if state is JobState.PENDING else NODES,
        "min_nodes": 4,
        "priority": 100,
        "exit_code": 1 if state is JobState.FAILED else 0,
        "looked_at": at(601),
    }
    return JobView(**{**usual, **more})


def attempt(number: int, **more: Any) -> Attempt:
    """An attempt of ten minutes on four nodes; attempts follow each other every 1,000 s."""
    usual: dict[str, Any] = {
        "number": number,
        "state": JobState.FAILED,
        "submit_time": at(1000 * number),
        "start_time": at(1000 * number + 10),
        "end_time": at(1000 * number + 600),
        "nodes": NODES,
        "exit_code": 1,
    }
    return Attempt(**{**usual, **more})


def row(state: JobState, **more: Any) -> AttemptRow:
    usual: dict[str, Any] = {"raw_id": 12345, "state": state, "nodes": NODES, "submit_time": T0, "end_time": at(600)}
    return AttemptRow(**{**usual, **more})


def suspect(node: str, confidence: Confidence = Confidence.HIGH) -> Suspect:
    return Suspect(node=node, how="the log names it", confidence=confidence)


def verdict(
    fault_class: FaultClass = FaultClass.HARDWARE,
    *suspects: Suspect,
    signature: str = "xid.79",
    retry: Retry = Retry.YES,
) -> Verdict:
    return Verdict(
        fault_class=fault_class, signature=signature, retry=retry, suspects=suspects, reason=f"{signature} was seen"
    )


def finding(**more: Any) -> Finding:
    usual: dict[str, Any] = {
        "id": "f1",
        "attempt": 0,
        "detector": "log",
        "signature": "xid.79",
        "fault_class": FaultClass.HARDWARE,
        "seen_at": at(300),
        "summary": "a GPU fell off the bus",
    }
    return Finding(**{**usual, **more})


def situation(job: JobView | None = None, **more: Any) -> Situation:
    """A failed job in act mode, one second after its end, in a cluster of eight good nodes."""
    job = job or view()
    usual: dict[str, Any] = {
        "now": at(601),
        "view": job,
        "accounting": True,
        "attempts": (attempt(job.restarts, submit_time=T0, start_time=at(10), end_time=at(600)),),
        "verdict": verdict(FaultClass.HARDWARE, suspect("n02")),
        "mode": Mode.ACT,
        "nodes_usable": CLUSTER,
        "nodes_known": CLUSTER,
    }
    return Situation(**{**usual, **more})
