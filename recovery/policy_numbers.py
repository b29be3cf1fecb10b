"""Every number and switch of a policy, with its unit, bounds, default and meaning.

Only values stand here; what they lead to stands in `rules.py`. Nothing is read from a file here.
"""

from __future__ import annotations

import hashlib
import json
import math
from enum import StrEnum
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

Count = Annotated[int, Field(strict=True, ge=0, le=100_000)]
Seconds = Annotated[int, Field(strict=True, ge=0, le=30 * 24 * 3600)]
Share = Annotated[float, Field(strict=True, gt=0, le=1, allow_inf_nan=False)]
ExitCode = Annotated[int, Field(strict=True, ge=1, le=255)]
Switch = Annotated[bool, Field(strict=True)]


def nodes_of_share(share: float, nodes: int) -> int:
    """Whole nodes in a share of so many; what floating point takes off is given back."""
    return math.floor(share * nodes + 1e-9)


class OnSilence(StrEnum):
    """What happens when nobody answered a request for approval in time."""

    LEAVE_ALONE = "leave_alone"
    RESTART = "restart"


class RestartOn(StrEnum):
    """Endings that are no fault, and are restarted only where a policy names them."""

    TIMEOUT = "TIMEOUT"
    PREEMPTED = "PREEMPTED"


class OnStuck(StrEnum):
    """What happens to a running job that hangs or lags."""

    NOTIFY = "notify"
    RESTART = "restart"


class KeepNodes(StrEnum):
    """How a restarted job, which goes to the back of the queue, gets its healthy nodes again."""

    OFF = "off"
    RESERVATION = "reservation"


class SignalTo(StrEnum):
    """Which processes of a running job get a signal."""

    STEPS = "steps"
    BATCH = "batch"
    ALL = "all"


class BeforeRestart(BaseModel):
    """The word a running job gets before it is restarted, so that it can save a checkpoint."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    signal: Annotated[str, StringConstraints(strict=True, pattern=r"^(HUP|INT|QUIT|USR1|USR2|TERM|CONT)$")]
    """Signal that the job understands as: save now."""
    wait_s: Annotated[int, Field(strict=True, ge=1, le=900)] = 60
    """Longest wait for a new completed checkpoint, or for the job's end."""
    to: SignalTo = SignalTo.STEPS
    """steps (the ranks), batch (the script's shell) or all."""


