"""Policy rules for jobs whose attempt has failed: stop with a reason, or restart on good nodes.

Each function answers with an advice or None; their order and their documentation stand in `rules.py`. A rule that
restarts stands below every rule that forbids it.
"""

from __future__ import annotations

from recovery.budgets import GENERAL, SAME_CAUSE, UNKNOWN, spent, spent_text
from recovery.case import Case
from recovery.records import Action, Advice, FaultClass, JobState, Retry


def own_fault(case: Case) -> Advice | None:
    if not case.ended or not case.failing.own_fault or not case.view.requeue:
        return None
    limit = case.policy.own_fault_limit
    if case.situation.own_faults >= limit:
        died = f"{case.situation.own_faults} restarts in a row died at their start, through relight and not the job"
        why = f"{died} (limit {limit}); a person should look before the next: {case.forced_restart}"
        return case.leave_alone("own_fault", why, notify=True)
    why = "the last restart died at its start, through relight and not through the job"
    return case.advise(Action.RESTART, "own_fault", why)


def stop_code(case: Case) -> Advice | None:
    codes = case.failing.codes & {*case.policy.stop_codes, *case.situation.directive.stop_codes}
    if not case.ended or not codes:
        return None
    told = "" if case.view.exit_code in codes else case.told
    why = f"the job ended with exit code {min(codes)}, by which it asks not to be restarted{told}"
    return case.advise(Action.STOP, "stop_code", why, notify=True)


def budget_spent(case: Case) -> Advice | None:
    gone = spent(case.budgets, GENERAL)
    if not gone:
        return None
    why = spent_text(case.attempts, gone)
    if case.ended or case.policy.stop_requeued:
        return case.advise(Action.STOP, "budget_spent", why, notify=True)
    return case.leave_alone(
        "budget_spent", f"{why}; Slurm requeued it, and stop_requeued is off in the policy", notify=True
    )


def node_fail_requeued(case: Case) -> Advice | None:
    if not case.node_fail_requeued:
        return None
    exclude = case.exclusions(at_once=True)
    if not exclude:
        return case.leave_alone("node_fail_requeued", "a node failed and Slurm requeued the job; nothing to add")
    why = f"a node failed and Slurm requeued the job; the next attempt keeps off {', '.join(exclude)}"
    return case.advise(Action.GUARD, "node_fail_requeued", why, exclude=exclude)


def nothing_broke(case: Case) -> Advice | None:
    if case.state is not JobState.FAILED or case.situation.verdict.fault_class is not FaultClass.NONE:
        return None
    return case.leave_alone("nothing_broke", f"nothing broke: {case.situation.verdict.reason}")


def cannot_help(case: Case) -> Advice | None:
    verdict = case.situation.verdict
    by_user = verdict.fault_class is FaultClass.USER and verdict.retry is not Retry.ONCE
    if not case.ended or (verdict.retry is not Retry.NO and not by_user) or _asked_elsewhere(case):
        return None
    return case.advise(Action.STOP, "cannot_help", f"running it again cannot help: {verdict.reason}", notify=True)


def once_spent(case: Case) -> Advice | None:
    verdict = case.situation.verdict
    before = UNKNOWN if verdict.fault_class is FaultClass.UNKNOWN else SAME_CAUSE
    if not case.ended or verdict.retry is not Retry.ONCE or case.used(before) < 1:
        return None
    return case.advise(Action.STOP, "once_spent", f"one retry did not help: {verdict.reason}", notify=True)


def out_of_memory_again(case: Case) -> Advice | None:
    if not _is_out_of_memory(case):
        return None
    # A step that is not known is not the same step: the same-cause budget bounds those.
    step = case.failing.last_step
    again = [
        attempt
        for attempt in case.attempts[:-1]
        if attempt.fault_class is FaultClass.OUT_OF_MEMORY and attempt.last_step == step and step is not None
    ]
    if not again:
        return None
    why = f"out of memory after step {step}, as in attempt {again[-1].number}: it would happen again"
    return case.advise(Action.STOP, "out_of_memory_again", why, notify=True)


