"""Names and models of the activities: all that the workflows know of them.

No implementation is imported here. One model in, one model out; fields are only ever added.
"""

from __future__ import annotations

from pydantic import Field

from recovery.attribution import About, AskedPhase, Attribution, EvidenceLine
from recovery.directive import Directive
from recovery.hang import Hang
from recovery.incident_records import Incident
from recovery.maintenance import Window
from recovery.policy_numbers import BeforeRestart
from recovery.records import (
    Advice,
    Attempt,
    AttemptRow,
    Finding,
    JobState,
    JobView,
    Mode,
    Nodes,
    Progress,
    Record,
    Time,
    Verdict,
)
from recovery.recurrence import Suspicion
from recovery.straggler import Straggler

# Activity names, as they stand in histories.
OPEN_JOB = "open_job"
EXAMINE = "examine"
DECIDE = "decide"
PLAN = "plan"
RESTART = "restart"
SETTLE = "settle"
STOP = "stop"
GUARD = "guard"
RELEASE = "release"
ARM = "arm"
DRAIN = "drain"
SAVE_EVIDENCE = "save_evidence"
RECORD = "record"
CLOSE_JOB = "close_job"
ATTRIBUTE = "attribute"
SWEEP = "sweep"
KEEP_HISTORIES = "keep_histories"


def workflow_queue(cluster: str) -> str:
    return f"relight-{cluster}"


def slurm_queue(cluster: str) -> str:
    return f"relight-{cluster}-slurm"


def sweep_queue(cluster: str) -> str:
    return f"relight-{cluster}-sweep"


EVIDENCE_QUEUE = "relight-evidence"

ATTRIBUTION_QUEUE = "relight-attribution"
"""Asks services outside; what is slow there holds up nothing else."""


# ------------------------------------------------------------------------------------------------ opening


class JobOverrides(Record):
    """What a person may say when starting a workflow by hand. Can only make the job's treatment gentler."""

    mode: Mode | None = None
    policy: str | None = None
    paused: bool | None = None


class OpenJob(Record):
    cluster: str
    job_id: str
    overrides: JobOverrides = JobOverrides()
    workflow_id: str
    run_id: str

    by_hand: bool = Field(default=False, description="started by a person rather than by the sweep")


class JobOpening(Record):
    """What `open_job` found. `refused` set: the workflow must fail with that sentence."""

    refused: str = ""
    life_id: int | None = None
    reopened: bool = False
    view: JobView | None = Field(default=None, description="None: Slurm does not know the job (any more)")
    paused: bool = False
    paused_by: str = ""
    stopped: bool = Field(default=False, description="an earlier run stopped this job for good")


class CloseJob(Record):
    cluster: str
    job_id: str
    life_id: int | None
    reason: str
    workflow_id: str
    run_id: str


# ------------------------------------------------------------------------------------------------ looking


class ExamineJob(Record):
    """A fresh look at everything about one job: scheduler, accounting, log, audit."""

    cluster: str
    job_id: str
    life_id: int
    overrides: JobOverrides = JobOverrides()
    paused: bool = False
    own_stop: bool = Field(default=False, description="relight itself cancelled the current attempt")
    expected_restarts: int | None = Field(default=None, description="restart count that our own restart started")
    read_log: bool = Field(default=False, description="read the job's log although it is alive: the sweep saw a fault")
    by_hand: bool = Field(default=False, description="a person started the workflow: the comment need not opt in")
    workflow_id: str = ""
    run_id: str = ""


class DependentView(Record):
    job_id: str
    kind: str = Field(description="afterok, afternotok, afterany, aftercorr or singleton")
    state: str
    user: str = ""
    never_satisfied: bool = False


class AttributionWanted(Record):
    """That somebody outside is to be asked about a fault, as the configuration says; once for each `about`."""

    about: About = About.ENDED
    signal: str = Field(description="how it was noticed: the ending Slurm tells, or hang")
    subject: JobView = Field(description="the job in the attempt that is asked about")
    wait_s: float = Field(default=0, description="longest wait before deciding; 0: nothing waits for an answer")
    slow_s: float = Field(default=0, description="deadline of the thorough question beside; 0: not asked")
    counts: bool = Field(default=False, description="the rules cannot tell, so that an answer may add suspects")

    @property
    def key(self) -> str:
        return f"{self.subject.restarts}:{self.about.value}"


