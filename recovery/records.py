"""The records every floor shares: what was seen, why, what should happen, what was done, what came of it.

Finding, verdict, advice, step and outcome stay five records and are never merged (docs/architecture.md). All are
frozen, carry aware UTC times, and hold host lists as sorted tuples of names. Fields are only ever added: stored
histories must still decode.
"""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

EVIDENCE_BYTES = 2_000
"""Longest evidence text kept with one finding (characters)."""


def _sorted_names(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(set(names)))


def _utc(value: datetime) -> datetime:
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


Nodes = Annotated[tuple[str, ...], AfterValidator(_sorted_names)]
"""Node names, sorted, each once. Host list expressions are expanded in activities only."""

Time = Annotated[datetime, AfterValidator(_utc)]
"""An aware UTC moment."""


class Record(BaseModel):
    """A frozen record. Unknown fields are ignored, so that an older reader can read a newer history."""

    model_config = ConfigDict(frozen=True, extra="ignore")


# ------------------------------------------------------------------------------------------------ words


class Mode(StrEnum):
    """How far relight may go for a job, gentlest first."""

    MONITOR = "monitor"  # record advice, touch nothing
    APPROVE = "approve"  # wait for a person's yes, with a deadline
    ACT = "act"

    @property
    def strength(self) -> int:
        return list(Mode).index(self)


def gentlest(*modes: Mode | None) -> Mode:
    """The gentlest of the given modes; a missing one does not count. At least one must be given."""
    return min((mode for mode in modes if mode is not None), key=lambda mode: mode.strength)


class JobState(StrEnum):
    """Slurm's base job states (job_states.h), without flags. COMPLETING is a flag: see JobView.completing."""

    PENDING = "PENDING"
    CONFIGURING = "CONFIGURING"
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    STOPPED = "STOPPED"
    COMPLETED = "COMPLETED"
    CANCELLED = "CANCELLED"
    FAILED = "FAILED"
    TIMEOUT = "TIMEOUT"
    NODE_FAIL = "NODE_FAIL"
    PREEMPTED = "PREEMPTED"
    BOOT_FAIL = "BOOT_FAIL"
    DEADLINE = "DEADLINE"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    SPECIAL_EXIT = "SPECIAL_EXIT"
    REQUEUED = "REQUEUED"  # accounting's word for an attempt that was requeued
    RESIZING = "RESIZING"
    COMPLETING = "COMPLETING"  # base state not known: only accounting can tell
    UNKNOWN = "UNKNOWN"

    @property
    def is_final(self) -> bool:
        """True when this attempt has ended and Slurm will not go on with it by itself."""
        return self in _FINAL

    @property
    def is_alive(self) -> bool:
        """True while the job waits, runs or is suspended."""
        return self in _ALIVE


_FINAL = frozenset(
    {
        JobState.COMPLETED,
        JobState.CANCELLED,
        JobState.FAILED,
        JobState.TIMEOUT,
        JobState.NODE_FAIL,
        JobState.PREEMPTED,
        JobState.BOOT_FAIL,
        JobState.DEADLINE,
        JobState.OUT_OF_MEMORY,
    }
)
_ALIVE = frozenset(
    {JobState.PENDING, JobState.CONFIGURING, JobState.RUNNING, JobState.SUSPENDED, JobState.STOPPED, JobState.RESIZING}
)


FAILURES = frozenset({JobState.FAILED, JobState.NODE_FAIL, JobState.BOOT_FAIL, JobState.OUT_OF_MEMORY})
"""Endings that a fault brings about."""


class FaultClass(StrEnum):
    """What kind of thing broke."""

    HARDWARE = "hardware"
    INTERCONNECT = "interconnect"
    STORAGE = "storage"
    SYSTEM_SOFTWARE = "system_software"
    SCHEDULER = "scheduler"
    APPLICATION = "application"
    OUT_OF_MEMORY = "out_of_memory"
    USER = "user"
    NONE = "none"  # nothing broke: finished, cancelled, time limit
    UNKNOWN = "unknown"


class Role(StrEnum):
    """The part a signature plays: causes are roots, consequences are cascades."""

    ROOT = "root"
    CASCADE = "cascade"
    SYMPTOM = "symptom"
    BENIGN = "benign"


class Retry(StrEnum):
    """Whether running the unchanged script again can help."""

    YES = "yes"
    ONCE = "once"
    NO = "no"
    HANDS_OFF = "hands_off"  # not ours to restart


