"""`relight export`: everything about one job in one file, for post-mortems and `relight replay`. Changes nothing."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from temporalio.client import Client, WorkflowHistory

from activities.audit.store import AuditStore
from activities.contracts import EventKind
from activities.export_file import (
    Export,
    ExportedLife,
    ExportedPolicy,
    ExportedRun,
    evidence_of,
)
from activities.histories import Histories, HistoryGone, UnreadableHistory
from activities.kept_histories import KeptHistories
from activities.secrets import without_secrets
from recovery.directive import Directive
from recovery.policy_file import PolicyFile
from recovery.policy_file import parse as parse_policy
from recovery.records import Record
from workers.cli_audit import with_temporal
from workers.cli_check import read_policy
from workers.cli_jobs import MOST_EVENTS, events_of, opened_store, recorded_life
from workers.naming import job_of, settings_of
from workers.screen import UNUSABLE, Trouble, print_json, say
from workers.settings import Settings


def export_job(config: Path | None, job: str, output: Path | None, *, as_json: bool) -> None:
    settings = settings_of(config)
    cluster, job_id = job_of(job, settings)
    policies, text = policy_of(settings)
    kept = KeptHistories(settings.evidence_dir, cluster)
    with opened_store(settings) as store:
        recorded_life(store, cluster, job_id)
        lives = _lives(store, cluster, job_id)

        async def fetch(client: Client) -> list[ExportedRun]:
            return await _runs(Histories(client), store, kept, cluster, job_id)

        runs = with_temporal(settings, fetch)
    made = Export(
        relight=version("relight"),
        exported_at=datetime.now(UTC),
        cluster=cluster,
        job_id=job_id,
        lives=tuple(lives),
        runs=tuple(runs),
        evidence=tuple(evidence_of(settings.evidence_dir / cluster / job_id)),
        policy=_effective(policies, text, cluster, lives[-1]),
    )
    document = json.dumps(without_secrets(made.model_dump(mode="json")), ensure_ascii=False)
    path = output or Path(f"relight-{cluster}-{job_id}.json")
    if str(path) == "-":
        sys.stdout.write(document + "\n")
        return
    _write(path, document + "\n")
    without = [run for run in runs if run.history is None]
    told = {
        "job": f"{cluster}-{job_id}",
        "file": str(path),
        "bytes": path.stat().st_size,
        "runs": len(runs),
        "runs_without_history": len(without),
        "events": sum(len(one.events) for one in lives),
        "evidence": len(made.evidence),
    }
    if as_json:
        print_json(told)
        return
    say(f"{path}: {told['runs']} workflow runs, {told['events']} rows, ends of {told['evidence']} logs, "
        f"{told['bytes']:,} bytes. `relight replay {path}` tells what would be decided today")  # fmt: skip
    if without:
        say(f"of {len(without)} runs there is no history any more: the namespace's retention is over")


def _lives(store: AuditStore, cluster: str, job_id: str) -> list[ExportedLife]:
    found = []
    for life in store.upkeep.lives_since(cluster, datetime(1970, 1, 1, tzinfo=UTC), job_id):
        events = events_of(store, life)
        left_out = 0
        if len(events) == MOST_EVENTS:
            left_out = sum(run.rows for run in store.upkeep.runs_of(life)) - MOST_EVENTS
        attempts = store.attempts(life.life_id)
        found.append(ExportedLife(life=life, attempts=attempts, events=tuple(events), left_out=max(0, left_out)))
    return found


async def _runs(
    histories: Histories, store: AuditStore, kept: KeptHistories, cluster: str, job_id: str
) -> list[ExportedRun]:
    """Every run that Temporal or the audit store knows of, oldest first."""
    workflow_id = f"{cluster}-{job_id}"
    found: dict[str, ExportedRun] = {}
    query = f'WorkflowType = "JobRecovery" AND WorkflowId = "{workflow_id}"'
    async for run in histories.found(query, cluster):
        told = await _history(histories, kept, job_id, run.workflow_id, run.run_id)
        found[run.run_id] = told.model_copy(update={"started": run.started, "closed": run.closed})
    for life in await asyncio.to_thread(
        lambda: list(store.upkeep.lives_since(cluster, datetime(1970, 1, 1, tzinfo=UTC), job_id))
    ):
        for one in await asyncio.to_thread(store.upkeep.runs_of, life):
            if one.run_id not in found:
                told = await _history(histories, kept, job_id, one.workflow_id, one.run_id)
                found[one.run_id] = told.model_copy(update={"started": life.first_seen})
    epoch = datetime(1970, 1, 1, tzinfo=UTC)
    return sorted(found.values(), key=lambda run: run.started or epoch)


async def _history(
    histories: Histories, kept: KeptHistories, job_id: str, workflow_id: str, run_id: str
) -> ExportedRun:
    empty = ExportedRun(workflow_id=workflow_id, run_id=run_id, history=None)
    try:
        events = [event async for page in histories.pages(workflow_id, run_id) for event in page]
        return empty.model_copy(update={"history": WorkflowHistory(workflow_id, events).to_json_dict()})
    except HistoryGone:
        pass
    try:
        file = await asyncio.to_thread(kept.read, job_id, run_id)
    except (HistoryGone, UnreadableHistory):
        return empty
    return empty.model_copy(update={"history": file.to_json_dict(), "kept": True})


def policy_of(settings: Settings) -> tuple[PolicyFile, str]:
    if settings.policy_file is None:
        return parse_policy("", "built-in defaults"), ""
    return read_policy(settings.policy_file), settings.policy_file.read_text(encoding="utf-8")


class _Placed(Record):
    partition: str = ""
    account: str = ""
    qos: str = ""
    user: str = ""


def _effective(policies: PolicyFile, text: str, cluster: str, last: ExportedLife) -> ExportedPolicy:
    seen = next((event.body for event in reversed(last.events) if event.kind == EventKind.STATE), {})
    placed = _Placed.model_validate({**{key: str(seen.get(key) or "") for key in ("partition", "account", "qos")},
                                     "user": last.life.user})  # fmt: skip
    directive = Directive.model_validate(seen.get("directive") or {})
    policy = policies.of_job(cluster, placed, directive)
    return ExportedPolicy(
        file=policies.file,
        hash=policies.hash,
        text=text,
        name=policy.name,
        name_from=policy.policy_from,
        mode=policy.mode.value,
        mode_from=policy.mode_from,
        numbers=policy.policy.model_dump(mode="json"),
    )


def _write(path: Path, text: str) -> None:
    """Whole or not at all, for the owner alone: logs hold what users wrote."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w", encoding="utf-8", errors="surrogatepass") as file:
            file.write(text)
        draft.replace(path)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise Trouble(f"{path} cannot be written: {error.strerror}; name another file with -o", UNUSABLE) from None
