"""When the next attempt may start: not at once after failures in vain, and not right before a maintenance window. Pure.

A delay is only ever a later start time of a job that waits in the queue: nothing is held, and Slurm itself ends it.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from recovery.budgets import restarts_in_vain
from recovery.case import Case
from recovery.maintenance import start_behind
from recovery.policy_numbers import Policy
from recovery.records import Action, Advice

AT_ONCE = ("force", "own_fault")
"""Rules whose restarts are not delayed: an operator's word, and what was not the job's doing."""


def with_delay(case: Case, advice: Advice) -> Advice:
    """The advice with the earliest start of the next attempt, where that is later than at once."""
    if advice.action is not Action.RESTART or advice.rule in AT_ONCE:
        return advice
    now = case.situation.now
    start, why = _after_backoff(case), ""
    if start > now:
        why = f"backoff after {restarts_in_vain(case.attempts, case.policy)} restarts without progress"
    behind = start_behind(
        case.situation.maintenance,
        max(start, now),
        timedelta(seconds=case.policy.checkpoint_within_s),
        case.situation.nodes_usable,
        case.view.min_nodes,
    )
    if behind is not None:
        start, window = behind
        why = f"maintenance from {window.begins:%Y-%m-%d %H:%MZ} to {window.ends:%Y-%m-%d %H:%MZ}: {window.reason}"
    if start <= now + timedelta(seconds=case.policy.start_delay_s):
        return advice
    reason = f"{advice.reason}; starts not before {start:%Y-%m-%d %H:%M:%SZ} ({why})"
    return advice.model_copy(update={"not_before": start, "reason": reason})


def backoff_s(in_vain: int, policy: Policy) -> float:
    """Seconds between a failure and the next start, after that many restarts in vain."""
    if in_vain < 1 or policy.backoff_s == 0:
        return 0.0
    most = float(policy.backoff_most_s)
    grown = policy.backoff_s * policy.backoff_times ** min(in_vain - 1, 100)
    return min(most, grown)


def _after_backoff(case: Case) -> datetime:
    ended = (case.view.end_time if case.ended and case.view.end_time else None) or case.situation.now
    # An end that lies ahead is a clock that goes wrong: nobody waits for that.
    wait = timedelta(seconds=backoff_s(restarts_in_vain(case.attempts, case.policy), case.policy))
    return min(ended, case.situation.now) + wait
