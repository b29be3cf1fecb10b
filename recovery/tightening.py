"""What a job asks of its policy: it may tighten it, within the limits that the operator set. Pure.

An ask beyond a limit is refused by itself, with file, key and reason: the limit holds and the job is not punished.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from recovery.directive import Directive
from recovery.policy_numbers import OnStuck, Policy
from recovery.policy_scopes import MayAsk

_LIMITS = (
    "max_restarts",
    "max_restarts_per_day",
    "max_restarts_same_cause",
    "max_restarts_no_new_checkpoint",
    "max_restarts_unknown",
    "max_node_hours_without_progress",
)
"""Numbers that a job may lower."""


class Tightened(NamedTuple):
    policy: Policy
    cut: tuple[str, ...]
    """Asks that were refused: file, key and reason."""


def tighten(policy: Policy, asked: Directive, *, file: str, name: str, may: MayAsk) -> Tightened:
    """The policy as it holds for a job that asks so."""
    update: dict[str, Any] = {}
    cut: list[str] = []

    def refuse(key: str, wanted: object, limit: object, place: str = "") -> None:
        where = place or f"policies.{name}.{key}"
        cut.append(f"{file}: {where}: the job asks for relight.{key} {wanted}, at most {limit} is allowed: it holds")

    for key in _LIMITS:
        wanted, limit = getattr(asked, key), getattr(policy, key)
        if wanted is None:
            continue
        if wanted > limit:
            refuse(key, f"{wanted:g}", f"{limit:g}")
        else:
            update[key] = wanted
    for key in ("hang", "straggler"):
        wanted, limit = getattr(asked, key), getattr(policy, key)
        if wanted is OnStuck.RESTART and limit is OnStuck.NOTIFY:
            refuse(key, wanted.value, limit.value)
        elif wanted is not None:
            update[key] = wanted
    if asked.restart_on is not None:
        allowed = {*policy.restart_on, *may.restart_on}
        beyond = [ending.value for ending in asked.restart_on if ending not in allowed]
        if beyond:
            named = ", ".join(sorted(ending.value for ending in allowed)) or "none"
            refuse("restart_on", ", ".join(beyond), named, "may_ask.restart_on")
        update["restart_on"] = tuple(ending for ending in asked.restart_on if ending in allowed)
    stops = tuple(dict.fromkeys((*policy.stop_codes, *asked.stop_codes)))
    # A code that says both says the gentler.
    both = (*policy.elsewhere_codes, *asked.elsewhere_codes)
    elsewhere = tuple(dict.fromkeys(code for code in both if code not in stops))
    if (stops, elsewhere) != (policy.stop_codes, policy.elsewhere_codes):
        update |= {"stop_codes": stops, "elsewhere_codes": elsewhere}
    if asked.before_restart is not None:
        update["before_restart"] = asked.before_restart
    return Tightened(policy.model_copy(update=update) if update else policy, tuple(cut))
