"""In what two decisions about the same facts differ, and what may have made them differ. Pure."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from recovery.records import Advice, Record, Verdict

_ADVICE: tuple[tuple[str, Callable[[Advice], Any]], ...] = (
    ("action", lambda one: one.action.value),
    ("rule", lambda one: one.rule),
    ("exclude", lambda one: one.exclude),
    ("drain", lambda one: one.drain),
    ("keep_nodes", lambda one: one.keep_nodes),
    ("mode", lambda one: one.mode.value),
    ("needs_approval", lambda one: one.needs_approval),
    ("on_silence", lambda one: one.on_silence.value),
    ("not_before", lambda one: one.not_before),
)
_VERDICT: tuple[tuple[str, Callable[[Verdict], Any]], ...] = (
    ("cause", lambda one: one.fault_class.value),
    ("signature", lambda one: one.signature),
    ("suspects", lambda one: tuple(sorted(suspect.node for suspect in one.suspects))),
)


class Difference(Record):
    """One thing that would be decided otherwise."""

    what: str
    then: str
    today: str


def differences(verdict: Verdict, advice: Advice, verdict_now: Verdict, advice_now: Advice) -> tuple[Difference, ...]:
    """What matters of verdict and advice; words and figures told along do not."""
    found = [Difference(what=what, then=_told(of(verdict)), today=_told(of(verdict_now))) for what, of in _VERDICT]
    found += [Difference(what=what, then=_told(of(advice)), today=_told(of(advice_now))) for what, of in _ADVICE]
    return tuple(one for one in found if one.then != one.today)


def changed_since(advice: Advice, advice_now: Advice) -> str:
    """What the decision stood on that is another today."""
    found = []
    if (advice.policy, advice.policy_hash) != (advice_now.policy, advice_now.policy_hash):
        found.append(f"the policy ({advice.policy or 'none'} {advice.policy_hash or 'of no known hash'} then, "
                     f"{advice_now.policy} {advice_now.policy_hash} today)")  # fmt: skip
    if advice.catalogue_hash != advice_now.catalogue_hash:
        found.append("the fault catalogue")
    return " and ".join(found) or "the rules"


def _told(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(value) or "none"
    if isinstance(value, datetime):
        return value.isoformat()
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value) or "none"
