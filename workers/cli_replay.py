"""`relight replay`: an exported story told to the code and rules of today. Needs no server and changes nothing."""

from __future__ import annotations

from datetime import datetime
from importlib.metadata import version
from pathlib import Path

from activities.deciding import decided
from activities.export_file import BadExport, Export, read_export
from recovery.faults.catalogue import Catalogue, CatalogueError
from recovery.policy_file import PolicyFile, PolicyFileError
from recovery.policy_file import parse as parse_policy
from recovery.records import Advice, Record
from recovery.redeciding import Difference, changed_since, differences
from workers.cli_check import read_policy
from workers.cli_export import policy_of
from workers.replay_apart import replay_apart
from workers.screen import UNUSABLE, Trouble, moment, one_line, print_json, say
from workers.settings import ConfigError, Settings, find_config, load_settings


class Reviewed(Record):
    """One decision of the past, and what it would be today."""

    run_id: str
    at: datetime | None
    attempt: int
    then: str
    today: str
    differences: tuple[Difference, ...]
    because: str
    reason_then: str
    reason_today: str


def replay_file(config: Path | None, file: Path, *, policy: Path | None, recorded_policy: bool, as_json: bool) -> None:
    try:
        export = read_export(file)
        histories = [(run, run.replayable()) for run in export.runs if run.history is not None]
    except BadExport as error:
        raise Trouble(str(error), UNUSABLE) from None
    if not histories:
        raise Trouble(f"{file} holds no workflow history: it was exported after the retention of its runs", UNUSABLE)
    policies, catalogue = _of_today(config, export, policy, recorded_policy)
    reviewed: list[Reviewed] = []
    problems: dict[str, str] = {}
    decisions = 0

    for one, _ in histories:
        told = replay_apart(one.workflow_id, one.history or {})
        decisions += len(told.decisions)
        if told.problem:
            problems[one.run_id] = told.problem
        for request, decision in told.decisions:
            at = request.now or (request.examination.view.looked_at if request.examination.view else None)
            today = decided(request, policies, catalogue.hash, at or export.exported_at)
            found = differences(decision.verdict, decision.advice, today.verdict, today.advice)
            if found:
                reviewed.append(
                    Reviewed(
                        run_id=one.run_id,
                        at=at,
                        attempt=decision.advice.restart_count,
                        then=_advice(decision.advice),
                        today=_advice(today.advice),
                        differences=found,
                        because=changed_since(decision.advice, today.advice),
                        reason_then=decision.advice.reason,
                        reason_today=today.advice.reason,
                    )
                )

    missing = len(export.runs) - len(histories)
    events = sum(len(history.events) for _, history in histories)
    if as_json:
        print_json(
            {
                "job": f"{export.cluster}-{export.job_id}",
                "written_by": export.relight,
                "relight": version("relight"),
                "policy": {"file": policies.file, "hash": policies.hash},
                "runs": len(histories),
                "runs_without_history": missing,
                "events": events,
                "decisions": decisions,
                "differ": reviewed,
                "not_replayable": problems,
            }
        )
    else:
        _say_replay(export, policies, len(histories), events, decisions, missing, reviewed, problems)
    if problems:
        raise SystemExit(UNUSABLE)
    if reviewed:
        raise SystemExit(1)


def _of_today(
    config: Path | None, export: Export, policy: Path | None, recorded_policy: bool
) -> tuple[PolicyFile, Catalogue]:
    """The policy and catalogue to decide by: as named, as configured here, else as the file tells."""
    if policy is not None and recorded_policy:
        raise Trouble("--policy and --recorded-policy exclude each other", UNUSABLE)
    settings: Settings | None = None
    if config is not None or find_config() is not None:
        try:
            settings = load_settings(config)
        except ConfigError as error:
            raise Trouble(str(error), UNUSABLE) from None
    try:
        catalogue = Catalogue.built_in(*(settings.catalogue if settings is not None else ()))
        if policy is not None:
            return read_policy(policy), catalogue
        if settings is None or recorded_policy:
            return parse_policy(
                export.policy.text, f"the policy in the file ({one_line(export.policy.file)})"
            ), catalogue
        return policy_of(settings)[0], catalogue
    except (PolicyFileError, CatalogueError) as error:
        raise Trouble(str(error), UNUSABLE) from None


def _advice(advice: Advice) -> str:
    without = f" without {', '.join(advice.exclude)}" if advice.exclude else ""
    return f"{advice.action.value}{without} by rule {advice.rule}, mode {advice.mode.value}"


def _say_replay(
    export: Export,
    policies: PolicyFile,
    runs: int,
    events: int,
    decisions: int,
    missing: int,
    reviewed: list[Reviewed],
    problems: dict[str, str],
) -> None:
    say(f"{export.cluster}-{export.job_id}: {runs} runs with {events} events, written by relight {export.relight}; "
        f"this is relight {version('relight')}, policy of {policies.file} (hash {policies.hash})")  # fmt: skip
    if missing:
        say(f"{missing} runs are in the file without a history, and were not looked at")
    for run_id, why in problems.items():
        say(f"run {one_line(run_id)} does not replay: {why}")
    for one in reviewed:
        say(f"{moment(one.at)} attempt {one.attempt}: {one_line(one.then)}")
        say(f"  today: {one_line(one.today)}, because of {one_line(one.because)}")
        for found in one.differences:
            say(f"  {found.what}: {one_line(found.then)} then, {one_line(found.today)} today")
        say(f"  then: {one_line(one.reason_then)}")
        say(f"  today: {one_line(one.reason_today)}")
    if problems:
        say("this relight must not take over such runs: see docs/temporal.md, Changing the workflows")
    same = decisions - len(reviewed)
    say(f"{decisions} decisions, {same} the same today, {len(reviewed)} would differ")