class Examination(Record):
    """What a look showed. Everything `decide` may know travels in here, and so stands in the history."""

    view: JobView | None = Field(default=None, description="None: purged by Slurm")
    rows: tuple[AttemptRow, ...] = Field(default=(), description="accounting, oldest first, the last 20 attempts")
    accounting: bool = False
    attempts: tuple[Attempt, ...] = Field(default=(), description="as recorded, oldest first, the current one last")
    findings: tuple[Finding, ...] = Field(default=(), description="of the current attempt, at most 40")
    progress: Progress = Progress()
    hang: Hang | None = Field(default=None, description="the running attempt makes no progress")
    straggler: Straggler | None = Field(default=None, description="the running attempt lags behind its usual pace")
    directive: Directive = Directive()
    directive_error: str = ""
    opted_in: bool = True
    opted_out: bool = False
    dependents_started: tuple[str, ...] = ()
    dependents_unsatisfied: tuple[str, ...] = ()
    twins: tuple[str, ...] = Field(default=(), description="live copies of the job, submitted since it failed")
    failed_at: Time | None = Field(default=None, description="when it failed, where that was before its end")
    maintenance: tuple[Window, ...] = Field(default=(), description="windows that Slurm has reserved")
    nodes_usable: Nodes = ()
    nodes_known: Nodes = ()
    nodes_up: Nodes = Field(default=(), description="nodes that are neither DOWN nor silent")
    life_id: int | None = None
    ledger: tuple[Suspicion, ...] = Field(
        default=(), description="suspicions of the nodes of the attempt in question, by all jobs, newest first"
    )
    nodes_cleared: dict[str, Time] = Field(default_factory=dict, description="when a person cleared one of them")
    min_job_age_s: int = 300
    accounting_lag: bool = Field(default=False, description="COMPLETING and accounting has no word yet: look again")
    frozen: str = Field(default="", description="reason why the cluster must not be touched now (STOP file, …)")
    attribution: AttributionWanted | None = Field(default=None, description="None: nobody outside is asked")
    incidents: tuple[Incident, ...] = Field(default=(), description="open in the cluster, without their members")


# ------------------------------------------------------------------------------------------------ deciding


class Force(Record):
    """What an operator demands by `force`. `by` is recorded as claimed."""

    action: str = Field(description="restart, stop or release")
    exclude: Nodes = ()
    restart_count: int | None = None
    by: str = ""
    reason: str = ""


class DecideJob(Record):
    cluster: str
    examination: Examination
    overrides: JobOverrides = JobOverrides()
    paused: bool = False
    paused_by: str = ""
    stopped: bool = False
    own_faults: int = Field(default=0, description="restarts in a row that died of our own doing")
    expected_restart: bool = Field(default=False, description="the current attempt was started by our restart")
    declined: Nodes = Field(default=(), description="nodes not excluded, so that the waiting job can be placed")
    force: Force | None = None
    by_hand: bool = False
    now: Time | None = Field(default=None, description="workflow time of the decision")
    attributions: tuple[Attribution, ...] = Field(default=(), description="what outside answers say of this fault")


class Decision(Record):
    """Verdict and advice, with the effective mode and the numbers the workflow needs until the next decision."""

    verdict: Verdict
    advice: Advice
    mode: Mode
    policy: str
    lease_s: int = 60
    start_delay_s: int = 5
    step_deadline_s: int = Field(default=60, description="a change later than this after its plan is refused")
    settle_s: int = Field(default=900, description="longest watch over one restart")
    exclude_expiry_s: int = Field(default=86_400, description="an older exclusion is not renewed at the next restart")
    own_fault_limit: int = Field(default=3, description="restarts in a row that may die of our own doing")
    permit_wait_s: int = Field(default=240, description="longest wait for a permit before failing open")
    park: bool = False
    park_s: int = Field(default=43_200, description="start time of a parked job: now + this")
    stop_requeued: bool = False
    keep_nodes_s: int = Field(default=600, description="longest time that nodes are held for the restarted job")
    max_kept_share: float = 0.25
    max_tries: int = Field(default=6, description="steps for one attempt of a job, repeats included")
    evidence_bytes: int = Field(default=1 << 20, description="how much of the end of each log is kept")
    before_restart: BeforeRestart | None = None
    end_steps_s: int = Field(default=0, description="end the steps of a running job first, and wait so long for it")


