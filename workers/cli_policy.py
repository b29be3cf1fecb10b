"""Commands that tell what the policy does: why a job got what it got, and which policy the workers follow.

They read the audit store and the policy file, and change nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from activities.audit.records import Event
from activities.audit.store import AuditStore
from activities.contracts import EventKind, JobOverrides
from recovery.directive import Directive
from recovery.foresight import Foreseen, JobFacts, foresee
from recovery.policy import RULES
from recovery.policy_file import EffectivePolicy, PolicyFile, parse
from recovery.records import Advice, Attempt
from workers.cli_check import read_policy
from workers.cli_jobs import events_of, opened_store, recorded_life
from workers.naming import job_of, settings_of
from workers.screen import Trouble, clean, moment, print_json, say, table
from workers.settings import Settings


@dataclass(frozen=True)
class Explained:
    """Why a job got what it got, and what it would get next."""

    job: str
    policies: PolicyFile
    effective: EffectivePolicy
    refused: list[str]
    """What the job asked for and did not get."""
    decisions: list[Advice]
    attempts: tuple[Attempt, ...]
    ahead: tuple[Foreseen, ...]
    stale: str
    """Says that the workers follow another policy than the file's; empty where they follow it."""
    stopped: bool
    closed: bool

    def data(self) -> dict[str, Any]:
        """The same for machines."""
        effective = self.effective
        return {
            "job": self.job,
            "policy": {
                "name": effective.name,
                "from": effective.policy_from,
                "mode": effective.mode,
                "mode_from": effective.mode_from,
                "file": self.policies.file,
                "hash": self.policies.hash,
                "differs_from_workers": self.stale,
            },
            "refused": self.refused,
            "decisions": [_decision(one) for one in self.decisions],
            "last": self.decisions[-1] if self.decisions else None,
            "next": self.ahead,
        }


def explained(store: AuditStore, settings: Settings, cluster: str, job_id: str, now: datetime) -> Explained:
    """Which rule fired, on which facts, what is left of the budgets, and what the next failure would get."""
    life = recorded_life(store, cluster, job_id)
    attempts = store.attempts(life.life_id)
    events = events_of(store, life)
    told = store.last_event(cluster, EventKind.POLICY)
    seen = next((event.body for event in reversed(events) if event.kind == EventKind.STATE), {})
    policies = policy_file_of(settings)
    effective = _effective(policies, cluster, life.user, seen)
    facts = JobFacts(
        cluster=cluster,
        job_id=job_id,
        user=life.user,
        nodes=_names(seen.get("nodes")) or (attempts[-1].nodes if attempts else ()),
        min_nodes=_whole(seen.get("min_nodes")) or 1,
        requeue=seen.get("requeue") is not False,
        paused=life.paused,
        stopped=life.stopped,
        mode=effective.mode,
        mode_from=effective.mode_from,
        policy_name=effective.name,
    )
    going_on = not life.stopped and life.closed_at is None
    return Explained(
        job=f"{cluster}-{job_id}",
        policies=policies,
        effective=effective,
        refused=[event.summary for event in events if event.kind == EventKind.DIRECTIVE],
        decisions=[one for event in events if event.kind == EventKind.ADVICE and (one := _advice(event)) is not None],
        attempts=attempts,
        ahead=foresee(facts, attempts, effective.policy, now) if going_on else (),
        stale="" if told is None or told.body.get("hash") == policies.hash else _stale(policies, told),
        stopped=life.stopped,
        closed=life.closed_at is not None,
    )


def _advice(event: Event) -> Advice | None:
    """None for one of a newer relight, or one that was too long to be kept whole."""
    try:
        return Advice.model_validate(event.body)
    except ValidationError:
        return None


def explain(config: Path | None, job: str, *, as_json: bool) -> None:
    settings = settings_of(config)
    cluster, job_id = job_of(job, settings)
    with opened_store(settings) as store:
        found = explained(store, settings, cluster, job_id, datetime.now(UTC))
    if as_json:
        print_json(found.data())
        return
    effective = found.effective
    say(f"{found.job}: mode {effective.mode.value} (set by {effective.mode_from}), policy {effective.name} "
        f"(named by {effective.policy_from}) of {found.policies.file}")  # fmt: skip
    for line in (*found.refused, *((found.stale,) if found.stale else ())):
        say(clean(f"! {line}"))
    _say_last(found.decisions)
    _say_earlier(found.decisions, found.attempts)
    _say_ahead(found.ahead, stopped=found.stopped, closed=found.closed)


def _say_last(decisions: list[Advice]) -> None:
    say("")
    if not decisions:
        say("No decision yet: nothing has failed that relight has seen.")
        return
    last = decisions[-1]
    without = f" without {', '.join(last.exclude)}" if last.exclude else ""
    say(clean(f"Last decision, about attempt {last.restart_count}: {last.action.value}{without}"))
    say(clean(f"  rule {last.rule}: {_situation_of(last.rule)}"))
    say(clean(f"  because {last.reason}"))
    if last.not_before is not None:
        say(f"  starts not before {moment(last.not_before)}")
    if last.needs_approval:
        say(f"  waited for a yes for at most {last.approve_within_s} s; on silence {last.on_silence.value}")
    if last.facts:
        say("  on these facts:")
        for fact in last.facts:
            say(clean(f"    {fact}"))
    if last.budgets:
        say("  budgets then:")
        table(
            ["BUDGET", "USED", "LIMIT", "LEFT"],
            [[one.name, f"{one.used:g}", f"{one.limit:g}", f"{one.left:g}"] for one in last.budgets],
        )