class Policy(BaseModel):
    """One named policy. Every value has a default, so a policy file only says what differs."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    # Budgets. Each counts restarts already made; a restart is allowed while the count is below the limit.
    max_restarts: Count = 10
    """Restarts of one job in all. A job's own `max_restarts` may only lower this."""
    max_restarts_per_day: Count = 6
    """Restarts of one job within any 24 hours."""
    max_restarts_same_cause: Count = 3
    """Restarts after the same cause (fault class and signature) since the job last advanced."""
    max_restarts_no_new_checkpoint: Count = 3
    """Restarts since the job last completed a new checkpoint or a step above its best. Not counted while the job's
    progress cannot be read at all."""
    max_node_hours_without_progress: Annotated[float, Field(strict=True, gt=0, le=1e9, allow_inf_nan=False)] = 2000.0
    """Node-hours spent since the job last advanced. Not counted while the job's progress cannot be read at all."""
    max_restarts_unknown: Count = 2
    """Restarts after a cause that could not be told, since the job last advanced."""
    max_restarts_launch: Count = 3
    """Releases of a job that Slurm holds because its launch failed (a prolog failed on a node)."""

    # Backoff: restarts that bring nothing come at growing intervals. The job waits in the queue meanwhile, never held.
    backoff_s: Annotated[int, Field(strict=True, ge=0, le=24 * 3600)] = 10
    """Earliest start after the second failure in a row without progress, in seconds after it. The first restart since
    the job last advanced is never delayed. 0 turns backoff off."""
    backoff_times: Annotated[float, Field(strict=True, ge=1, le=10, allow_inf_nan=False)] = 2.0
    """By how much it grows with each further restart without progress."""
    backoff_most_s: Annotated[int, Field(strict=True, ge=0, le=24 * 3600)] = 600
    """Longest backoff."""

    # Restarting.
    lease_s: Annotated[int, Field(strict=True, ge=10, le=3600)] = 60
    """Start time given with a restart, in seconds from now: when relight dies, Slurm starts the job by itself then."""
    start_delay_s: Annotated[int, Field(strict=True, ge=5, le=600)] = 5
    """Earliest start, in seconds after the old attempt's nodes are free. Below 5 Slurm revokes the job's credential."""
    step_deadline_s: Annotated[int, Field(strict=True, ge=5, le=600)] = 60
    """Longest time from decision to a change in Slurm; later the change is refused and decided anew."""
    settle_s: Annotated[int, Field(strict=True, ge=60, le=24 * 3600)] = 900
    """Longest watch over one restart; what is not verified by then is looked at as it is."""
    max_tries_per_attempt: Annotated[int, Field(strict=True, ge=1, le=100)] = 6
    """Steps for one attempt of a job, repeats included; then it is left alone and said so."""
    evidence_bytes: Annotated[int, Field(strict=True, ge=0, le=64 << 20)] = 1 << 20
    """How much of the end of each log is kept before a restart, which truncates it by default."""
    before_restart: BeforeRestart | None = None
    """Signal to a running job (hang, straggler, force) and the longest wait, before it is restarted: {signal: USR1,
    wait_s: 60, to: steps}."""
    end_steps_from_nodes: Annotated[int, Field(strict=True, ge=0, le=1_000_000)] = 64
    """A running job of at least so many nodes has its steps ended first, so that ranks that cannot be killed do not
    drain the whole allocation. 0: never."""
    end_steps_wait_s: Annotated[int, Field(strict=True, ge=1, le=600)] = 30
    """Longest wait for the end of such a job, after its steps were told to end."""
    checkpoint_within_s: Seconds = 1800
    """Longest time from a job's start to its next completed checkpoint. A restart that would start nearer than this to
    a maintenance window is put behind the window."""
    restart_on: Annotated[tuple[RestartOn, ...], Field(max_length=2)] = ()
    """Endings that are no fault but are restarted all the same: TIMEOUT, PREEMPTED."""
    arm_requeue: Switch = True
    """Set Requeue=1 on an opted-in job submitted with --no-requeue while it is alive; once FAILED it is too late."""
    stop_requeued: Switch = False
    """When a budget is spent, also cancel an attempt that Slurm itself requeued. Otherwise it is left to Slurm."""
    own_fault_limit: Annotated[int, Field(strict=True, ge=1, le=20)] = 3
    """Restarts in a row that may die of relight's own doing (credential revoked at start) before it gives up."""
    in_job_retry_limit_s: Seconds = 1800
    """How long a job that goes on after a fault (a retry loop in its own script) is left to help itself."""

    # Hangs: no completed step for too long while the job runs. Time in which its log could not be read never counts.
    hang: OnStuck = OnStuck.RESTART
    """What to do about a job that hangs: restart (as its cause says, within the budgets) or only notify."""
    hang_floor_s: Annotated[int, Field(strict=True, ge=2, le=7 * 24 * 3600)] = 300
    """Shortest silence that is called a hang, however quick the job's steps are."""
    hang_times_longest: Annotated[float, Field(strict=True, ge=1.5, le=1000, allow_inf_nan=False)] = 5.0
    """A silence of so many times the longest normal wait for a step is called a hang, if it is longer than the
    floor."""
    hang_start_s: Annotated[int, Field(strict=True, ge=2, le=7 * 24 * 3600)] = 3600
    """Longest start-up, until the first completed step (container import, rendezvous, compilation). Learned from two
    start-ups of the job on."""
    hang_phase_s: Annotated[int, Field(strict=True, ge=2, le=7 * 24 * 3600)] = 1800
    """Longest evaluation or save that the log announces. Learned from two of them on."""
    hang_one_witness_s: Seconds = 1800
    """How long a silence that nothing else confirms (no fault in the log, no metrics, no event of a node) must last,
    from when it was called a suspected hang, before it is acted upon."""

    # Stragglers: the job's throughput dropped and stays low.
    straggler: OnStuck = OnStuck.NOTIFY
    """What to do about a job that lags behind its own usual pace: notify, or restart it without the slow host where
    metrics name one."""
    straggler_drop: Annotated[float, Field(strict=True, ge=0.1, le=0.95, allow_inf_nan=False)] = 0.3
    """Share of its usual throughput that a job must have lost."""
    straggler_for_s: Annotated[int, Field(strict=True, ge=8, le=7 * 24 * 3600)] = 600
    """How long it must have lasted."""
    straggler_checkpoint_age_s: Seconds = 600
    """A straggler is restarted only while its last completed checkpoint is no older than this."""

    # Approval.
    approve_wait_s: Annotated[int, Field(strict=True, ge=10, le=7 * 24 * 3600)] = 1800
    """Longest wait for a person's yes in approve mode. An ended job waits at most until MinJobAge - 60 s,
    unless parked."""
    park: Switch = False
    """Approve mode: requeue an ended job at once with a late start time and wait for the yes there, so that Slurm does
    not forget the job meanwhile."""
    park_s: Annotated[int, Field(strict=True, ge=600, le=7 * 24 * 3600)] = 12 * 3600
    """Start time of a parked job, in seconds from then: so long it waits for a yes; after that Slurm starts it."""
    purge_margin_s: Annotated[int, Field(strict=True, ge=10, le=600)] = 60
    """An ended job is decided upon this long before Slurm forgets it (MinJobAge after its end)."""
    on_silence: OnSilence = OnSilence.LEAVE_ALONE
    """What happens when nobody answered in time."""

    # Harm in numbers. Checked in one SQL transaction per cluster before each act.
    permit_wait_s: Seconds = 240
    """Longest wait for a permit, or for a frozen cluster, before ordinary scheduling goes on without relight."""
    max_restarts_at_once: Annotated[int, Field(strict=True, ge=1, le=10_000)] = 10
    """Jobs of one cluster that may be restarting at the same moment."""
    max_actions_per_hour: Annotated[int, Field(strict=True, ge=1, le=100_000)] = 60
    """Changes relight may make in one cluster within any hour."""
    max_restarted_nodes_per_hour: Annotated[int, Field(strict=True, ge=1, le=10_000_000)] = 10_000
    """Node-hours per hour that may be put at stake: nodes of all jobs of one cluster restarted within any hour. A job
    that is larger by itself is restarted when no other was."""
    max_excluded_share: Share = 0.1
    """Share of the cluster's nodes that may be excluded from jobs by relight at the same time. Nodes that a trusted
    witness calls bad are counted by themselves, so that what logs say never keeps one of them in."""
    max_excluded_per_user: Share = 0.5
    """Part of `max_excluded_share` that may be taken on the word of one user's jobs. At least one node."""
    exclude_expiry_s: Annotated[int, Field(strict=True, ge=600, le=30 * 24 * 3600)] = 24 * 3600
    """How long an exclusion counts; older ones are not renewed at the next restart."""
    suspect_window_s: Annotated[int, Field(strict=True, ge=600, le=365 * 24 * 3600)] = 7 * 24 * 3600
    """How long a suspicion of a node is remembered, across jobs and users: a weak suspect is excluded when it is
    suspected again within it."""

    # Taking nodes out of service. Needs a Slurm account with Administrator level.
    drain: Switch = False
    """Drain nodes that a witness users cannot write (Slurm, metrics) calls broken."""
    drain_expiry_s: Annotated[int, Field(strict=True, ge=60, le=30 * 24 * 3600)] = 24 * 3600
    """A node that relight drained returns to service after this, unless its check or a person brings it back sooner."""
    max_drained_share: Share = 0.05
    """Share of the cluster's nodes that relight may hold drained at the same time."""
    max_drains_per_hour: Annotated[int, Field(strict=True, ge=1, le=1_000)] = 2
    """Nodes that relight may drain in one cluster within any hour."""
    drain_leaves: Annotated[int, Field(strict=True, ge=1, le=100_000)] = 1
    """Usable nodes that each partition of a drained node must have left."""

    # Place in the queue.
    keep_nodes: KeepNodes = KeepNodes.OFF
    """How a restarted job gets its healthy nodes again: off (it queues like any other) or reservation (a short one
    for its user, that ends by itself)."""
    keep_nodes_s: Annotated[int, Field(strict=True, ge=60, le=3600)] = 600
    """How long the nodes are held at most, counted from the restart."""
    max_kept_share: Share = 0.25
    """Share of the cluster's nodes that may be held for restarted jobs at the same time."""

    # Incidents: one fault that several jobs share. Read from the file's default policy (`incident_quiet_s` from the
    # job's own), since jobs of several policies may be in one.
    incident_jobs: Annotated[int, Field(strict=True, ge=2, le=1000)] = 3
    """Jobs that must have failed of the same thing."""
    incident_window_s: Annotated[int, Field(strict=True, ge=10, le=3600)] = 300
    """Within so many seconds."""
    incident_pace_s: Annotated[int, Field(strict=True, ge=0, le=600)] = 5
    """Time between two restarts while an incident is open. Never so long that a job would be forgotten."""
    incident_quiet_s: Annotated[int, Field(strict=True, ge=0, le=600)] = 20
    """After a file system error of several jobs: so long no further job must have failed of it before they are
    restarted."""
    incident_close_s: Annotated[int, Field(strict=True, ge=30, le=24 * 3600)] = 600
    """An incident of which no more was seen for so long closes by itself."""

    # Exit codes.
    stop_codes: Annotated[tuple[ExitCode, ...], Field(max_length=32)] = (93,)
    """Exit codes by which a job says: do not restart me. 93 is NVIDIA Resiliency Extension's."""
    elsewhere_codes: Annotated[tuple[ExitCode, ...], Field(max_length=32)] = (16,)
    """Exit codes by which a job asks to run on other hardware, to tell a bad GPU from bad data. 16 is Megatron's. Such
    an ending counts neither as the same cause nor as lack of progress."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.lease_s <= self.start_delay_s:
            raise ValueError(
                f"lease_s is {self.lease_s}, expected more than start_delay_s ({self.start_delay_s}): the lease must "
                "outlast the earliest start"
            )
        if self.backoff_most_s < self.backoff_s:
            raise ValueError(f"backoff_most_s is {self.backoff_most_s}, expected at least backoff_s ({self.backoff_s})")
        both = set(self.stop_codes) & set(self.elsewhere_codes)
        if both:
            raise ValueError(f"exit code {min(both)} stands in stop_codes and in elsewhere_codes, expected one of them")
        return self

    @property
    def hash(self) -> str:
        """Twelve hex digits that tell two policies apart, for the record of a decision."""
        canonical = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]
