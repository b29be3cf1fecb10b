"""What becomes of an operator's `force`: followed, or refused with a sentence that helps.

An operator may overrule budgets, causes, pauses and an earlier stop; never the facts (a finished or cancelled job, a
second writer on the same checkpoint, nodes out of reach) and never monitor mode.
"""

from __future__ import annotations

from recovery.case import Case
from recovery.nearest import meant
from recovery.records import Action, Advice, JobState, Mode
from recovery.situation import Demand

_OVER = {JobState.COMPLETED: "has finished", JobState.CANCELLED: "was cancelled"}


def force(case: Case) -> Advice | None:
    """The advice for an operator's demand; None when there is none."""
    demand = case.situation.force
    if demand is None:
        return None
    refusal = _refusal(case, demand)
    if refusal:
        return case.leave_alone("force", f"refused: {refusal}")
    by = f"by {demand.by or 'an operator'}" + (f": {demand.reason}" if demand.reason else "")
    action = Action(demand.action)
    exclude = tuple(node for node in demand.exclude if node not in case.view.excluded)
    if action is not Action.RESTART:
        exclude = ()
    return case.advise(action, "force", f"forced {by}", exclude=exclude)


def _refusal(case: Case, demand: Demand) -> str:
    view, situation = case.view, case.situation
    if demand.action not in {Action.RESTART, Action.STOP, Action.RELEASE}:
        return f"action is {demand.action!r}, expected restart, stop or release"
    if situation.mode is Mode.MONITOR:
        return "the job is in monitor mode, in which relight touches nothing; set the cluster's mode in the policy file"
    if demand.restart_count is not None and demand.restart_count != view.restarts:
        return (
            f"it is meant for restart count {demand.restart_count}, but the job is at {view.restarts} now; "
            "look again with `relight show`"
        )
    if situation.frozen:
        return f"the cluster must not be touched now: {situation.frozen}"
    if case.state in _OVER:
        return f"the job {_OVER[case.state]}; submit it anew"
    if case.state is JobState.COMPLETING:
        return "the job is ending and how is not known yet; ask again in a few seconds"
    if demand.action == Action.STOP:
        return ""
    if situation.directive.paused:
        return "its owner paused relight in the job's comment; ask them to take that out"
    if situation.twins:
        return f"job {situation.twins[0]} of the same user does the same work now; cancel one of the two first"
    if situation.dependents_started:
        return f"job {situation.dependents_started[0]} depends on this one and has started already; cancel it first"
    return _refused_release(case) if demand.action == Action.RELEASE else _refused_restart(case, demand)


def _refused_release(case: Case) -> str:
    if case.launch_failed:
        return ""
    if case.state is JobState.SPECIAL_EXIT or case.view.held:
        return f"a person or the site holds the job ({case.view.reason}); `scontrol release` it where that is decided"
    return f"the job is not held (it is {case.state.value})"


def _refused_restart(case: Case, demand: Demand) -> str:
    view = case.view
    reach = {*case.allocation, *view.nodes, *case.situation.nodes_known}
    strangers = [node for node in demand.exclude if node not in reach]
    if strangers:
        return f"node {strangers[0]} is not known in this cluster{meant(strangers[0], reach)}"
    required = [node for node in demand.exclude if node in view.required_nodes]
    if required:
        return f"node {required[0]} is required by the job itself (--nodelist); excluding it would strand the job"
    left = set(case.situation.nodes_usable) - {*demand.exclude, *view.excluded}
    if demand.exclude and case.situation.nodes_usable and len(left) < max(1, view.min_nodes):
        return f"{len(left)} usable nodes would remain, the job needs {view.min_nodes}; exclude fewer"
    if not view.batch:
        return "it is not a batch job; Slurm cannot requeue interactive jobs"
    if view.het_job_id is not None:
        return "restarting heterogeneous jobs is not supported yet"
    if case.state in {JobState.SUSPENDED, JobState.STOPPED}:
        return f"the job is {case.state.value}; requeueing it would leave it held, resume it first"
    if case.state.is_final or case.state is JobState.RUNNING:
        if view.requeue:
            return ""
        return "it was submitted with --no-requeue; while it is alive, `scontrol update jobid=ID requeue=1` allows it"
    return f"there is nothing to restart, the job is {case.state.value}"