def not_restartable(case: Case) -> Advice | None:
    if not case.ended or case.view.requeue:
        return None
    why = "it was submitted with --no-requeue and was not armed (Requeue=1) while it was alive; submit it anew"
    return case.leave_alone("not_restartable", why, notify=True)


def asks_elsewhere(case: Case) -> Advice | None:
    if not _asked_elsewhere(case):
        return None
    codes = case.failing.codes & set(case.policy.elsewhere_codes)
    named = tuple(told.node for told in case.failing.told_codes if told.code in codes and told.node)
    if not named and len(case.allocation) == 1:
        named = tuple(case.allocation)
    exclude = case.exclusions(at_once=True, weak_too=True, named=named)
    told = "" if case.view.exit_code in codes else case.told
    why = f"exit code {min(codes)} asks for another run on other hardware{told}"
    return _restart(case, "asks_elsewhere", why if exclude else f"{why}; which node it means is not known", exclude)


def suspect(case: Case) -> Advice | None:
    verdict = case.situation.verdict
    if not case.ended or verdict.fault_class not in {FaultClass.HARDWARE, FaultClass.INTERCONNECT}:
        return None
    exclude = case.exclusions()
    return _restart(case, "suspect", verdict.reason, exclude) if exclude else None


def infrastructure(case: Case) -> Advice | None:
    verdict = case.situation.verdict
    classes = {
        FaultClass.HARDWARE,
        FaultClass.INTERCONNECT,
        FaultClass.SYSTEM_SOFTWARE,
        FaultClass.STORAGE,
        FaultClass.SCHEDULER,
    }
    states = {JobState.BOOT_FAIL, JobState.NODE_FAIL}
    if not case.ended or (verdict.fault_class not in classes and case.state not in states):
        return None
    # A node that Slurm itself gave up is no guess: it may be excluded the first time.
    return _restart(case, "infrastructure", verdict.reason, case.exclusions(at_once=case.state in states or None))


def out_of_memory(case: Case) -> Advice | None:
    if not _is_out_of_memory(case):
        return None
    return _restart(case, "out_of_memory", case.situation.verdict.reason, case.exclusions())


def application(case: Case) -> Advice | None:
    verdict = case.situation.verdict
    if not case.ended or verdict.fault_class not in {FaultClass.APPLICATION, FaultClass.USER}:
        return None
    return _restart(case, "application", verdict.reason, case.exclusions())


def named_ending(case: Case) -> Advice | None:
    if not case.named_ending:
        return None
    return _restart(case, "named_ending", f"the policy restarts jobs that ended {case.state.value}", ())


def unknown(case: Case) -> Advice | None:
    if not case.ended:
        return None
    gone = spent(case.budgets, (UNKNOWN,))
    if gone:
        return case.advise(Action.STOP, "unknown", f"cause unknown; {spent_text(case.attempts, gone)}", notify=True)
    return _restart(case, "unknown", f"cause unknown: {case.situation.verdict.reason}", case.exclusions())


def _restart(case: Case, rule: str, reason: str, exclude: tuple[str, ...]) -> Advice:
    where = f"; the next attempt keeps off {', '.join(exclude)}" if exclude else ""
    spared = case.spared(exclude)
    return case.advise(Action.RESTART, rule, f"{reason}{where}{'; ' if spared else ''}{spared}", exclude=exclude)


def _asked_elsewhere(case: Case) -> bool:
    return case.ended and bool(case.failing.codes & set(case.policy.elsewhere_codes))


def _is_out_of_memory(case: Case) -> bool:
    by_state = case.state is JobState.OUT_OF_MEMORY
    return case.ended and (by_state or case.situation.verdict.fault_class is FaultClass.OUT_OF_MEMORY)
