"""The table of policy rules, in order: the first that answers wins. One rule is one row here and one row in the docs.

What a rule looks at stands in `rules_aside.py`, `rules_alive.py`, `rules_stuck.py`, `rules_ended.py` and `force.py`; a
rule reads its case and nothing else, so the same case always gives the same advice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from recovery import rules_alive as alive
from recovery import rules_aside as aside
from recovery import rules_ended as ended
from recovery import rules_incident as shared
from recovery import rules_stuck as stuck
from recovery.case import Case
from recovery.force import force
from recovery.records import Advice


@dataclass(frozen=True)
class Rule:
    """One row: what holds, what is then advised (both as a person reads them), and the function that decides it."""

    id: str
    situation: str
    advice: str
    decide: Callable[[Case], Advice | None]


RULES: tuple[Rule, ...] = (
    Rule("not_opted_in", "the job did not opt in", "leave alone", aside.not_opted_in),
    Rule(
        "bad_directive",
        "its directive cannot be understood",
        "leave alone; the error stands on the job's record",
        aside.bad_directive,
    ),
    Rule(
        "force",
        "an operator demands something by `force`",
        "as demanded, or refused with the reason; budgets do not bind",
        force,
    ),
    Rule(
        "stopped",
        "relight stopped this job earlier",
        "leave alone: whoever runs it again has taken over",
        aside.stopped,
    ),
    Rule("finished", "COMPLETED", "leave alone", aside.finished),
    Rule("cancelled", "CANCELLED, by whomever", "leave alone", aside.cancelled),
    Rule(
        "preempted",
        "PREEMPTED, unless `restart_on` names it",
        "leave alone: Slurm requeues it where the site wants that",
        aside.preempted,
    ),
    Rule("deadline", "DEADLINE", "leave alone: it could not end in time any more", aside.deadline),
    Rule(
        "requeue_not_told",
        "requeued, not by relight, and accounting does not tell yet how the attempt before ended",
        "wait, half a minute at most: a node failure looks like a person's requeue now",
        aside.requeue_not_told,
    ),
    Rule(
        "requeued_elsewhere",
        "requeued by someone else (a person, RequeueExit, a preemption)",
        "leave alone",
        aside.requeued_elsewhere,
    ),
    Rule(
        "interactive",
        "interactive (`salloc`, `srun`): Slurm requeues batch jobs only",
        "leave alone",
        aside.interactive,
    ),
    Rule(
        "heterogeneous",
        "heterogeneous job",
        "leave alone, refused: one restart would have to change several jobs at once",
        aside.heterogeneous,
    ),
    Rule(
        "dependency_never", "pending on a dependency that can never be satisfied", "leave alone", aside.dependency_never
    ),
    Rule(
        "completing",
        "COMPLETING, and accounting does not tell yet how it ended",
        "wait: a cancelled job looks like a crashed one now",
        aside.completing,
    ),
    Rule("state_unknown", "a state relight does not know", "leave alone, notify", aside.state_unknown),
    Rule(
        "dependent_started",
        "a dependent of the failed job already started",
        "leave alone, notify: two writers are worse than a late restart",
        aside.dependent_started,
    ),
    Rule(
        "twin",
        "a live copy of the job, submitted since it failed, does the same work",
        "leave alone, notify",
        aside.twin,
    ),
    Rule("timeout", "TIMEOUT, unless `restart_on` names it", "leave alone", aside.timeout),
    Rule(
        "suspended", "SUSPENDED, STOPPED, gang-scheduled out", "leave alone: its silence is not a hang", aside.suspended
    ),
    Rule("paused", "paused, by an operator or in the owner's comment", "leave alone until resumed", aside.paused),
    Rule("hands_off", "the cause is marked as not ours to restart", "leave alone", aside.hands_off),
    Rule(
        "frozen",
        "the cluster is frozen (STOP file, outage, incident)",
        "wait; after `permit_wait_s` leave alone, notify",
        aside.frozen,
    ),
    Rule(
        "launch_failed",
        "`launch failed requeued held`: a prolog failed, Slurm drained the node",
        "release, within the `launch` budget",
        alive.launch_failed,
    ),
    Rule("held", "SPECIAL_EXIT, or a hold by the site or a person", "leave alone, notify", alive.held),
    Rule(
        "arm",
        "alive, submitted with `--no-requeue`, and `arm_requeue` is on",
        "arm: Requeue=1, or it could never come back",
        alive.arm,
    ),
    Rule(
        "hang",
        "RUNNING without a completed step for too long, and a second witness agrees or it lasted `hang_one_witness_s`",
        "as if it had ended for the same cause: restart or stop, within the budgets; with `hang: notify` only told",
        stuck.hang,
    ),
    Rule(
        "hang_suspected",
        "RUNNING without a completed step for too long, and nothing else says so yet",
        "leave alone, notify",
        stuck.hang_suspected,
    ),
    Rule(
        "straggler",
        "RUNNING, and its throughput dropped by `straggler_drop` for `straggler_for_s`",
        "leave alone, notify; with `straggler: restart`, a slow host and a fresh checkpoint: restart without the host",
        stuck.straggler,
    ),
    Rule(
        "node_event",
        "RUNNING, and one of its nodes is down, silent or was rebooted",
        "leave alone, notify: when steps stop as well it is a hang with a suspect",
        stuck.node_event,
    ),
    Rule(
        "in_job_retry",
        "running on after a fault (a retry loop in its own script)",
        "wait up to `in_job_retry_limit_s`, then notify",
        alive.in_job_retry,
    ),
    Rule("running", "RUNNING, CONFIGURING, RESIZING", "leave alone", alive.running),
    Rule(
        "blamed_late",
        "PENDING after relight's restart, and metrics tell only now which node was to blame",
        "guard: exclude it too while the job waits",
        alive.blamed_late,
    ),
    Rule("waiting", "PENDING, for ordinary reasons or after relight's restart", "leave alone", alive.waiting),
    Rule("nothing_broke", "nothing broke (and no other row applies)", "leave alone", ended.nothing_broke),
    Rule(
        "own_fault",
        "died at once of relight's own restart",
        "restart, costs no budget; after `own_fault_limit` leave alone, notify",
        ended.own_fault,
    ),
    Rule(
        "stop_code",
        "ended with one of `stop_codes`, by Slurm or as srun told it in the log",
        "stop: the job itself says so",
        ended.stop_code,
    ),
    Rule(
        "budget_spent",
        "a budget is spent (in all, per day, same cause, no new checkpoint, node-hours)",
        "stop, with the history",
        ended.budget_spent,
    ),
    Rule(
        "node_fail_requeued",
        "a node failed and Slurm has requeued the job",
        "guard: no second requeue, exclude the node while it waits",
        ended.node_fail_requeued,
    ),
    Rule(
        "cannot_help", "user error, or an error that running again cannot help (`retry: no`)", "stop", ended.cannot_help
    ),
    Rule("out_of_memory_again", "out of memory at the same step as before", "stop", ended.out_of_memory_again),
    Rule("once_spent", "an error the catalogue retries `once`, for the second time", "stop", ended.once_spent),
    Rule(
        "not_restartable",
        "ended and may not be requeued (`--no-requeue`)",
        "leave alone, notify: Slurm would refuse",
        ended.not_restartable,
    ),
    Rule(
        "incident",
        "several jobs failed of the same thing (switch, file system, maintenance, one signature), this one too",
        "restart, one after the other, and exclude only hardware that fails this job for the second time; after a file "
        "system error once it has been quiet for `incident_quiet_s`",
        shared.incident,
    ),
    Rule(
        "asks_elsewhere",
        "ended with one of `elsewhere_codes`, by Slurm or as srun told it in the log",
        "restart on other hardware; not counted as lack of progress",
        ended.asks_elsewhere,
    ),
    Rule(
        "suspect",
        "hardware or interconnect fault with a suspect inside the allocation",
        "restart without the suspects",
        ended.suspect,
    ),
    Rule(
        "infrastructure",
        "the same without a suspect, system software, storage, scheduler, BOOT_FAIL, NODE_FAIL",
        "restart; exclude a node only when it repeats there",
        ended.infrastructure,
    ),
    Rule(
        "out_of_memory",
        "out of memory, not at the same step",
        "restart, within the same-cause budget",
        ended.out_of_memory,
    ),
    Rule(
        "application",
        "an error of the application that may pass (`retry: yes` or `once`)",
        "restart, within the same-cause budget",
        ended.application,
    ),
    Rule("named_ending", "TIMEOUT or PREEMPTED that `restart_on` names", "restart", ended.named_ending),
    Rule("unknown", "unknown", "restart, within the `unknown` budget; then stop", ended.unknown),
)