class Certainty(StrEnum):
    SUSPECTED = "suspected"
    CONFIRMED = "confirmed"


class Confidence(StrEnum):
    """How sure a verdict is of a suspect."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


class Action(StrEnum):
    """What an advice recommends."""

    LEAVE_ALONE = "leave_alone"
    RESTART = "restart"  # requeue + exclusions + start time
    STOP = "stop"  # scancel what is alive or would be revived; a dead job simply stays dead
    GUARD = "guard"  # Slurm requeued by itself: exclusions and a start time while it waits
    RELEASE = "release"  # launch failed requeued held
    ARM = "arm"  # Requeue=1 while a --no-requeue job is alive
    WAIT = "wait"  # look again at Advice.look_again_at


# ------------------------------------------------------------------------------------------------ Slurm, as seen


_UNPLACEABLE = ("badconstraints", "reqnodenotavail", "partitionconfig", "partitionnodelimit")


def is_unplaceable(reason: str) -> bool:
    """Whether Slurm's pending reason means that nodes are missing which no end of another job would bring."""
    plain = reason.lower().replace(" ", "").replace("_", "").strip("()")
    return plain.startswith(_UNPLACEABLE) and "reserved" not in plain


class JobView(Record):
    """One look at one job in the scheduler. Source: `scontrol show job` and `squeue`, by the gate."""

    cluster: str
    job_id: str = Field(description="what Slurm's commands take and people say: '12345', array task '12_3'")
    raw_id: int = Field(description="Slurm's own number; differs from job_id for array tasks")
    array_job_id: int | None = None
    array_task_id: int | None = None
    het_job_id: int | None = None
    name: str = ""
    user: str = ""
    uid: int = -1
    account: str = ""
    partition: str = ""
    qos: str = ""
    state: JobState
    completing: bool = False
    reason: str = ""
    priority: int | None = None
    restarts: int = 0
    requeue: bool = True
    batch: bool = True
    exit_code: int = 0
    exit_signal: int = 0
    submit_time: Time | None = None
    eligible_time: Time | None = None
    start_time: Time | None = None
    end_time: Time | None = None
    time_limit_s: int | None = None
    nodes: Nodes = ()
    batch_host: str = ""
    min_nodes: int = 1
    min_cpus_node: int = 1
    num_cpus: int = 1
    gpus: int | None = Field(default=None, description="of the whole job; None: Slurm does not tell")
    min_memory_mb: int = 0
    excluded: Nodes = ()
    required_nodes: Nodes = ()
    features: str = ""
    reservation: str = ""
    dependency: str = ""
    comment: str = ""
    work_dir: str = ""
    command: str = ""
    stdout: str = ""
    stderr: str = ""
    looked_at: Time

    @property
    def held(self) -> bool:
        """Priority 0 while pending: Slurm or a person holds it."""
        return self.state is JobState.PENDING and self.priority == 0 and not self.unplaceable

    @property
    def unplaceable(self) -> bool:
        """It waits for nodes that do not exist as things stand. Of a job that no set of nodes fits, Slurm also sets
        the priority to 0, and does not try again until the job is changed."""
        return self.state is JobState.PENDING and is_unplaceable(self.reason)


class AttemptRow(Record):
    """One attempt in accounting. Source: `sacct -D -X -P`, oldest first."""

    raw_id: int
    state: JobState
    cancelled_by: int | None = Field(default=None, description="uid, from 'CANCELLED by UID'")
    exit_code: int = 0
    exit_signal: int = 0
    reason: str = ""
    nodes: Nodes = ()
    submit_time: Time | None = None
    start_time: Time | None = None
    end_time: Time | None = None
    comment: str = ""


class NodeView(Record):
    """One node. Source: `scontrol show node`."""

    name: str
    state: str = Field(description="base state, e.g. IDLE, MIXED, ALLOCATED, DOWN")
    flags: tuple[str, ...] = Field(default=(), description="e.g. DRAIN, NOT_RESPONDING, MAINTENANCE, COMPLETING")
    reason: str = ""
    partitions: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    cpus: int = 0
    memory_mb: int = 0
    boot_time: Time | None = None
    slurmd_start_time: Time | None = None

    @property
    def is_usable(self) -> bool:
        """True when Slurm may place a job there, now or as soon as what runs there ends."""
        bad = {"DRAIN", "DOWN", "FAIL", "FAILING", "NOT_RESPONDING", "MAINTENANCE", "MAINT", "POWERED_DOWN", "REBOOT",
               "INVALID_REG", "UNDRAIN"}  # fmt: skip
        return self.state in {"IDLE", "MIXED", "ALLOCATED", "COMPLETING", "PLANNED"} and not bad & set(self.flags)


