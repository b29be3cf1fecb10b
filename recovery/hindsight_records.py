"""What the comparison of a recommendation with what happened next reads, and what it tells. Records only."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from recovery.records import Action, Advice, Attempt, FaultClass, Mode, Nodes, Record, Time


class Next(StrEnum):
    """What happened to the job after the recommendation, and by whom."""

    REQUEUED = "requeued"  # by a person
    RESUBMITTED = "resubmitted"  # a new job of the same user, name and partition
    CANCELLED = "cancelled"  # by a person
    REJECTED = "rejected"  # a person said no to it
    SLURM = "slurm"  # Slurm itself requeued it
    RELIGHT = "relight"  # relight did it
    WENT_ON = "went_on"  # what was held to be stuck finished by itself
    NOTHING = "nothing"
    PENDING = "pending"  # too early to tell

    @property
    def by_a_person(self) -> bool:
        return self in {Next.REQUEUED, Next.RESUBMITTED, Next.CANCELLED, Next.REJECTED}


class Judgement(StrEnum):
    RIGHT = "right"  # what happened next proves it
    WRONG = "wrong"  # what happened next contradicts it
    UNPROVEN = "unproven"  # what happened next tells nothing
    OPEN = "open"  # too early to tell


class Fate(StrEnum):
    """How the following attempt went, measured by the attempts before it."""

    ADVANCED = "advanced"  # finished, or passed the best step so far
    SAME = "failed_the_same_way"
    OTHER = "failed_another_way"
    RUNS = "runs"
    UNKNOWN = "unknown"  # cancelled, out of time, or no sign of progress in a long run


class Told(Record):
    """One recommendation as it was written down."""

    at: Time
    advice: Advice
    approved: bool | None = Field(default=None, description="a person's answer in approve mode")


class Submission(Record):
    """One life of a job, as far as it may be another job submitted again."""

    life_id: int
    cluster: str
    job_id: str
    user: str = ""
    name: str = ""
    partition: str = ""
    submitted: Time


class Story(Record):
    """One life of a job with the recommendations about it."""

    life: Submission
    stopped: bool = Field(default=False, description="relight stopped the job")
    attempts: tuple[Attempt, ...] = ()
    told: tuple[Told, ...] = ()
    again: Submission | None = Field(default=None, description="the job submitted again, after its last failure")
    again_first: Attempt | None = Field(default=None, description="the first attempt of that job")

    def gpus_of(self, attempt: Attempt | None) -> int | None:
        """As Slurm told of that attempt, else of another: they are one and the same request."""
        near = [attempt, *reversed(self.attempts)]
        return next((one.gpus for one in near if one is not None and one.gpus is not None), None)


class Case(Record):
    """One recommendation, judged."""

    cluster: str
    job_id: str
    user: str = ""
    partition: str = ""
    attempt: int
    at: Time
    mode: Mode
    fault_class: FaultClass
    signature: str = ""
    rule: str = ""
    action: Action
    next: Next
    agreed: bool | None = Field(default=None, description="people did the same; None: they did not have to")
    judgement: Judgement
    why: str
    failed_again_on: Nodes = Field(default=(), description="nodes it would have excluded, where it failed again")
    needless: Nodes = Field(default=(), description="nodes it would have excluded, where it then went well")
    excluded_by_hand: Nodes = Field(default=(), description="nodes it would have excluded, which a person excluded")
    waited_s: float | None = Field(default=None, description="from the failure until a person brought the job back")
    burnt_node_hours: float = Field(default=0, description="of the following attempt, where that failed again")
    gpus: int | None = Field(default=None, description="of the job; None: Slurm did not tell any")
    nodes: int = Field(default=0, description="of the attempt")
