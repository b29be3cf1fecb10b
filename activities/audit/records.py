"""What the audit store is asked and what it answers. Plain records: no table and no database is imported here."""

from __future__ import annotations

from pydantic import Field

from recovery.incident_effects import Affected
from recovery.records import Action, Nodes, Progress, Record, Time


class Life(Record):
    """One life of a job id, from its submission until Slurm forgets it, through all its requeues."""

    life_id: int
    cluster: str
    job_id: str
    reopened: bool = Field(default=False, description="an earlier workflow run had opened this life already")
    first_seen: Time
    user: str = ""
    name: str = ""
    restarts: int = 0
    state: str = ""
    phase: str = ""
    mode: str = ""
    paused: bool = False
    paused_by: str = ""
    stopped: bool = False
    workflow_id: str = ""
    run_id: str = ""
    updated_at: Time
    closed_at: Time | None = None
    close_reason: str = ""


class Event(Record):
    """One row of the log as it was written: text cleaned, long text cut."""

    id: int = Field(description="rises with every row; give the last one as after_id to read on")
    cluster: str
    job_id: str
    life_id: int | None
    key: str
    kind: str
    at: Time
    recorded_at: Time
    by: str
    summary: str
    attempt: int
    body: dict[str, object]
    workflow_id: str
    run_id: str


class RunOnRecord(Record):
    """A workflow run that wrote about a life."""

    workflow_id: str
    run_id: str
    rows: int
    newest: Time


class JobRow(Record):
    """One job as a list shows it."""

    cluster: str
    job_id: str
    life_id: int
    user: str
    name: str
    partition: str
    state: str
    phase: str
    mode: str
    paused: bool
    paused_by: str = ""
    stopped: bool
    attempt: int = Field(description="Slurm's restart count")
    step: int | None = None
    step_at: Time | None = None
    total_steps: int | None = None
    checkpoint: int | None = None
    checkpoint_at: Time | None = None
    last_finding: str = ""
    last_advice: str = ""
    waits: str = Field(default="", description="what it waits for, and until when at most")
    fault_class: str = Field(default="", description="of the last attempt whose cause was decided")
    first_seen: Time
    updated_at: Time
    closed_at: Time | None = None
    workflow_id: str = ""
    incident: str = Field(default="", description="id of the open incident it belongs to")


class Watched(Record):
    """One job the sweep looks at. The first part is the workflow's, the second is the sweep's."""

    cluster: str
    job_id: str
    life_id: int
    workflow_id: str = ""
    uid: int = -1
    user: str = ""
    restarts: int = 0
    stdout: str = ""
    stderr: str = ""
    paused: bool = False

    seen: str = Field(default="", description="key of the last scheduler row that was signalled")
    cursor: str = Field(default="", description="how far the logs were read; opaque here")
    attempt: int | None = Field(default=None, description="the attempt that the progress below belongs to")
    first_step: int | None = None
    first_step_at: Time | None = None
    step: int | None = None
    step_at: Time | None = None
    total_steps: int | None = None
    checkpoint: int | None = None
    checkpoint_at: Time | None = None

    def progress_of(self, attempt: int) -> Progress:
        """How far that attempt is; nothing where the progress told here is another attempt's."""
        if self.attempt != attempt:
            return Progress(attempt=attempt)
        return Progress.model_validate({name: getattr(self, name) for name in Progress.model_fields})


class ToldFailure(Record):
    """How far the comparison of a failure with those of other jobs has come."""

    seen_at: Time
    correlated: bool = Field(default=False, description="a sweep that began after it was seen has compared it")


class PermitRequest(Record):
    """May this step be taken now? A cap that is None does not count."""

    cluster: str
    step_key: str = Field(description="the same for every repetition of the step; names cluster, job and life")
    job_id: str
    action: Action
    nodes: Nodes = Field(default=(), description="nodes that the step excludes")
    certain: Nodes = Field(default=(), description="those of them that are bad on a word that no user can write")
    node_count: int = Field(default=0, description="nodes of the job")
    max_restarts_at_once: int | None = None
    max_actions_per_hour: int | None = None
    max_restarted_nodes_per_hour: int | None = None
    max_excluded_share: float | None = Field(default=None, ge=0, le=1)
    max_excluded_per_user: float = Field(default=1, ge=0, le=1, description="part of that share for one user's jobs")
    last_ask: bool = Field(default=False, description="it waits no longer: exclusions that do not fit are left out")
    cluster_nodes: int = Field(default=0, description="nodes the cluster has; 0: not known at the moment")
    exclusion_s: float = Field(
        default=86_400, description="the exclusions count for that long, or until the job closes"
    )
    affected: Affected = Field(default=Affected(), description="the failed attempt, for open incidents")
    withhold: bool = Field(default=True, description="whether an open incident that explains the fault keeps the "
                           "exclusions back; not where they were decided in its knowledge")  # fmt: skip
    forced: bool = Field(default=False, description="an operator's own demand: incidents do not bind it")
    pace_s: float = Field(default=5, description="between two restarts while an incident is open")
    last_call: Time | None = Field(default=None, description="a turn is never later than this: the job would be gone")
    now: Time


class Cleared(Record):
    """The last time that somebody called a node well."""

    node: str
    at: Time
    by: str = ""
    reason: str = ""


class Excluded(Record):
    """A node that one job is kept away from."""

    cluster: str
    node: str
    job_id: str
    step_key: str = ""
    since: Time
    until: Time


class DrainGrant(Record):
    """May this node be taken out of service now?"""

    cluster: str
    node: str
    step_key: str
    life_id: int
    job_id: str
    signature: str = ""
    how: str = ""
    expiry_s: float
    max_share: float
    max_per_hour: int
    cluster_nodes: int = Field(description="nodes the cluster has; 0: not known at the moment")
    now: Time


class Drain(Record):
    """One node out of service by relight."""

    drain_id: int
    cluster: str
    node: str
    step_key: str
    life_id: int
    job_id: str
    signature: str = ""
    how: str = ""
    granted_at: Time
    until: Time
    drained_at: Time | None = Field(default=None, description="None: asked of Slurm, not yet known to be done")
    ended_at: Time | None = None
    ended_by: str = ""
    end_reason: str = ""
    cleared_at: Time | None = Field(default=None, description="somebody wants it back in service since then")
    cleared_by: str = ""
    clear_reason: str = ""


class JobFilter(Record):
    """Which jobs a list shows. What is empty does not count."""

    cluster: str = ""
    user: str = ""
    partition: str = ""
    state: str = Field(default="", description="a Slurm state or a phase, or paused, or stopped")
    mode: str = ""
    fault: str = Field(default="", description="class of a fault that one of its attempts had")
    text: str = Field(
        default="", max_length=200, description="part of the job's name, beginning of its id, or its user"
    )
    closed: bool = Field(default=False, description="also jobs that Slurm has forgotten")


class JobCount(Record):
    """So many open jobs of one cluster are alike."""

    cluster: str
    state: str
    phase: str
    mode: str
    paused: bool
    jobs: int


class Fault(Record):
    """One attempt that ended by a fault."""

    cluster: str
    job_id: str
    attempt: int
    fault_class: str
    signature: str
    at: Time
    by_relight: bool = Field(default=False, description="relight started the next attempt")


class NodeCount(Record):
    """How often a node was suspected, and by how many jobs."""

    cluster: str
    node: str
    suspicions: int
    jobs: int


class Moved(Record):
    """A job whose progress was written since the last look."""

    cluster: str
    job_id: str
    step_at: Time
