"""What must hold after any run, whatever broke: pure checks of a job's facts, each with the sentence it fails with.

`unfinished` may mend itself with time and is asked again until a deadline; `broken` never does.
"""

from __future__ import annotations

from datetime import timedelta

from activities.audit.records import Event
from activities.contracts import EventKind
from tests.chaos.facts import JobFacts
from tests.chaos.plan import JobFault

ENDED = frozenset({"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"})
NO_MORE = frozenset({"stop", "leave_alone"})
SECOND = timedelta(seconds=1)  # accounting tells no fractions


def unfinished(facts: JobFacts) -> list[str]:
    """Why the job is not at rest yet."""
    told = []
    if not _at_rest(facts):
        advice = _last(facts, EventKind.ADVICE)
        why = f"{advice.body.get('action')} by {advice.body.get('rule')}" if advice else "none"
        told.append(
            f"job {facts.job} is {facts.state or 'unknown to Slurm'} ({facts.reason}), restart count {facts.restarts}; "
            f"newest advice: {why}; expected finished, or stopped with a reason"
        )
    done = [event.key.removesuffix(":done") for event in facts.events if _is_done(event)]
    ended = {event.body.get("step_key") for event in facts.events if event.kind == EventKind.OUTCOME}
    told += [
        f"job {facts.job}: step {key} was done and has no outcome in the audit log" for key in done if key not in ended
    ]
    return told


def broken(facts: JobFacts) -> list[str]:
    """What can never be made good again."""
    told = [*_requeues(facts), *_audit_order(facts)]
    if facts.state == "PENDING" and facts.priority == 0:
        told.append(f"is held (priority 0, {facts.reason}); relight must never hold a job")
    allocated = frozenset().union(*(row.nodes for row in facts.rows))
    if facts.excluded - allocated:
        told.append(f"excludes {_names(facts.excluded - allocated)}, on which it never ran")
    if facts.excluded & allocated - facts.struck_nodes:
        told.append(f"excludes {_names(facts.excluded & allocated - facts.struck_nodes)}, which nothing ever befell")
    return [f"job {facts.job} {text}" for text in told]


def _requeues(facts: JobFacts) -> list[str]:
    told = []
    plans = _restart_plans(facts)
    if facts.monitor and facts.requeues:
        told.append(f"is in monitor mode and was requeued {facts.requeues} times")
    if facts.requeues > len(plans):
        told.append(f"was requeued {facts.requeues} times for {len(plans)} planned restarts")
    requeued_at = [
        after.submitted
        for row, after in zip(facts.rows, facts.rows[1:], strict=False)
        if row.state == "REQUEUED" and after.submitted is not None
    ]
    free = sorted(plan.recorded_at for plan in plans)
    for moment in sorted(requeued_at):
        if free and free[0] <= moment + SECOND:
            free.pop(0)
        else:
            told.append(
                f"was requeued at {moment:%H:%M:%S} as accounting has it, without a plan of its own before that"
            )
    by_slurm = sum(row.state in {"NODE_FAIL", "BOOT_FAIL"} for row in facts.rows)
    launches = sum(event.kind == EventKind.STEP and event.body.get("action") == "release" for event in facts.events)
    if facts.restarts > facts.requeues + by_slurm + launches and not facts.slurm_forgot:
        told.append(
            f"has restart count {facts.restarts}: {facts.requeues} requeues and {by_slurm} lost nodes do not explain it"
        )
    harmless = facts.fault is JobFault.NONE or (facts.fault is JobFault.USER_ERROR and not facts.log_lost)
    if harmless and facts.requeues and not (facts.slurm_forgot or facts.disturbed):
        told.append(f"was requeued although its fault was {facts.fault.value}")
    return told


def _audit_order(facts: JobFacts) -> list[str]:
    """Each intent and each done step after its plan, each plan after its advice, each outcome after its step."""
    told = []
    seen: set[str] = set()
    if facts.events and facts.events[0].kind != EventKind.OPENED:
        told.append(f"has an audit log that begins with {facts.events[0].kind}")
    for event in facts.events:
        key = event.key
        if event.kind == EventKind.PLAN and f"advice:{event.body['step_key']}" not in seen:
            told.append(f"has plan {key} without its advice before it")
        if event.kind == EventKind.STEP:
            step = _step_of(event)
            if f"plan:{step}" not in seen:
                told.append(f"has step {key} without its plan before it")
            if _is_done(event) and f"{step}:intent" not in seen:
                told.append(f"has step {key} without its intent before it")
        settled = event.kind == EventKind.OUTCOME and event.body.get("kind") not in {"refused", "gone", None}
        if settled and event.body.get("step_key") and not _stepped(str(event.body["step_key"]), seen):
            told.append(f"has outcome {key} without its step before it")
        seen.add(key)
    return told


def _stepped(step: str, seen: set[str]) -> bool:
    return f"{step}:done" in seen or any(key.startswith(f"{step}:refused") for key in seen)


def _at_rest(facts: JobFacts) -> bool:
    advice = _last(facts, EventKind.ADVICE)
    action = advice.body.get("action") if advice else None
    if facts.monitor and facts.fault is JobFault.HANG and facts.state == "RUNNING":
        return action == "restart"  # told, and left alone
    if facts.state == "COMPLETED":
        return any(event.kind == EventKind.STATE and event.body.get("state") == "COMPLETED" for event in facts.events)
    if facts.state not in ENDED:
        return False
    if facts.monitor:
        return advice is not None
    return advice is not None and action in NO_MORE and advice.attempt == facts.restarts


def _restart_plans(facts: JobFacts) -> list[Event]:
    restarts = {event.key.removeprefix("advice:") for event in facts.events if event.body.get("action") == "restart"}
    return [event for event in facts.events if event.kind == EventKind.PLAN and event.body["step_key"] in restarts]


def _is_done(event: Event) -> bool:
    return event.kind == EventKind.STEP and event.body.get("done") is True


def _step_of(event: Event) -> str:
    for end in (":intent", ":done"):
        if event.key.endswith(end):
            return event.key.removesuffix(end)
    return event.key.split(":refused:")[0]


def _last(facts: JobFacts, kind: str) -> Event | None:
    return next((event for event in reversed(facts.events) if event.kind == kind), None)


def _names(nodes: frozenset[str]) -> str:
    return ", ".join(sorted(nodes))
