"""What the attempts so far leave of each budget. Pure counting; whether to stop is decided in `rules.py`.

Every budget counts restarts already made, whoever made them. An attempt that died of relight's own doing is as if it
had never been. Advancing (a new completed checkpoint, or a completed step above the best before) refills the budgets
that are about being stuck; the budgets in all and per day are never refilled.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from recovery.directive import Directive
from recovery.policy_numbers import Policy
from recovery.records import Attempt, Budget, FaultClass, JobState

IN_ALL = "restarts"
PER_DAY = "restarts_per_day"
SAME_CAUSE = "same_cause"
NO_NEW_CHECKPOINT = "no_new_checkpoint"
NODE_HOURS = "node_hours_without_progress"
UNKNOWN = "unknown"
LAUNCH = "launch"

GENERAL = (IN_ALL, PER_DAY, SAME_CAUSE, NO_NEW_CHECKPOINT, NODE_HOURS)
"""Budgets that bound every restart. `unknown` and `launch` bound only their own rules."""

LAUNCH_SIGNATURE = "scheduler.launch_failed"
"""Signature of an attempt whose launch failed on a node."""

DAY = timedelta(hours=24)


def budgets(attempts: Sequence[Attempt], policy: Policy, directive: Directive, now: datetime) -> tuple[Budget, ...]:
    """Budgets as they stand when the last of `attempts` (oldest first) has just ended and is to be restarted."""
    counted = [attempt for attempt in attempts if not attempt.own_fault]
    last = counted[-1] if counted else Attempt(number=0)
    restarted = counted[:-1]  # each of these ended and was followed by a restart
    blind = not _progress_seen(attempts)
    elsewhere = set(policy.elsewhere_codes)

    in_all = policy.max_restarts
    if directive.max_restarts is not None:
        in_all = min(in_all, directive.max_restarts)
    charged = [attempt for attempt in restarted if not _by_hand(attempt) and not _is_launch(attempt)]
    stuck = _in_vain(restarted, counted, elsewhere)
    used = {
        IN_ALL: len(charged),
        PER_DAY: sum(1 for attempt in charged if _ended(attempt, attempts, now) > now - DAY),
        SAME_CAUSE: sum(1 for attempt in stuck if same_cause(attempt, last)),
        NO_NEW_CHECKPOINT: 0 if blind else sum(1 for attempt in stuck if attempt in charged),
        NODE_HOURS: 0.0 if blind else _hours_stuck(counted, elsewhere),
        UNKNOWN: sum(1 for attempt in stuck if _is_unknown(attempt)),
        LAUNCH: sum(1 for attempt in counted if _is_launch(attempt) and attempt.number != last.number),
    }
    limits = {
        IN_ALL: in_all,
        PER_DAY: policy.max_restarts_per_day,
        SAME_CAUSE: policy.max_restarts_same_cause,
        NO_NEW_CHECKPOINT: policy.max_restarts_no_new_checkpoint,
        NODE_HOURS: policy.max_node_hours_without_progress,
        UNKNOWN: policy.max_restarts_unknown,
        LAUNCH: policy.max_restarts_launch,
    }
    return tuple(Budget(name=name, used=used[name], limit=limit) for name, limit in limits.items())


def spent(left: Sequence[Budget], names: Sequence[str] = GENERAL) -> tuple[Budget, ...]:
    """Those of the named budgets of which nothing is left."""
    return tuple(budget for budget in left if budget.name in names and budget.left <= 0)


def same_cause(one: Attempt, other: Attempt) -> bool:
    """Same fault class and same signature. An unknown cause is no cause: it has a budget of its own."""
    if _is_unknown(one) or _is_unknown(other):
        return False
    return (one.fault_class, one.signature) == (other.fault_class, other.signature)


def advanced(attempts: Sequence[Attempt], at: int) -> bool:
    """True when attempt number `at` of the sequence went beyond all before it."""
    return _beyond(attempts[at].last_checkpoint, [attempt.last_checkpoint for attempt in attempts[:at]]) or _beyond(
        attempts[at].last_step, [attempt.last_step for attempt in attempts[:at]]
    )


def _beyond(value: int | None, before: list[int | None]) -> bool:
    known = [other for other in before if other is not None]
    return value is not None and (not known or value > max(known))


def _since_advance(attempts: Sequence[Attempt]) -> int:
    """Index of the last attempt that advanced; 0 when none did. Restarts from there on have brought nothing."""
    return next((at for at in range(len(attempts) - 1, 0, -1) if advanced(attempts, at)), 0)


def _in_vain(restarted: Sequence[Attempt], counted: Sequence[Attempt], elsewhere: set[int]) -> list[Attempt]:
    """Attempts that were restarted since the job last advanced, without those that asked for other hardware."""
    return [attempt for attempt in restarted[_since_advance(counted) :] if not attempt.codes & elsewhere]


def restarts_in_vain(attempts: Sequence[Attempt], policy: Policy) -> int:
    """How many restarts have brought nothing, when the last of `attempts` has ended: what backoff goes by."""
    counted = [attempt for attempt in attempts if not attempt.own_fault]
    stuck = _in_vain(counted[:-1], counted, set(policy.elsewhere_codes))
    return sum(1 for attempt in stuck if not _by_hand(attempt))


def _hours_stuck(attempts: Sequence[Attempt], elsewhere: set[int]) -> float:
    """Node-hours of the attempts after the last one that advanced: those were spent for nothing."""
    ever = any(advanced(attempts, at) for at in range(len(attempts)))
    stuck = attempts[_since_advance(attempts) + 1 :] if ever else attempts
    return sum(attempt.node_hours for attempt in stuck if not attempt.codes & elsewhere)


def _progress_seen(attempts: Sequence[Attempt]) -> bool:
    """False: no attempt ever showed a step or checkpoint, so silence about progress says nothing."""
    return any(
        value is not None
        for attempt in attempts
        for value in (attempt.first_step, attempt.last_step, attempt.last_checkpoint)
    )


def _by_hand(attempt: Attempt) -> bool:
    """Ended without a fault, by somebody else's will: a requeue by a person, a preemption that Slurm requeued."""
    if attempt.ended_by_us or attempt.restarted_by not in {"other", "slurm"}:
        return False
    return attempt.restarted_by == "other" or attempt.state is JobState.PREEMPTED


