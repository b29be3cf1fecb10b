"""What one run of chaos will do, drawn from its seed alone; pure, so that the same seed always gives the same plan.

Nothing is started or broken here: `tests/chaos/play.py` plays it.
"""

from __future__ import annotations

import random
from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field


class JobFault(StrEnum):
    """What befalls a job by itself."""

    NONE = "none"
    CRASH = "crash"  # CUDA's words, on one node, as long as the node is broken
    KILL = "kill"  # one rank is gone without a word
    HANG = "hang"
    NODE_DEATH = "node_death"
    OUT_OF_MEMORY = "out_of_memory"  # of one rank: Slurm's own limit kills the step
    USER_ERROR = "user_error"


class Strike(StrEnum):
    """What befalls relight and its surroundings."""

    WORKER_KILL = "worker_kill"
    WORKER_KILL_AT_RESTART = "worker_kill_at_restart"  # at an exact point of the change: see `point`
    WORKER_SLEEP = "worker_sleep"  # SIGSTOP, another worker takes over, and the first wakes up late
    WORKER_SLEEP_AT_RESTART = "worker_sleep_at_restart"  # the same right before the requeue
    WORKER_KILL_AT_ACTIVITY = "worker_kill_at_activity"  # right before or after the next one of its name
    SECOND_WORKER = "second_worker"
    TEMPORAL_KILL = "temporal_kill"
    TEMPORAL_AWAY = "temporal_away"  # for a minute
    SLURMCTLD_KILL = "slurmctld_kill"
    SLURMCTLD_HANG = "slurmctld_hang"
    ACCOUNTING_AWAY = "accounting_away"
    NODE_HANG = "node_hang"  # everything on a node of the job stops, and goes on
    ATTRIBUTION = "attribution"  # the service that is asked lies, hangs, fails or floods
    DISK_FULL = "disk_full"  # of the worker: the gate's folder and the evidence
    DATABASE_AWAY = "database_away"
    DATABASE_READ_ONLY = "database_read_only"
    LOG_VANISHES = "log_vanishes"


AT_RESTART = frozenset({Strike.WORKER_KILL_AT_RESTART, Strike.WORKER_SLEEP_AT_RESTART})
POINTS = (
    ("restart", "worker-before"),
    ("restart", "worker-after"),
    ("between", "worker"),
    ("between", "worker-and-gate"),
)
ACTIVITIES = (
    "open_job",
    "examine",
    "decide",
    "plan",
    "restart",
    "settle",
    "record",
    "save_evidence",
    "attribute",
    "close_job",
    "sweep",
)
MISBEHAVIOURS = ("lies", "hangs", "fails", "floods")
STEPS, STEP_S = 60, 0.2
AWAY_S = 60.0


class _Planned(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PlannedJob(_Planned):
    user: str
    nodes: int
    monitor: bool
    fault: JobFault
    at_step: int = Field(description="completed steps before the fault")
    rank: int = Field(description="which of its nodes is struck")
    lasts_s: float = Field(description="a dead node comes back after this")


class PlannedStrike(_Planned):
    kind: Strike
    at_s: float = Field(description="after the jobs were submitted; of those at a restart it is of no meaning")
    lasts_s: float
    job: int = Field(description="index of the job it is about, where it is about one")
    point: str = ""
    order: str = ""


class Scenario(_Planned):
    seed: int
    jobs: tuple[PlannedJob, ...]
    strikes: tuple[PlannedStrike, ...]

    @property
    def told(self) -> str:
        """In one line."""
        jobs = [f"{job.fault.value}×{job.nodes}{' (monitor)' if job.monitor else ''}" for job in self.jobs]
        strikes = []
        for one in self.strikes:
            when = f"of job {one.job}" if one.kind in AT_RESTART else f"at {one.at_s:g} s"
            strikes.append(f"{one.kind.value}{_where(one)} {when}, {one.lasts_s:g} s")
        return f"jobs: {', '.join(jobs)}; strikes: {'; '.join(strikes)}"


def _where(one: PlannedStrike) -> str:
    told = "/".join(word for word in (one.point, one.order) if word)
    return f" {told}" if told else ""


def plan(seed: int) -> Scenario:
    """The first job always crashes in act mode: every run has at least one restart to disturb."""
    lot = random.Random(f"relight-chaos-{seed}")
    jobs = [_job(lot, JobFault.CRASH, monitor=False, nodes=2)]
    for _ in range(lot.randint(2, 3)):
        jobs.append(_job(lot, lot.choice(list(JobFault)), monitor=lot.random() < 0.2, nodes=lot.randint(1, 2)))
    kinds = lot.sample(list(Strike), lot.randint(2, 4))
    if Strike.TEMPORAL_KILL in kinds and Strike.TEMPORAL_AWAY in kinds:  # each is over when its server is there again
        kinds.remove(Strike.TEMPORAL_KILL)
    if Strike.SLURMCTLD_KILL in kinds and Strike.SLURMCTLD_HANG in kinds:
        kinds.remove(Strike.SLURMCTLD_HANG)
    if set(kinds) >= AT_RESTART:  # both take the same call
        kinds.remove(Strike.WORKER_SLEEP_AT_RESTART)
    strikes = [_strike(lot, kind, len(jobs)) for kind in kinds]
    return Scenario(seed=seed, jobs=tuple(jobs), strikes=tuple(sorted(strikes, key=lambda one: (one.at_s, one.kind))))


def _job(lot: random.Random, fault: JobFault, *, monitor: bool, nodes: int) -> PlannedJob:
    return PlannedJob(
        user=lot.choice(("alice", "bob")),
        nodes=nodes,
        monitor=monitor,
        fault=fault,
        at_step=lot.randint(6, 40),
        rank=lot.randrange(nodes),
        lasts_s=lot.randint(12, 25),
    )


def _strike(lot: random.Random, kind: Strike, jobs: int) -> PlannedStrike:
    at_s, lasts_s = round(lot.uniform(6, 30), 1), round(lot.uniform(1, 14), 1)
    point = order = ""
    job = lot.randrange(jobs)
    if kind in AT_RESTART:
        job = 0
    if kind is Strike.WORKER_KILL_AT_ACTIVITY:
        point, order = lot.choice(ACTIVITIES), lot.choice(("before", "after"))
    if kind is Strike.TEMPORAL_AWAY:
        lasts_s = AWAY_S
    if kind is Strike.ATTRIBUTION:
        order, at_s, lasts_s = lot.choice(MISBEHAVIOURS), round(at_s / 3, 1), AWAY_S
    if kind is Strike.WORKER_KILL_AT_RESTART:
        point, order = lot.choice(POINTS)
    if kind is Strike.WORKER_SLEEP_AT_RESTART:
        point, order = "restart", "stop"
        lasts_s = float(lot.choice((4, 10, 30)))  # also over the step's deadline
    return PlannedStrike(kind=kind, at_s=at_s, lasts_s=lasts_s, job=job, point=point, order=order)
