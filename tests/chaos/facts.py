"""What is known of one job after a run: Slurm's own records beside relight's audit log. Judges nothing."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime

from pydantic import BaseModel, ConfigDict

from activities.audit.records import Event
from tests.chaos.plan import JobFault
from tests.cluster import ClusterError
from tests.integration.sabotage import Sabotage
from tests.stage import Stage


class Row(BaseModel):
    """One attempt in Slurm's accounting."""

    model_config = ConfigDict(frozen=True)

    state: str
    nodes: frozenset[str] = frozenset()
    submitted: datetime | None = None


class JobFacts(BaseModel):
    """`state` is empty where slurmctld does not know the job."""

    model_config = ConfigDict(frozen=True)

    job: int
    fault: JobFault
    monitor: bool
    struck_nodes: frozenset[str] = frozenset()
    slurm_forgot: bool = False  # slurmctld was killed in this run
    disturbed: bool = False  # a node of it was stopped for a while
    log_lost: bool = False  # so that nobody can tell why it failed
    state: str
    reason: str = ""
    priority: int = 1
    restarts: int = 0
    excluded: frozenset[str] = frozenset()
    requeues: int = 0  # accepted by `scontrol requeue`, counted beside relight
    rows: tuple[Row, ...] = ()
    events: tuple[Event, ...] = ()


def collect(
    stage: Stage,
    sabotage: Sabotage,
    job: int,
    *,
    fault: JobFault,
    monitor: bool,
    struck_nodes: frozenset[str],
    slurm_forgot: bool,
    disturbed: bool,
    log_lost: bool,
) -> JobFacts:
    try:
        shown = stage.slurm.show(job)
    except (ClusterError, subprocess.TimeoutExpired):
        shown = {}
    rows = tuple(
        Row(
            state=row["State"].split()[0],
            nodes=frozenset(stage.hosts(row["NodeList"])),
            submitted=_moment(row["Submit"]),
        )
        for row in stage.slurm.attempts(job)
    )
    return JobFacts(
        job=job,
        fault=fault,
        monitor=monitor,
        struck_nodes=struck_nodes,
        slurm_forgot=slurm_forgot,
        disturbed=disturbed,
        log_lost=log_lost,
        state=shown.get("JobState", ""),
        reason=shown.get("Reason", ""),
        priority=int(shown.get("Priority", "1")),
        restarts=int(shown.get("Restarts", "0")),
        excluded=frozenset(stage.hosts(shown.get("ExcNodeList", ""))),
        requeues=sabotage.requeues(job),
        rows=rows,
        events=tuple(stage.events(job)),
    )


def _moment(text: str) -> datetime | None:
    """Slurm prints local time."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        return None