class ClusterFacts(Record):
    """Settings of the cluster that decisions depend on. Source: `scontrol show config`."""

    cluster_name: str = ""
    slurm_version: str = ""
    min_job_age_s: int = 300
    cred_expire_s: int = 120
    kill_wait_s: int = 30
    job_requeue: bool = True
    stores_comment: bool = False
    accounting: bool = False
    requeue_exit: tuple[int, ...] = ()
    nodes: Nodes = Field(default=(), description="names of all nodes, as they were last read")


# ------------------------------------------------------------------------------------------------ the five records


class Finding(Record):
    """What was seen, where, when, by which detector. A finding is not a cause.

    `id` is stable: the same line or the same scheduler fact gives the same id however often it is read.
    """

    id: str
    attempt: int = Field(description="restart count of the attempt it belongs to")
    detector: str = Field(description="'scheduler', 'log', 'progress', …")
    signature: str = Field(description="catalogue id, e.g. 'xid.79' or 'scheduler.node_fail'")
    fault_class: FaultClass
    role: Role = Role.ROOT
    retry: Retry = Retry.YES
    certainty: Certainty = Certainty.CONFIRMED
    at: Time | None = Field(default=None, description="when it happened, as its source tells; None: it does not")
    seen_at: Time
    nodes: Nodes = Field(default=(), description="nodes it implicates; may be empty")
    alike: int = Field(default=1, description="so many lines of this signature come from the same node")
    everywhere: bool = Field(default=False, description="every node of the job told trouble of this class")
    rank: int | None = None
    local_rank: int | None = None
    gpu: str | None = None
    peer: str | None = Field(default=None, description="the other end it names (address or host), never proof")
    how: str = Field(default="", description="how the nodes were derived")
    confidence: Confidence | None = Field(
        default=None, description="how sure it is of the nodes; None: as usual for its class"
    )
    trusted: bool = Field(
        default=False, description="from a witness that users cannot write: scheduler, kernel, metrics"
    )
    summary: str
    evidence: str = Field(default="", max_length=EVIDENCE_BYTES)
    source: str = ""
    line: int | None = None
    place: int | None = Field(
        default=None, description="place among the lines of its attempt, in all of its files, earliest first"
    )


class Suspect(Record):
    node: str
    how: str
    confidence: Confidence
    trusted: bool = False
    by: str = Field(default="", description="who outside named it; empty: the built-in rules. Never counts elsewhere")
    again: bool = Field(default=False, description="suspected before, in a way that counts: see recurrence.py")


class Verdict(Record):
    """Why. A verdict is not a decision; 'cannot tell' is fault_class unknown without suspects."""

    fault_class: FaultClass
    signature: str = ""
    retry: Retry = Retry.YES
    suspects: tuple[Suspect, ...] = ()
    reason: str
    by: str = "rules"
    first_cause: str | None = Field(default=None, description="id of the finding held to be the first cause")
    attempt: int | None = Field(default=None, description="restart count of the attempt it is about")


class ToldCode(Record):
    """An exit code of a task, as srun told it in the job's log. Slurm itself only knows the batch script's."""

    code: int
    node: str = ""


class Attempt(Record):
    """What is known of one attempt of a job, for budgets and for the record."""

    number: int = Field(description="Slurm's restart count during it")
    state: JobState = JobState.UNKNOWN
    submit_time: Time | None = None
    start_time: Time | None = None
    end_time: Time | None = None
    nodes: Nodes = ()
    gpus: int | None = Field(default=None, description="of all nodes together; None: Slurm does not tell")
    excluded: Nodes = ()
    exit_code: int = 0
    exit_signal: int = 0
    told_codes: tuple[ToldCode, ...] = Field(default=(), description="exit codes of tasks that srun told in the log")
    first_step: int | None = None
    last_step: int | None = Field(default=None, description="highest completed step")
    last_checkpoint: int | None = Field(default=None, description="highest completed checkpoint (step)")
    fault_class: FaultClass | None = None
    signature: str = ""
    suspects: Nodes = ()
    ended_by_us: bool = Field(default=False, description="it ended because relight restarted it, not by a fault")
    own_fault: bool = Field(default=False, description="it died of relight's own doing: costs no budget")
    restarted_by: str = Field(default="", description="who started the next attempt: relight, slurm, other")

    @property
    def steps(self) -> tuple[int, ...]:
        """Steps it is known to have reached: completed, or kept in a checkpoint."""
        return tuple(step for step in (self.last_step, self.last_checkpoint) if step is not None)

    @property
    def codes(self) -> frozenset[int]:
        """Exit codes by which it may ask for something: the batch script's and those of its tasks."""
        return frozenset({self.exit_code, *(told.code for told in self.told_codes)})

    @property
    def hours(self) -> float:
        """How long it ran; 0 while that is not known."""
        if self.start_time is None or self.end_time is None:
            return 0.0
        return max(0.0, (self.end_time - self.start_time).total_seconds()) / 3600

    @property
    def node_hours(self) -> float:
        return len(self.nodes) * self.hours


