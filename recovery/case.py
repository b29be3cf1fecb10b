"""One situation worked out for the rules: the state that counts, the attempt in question, its nodes, its budgets.

Also the two things every rule needs alike: which suspects may be excluded, and how an advice is put together. No rule
stands here.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from recovery.blame import NODE_CLASSES
from recovery.budgets import LAUNCH_SIGNATURE, budgets
from recovery.facts import facts_of
from recovery.hang import Hang
from recovery.incident_effects import Affected, explaining
from recovery.incident_records import Incident
from recovery.policy_numbers import KeepNodes, OnStuck, Policy, nodes_of_share
from recovery.records import (
    FAILURES,
    Action,
    Advice,
    Attempt,
    Budget,
    Confidence,
    FaultClass,
    JobState,
    JobView,
    Retry,
    Suspect,
)
from recovery.recurrence import suspected_earlier
from recovery.situation import Situation
from recovery.straggler import Straggler

NODE_FAIL_SIGNATURE = "scheduler.node_fail"

_NOT_BROKEN = frozenset({"node.daemon_restarted", "straggler.slow_host"})
"""Reasons to leave a node out of one job that are none to take it from everybody."""

_STRENGTH = {Confidence.HIGH: 0, Confidence.MEDIUM: 1, Confidence.LOW: 2}


@dataclass(frozen=True)
class Case:
    """A situation of a job that Slurm still knows, seen with one policy."""

    situation: Situation
    policy: Policy
    view: JobView
    state: JobState
    """The state that counts: what accounting says while the scheduler only says COMPLETING, and the gentler of the two
    when they differ about an ended attempt."""
    ended: bool
    """The current attempt is over and Slurm will not go on with it by itself."""
    node_fail_requeued: bool
    """A node failed and Slurm has requeued the job by itself; it waits."""
    blamed_late: bool
    """It waits after relight's own restart, and a witness that users cannot write tells of the attempt before."""
    launch_failed: bool
    """`launch failed requeued held`: a prolog failed on a node; Slurm holds the job."""
    failing: Attempt
    """The attempt in question: the current one, or the one before it when Slurm has already requeued."""
    attempts: tuple[Attempt, ...]
    """Up to and with `failing`, oldest first."""
    allocation: frozenset[str]
    """Nodes of `failing`."""
    budgets: tuple[Budget, ...]

    @property
    def actionable(self) -> bool:
        """True when an ordinary rule could change something in Slurm."""
        return self.ended or self.node_fail_requeued or self.blamed_late or self.launch_failed or self.stuck

    @property
    def stuck(self) -> bool:
        """It runs, but hangs or lags so that the policy restarts it."""
        hang, lag = hang_of(self), straggler_of(self)
        if hang is not None:
            return hang.stage.acts and self.policy.hang is OnStuck.RESTART
        if lag is None or self.policy.straggler is not OnStuck.RESTART or not self.exclusions():
            return False
        saved_at = self.situation.progress.checkpoint_at
        age = timedelta(seconds=self.policy.straggler_checkpoint_age_s)
        return bool(lag.nodes) and saved_at is not None and self.situation.now - saved_at <= age

    @property
    def named_ending(self) -> bool:
        """TIMEOUT or PREEMPTED, and the policy's `restart_on` names it."""
        return self.state.value in {ending.value for ending in self.policy.restart_on}

    def used(self, name: str) -> float:
        return next(budget.used for budget in self.budgets if budget.name == name)

    def is_spent(self, name: str) -> bool:
        return any(budget.name == name and budget.left <= 0 for budget in self.budgets)

    def purge_at(self) -> datetime | None:
        """Latest moment for a change to an ended job, before Slurm forgets it; None when its end is not known."""
        row_end = self.situation.row.end_time if self.situation.row else None
        end = self.view.end_time or row_end or self.failing.end_time
        if end is None:
            return None
        return end + timedelta(seconds=max(0, self.situation.min_job_age_s - self.policy.purge_margin_s))

    def advise(
        self,
        action: Action,
        rule: str,
        reason: str,
        *,
        exclude: tuple[str, ...] = (),
        look_again_at: datetime | None = None,
        notify: bool = False,
        routine: bool = False,
    ) -> Advice:
        verdict = self.situation.verdict
        return Advice(
            action=action,
            rule=rule,
            reason=reason,
            exclude=exclude,
            restart_count=self.view.restarts,
            fault_class=verdict.fault_class,
            signature=verdict.signature,
            mode=self.situation.mode,
            look_again_at=look_again_at,
            facts=() if routine else facts_of(self),
            notify=notify,
            routine=routine,
            budgets=self.budgets,
            policy=self.situation.policy_name,
            policy_hash=self.situation.policy_hash or self.policy.hash,
            catalogue_hash=self.situation.catalogue_hash,
        )

    @property
    def forced_restart(self) -> str:
        """What a person types to have it restarted all the same."""
        return f"relight force {self.view.cluster}-{self.view.job_id} --action restart"

    def leave_alone(self, rule: str, reason: str, *, notify: bool = False, routine: bool = False) -> Advice:
        return self.advise(Action.LEAVE_ALONE, rule, reason, notify=notify, routine=routine)

    @property
    def told(self) -> str:
        """How the attempt's exit code came to be known, for people, where Slurm did not tell it."""
        return f"; srun told it in the log, Slurm has {self.view.exit_code}:{self.view.exit_signal}"

    def exclusions(
        self, *, at_once: bool | None = None, weak_too: bool = False, named: tuple[str, ...] = ()
    ) -> tuple[str, ...]:
        """Suspects the next attempt should avoid, beyond those already excluded.

        Only nodes of the job's own allocation: what a job prints can never keep it, or anybody, off other nodes. Of
        hardware and interconnect faults (or `at_once`) suspects are excluded the first time, unless they are weak;
        everything else only when the same node was a suspect before (see recurrence.py). The surest come first, and
        none is excluded that would leave too few usable nodes, or more than the policy's share of the cluster.
        `named` are nodes that count as suspects besides those of the verdict.
        """
        situation, view = self.situation, self.view
        if incident_of(situation, view, self.allocation) is not None:
            # Many share the fault, so no node is to blame, unless it is hardware that fails this job there again.
            if situation.verdict.fault_class is not FaultClass.HARDWARE:
                return ()
            at_once = weak_too = False
        if at_once is None:
            at_once = situation.verdict.fault_class in NODE_CLASSES
        window = timedelta(seconds=self.policy.suspect_window_s)
        before = suspected_earlier(self.attempts[:-1], situation.nodes_cleared, situation.now, window)
        taken = set(view.excluded)
        usable = set(situation.nodes_usable) - taken
        counted = bool(situation.nodes_usable or situation.nodes_known)
        share = self.policy.max_excluded_share * len(situation.nodes_known)
        most = max(1, int(share)) if situation.nodes_known else len(self.allocation)
        chosen: list[str] = []
        more = tuple(Suspect(node=node, how="its task asked so", confidence=Confidence.MEDIUM) for node in named)
        for suspect in sorted((*situation.verdict.suspects, *more), key=_surest_first):
            node = suspect.node
            # Somebody outside says nothing about the class, and a weak word of theirs is never enough the first time.
            outside = bool(suspect.by)
            fit = (at_once or outside) and ((weak_too and not outside) or suspect.confidence is not Confidence.LOW)
            if node not in self.allocation or node in taken or node in view.required_nodes or node in chosen:
                continue
            if not fit and not suspect.again and node not in before:
                continue
            if len(chosen) >= most or (counted and len(usable - {*chosen, node}) < max(1, view.min_nodes)):
                continue
            chosen.append(node)
        return tuple(chosen)

    def drains(self, excluded: tuple[str, ...]) -> tuple[str, ...]:
        """Nodes of the job that are bad by the word of a witness that users cannot write. Only such as the job keeps
        off anyway: a drain must not strand the job whose restart it is part of."""
        verdict, avoided = self.situation.verdict, {*excluded, *self.view.excluded}
        if not self.policy.drain or verdict.fault_class not in NODE_CLASSES or verdict.signature in _NOT_BROKEN:
            return ()
        return tuple(
            suspect.node
            for suspect in verdict.suspects
            if suspect.trusted
            and suspect.confidence is Confidence.HIGH
            and suspect.node in self.allocation
            and suspect.node in avoided
        )

    def kept(self, excluded: tuple[str, ...]) -> tuple[str, ...]:
        """Healthy nodes of the attempt that are held for the next one, where the policy says so."""
        situation = self.situation
        if self.policy.keep_nodes is not KeepNodes.RESERVATION or self.view.reservation or not self.ended_or_stuck:
            return ()
        bad = {*excluded, *self.view.excluded, *(suspect.node for suspect in situation.verdict.suspects)}
        healthy = sorted(self.allocation & set(situation.nodes_usable) - bad)
        share = nodes_of_share(self.policy.max_kept_share, len(situation.nodes_known))
        return tuple(healthy) if healthy and len(healthy) <= share else ()

    @property
    def ended_or_stuck(self) -> bool:
        return self.ended or self.stuck

    def spared(self, excluded: tuple[str, ...]) -> str:
        """Why suspects among the job's own nodes are not excluded with `excluded`; empty: nothing to explain."""
        verdict, view = self.situation.verdict, self.view
        if verdict.fault_class not in NODE_CLASSES:
            return ""
        avoided = {*excluded, *view.excluded}
        left = [
            suspect.node
            for suspect in verdict.suspects
            if suspect.confidence is not Confidence.LOW and suspect.node in self.allocation - avoided
        ]
        if not left:
            return ""
        names = ", ".join(left[:10])
        required = [node for node in left if node in view.required_nodes]
        if required == left:
            return f"{names} not excluded: the job itself requires it (--nodelist)"
        usable = len(set(self.situation.nodes_usable) - avoided - set(left))
        if usable < max(1, view.min_nodes):
            return (
                f"{names} not excluded: without it {usable} usable nodes would remain, the job needs {view.min_nodes}"
            )
        return f"{names} not excluded: more than the policy allows at a time (max_excluded_share)"


