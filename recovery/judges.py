"""One judge for each action: was it right, given what happened next and how the following attempt went? Pure.

A judge says right or wrong only where that is proven; everything else is unproven or open.
"""

from __future__ import annotations

from recovery.hindsight_records import Fate, Judgement, Next
from recovery.records import Action, Nodes

Opinion = tuple[Judgement, bool | None, str]

_DOERS = {
    Next.REQUEUED: "a person requeued it",
    Next.RESUBMITTED: "a person submitted it again",
    Next.SLURM: "Slurm requeued it",
    Next.RELIGHT: "relight restarted it",
}


def _of_fate(fate: Fate | None, agreed: bool | None, who: str, *, advanced: Judgement, same: Judgement) -> Opinion:
    """Of a job that came back: what its next attempt proves, if that advanced or failed the same way."""
    return {
        Fate.ADVANCED: (advanced, agreed, f"{who} and it went on"),
        Fate.SAME: (same, agreed, f"{who} and it failed the same way again"),
        Fate.OTHER: (Judgement.UNPROVEN, agreed, f"{who} and it failed another way"),
        Fate.RUNS: (Judgement.OPEN, agreed, f"{who}; whether it gets further is not known yet"),
    }.get(fate or Fate.UNKNOWN, (Judgement.UNPROVEN, agreed, f"{who}; how it went does not tell"))


def _not_done(happened: Next, *, cancelled: Judgement, wanted: bool) -> Opinion:
    """Of a job that did not come back. `wanted`: that is what was advised."""
    return {
        Next.WENT_ON: (Judgement.WRONG, False, "it finished by itself"),
        Next.REJECTED: (Judgement.WRONG, False, "a person said no"),
        Next.CANCELLED: (cancelled, wanted, "a person cancelled it"),
        Next.PENDING: (Judgement.OPEN, None, "nobody has done anything yet"),
    }.get(happened, (Judgement.UNPROVEN, wanted, "nobody brought it back"))


def _restart(happened: Next, fate: Fate | None, failed_on: Nodes, proven_on: Nodes, ran_on: Nodes) -> Opinion:
    if happened in _DOERS:
        agreed = True if happened.by_a_person else None
        who = _DOERS[happened]
        if proven_on:
            return Judgement.RIGHT, agreed, f"{who} and it failed again on {_names(proven_on)}, to be excluded"
        if failed_on:
            return Judgement.UNPROVEN, agreed, f"{who} and it failed again; {_names(failed_on)} was to be excluded"
        return _of_fate(fate, agreed, who, advanced=Judgement.RIGHT, same=Judgement.WRONG)
    return _not_done(happened, cancelled=Judgement.UNPROVEN, wanted=False)


def _stop(happened: Next, fate: Fate | None, failed_on: Nodes, proven_on: Nodes, ran_on: Nodes) -> Opinion:
    if happened is Next.RELIGHT and fate is None:
        return Judgement.UNPROVEN, None, "relight stopped it, and nobody brought it back"
    if happened in _DOERS:
        agreed = False if happened.by_a_person else None
        who = _DOERS[happened]
        return _of_fate(fate, agreed, who, advanced=Judgement.WRONG, same=Judgement.RIGHT)
    return _not_done(happened, cancelled=Judgement.RIGHT, wanted=True)


def _leave_alone(happened: Next, fate: Fate | None, failed_on: Nodes, proven_on: Nodes, ran_on: Nodes) -> Opinion:
    if happened in _DOERS:
        agreed = False if happened.by_a_person else None
        who = _DOERS[happened]
        if fate is Fate.SAME:
            return Judgement.RIGHT, agreed, f"{who} and it failed the same way again"
        if fate is Fate.RUNS:
            return Judgement.OPEN, agreed, f"{who}; whether it gets further is not known yet"
        return Judgement.UNPROVEN, agreed, f"{who}; relight would have left that to people"
    if happened is Next.PENDING:
        return Judgement.OPEN, None, "nobody has done anything yet"
    return Judgement.UNPROVEN, True, "nobody brought it back"


def _guard(happened: Next, fate: Fate | None, failed_on: Nodes, proven_on: Nodes, ran_on: Nodes) -> Opinion:
    if fate is Fate.RUNS or fate is None:
        return Judgement.OPEN, None, "Slurm requeued it; how that goes is not known yet"
    if proven_on:
        return Judgement.RIGHT, None, f"Slurm requeued it and it failed again on {_names(proven_on)}, to be excluded"
    if fate is Fate.ADVANCED and ran_on:
        return Judgement.WRONG, None, f"Slurm requeued it and it went on with {_names(ran_on)}, to be excluded"
    if fate is Fate.ADVANCED and happened is Next.RELIGHT:
        return Judgement.RIGHT, None, "it went on without the nodes that relight excluded"
    return Judgement.UNPROVEN, None, "Slurm requeued it; how it went does not tell"


JUDGES = {
    Action.RESTART: _restart,
    Action.STOP: _stop,
    Action.LEAVE_ALONE: _leave_alone,
    Action.GUARD: _guard,
}


def _names(nodes: Nodes) -> str:
    return ", ".join(nodes[:8]) + (f" and {len(nodes) - 8} more" if len(nodes) > 8 else "")
