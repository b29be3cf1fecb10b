"""The whole state of a job's workflow, in one model that continue-as-new carries over.

It is bounded: every list here has a longest length, because a job can fail for weeks.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from activities.contracts import Force, JobOverrides
from recovery.attribution import Attribution
from recovery.records import Action, Advice, Finding, JobState, Mode, Nodes, Outcome, Progress, Time, Verdict

TIMELINE_LENGTH = 60
INBOX_LENGTH = 200


class Phase(StrEnum):
    """What the job's workflow is doing; the search attribute RelightState."""

    OPENING = "opening"
    WATCHING = "watching"
    WAITING_APPROVAL = "waiting_approval"
    WAITING_PERMIT = "waiting_permit"
    RECOVERING = "recovering"  # from the first step until the first new completed step
    PAUSED = "paused"
    LEFT_ALONE = "left_alone"
    STOPPED = "stopped"
    FINISHED = "finished"
    CLOSED = "closed"


class TimelineEntry(BaseModel):
    """One line of the story, as the query `timeline` tells it."""

    model_config = ConfigDict(frozen=True)

    at: Time
    kind: str
    text: str


class Intent(BaseModel):
    """A Slurm change that was asked for and is not yet verified."""

    model_config = ConfigDict(frozen=True)

    action: Action
    step_key: str
    restart_count: int
    exclude: Nodes = ()
    at: Time
    rearm: tuple[str, ...] = ()
    lease_s: int = 60
    start_delay_s: int = 5
    settle_s: int = 900


class PermitWait(BaseModel):
    """A step that waits for its permit."""

    model_config = ConfigDict(frozen=True)

    step_key: str
    reason: str
    since: Time
    until: Time


class Approval(BaseModel):
    """An advice that waits for a person's yes."""

    model_config = ConfigDict(frozen=True)

    step_key: str
    restart_count: int
    action: Action
    rule: str
    deadline: Time
    answer: bool | None = None
    by: str = ""
    parked: bool = False


class LastSeen(BaseModel):
    """The last look at the job, as far as it is shown and compared."""

    model_config = ConfigDict(frozen=True)

    at: Time
    state: JobState
    completing: bool = False
    reason: str = ""
    restarts: int = 0
    nodes: Nodes = ()
    excluded: Nodes = ()
    user: str = ""
    name: str = ""
    partition: str = ""
    stdout: str = ""


class RecoveryState(BaseModel):
    """Everything a job's workflow remembers."""

    model_config = ConfigDict(extra="ignore")

    cluster: str
    job_id: str
    overrides: JobOverrides = JobOverrides()
    by_hand: bool = False
    life_id: int | None = None
    phase: Phase = Phase.OPENING
    mode: Mode = Mode.MONITOR
    policy: str = ""
    paused: bool = False
    paused_by: str = ""
    stopped: bool = False
    seen: LastSeen | None = None
    progress: Progress = Progress()
    attempts: int = 0
    last_finding: Finding | None = None
    asked: str = Field(default="", description="fault that somebody outside was asked about last")
    attributions: tuple[Attribution, ...] = Field(default=(), description="what was answered in time")
    verdict: Verdict | None = None
    advice: Advice | None = None
    advice_key: str = Field(default="", description="what the shown advice was about: it is recorded once")
    outcome: Outcome | None = None
    exclusions: Nodes = Field(default=(), description="nodes relight keeps this job from")
    excluded_at: dict[str, Time] = Field(default_factory=dict, description="since when, for their expiry")
    declined: Nodes = Field(default=(), description="suspects that the last restart had to leave in, to be placed")
    intent: Intent | None = None
    approval: Approval | None = None
    permit_wait: PermitWait | None = Field(default=None, description="its deadline holds however often it is woken")
    force: Force | None = None
    expected_restart: int | None = Field(default=None, description="restart count that our own restart started")
    own_faults: int = 0
    kept_of: int = Field(default=-1, description="attempt whose lost exclusions were applied again after its restart")
    own_fault_of: int = Field(default=-1, description="attempt that was counted last among our own faults")
    own_stop: bool = False
    tries: int = Field(default=0, description="steps asked for in the current attempt")
    tries_of: int = -1
    tries_forgiven: int = Field(default=0, description="of them before an operator's last demand: those do not bind it")
    look_again_at: Time | None = None
    read_log: bool = Field(default=False, description="the sweep saw a fault in the log of the living job")
    recovering_since: Time | None = None
    waiting_first_step: int | None = Field(default=None, description="attempt whose first step ends the recovery")
    sequence: int = Field(default=0, description="numbers this workflow's own audit rows")
    timeline: list[TimelineEntry] = Field(default_factory=list)
    last_seq: int = 0
    closed: bool = False

    def tell(self, at: datetime, kind: str, text: str) -> None:
        """Adds a line to the story; the oldest lines go first."""
        self.timeline.append(TimelineEntry(at=at, kind=kind, text=text[:500]))
        del self.timeline[:-TIMELINE_LENGTH]

    @property
    def waits(self) -> str:
        """What the job waits for, and until when at most; empty: for nothing."""
        wait, approval, advice = self.permit_wait, self.approval, self.advice
        if self.phase is Phase.WAITING_PERMIT and wait is not None:
            return f"for a permit: {wait.reason} (since {clock(wait.since)}, at most until {clock(wait.until)})"
        if self.phase is Phase.WAITING_APPROVAL and approval is not None and approval.answer is None:
            return f"for a yes to {approval.action.value} (at most until {clock(approval.deadline)})"
        if advice is not None and advice.action is Action.WAIT and not self.paused:
            until = f" (looks again at {clock(advice.look_again_at)})" if advice.look_again_at is not None else ""
            return f"{advice.reason}{until}"
        return ""

    def shown(self) -> dict[str, Any]:
        """The answer to the query `state`."""
        return {**self.model_dump(mode="json", exclude={"timeline"}), "waits": self.waits}


def clock(time: datetime) -> str:
    """A moment, as people read it."""
    return f"{time:%Y-%m-%d %H:%M:%SZ}"
