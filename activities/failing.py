"""What is told of a failed attempt so that it can be compared with those of other jobs. Reads and decides nothing.

The sweep tells little and at once; a job's own examination tells it again with the cause it found.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache

from activities.audit.records import Watched
from activities.slurm.answers import SweepRow
from activities.slurm.hostlist import BadHostlist, expand
from activities.sweep_cursor import read_cursor
from recovery.faults.catalogue import Catalogue
from recovery.incident_records import Failure, Sign
from recovery.incidents import REMEMBERED
from recovery.records import FAILURES, FaultClass, JobState, JobView, Nodes, Retry, Verdict

BY_STATE = {
    JobState.NODE_FAIL: Sign(signature="scheduler.node_fail", fault_class=FaultClass.HARDWARE),
    JobState.BOOT_FAIL: Sign(signature="scheduler.boot_fail", fault_class=FaultClass.SYSTEM_SOFTWARE),
}


def seen_by_sweep(
    before: Watched, after: Watched, row: SweepRow, catalogue: Catalogue, began: datetime
) -> Failure | None:
    """A failure that this sweep saw for the first time, with the faults that its log told so far."""
    # While COMPLETING nothing tells a cancelled job from a failed one, but for an exit code of its own.
    over = row.state in FAILURES or (row.completing and row.exit_code != 0)
    if row.seen == before.seen or not over:
        return None
    cursor = read_cursor(after.cursor)
    classes = _classes(catalogue)
    told = cursor.faults if cursor.attempt == row.restarts else ()
    signs = [Sign(signature=one, fault_class=classes[one]) for one in told if one in classes]
    signs += [BY_STATE[row.state]] if row.state in BY_STATE else []
    return Failure(
        job_id=row.job_id,
        attempt=row.restarts,
        life_id=before.life_id,
        user=row.user,
        at=min(began, datetime.fromtimestamp(row.end, UTC)) if row.end is not None else began,
        seen_at=began,
        state=row.state if row.state in FAILURES else JobState.FAILED,
        nodes=nodes_of(row),
        signs=tuple(signs),
    )


def examined(
    view: JobView, life_id: int, verdict: Verdict, now: datetime, *, root: bool, stuck: bool
) -> Failure | None:
    """The same of an attempt that was looked at closely; None where nothing failed, or too long ago to matter.

    `root`: the verdict names a cause, and not only that peers were lost. `stuck`: it runs, but hangs.
    """
    launch = view.state is JobState.PENDING and view.held
    if view.state not in FAILURES and not stuck and not launch:
        return None
    at = view.end_time if view.end_time is not None and view.state.is_final else now
    if now - at > REMEMBERED:
        return None
    sign = Sign(signature=verdict.signature, fault_class=verdict.fault_class, root=root)
    known = verdict.fault_class not in {FaultClass.UNKNOWN, FaultClass.NONE} and verdict.retry is not Retry.NO
    return Failure(
        job_id=view.job_id,
        attempt=view.restarts,
        life_id=life_id,
        user=view.user,
        at=at,
        seen_at=now,
        state=view.state,
        nodes=view.nodes,
        signs=(sign,) if known else (),
    )


def nodes_of(row: SweepRow) -> Nodes:
    try:
        return expand(row.node_list)
    except BadHostlist:
        return ()


@lru_cache(maxsize=8)
def _classes(catalogue: Catalogue) -> dict[str, FaultClass]:
    """By signature; those that no other attempt can help say nothing about others (a full quota is its owner's)."""
    return {one.id: one.fault_class for one in catalogue.signatures if one.retry is not Retry.NO}