class Budget(Record):
    """One limit, what is used of it, and which attempts used it."""

    name: str
    used: float
    limit: float

    @property
    def left(self) -> float:
        return max(0.0, self.limit - self.used)


class Advice(Record):
    """What should happen next. An advice is not an action."""

    action: Action
    rule: str = Field(description="id of the policy rule that fired")
    reason: str
    exclude: Nodes = Field(default=(), description="nodes the next attempt should avoid, beyond those already excluded")
    drain: Nodes = Field(default=(), description="nodes to take out of service, by a witness that users cannot write")
    keep_nodes: Nodes = Field(default=(), description="healthy nodes to hold for the restarted job")
    restart_count: int = Field(default=0, description="the attempt it is about; a step is refused for any other")
    fault_class: FaultClass = FaultClass.UNKNOWN
    signature: str = ""
    mode: Mode = Mode.MONITOR
    needs_approval: bool = False
    approve_within_s: int | None = Field(default=None, description="longest wait for a yes")
    on_silence: Action = Field(default=Action.LEAVE_ALONE, description="what happens when nobody answered in time")
    look_again_at: Time | None = None
    not_before: Time | None = Field(default=None, description="earliest start of the next attempt; None: at once")
    facts: tuple[str, ...] = Field(default=(), description="what the rule looked at, for people")
    notify: bool = False
    routine: bool = Field(default=False, description="nothing to tell: the job runs, or waits for an ordinary reason")
    budgets: tuple[Budget, ...] = ()
    policy: str = ""
    policy_hash: str = ""
    catalogue_hash: str = ""

    @property
    def acts(self) -> bool:
        """True when following it changes something in Slurm."""
        return self.action not in {Action.LEAVE_ALONE, Action.WAIT}


class OutcomeKind(StrEnum):
    RESTARTED = "restarted"  # the next attempt runs, exclusions in place
    WAITING = "waiting"  # requeue and lease verified; the job waits in the queue for other reasons
    STOPPED = "stopped"
    GUARDED = "guarded"
    RELEASED = "released"
    ARMED = "armed"
    STARTED_ON_EXCLUDED = "started_on_excluded"  # Slurm lost the exclusions and the job started meanwhile
    DIED_AT_START = "died_at_start"  # FAILED 1:0 within 2 s and without output: our own fault
    STUCK = "stuck"  # cannot be placed although exclusions were relaxed
    REFUSED = "refused"  # the gate or Slurm said no: see reason
    GONE = "gone"  # purged before it could be done
    UNDONE = "undone"  # Slurm forgot the change; it has to be decided again


class Outcome(Record):
    """What fresh looks at Slurm showed after a step."""

    kind: OutcomeKind
    step_key: str
    reason: str = ""
    restarts: int | None = None
    excluded: Nodes = ()
    relaxed: Nodes = Field(default=(), description="exclusions given up so that the job can be placed")
    reapplied: int = Field(default=0, description="how often slurmctld had lost the change and it was applied again")
    rearmed: tuple[str, ...] = Field(default=(), description="dependents that were re-armed")
    acted_at: Time | None = Field(default=None, description="slurmctld accepted the change")
    pending_at: Time | None = None
    started_at: Time | None = None
    nodes: Nodes = ()


class Progress(Record):
    """The highest completed step and checkpoint of one attempt, as its log tells."""

    attempt: int = 0
    first_step: int | None = None
    first_step_at: Time | None = None
    step: int | None = None
    step_at: Time | None = None
    total_steps: int | None = None
    checkpoint: int | None = None
    checkpoint_at: Time | None = None