def _is_unknown(attempt: Attempt) -> bool:
    return attempt.fault_class in {None, FaultClass.UNKNOWN} and not _by_hand(attempt) and not attempt.ended_by_us


def _is_launch(attempt: Attempt) -> bool:
    return attempt.signature.startswith(LAUNCH_SIGNATURE)


def _ended(attempt: Attempt, attempts: Sequence[Attempt], now: datetime) -> datetime:
    """When it was restarted, as well as that is known; unknown counts as just now (the careful side)."""
    following = next((other for other in attempts if other.number > attempt.number), None)
    times = (following.submit_time if following else None, attempt.end_time, attempt.start_time)
    return next((time for time in times if time is not None), now)


def spent_text(attempts: Sequence[Attempt], gone: Sequence[Budget]) -> str:
    """Which budgets are spent and the attempts that show it, in one line for people."""
    what = ", ".join(f"{budget.name} {budget.used:g} of {budget.limit:g}" for budget in gone)
    history = "; ".join(_attempt_text(attempt) for attempt in attempts[-6:])
    return f"budget spent: {what} (attempts: {history})"


def _attempt_text(attempt: Attempt) -> str:
    cause = attempt.signature or (attempt.fault_class.value if attempt.fault_class else "unknown")
    reached = f" after step {attempt.last_step}" if attempt.last_step is not None else ""
    saved = f", checkpoint {attempt.last_checkpoint}" if attempt.last_checkpoint is not None else ""
    return f"{attempt.number} {cause}{reached}{saved}"
