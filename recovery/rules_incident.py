"""The policy rule for a job that failed of what many jobs share: nothing of its own nodes is to blame.

Its place in the table stands in `rules.py`: below all that stops a job, above all that excludes nodes.
"""

from __future__ import annotations

from datetime import timedelta

from recovery.case import Case, incident_of
from recovery.incident_effects import put_off_until
from recovery.records import Action, Advice
from recovery.recurrence import INCIDENT


def incident(case: Case) -> Advice | None:
    found = incident_of(case.situation, case.view, case.allocation)
    if found is None or not case.ended:
        return None
    exclude = case.exclusions()
    again = f"only {', '.join(exclude)}, where it failed before, is" if exclude else "no node is"
    why = f"{found.summary} (incident {found.id}): {again} excluded"
    until = put_off_until(found, case.policy)
    if until is not None:
        # Never so long that Slurm forgets the job, or that nobody would wait for it any more.
        end = case.view.end_time or case.failing.end_time
        limits = [end + timedelta(seconds=case.policy.permit_wait_s)] if end is not None else []
        limits += [purge for purge in (case.purge_at(),) if purge is not None]
        until = min([until, *limits])
        if case.situation.now < until:
            quiet = f"{why}; restarted once it has been quiet for {case.policy.incident_quiet_s} s"
            return case.advise(Action.WAIT, INCIDENT, quiet, look_again_at=until)
    return case.advise(Action.RESTART, INCIDENT, why, exclude=exclude)