def incident_of(situation: Situation, view: JobView, allocation: frozenset[str]) -> Incident | None:
    """The open incident that is why the attempt failed: no single node is to blame then."""
    verdict = situation.verdict
    job = Affected(
        user=view.user,
        nodes=tuple(sorted(allocation)),
        signature=verdict.signature,
        fault_class=verdict.fault_class,
    )
    return explaining(situation.incidents, job)


def hang_of(case: Case) -> Hang | None:
    """The hang of the running attempt; None: it does not hang."""
    hang = case.situation.hang
    running = case.state is JobState.RUNNING and hang is not None and hang.attempt == case.view.restarts
    return hang if running else None


def straggler_of(case: Case) -> Straggler | None:
    """The lag of the running attempt behind its usual pace; None: it does not lag."""
    lag = case.situation.straggler
    running = case.state is JobState.RUNNING and lag is not None and lag.attempt == case.view.restarts
    return lag if running else None


def _surest_first(suspect: Suspect) -> tuple[int, int, bool, str]:
    return _STRENGTH[suspect.confidence], 0 if suspect.trusted else 1, bool(suspect.by), suspect.node


def build_case(situation: Situation, view: JobView, policy: Policy) -> Case:
    state = _state(situation, view)
    if state in FAILURES and situation.verdict.fault_class is FaultClass.NONE and not situation.findings:
        # It did fail: that nothing speaks of a fault only means that nothing was seen.
        why = f"the job ended {state.value} and nothing tells why"
        verdict = situation.verdict.model_copy(
            update={"fault_class": FaultClass.UNKNOWN, "retry": Retry.YES, "reason": why}
        )
        situation = situation.model_copy(update={"verdict": verdict})
    requeued = view.state is JobState.PENDING and view.restarts > 0 and not situation.expected_restart
    launch_failed = view.state is JobState.PENDING and "launch failed" in plain_reason(view)
    node_fail_requeued = (
        requeued and not launch_failed and not view.held and _previous_state(situation, view) is JobState.NODE_FAIL
    )
    blamed_late = (
        view.state is JobState.PENDING
        and situation.expected_restart
        and not view.held
        and any(one.trusted and one.attempt == view.restarts - 1 for one in situation.findings)
    )
    earlier = node_fail_requeued or blamed_late
    current = view.restarts - 1 if earlier else view.restarts
    attempts = tuple(attempt for attempt in situation.attempts if attempt.number <= current)
    known = attempts[-1] if attempts and attempts[-1].number == current else Attempt(number=current)
    failing = _with_verdict(known, situation, view, ended=state.is_final)
    attempts = (*(attempt for attempt in attempts if attempt.number < current), failing)
    row = situation.previous_row if earlier else situation.row
    allocation = set(failing.nodes) | set(row.nodes if row else ())
    if not earlier:
        allocation |= set(view.nodes)
    return Case(
        situation=situation,
        policy=policy,
        view=view,
        state=state,
        ended=state.is_final,
        node_fail_requeued=node_fail_requeued,
        blamed_late=blamed_late,
        launch_failed=launch_failed,
        failing=failing,
        attempts=attempts,
        allocation=frozenset(allocation),
        budgets=budgets(attempts, policy, situation.directive, situation.now),
    )


