"""What the client answers beyond the domain's records: sweep rows, relatives, results of changes. Frozen, no I/O."""

from __future__ import annotations

from typing import NamedTuple

from pydantic import Field

from recovery.records import JobState, JobView, Nodes, NodeView, Record, Time


class DependencyLink(Record):
    """A job that waits for another: seen while it waits, since Slurm forgets the link once it is fulfilled."""

    child: str
    kind: str = Field(description="afterok, afternotok, afterany, aftercorr, after")


class SweepRow(NamedTuple):
    """One job in the sweep. Told for noticing changes only: nothing is decided from it.

    Times are epoch seconds: `start` is None while the job waits, `end` until its attempt is over. `seen` changes when
    anything changes that a job's workflow wants to know. A plain tuple, since a sweep makes thousands of them.
    """

    job_id: str
    raw_id: int
    state: JobState
    restarts: int
    uid: int
    seen: str
    array_job_id: int | None = None
    array_task_id: int | None = None
    het_job_id: int | None = None
    completing: bool = False
    user: str = ""
    account: str = ""
    partition: str = ""
    qos: str = ""
    held: bool = False
    batch: bool = True
    submit: int | None = None
    start: int | None = None
    end: int | None = None
    exit_code: int = 0
    exit_signal: int = 0
    node_count: int = 0
    node_list: str = ""  # a host list, not expanded
    reason: str = ""
    dependency: str = ""
    dependents: tuple[DependencyLink, ...] = ()
    name: str = ""
    comment: str = ""


class Dependent(Record):
    """A job that waits, or waited, for the job in question."""

    job_id: str
    kind: str = Field(default="", description="afterok, afternotok, afterany, singleton, …; empty: not told any more")
    state: JobState
    user: str = ""
    reason: str = ""
    never_satisfied: bool = False
    started: bool = False
    how: str = Field(default="", description="dependency: named by it; seen: by the caller earlier; eligible_after_end")


class Twin(Record):
    """A newer living job of the same user with the same name and the same folder or script."""

    job_id: str
    state: JobState
    submit_time: Time | None = None
    start_time: Time | None = None
    same: tuple[str, ...] = Field(default=(), description="of Name, WorkDir, Command")


class Relatives(Record):
    view: JobView
    twins: tuple[Twin, ...] = ()
    dependents: tuple[Dependent, ...] = ()

    @property
    def started(self) -> tuple[str, ...]:
        """Dependents that run or ran since the job's end: two writers, if it were restarted."""
        return tuple(sorted(job.job_id for job in self.dependents if job.started))

    @property
    def unsatisfied(self) -> tuple[str, ...]:
        """Dependents that Slurm gave up on and that a restart has to re-arm."""
        return tuple(sorted({job.job_id for job in self.dependents if job.never_satisfied and job.kind == "afterok"}))


class NodeChanged(Record):
    """What a change of a node did, with the fresh look after it."""

    done: bool
    already: bool = Field(default=False, description="an earlier run of the same change had been there")
    dry_run: bool = False
    note: str = ""
    acted_at: Time | None = None
    window_ms: int | None = None
    before: NodeView
    view: NodeView | None = Field(default=None, description="None: the look after the change failed, see note")


class Changed(Record):
    """What a change did, with the fresh look after it."""

    done: bool = Field(description="this call changed something in Slurm")
    already: bool = Field(default=False, description="an earlier run of the same change had been there")
    held: Nodes = Field(default=(), description="nodes that a reservation holds for the job now")
    leased: bool = Field(default=False, description="exclusions and start time were accepted")
    dry_run: bool = False
    unknown: Nodes = Field(default=(), description="node names left out because Slurm knows none such")
    note: str = ""
    acted_at: Time | None = None
    window_ms: int | None = Field(default=None, description="from the last look to slurmctld's having taken the change")
    before: JobView
    view: JobView | None = Field(default=None, description="None: the look after the change failed, see note")
