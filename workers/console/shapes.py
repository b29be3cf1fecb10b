"""What the API answers: the stored records, gathered. Fields are only ever added within one version of the API."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from activities.audit.records import Cleared, Drain, Event, Excluded, JobRow, Life, NodeCount, Watched
from recovery.incident_records import Incident
from recovery.records import Attempt, Time
from recovery.recurrence import Suspicion

ItemT = TypeVar("ItemT")


class Shape(BaseModel):
    model_config = ConfigDict(frozen=True)


class Page(Shape, Generic[ItemT]):
    """A page of a list."""

    items: tuple[ItemT, ...]
    next: str | None = Field(default=None, description="give it as `cursor` for the next page; null: this is the last")
    total: int | None = Field(default=None, description="how many there are in all, with the first page")


class ClusterNow(Shape):
    cluster: str
    watched: int = Field(description="jobs that relight watches")
    running: int
    pending: int
    phases: dict[str, int] = Field(description="how many jobs are in each phase")
    incidents: int
    drained: int = Field(description="nodes that relight has taken out of service")
    excluded: int = Field(description="nodes that some job is kept away from")
    swept_at: Time | None = Field(default=None, description="last sweep that read the scheduler")
    looked_at: Time | None = Field(default=None, description="last look at a running job, as far as it is written down")
    blind: int = Field(default=0, description="running jobs whose log cannot be read")


class IncidentTold(Shape):
    cluster: str
    summary: str
    is_open: bool
    incident: Incident


class Now(Shape):
    at: Time
    clusters: tuple[ClusterNow, ...]
    incidents: tuple[IncidentTold, ...]
    waiting: tuple[JobRow, ...] = Field(description="jobs that wait for a person's yes")
    recent: tuple[Event, ...] = Field(description="what relight and people did in the last day, the newest first")


class JobPage(Shape):
    items: tuple[JobRow, ...]
    before: int | None
    total: int | None


class JobStory(Shape):
    life: Life
    row: JobRow | None
    attempts: tuple[Attempt, ...]
    events: tuple[Event, ...]
    progress: Watched | None
    blind_since: Time | None
    waits: str
    excluded: tuple[Excluded, ...]


class Progressed(Shape):
    """How far the running attempt is, as its log tells."""

    attempt: int | None = None
    first_step: int | None = None
    first_step_at: Time | None = None
    step: int | None = None
    step_at: Time | None = None
    total_steps: int | None = None
    checkpoint: int | None = None
    checkpoint_at: Time | None = None


class JobTold(Shape):
    """One job, with its attempts; its log is read page by page."""

    job: str
    life: Life
    row: JobRow | None
    attempts: tuple[Attempt, ...]
    progress: Progressed | None
    blind_since: Time | None = Field(default=None, description="its log cannot be read since then")
    waits: str = ""
    excluded: tuple[Excluded, ...] = ()


class NodeTold(Shape):
    cluster: str
    node: str
    suspicions: tuple[Suspicion, ...]
    exclusions: tuple[Excluded, ...]
    drains: tuple[Drain, ...]


class NodeStory(NodeTold):
    past_drains: tuple[Drain, ...] = ()
    cleared: Cleared | None = None


class PolicyOfCluster(Shape):
    cluster: str
    in_force: str = Field(description="hash of the policy that its worker follows")
    since: Time | None = None
    policies: tuple[str, ...] = ()
    problem: str = ""
    is_the_file: bool


class PolicyTold(Shape):
    file: str | None
    hash: str
    problem: str
    clusters: tuple[PolicyOfCluster, ...]
    history: tuple[Event, ...] = Field(description="what was taken up when, the newest first")


class RuleTold(Shape):
    id: str
    situation: str
    advice: str


class FaultCount(Shape):
    week: Time = Field(description="its Monday")
    fault_class: str
    faults: int


class Reports(Shape):
    since: Time
    until: Time
    faults: int
    restarted: int = Field(description="of them, so many attempts were followed by a restart of relight's")
    by_week: tuple[FaultCount, ...]
    nodes: tuple[NodeCount, ...] = Field(description="the most suspected ones")


class Explanation(Shape):
    """Which rule fired, on which facts, and what the next failure would get."""

    job: str
    policy: dict[str, Any]
    refused: tuple[str, ...]
    decisions: tuple[dict[str, Any], ...]
    last: dict[str, Any] | None
    next: tuple[dict[str, Any], ...]