def _say_earlier(decisions: list[Advice], attempts: tuple[Attempt, ...]) -> None:
    if len(decisions) < 2:
        return
    say("")
    say("Decisions before")
    rows = [[str(one.restart_count), one.action.value, one.rule, clean(one.reason)[:100]] for one in decisions[:-1]]
    table(["ATTEMPT", "ADVICE", "RULE", "BECAUSE"], rows[-20:])


def _say_ahead(ahead: tuple[Foreseen, ...], *, stopped: bool, closed: bool) -> None:
    say("")
    if closed:
        say("Slurm has forgotten the job: there is no next failure.")
        return
    if stopped:
        say("relight stopped this job for good: a next failure would be left alone.")
        return
    say("If it failed now, it would get")
    rows = []
    for one in ahead:
        advice = one.advice
        how = advice.action.value + (" after a yes" if advice.needs_approval else "")
        if advice.exclude:
            how += f" without {', '.join(advice.exclude)}"
        if advice.not_before is not None:
            how += f", not before {moment(advice.not_before)}"
        rows.append([one.case, how, advice.rule])
    table(["FAILURE", "ADVICE", "RULE"], [[clean(cell) for cell in row] for row in rows])


def show_policy(config: Path | None, *, as_json: bool) -> None:
    """What the workers follow, by cluster, and whether that is the file as it is now. Ends with 1 where it is not."""
    settings = settings_of(config)
    with opened_store(settings) as store:
        told = policy_in_force(store, settings)
    file, problem, now_hash, rows = told["file"], told["problem"], told["hash"], told["clusters"]
    fine = not problem and all(row["is_the_file"] for row in rows)
    if as_json:
        print_json(told)
    else:
        say(f"policy file {file}, hash {now_hash or 'none: it cannot be used'}" if file else "no policy_file: defaults")
        for row in rows:
            if row["since"] is None:
                say(f"{row['cluster']}: no worker has told yet which policy it follows")
                continue
            say(f"{row['cluster']}: hash {row['in_force']} in force since {moment(row['since'])}")
            if row["problem"]:
                say(clean(f"  the file cannot be used, the last good version is kept: {row['problem']}"))
            elif not row["is_the_file"] and now_hash:
                say("  the file has changed since; a running worker takes it up within seconds")
        if problem:
            say(clean(problem))
    if not fine:
        raise SystemExit(1)


def policy_in_force(store: AuditStore, settings: Settings) -> dict[str, Any]:
    """The policy file as it is now, and what the workers of each cluster follow."""
    problem, now_hash = "", ""
    try:
        now_hash = policy_file_of(settings).hash
    except Trouble as trouble:
        problem = str(trouble)
    rows: list[dict[str, Any]] = []
    for cluster in sorted(settings.clusters):
        event = store.last_event(cluster, EventKind.POLICY)
        body = event.body if event is not None else {}
        rows.append(
            {
                "cluster": cluster,
                "in_force": body.get("hash", ""),
                "since": event.at if event is not None else None,
                "policies": list(_names(body.get("names"))),
                "problem": body.get("problem", ""),
                "is_the_file": event is not None and body.get("hash") == now_hash and not body.get("problem"),
            }
        )
    file = settings.policy_file
    return {"file": str(file) if file else None, "hash": now_hash, "problem": problem, "clusters": rows}


# ------------------------------------------------------------------------------------------------ pieces


def policy_file_of(settings: Settings) -> PolicyFile:
    if settings.policy_file is None:
        return parse("", "built-in defaults")
    found: PolicyFile = read_policy(settings.policy_file)
    return found


def _effective(policies: PolicyFile, cluster: str, user: str, seen: dict[str, object]) -> EffectivePolicy:
    directive = Directive.model_validate(seen.get("directive") or {})
    started = JobOverrides.model_validate(seen.get("overrides") or {})
    return policies.resolve(
        cluster,
        str(seen.get("partition") or ""),
        str(seen.get("account") or ""),
        directive,
        qos=str(seen.get("qos") or ""),
        user=user,
        mode=started.mode,
        policy=started.policy,
    )


def _stale(policies: PolicyFile, told: Event) -> str:
    why = f": {told.body.get('problem')}" if told.body.get("problem") else ""
    return f"the workers follow policy hash {told.body.get('hash')}, the file here has {policies.hash}{why}"


def _decision(advice: Advice) -> dict[str, Any]:
    return {
        "attempt": advice.restart_count,
        "action": advice.action,
        "rule": advice.rule,
        "situation": _situation_of(advice.rule),
        "reason": advice.reason,
        "exclude": advice.exclude,
        "facts": advice.facts,
        "budgets": [{**one.model_dump(), "left": one.left} for one in advice.budgets],
    }


def _situation_of(rule: str) -> str:
    return next((one.situation for one in RULES if one.id == rule), "outside the table")


def _names(value: object) -> tuple[str, ...]:
    return tuple(str(one) for one in value) if isinstance(value, list | tuple) else ()


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) else None