def plain_reason(view: JobView) -> str:
    """Slurm's pending reason in lower case with blanks: some commands print underscores instead."""
    return view.reason.replace("_", " ").strip().lower()


def _state(situation: Situation, view: JobView) -> JobState:
    row = situation.row
    if row is None:
        return view.state
    if view.state is JobState.COMPLETING and row.state.is_final | (row.state is JobState.REQUEUED):
        return row.state
    # Never revive what accounting holds for finished or cancelled, even where the scheduler still says something else.
    if view.state.is_final and row.state in {JobState.COMPLETED, JobState.CANCELLED}:
        return row.state
    return view.state


def _previous_state(situation: Situation, view: JobView) -> JobState:
    if situation.previous_row is not None:
        return situation.previous_row.state
    for attempt in situation.attempts:
        if attempt.number == view.restarts - 1 and attempt.state is not JobState.UNKNOWN:
            return attempt.state
    if situation.verdict.signature.startswith(NODE_FAIL_SIGNATURE):
        return JobState.NODE_FAIL
    return JobState.UNKNOWN


def _with_verdict(attempt: Attempt, situation: Situation, view: JobView, *, ended: bool) -> Attempt:
    """The attempt with what is known since it was recorded: the verdict, the newest progress, its end."""
    progress = situation.progress if situation.progress.attempt == attempt.number else None
    steps = [step for step in (attempt.last_step, progress.step if progress else None) if step is not None]
    saved = [step for step in (attempt.last_checkpoint, progress.checkpoint if progress else None) if step is not None]
    current = attempt.number == view.restarts
    return attempt.model_copy(
        update={
            "fault_class": situation.verdict.fault_class,
            "signature": situation.verdict.signature or attempt.signature,
            "suspects": tuple(sorted({*attempt.suspects, *(suspect.node for suspect in situation.verdict.suspects)})),
            "last_step": max(steps, default=None),
            "last_checkpoint": max(saved, default=None),
            "first_step": attempt.first_step if attempt.first_step is not None or not progress else progress.first_step,
            "nodes": attempt.nodes or (view.nodes if current else ()),
            "start_time": attempt.start_time or (view.start_time if current else None),
            "end_time": attempt.end_time or (view.end_time if current and ended else None),
            "exit_code": view.exit_code if current and ended else attempt.exit_code,
        }
    )


__all__ = ["LAUNCH_SIGNATURE", "Case", "build_case", "hang_of", "plain_reason", "straggler_of"]