# ------------------------------------------------------------------------------------------------ asking outside


class AttributeJob(Record):
    """One question about one fault to every configured provider. Answers are on record when it returns."""

    cluster: str
    job_id: str
    life_id: int
    phase: AskedPhase
    wanted: AttributionWanted
    lines: tuple[EvidenceLine, ...] = Field(default=(), description="of the findings, unmasked")
    deadline_s: float
    verdict: Verdict | None = Field(default=None, description="slow phase: what was decided upon")
    sessions: dict[str, str] = Field(default_factory=dict, description="slow phase: sessions of the fast one")
    workflow_id: str = ""
    run_id: str = ""


class AttributionAnswers(Record):
    """What each provider said, or why it said nothing."""

    attributions: tuple[Attribution, ...] = ()


# ------------------------------------------------------------------------------------------------ acting


class PlanStep(Record):
    """Writes verdict, advice and plan to the audit store, then asks for the permit. No audit, no action."""

    cluster: str
    job_id: str
    life_id: int
    step_key: str = Field(description="stable over activity attempts and continue-as-new")
    verdict: Verdict
    advice: Advice
    approved_by: str = ""
    last_ask: bool = Field(default=False, description="it waits no longer: exclusions that do not fit are left out")
    workflow_id: str
    run_id: str


class PermitAnswer(Record):
    """granted: act now; wait: ask again at `until`; denied: not at all, with the reason."""

    granted: bool
    until: Time | None = None
    reason: str = ""
    withheld: bool = Field(default=False, description="granted without any of its exclusions")
    left_out: Nodes = Field(default=(), description="exclusions without which it is granted")
    incident: str = Field(default="", description="id of the incident for which they are left out")


class StepRequest(Record):
    """One Slurm change, fenced by the restart count and a wall-clock deadline."""

    cluster: str
    job_id: str
    life_id: int
    step_key: str
    restart_count: int
    deadline: Time
    exclude: Nodes = ()
    keep_excluded: Nodes = Field(default=(), description="exclusions relight set earlier and still wants")
    give_up: Nodes = Field(default=(), description="exclusions relight set earlier whose time is over")
    lease_s: int = 60
    start_delay_s: int = 5
    reason: str = ""
    force: bool = Field(default=False, description="an operator's own decision")
    state: JobState | None = Field(default=None, description="how the attempt ended; TIMEOUT must be asked for by name")
    stuck: bool = Field(default=False, description="it runs, but hangs or lags: its end counts as a fault")
    keep_start: bool = Field(default=False, description="a guard of relight's own restart: its start time stands")
    min_nodes: int = Field(default=1, description="nodes the job needs; while COMPLETING Slurm tells fewer")
    excluded_at: dict[str, Time] = Field(default_factory=dict, description="since when relight excludes them")
    hold: Nodes = Field(default=(), description="healthy nodes to hold for the restarted job")
    hold_s: int = 600
    max_held_share: float = Field(default=0.25, description="of the cluster's nodes, held for all restarted jobs")
    failed_at: Time | None = Field(default=None, description="copies submitted since then keep the restart away")
    before_restart: BeforeRestart | None = Field(default=None, description="signal and wait for a running job")
    end_steps_s: int = Field(default=0, description="end the steps of a running job first, and wait so long for it")
    workflow_id: str = ""
    run_id: str = ""


class StepResult(Record):
    """What the gate answered. done False: nothing was changed, `refused` says why."""

    done: bool
    already: bool = Field(default=False, description="it had been done before (a repeated activity)")
    refused: str = Field(default="", description="kind of refusal: stale, cancelled, finished, twin, dependent, …")
    message: str = ""
    restarts: int | None = None
    excluded: Nodes = ()
    dropped: Nodes = Field(default=(), description="exclusions left out, because too few usable nodes would remain")
    acted_at: Time | None = None


