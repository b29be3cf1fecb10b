"""Everything a decision may know, in one frozen record. Built by the caller from fresh looks and the audit store.

Nothing is decided here; `policy.decide` reads it and nothing else: no clock, no file, no network.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from recovery.directive import Directive
from recovery.hang import Hang
from recovery.records import (
    Attempt,
    AttemptRow,
    FaultClass,
    Finding,
    JobView,
    Mode,
    Nodes,
    Progress,
    Record,
    Time,
    Verdict,
)
from recovery.straggler import Straggler


class Demand(Record):
    """What an operator demands by `force`. `by` is recorded as claimed."""

    action: str = Field(description="restart, stop or release")
    exclude: Nodes = ()
    restart_count: int | None = Field(default=None, description="refused when the job is at another restart count")
    by: str = ""
    reason: str = ""


NOTHING_KNOWN = Verdict(fault_class=FaultClass.UNKNOWN, reason="nothing was examined")


class Situation(Record):
    """One job at one moment."""

    now: Time
    view: JobView | None = Field(default=None, description="None: Slurm does not know the job any more")
    row: AttemptRow | None = Field(default=None, description="accounting row of the current attempt, see split_rows")
    previous_row: AttemptRow | None = Field(default=None, description="accounting row of the attempt before it")
    accounting: bool = False
    attempts: tuple[Attempt, ...] = Field(default=(), description="oldest first, the current one last")
    findings: tuple[Finding, ...] = ()
    verdict: Verdict = NOTHING_KNOWN
    progress: Progress = Progress()
    hang: Hang | None = Field(default=None, description="the running attempt makes no progress")
    straggler: Straggler | None = Field(default=None, description="the running attempt lags behind its usual pace")
    opted_in: bool = True
    directive: Directive = Directive()
    directive_error: str = ""
    mode: Mode = Field(default=Mode.MONITOR, description="the effective one, see PolicyFile.resolve")
    paused: bool = Field(default=False, description="by an operator; the owner's own pause is directive.paused")
    paused_by: str = ""
    stopped: bool = Field(default=False, description="relight stopped this job for good, earlier")
    dependents_started: tuple[str, ...] = ()
    dependents_unsatisfied: tuple[str, ...] = ()
    twins: tuple[str, ...] = ()
    nodes_usable: Nodes = Field(default=(), description="nodes the next attempt could get")
    nodes_known: Nodes = ()
    min_job_age_s: int = 300
    frozen: str = Field(default="", description="why the cluster must not be touched now; empty: it may be")
    own_faults: int = Field(default=0, description="restarts in a row, up to now, that died of relight's own doing")
    expected_restart: bool = Field(default=False, description="the current attempt was started by relight")
    declined: Nodes = Field(
        default=(), description="suspects that its restart had to leave in, so that it can be placed"
    )
    force: Demand | None = None
    policy_name: str = ""
    policy_hash: str = ""
    catalogue_hash: str = ""


def split_rows(view: JobView | None, rows: Sequence[AttemptRow]) -> tuple[AttemptRow | None, AttemptRow | None]:
    """The accounting rows of the current attempt and of the one before it, out of `rows` (oldest first).

    Each requeue resets the submit time, so it tells attempts apart. Accounting lags: right after a requeue the newest
    row is still the old attempt's, and must not be taken for the current one.
    """
    if not rows:
        return None, None
    if view is None or view.submit_time is None:
        return rows[-1], rows[-2] if len(rows) > 1 else None
    for at in range(len(rows) - 1, -1, -1):
        if rows[at].submit_time == view.submit_time:
            return rows[at], rows[at - 1] if at else None
    return None, rows[-1]
