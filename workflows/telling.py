"""The words of a job's workflow: search attributes and the live details shown in the Temporal Web UI."""

from __future__ import annotations

from datetime import datetime

from temporalio.common import SearchAttributeKey

from workflows.state import RecoveryState

CLUSTER = SearchAttributeKey.for_keyword("RelightCluster")
JOB_ID = SearchAttributeKey.for_keyword("RelightJobId")
USER = SearchAttributeKey.for_keyword("RelightUser")
STATE = SearchAttributeKey.for_keyword("RelightState")
MODE = SearchAttributeKey.for_keyword("RelightMode")
FAULT = SearchAttributeKey.for_keyword("RelightFault")
SEARCH_ATTRIBUTES = (CLUSTER, JOB_ID, USER, STATE, MODE, FAULT)

_MAX_NODES = 16


def names(nodes: tuple[str, ...]) -> str:
    """Node names for people: a long list is cut and counted."""
    if len(nodes) <= _MAX_NODES:
        return ", ".join(nodes) or "none"
    return f"{', '.join(nodes[:_MAX_NODES])} and {len(nodes) - _MAX_NODES} more"


def _text(value: str) -> str:
    """Text from a job, inert in Markdown: shown as code, on one line."""
    flat = " ".join(value.split())[:300].replace("`", "'")
    return f"`{flat}`" if flat else "–"


def details(state: RecoveryState, now: datetime) -> str:
    """Live details in Markdown."""
    seen = state.seen
    rows = [("state", f"**{state.phase.value}**"), ("mode", state.mode.value), ("policy", state.policy or "–")]
    if state.paused:
        rows.append(("paused by", _text(state.paused_by or "somebody")))
    if state.waits:
        rows.append(("waits", _text(state.waits)))
    if seen is not None:
        rows += [
            ("job", f"{_text(seen.name)} of {_text(seen.user)}, partition {_text(seen.partition)}"),
            ("Slurm", f"{seen.state.value}{' completing' if seen.completing else ''}, {_text(seen.reason)}"),
            ("attempt", f"{seen.restarts + 1} (restart count {seen.restarts})"),
            ("nodes", names(seen.nodes)),
        ]
    if state.progress.step is not None:
        age = f", {int((now - state.progress.step_at).total_seconds())} s ago" if state.progress.step_at else ""
        rows.append(("last completed step", f"{state.progress.step}{age}"))
    if state.progress.checkpoint is not None:
        rows.append(("last checkpoint", str(state.progress.checkpoint)))
    if state.exclusions:
        rows.append(("kept away from", names(state.exclusions)))
    if state.last_finding is not None:
        rows.append(("last finding", _text(state.last_finding.summary)))
    if state.verdict is not None:
        rows.append(("verdict", f"{state.verdict.fault_class.value}: {_text(state.verdict.reason)}"))
    if state.advice is not None:
        rows.append(
            ("advice", f"**{state.advice.action.value}** by rule {state.advice.rule}: {_text(state.advice.reason)}")
        )
        left = ", ".join(f"{budget.name} {budget.left:g} of {budget.limit:g}" for budget in state.advice.budgets)
        if left:
            rows.append(("budgets left", left))
    table = "\n".join(f"| {key} | {value} |" for key, value in rows)
    story = "\n".join(
        f"- {line.at:%H:%M:%S} {line.kind}: {_text(line.text)}" for line in reversed(state.timeline[-15:])
    )
    return f"| | |\n|---|---|\n{table}\n\n{story}"[:18_000]