class SettleRequest(Record):
    """Watches a restart (or guard) until it is verified; re-applies what slurmctld lost; relaxes what strands."""

    cluster: str
    job_id: str
    life_id: int
    step_key: str
    restarts: int = Field(description="restart count the new attempt must have")
    excluded: Nodes = Field(description="the union that must stand in ExcNodeList")
    ours: Nodes = Field(default=(), description="those of them that relight may give up")
    excluded_at: dict[str, Time] = Field(default_factory=dict, description="since when: the oldest are given up first")
    start_delay_s: int = 5
    lease_s: int = 60
    acted_at: Time
    deadline: Time
    rearm: tuple[str, ...] = Field(default=(), description="dependents to re-arm with afterok")
    declined: Nodes = Field(default=(), description="nodes not excluded, so that the job can be placed")
    workflow_id: str = ""
    run_id: str = ""


class DrainRequest(Record):
    """Takes nodes out of service, each as one Slurm change, within the caps of the policy."""

    cluster: str
    job_id: str
    life_id: int
    step_key: str
    nodes: Nodes
    attempt: int = 0
    signature: str = ""
    how: str = ""
    policy: str = ""
    deadline: Time
    workflow_id: str = ""
    run_id: str = ""


class DrainResult(Record):
    drained: Nodes = ()
    refused: dict[str, str] = Field(default_factory=dict, description="why not, by node")


class SaveEvidence(Record):
    cluster: str
    job_id: str
    life_id: int
    attempt: int
    stdout: str
    stderr: str
    uid: int
    max_bytes: int = 1 << 20


# ------------------------------------------------------------------------------------------------ recording


class EventKind:
    """Kinds of rows in the audit log."""

    OPENED = "opened"
    STATE = "state"
    FINDING = "finding"
    ATTRIBUTION = "attribution"
    VERDICT = "verdict"
    ADVICE = "advice"
    PLAN = "plan"
    WAITS = "waits"
    STEP = "step"
    OUTCOME = "outcome"
    OPERATOR = "operator"
    DIRECTIVE = "directive"
    WATCHDOG = "watchdog"
    MISSED = "missed"
    INCIDENT = "incident"
    CLOSED = "closed"
    POLICY = "policy"
    PRUNED = "pruned"


class NewEvent(Record):
    """One row of the append-only log. `key` makes writing it twice harmless."""

    key: str
    kind: str
    at: Time
    summary: str
    attempt: int = 0
    by: str = "relight"
    body: dict[str, object] = Field(default_factory=dict)


class RecordEvents(Record):
    cluster: str
    job_id: str
    life_id: int
    events: tuple[NewEvent, ...]
    workflow_id: str = ""
    run_id: str = ""
    phase: str | None = Field(default=None, description="new state shown for the job")
    mode: str | None = None
    paused: bool | None = None
    paused_by: str | None = None
    stopped: bool | None = None
    attempts: tuple[Attempt, ...] = Field(default=(), description="attempts to insert or update")


class Done(Record):
    """The answer of activities that only record."""

    ok: bool = True


# ------------------------------------------------------------------------------------------------ the sweep


class SweepRequest(Record):
    cluster: str
    duration_s: float = 600.0


class SweepReport(Record):
    """Counts of one sweep activity; also its heartbeat (well under 1 kB)."""

    sweeps: int = 0
    jobs: int = 0
    watched: int = 0
    started: int = 0
    signals: int = 0
    errors: int = 0
    blind_s: float = 0.0
    last_error: str = ""


class Observation(Record):
    """What the sweep tells a job's workflow: only that something changed. The job is read again before anything."""

    changes: tuple[str, ...] = Field(default=(), description="new, state, fault, progress, comment, gone")
    state: str = ""


# ------------------------------------------------------------------------------------------------ keeping


class KeepHistories(Record):
    cluster: str
    most: int = Field(default=2000, description="histories in one round")
    within_s: float = 600.0


class KeptReport(Record):
    """What one round has kept; also its heartbeat."""

    kept: int = 0
    known: int = Field(default=0, description="closed runs whose file was there already")
    bytes: int = 0
    until: Time | None = Field(default=None, description="all runs that closed before are kept")
    finished: bool = Field(default=False, description="False: the next round goes on")
    late: str = Field(default="", description="what the namespace may have deleted before it was kept")


class WatchCluster(Record):
    """Input of ClusterWatch."""

    cluster: str
    report: SweepReport | None = None
