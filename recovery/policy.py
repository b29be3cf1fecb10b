"""What should happen next: one pure function from a situation and a policy to an advice with the rule that fired.

The numbers stand in `policy_numbers.py`, the rules in `rules.py`. No clock, no file, no network, no Temporal.
"""

from __future__ import annotations

from recovery.budgets import budgets
from recovery.case import Case, build_case
from recovery.delays import with_delay
from recovery.policy_numbers import OnSilence, Policy, RestartOn
from recovery.records import Action, Advice, Mode
from recovery.rules import RULES, Rule
from recovery.situation import Demand, Situation

__all__ = [
    "RULES",
    "Demand",
    "OnSilence",
    "Policy",
    "RestartOn",
    "Rule",
    "Situation",
    "budgets",
    "decide",
    "rules_table_markdown",
]

GONE = "gone"
NO_RULE = "no_rule"


def decide(situation: Situation, policy: Policy) -> Advice:
    """The advice of the first rule that answers, completed with what the mode asks for. Never raises."""
    if situation.view is None:
        return _gone(situation, policy)
    case = build_case(situation, situation.view, policy)
    for rule in RULES:
        advice = rule.decide(case)
        if advice is not None:
            return _with_approval(case, _with_nodes(case, with_delay(case, advice)))
    return case.leave_alone(NO_RULE, f"no rule covers state {case.state.value}", notify=True)


def _with_nodes(case: Case, advice: Advice) -> Advice:
    """What a restart means for nodes beyond the job's own exclusions: bad ones drained, healthy ones held."""
    if advice.action not in {Action.RESTART, Action.GUARD} or case.situation.force is not None:
        return advice
    # Nodes held for a start that is to come late would be free again by then.
    holds = advice.action is Action.RESTART and advice.not_before is None
    kept = case.kept(advice.exclude) if holds else ()
    drained = case.drains(advice.exclude)
    if not kept and not drained:
        return advice
    told = [advice.reason, *([f"drains {', '.join(drained)}"] if drained else [])]
    return advice.model_copy(update={"drain": drained, "keep_nodes": kept, "reason": "; ".join(told)})


def _gone(situation: Situation, policy: Policy) -> Advice:
    last = situation.attempts[-1] if situation.attempts else None
    failed = last is not None and last.state.is_final and last.fault_class is not None
    reason = "Slurm does not know the job any more"
    if failed:
        reason += f" (MinJobAge is {situation.min_job_age_s} s; raise it when decisions come too late)"
    return Advice(
        action=Action.LEAVE_ALONE,
        rule=GONE,
        reason=reason,
        restart_count=last.number if last else 0,
        mode=situation.mode,
        policy=situation.policy_name,
        policy_hash=situation.policy_hash or policy.hash,
        catalogue_hash=situation.catalogue_hash,
    )


def _with_approval(case: Case, advice: Advice) -> Advice:
    """In approve mode a change waits for a person's yes, never longer than Slurm remembers an ended job."""
    dead_stop = advice.action is Action.STOP and case.ended  # nothing to cancel: the job simply stays dead
    if case.situation.mode is not Mode.APPROVE or not advice.acts or dead_stop or case.situation.force is not None:
        return advice
    wait_s = float(case.policy.approve_wait_s)
    if case.ended and not (case.policy.park and advice.action is Action.RESTART):
        purge = case.purge_at()
        wait_s = min(wait_s, (purge - case.situation.now).total_seconds()) if purge else 0.0
    if advice.action is Action.GUARD and case.view.start_time is not None:
        # Slurm starts the job by itself then: a later yes would come too late to keep it off the node.
        wait_s = min(wait_s, (case.view.start_time - case.situation.now).total_seconds() - 1)
    restarts = advice.action in {Action.RESTART, Action.GUARD, Action.RELEASE}
    silent = advice.action if restarts and case.policy.on_silence is OnSilence.RESTART else Action.LEAVE_ALONE
    return advice.model_copy(
        update={"needs_approval": True, "approve_within_s": max(0, int(wait_s)), "on_silence": silent}
    )


def rules_table_markdown() -> str:
    """The table of the documentation, from the rules themselves."""
    lines = ["| rule | situation | advice |", "|---|---|---|"]
    rows = [(GONE, "Slurm does not know the job any more", "leave alone; a failed attempt is recorded as missed")]
    rows += [(rule.id, rule.situation, rule.advice) for rule in RULES]
    lines += [f"| `{name}` | {situation} | {advice} |" for name, situation, advice in rows]
    return "\n".join(lines) + "\n"
