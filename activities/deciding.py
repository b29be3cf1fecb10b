"""The local activity `decide`: a thin shell around blame and policy, which are pure.

Its result stands in the history with rule, policy hash and catalogue hash, so that a changed policy never breaks the
replay of a running workflow. Nothing is read here but the policy file.
"""

from __future__ import annotations

from datetime import UTC, datetime

from temporalio import activity

from activities import contracts as c
from activities.site import Site
from recovery.attempts import view_of_earlier
from recovery.attribution import refined
from recovery.blame import attribute
from recovery.policy import decide
from recovery.policy_file import PolicyFile
from recovery.records import Attempt, JobState, JobView, Verdict
from recovery.recurrence import strengthened
from recovery.situation import Demand, Situation, split_rows


class DecidingActivities:
    """Decides; changes nothing."""

    def __init__(self, site: Site) -> None:
        self.site = site

    @activity.defn(name=c.DECIDE)
    async def decide(self, request: c.DecideJob) -> c.Decision:
        """Verdict and advice for what an examination showed."""
        now = request.now or datetime.now(UTC)
        return decided(request, self.site.policies.current(), self.site.catalogue.hash, now)


def decided(request: c.DecideJob, policies: PolicyFile, catalogue_hash: str, now: datetime) -> c.Decision:
    """The decision for a request, by this policy file and the rules of this code. Pure."""
    seen = request.examination
    view = seen.view
    assert view is not None
    started = request.overrides
    effective = policies.of_job(request.cluster, view, seen.directive, mode=started.mode, policy=started.policy)
    row, previous = split_rows(view, seen.rows)
    failing = failing_view(seen)
    verdict = verdict_of(seen).model_copy(update={"attempt": failing.restarts})
    verdict = strengthened(verdict, view, seen.life_id, seen.ledger)
    verdict = refined(verdict, request.attributions, seen.findings, failing)
    situation = Situation(
        now=now,
        view=view,
        row=row,
        previous_row=previous,
        accounting=seen.accounting,
        attempts=_with_verdict(seen, verdict),
        findings=seen.findings,
        verdict=verdict,
        progress=seen.progress,
        hang=seen.hang,
        straggler=seen.straggler,
        opted_in=not seen.opted_out and (seen.opted_in or effective.opt_in or request.by_hand),
        directive=seen.directive,
        directive_error=seen.directive_error or effective.refused,
        mode=effective.mode,
        paused=request.paused,
        paused_by=request.paused_by,
        stopped=request.stopped,
        dependents_started=seen.dependents_started,
        dependents_unsatisfied=seen.dependents_unsatisfied,
        twins=seen.twins,
        maintenance=(*policies.maintenance(request.cluster, view.partition, now), *seen.maintenance),
        nodes_usable=seen.nodes_usable,
        nodes_known=seen.nodes_known,
        nodes_cleared=seen.nodes_cleared,
        min_job_age_s=seen.min_job_age_s,
        frozen=seen.frozen,
        incidents=seen.incidents,
        own_faults=request.own_faults,
        expected_restart=request.expected_restart,
        declined=request.declined,
        force=Demand(**request.force.model_dump()) if request.force is not None else None,
        mode_from=effective.mode_from,
        policy_name=effective.name,
        policy_hash=effective.hash,
        catalogue_hash=catalogue_hash,
    )
    policy = effective.policy
    return c.Decision(
        verdict=verdict,
        advice=decide(situation, policy),
        mode=effective.mode,
        policy=effective.name,
        lease_s=policy.lease_s,
        start_delay_s=policy.start_delay_s,
        step_deadline_s=policy.step_deadline_s,
        exclude_expiry_s=policy.exclude_expiry_s,
        own_fault_limit=policy.own_fault_limit,
        permit_wait_s=policy.permit_wait_s,
        settle_s=policy.settle_s,
        park=policy.park,
        park_s=policy.park_s,
        max_tries=policy.max_tries_per_attempt,
        evidence_bytes=policy.evidence_bytes,
        before_restart=policy.before_restart,
        end_steps_s=policy.end_steps_wait_s if 0 < policy.end_steps_from_nodes <= len(view.nodes) else 0,
        stop_requeued=policy.stop_requeued,
        keep_nodes_s=policy.keep_nodes_s,
        max_kept_share=policy.max_kept_share,
    )


def failing_view(seen: c.Examination) -> JobView:
    """The job as it was in the attempt that the findings are about: Slurm may have requeued it already."""
    view = seen.view
    assert view is not None
    number = max((finding.attempt for finding in seen.findings), default=view.restarts)
    if number >= view.restarts:
        return view
    earlier = next((attempt for attempt in seen.attempts if attempt.number == number), None)
    _, previous = split_rows(view, seen.rows)
    return view_of_earlier(view, earlier or Attempt(number=number, state=JobState.UNKNOWN), previous)


def verdict_of(seen: c.Examination) -> Verdict:
    """Why, by the built-in rules."""
    failing = failing_view(seen)
    down = tuple(sorted(set(failing.nodes) & (set(seen.nodes_known) - set(seen.nodes_up)))) if seen.nodes_known else ()
    return attribute(failing, seen.findings, nodes_down=down)


def _with_verdict(seen: c.Examination, verdict: Verdict) -> tuple[Attempt, ...]:
    """The attempts, the one in question with its cause: budgets compare causes."""
    number = failing_view(seen).restarts
    cause = {
        "fault_class": verdict.fault_class,
        "signature": verdict.signature,
        "suspects": tuple(suspect.node for suspect in verdict.suspects),
    }
    return tuple(attempt.model_copy(update=cause) if attempt.number == number else attempt for attempt in seen.attempts)
