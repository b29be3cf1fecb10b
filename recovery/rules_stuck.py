"""Policy rules for running jobs that get nowhere: hangs, stragglers, and nodes that failed under the job.

Each function answers with an advice or None; their order and their documentation stand in `rules.py`. What is done
about a hang is what would be done had the attempt ended for the same cause.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from recovery import rules_ended as ended
from recovery import rules_incident as shared
from recovery.case import Case, hang_of, straggler_of
from recovery.policy_numbers import OnStuck
from recovery.records import Action, Advice, FaultClass, JobState, Role

_AS_ENDED: tuple[Callable[[Case], Advice | None], ...] = (
    ended.budget_spent,
    ended.cannot_help,
    ended.once_spent,
    ended.not_restartable,
    shared.incident,
    ended.suspect,
    ended.infrastructure,
    ended.out_of_memory,
    ended.application,
    ended.unknown,
)


def hang(case: Case) -> Advice | None:
    found = hang_of(case)
    if found is None or not found.stage.acts:
        return None
    if not case.stuck:
        return case.leave_alone(
            "hang",
            f"it hangs, and the policy says only to tell (hang: notify): {found.summary}; to restart it: "
            f"{case.forced_restart}",
            notify=True,
        )
    return _as_ended(case, "hang", "it hangs", found.summary)


def hang_suspected(case: Case) -> Advice | None:
    found = hang_of(case)
    if found is None:
        return None
    return case.leave_alone("hang_suspected", f"it may hang: {found.summary}", notify=True)


def straggler(case: Case) -> Advice | None:
    found = straggler_of(case)
    if found is None:
        return None
    if not case.stuck:
        wanted = case.policy.straggler is OnStuck.RESTART
        why = "; not restarted without a host to blame and a fresh checkpoint" if wanted else ""
        return case.leave_alone("straggler", f"it lags: {found.summary}{why}", notify=True)
    return _as_ended(case, "straggler", "it lags", found.summary)


def node_event(case: Case) -> Advice | None:
    if case.state is not JobState.RUNNING:
        return None
    events = [
        finding
        for finding in case.situation.findings
        if finding.detector == "nodes"
        and finding.attempt == case.view.restarts
        and finding.role is Role.ROOT
        and finding.fault_class is not FaultClass.NONE
    ]
    if not events:
        return None
    what = "; ".join(finding.summary for finding in events[:3])
    return case.leave_alone("node_event", f"{what}; whether the job goes on is watched", notify=True)


def _as_ended(case: Case, rule: str, what: str, why: str) -> Advice | None:
    """What the rules for ended attempts say, had this one ended for the same cause."""
    over = replace(case, ended=True)
    advice = next((advice for one in _AS_ENDED if (advice := one(over)) is not None), None)
    if advice is None:
        return None
    reason = f"{what}; {advice.reason}" if why in advice.reason else f"{what}: {why}. {advice.reason}"
    notify = advice.notify or advice.action is not Action.RESTART
    return advice.model_copy(update={"rule": rule, "reason": reason[:1_000], "notify": notify})
