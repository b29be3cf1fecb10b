"""Commands by which an operator speaks to a job's workflow: pause, resume, force, approve.

Each is a Temporal update, which is validated and answered; a signal where no worker is there to answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from temporalio.client import Client, WorkflowUpdateFailedError, WorkflowUpdateRPCTimeoutOrCancelledError
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from recovery.nearest import meant
from recovery.records import Nodes
from workers.connect import TemporalAway, connect
from workers.naming import check_nodes, job_of, login_name, nodes_of, settings_of
from workers.screen import UNUSABLE, Trouble, moment, print_json, say
from workers.settings import ConfigError, Settings

if TYPE_CHECKING:
    from activities.audit.store import AuditStore

ANSWER_LIMIT_S = 5.0
MOST_JOBS = 500


def force_payload(action: str, exclude: str, restart_count: int | None) -> dict[str, Any]:
    if action not in {"restart", "stop", "release"}:
        raise Trouble(f"--action is {action!r}, expected restart, stop or release", UNUSABLE)
    nodes = nodes_of(exclude)
    if nodes and action != "restart":
        raise Trouble(f"--exclude goes with --action restart only, not with {action}", UNUSABLE)
    payload: dict[str, Any] = {"action": action, "exclude": list(nodes)}
    return payload if restart_count is None else {**payload, "restart_count": restart_count}


def approve_payload(yes: bool | None) -> dict[str, Any]:
    if yes is None:
        raise Trouble("say --yes or --no", UNUSABLE)
    return {"yes": yes}


def operate(
    config: Path | None,
    job: str,
    verb: str,
    payload: dict[str, Any],
    *,
    by: str,
    reason: str,
    signal: bool,
    as_json: bool,
) -> None:
    """Says `verb` to the job's workflow and prints its answer."""
    settings = settings_of(config)
    cluster, job_id = job_of(job, settings)
    workflow_id = f"{cluster}-{job_id}"
    words = {**payload, "by": by or login_name(), "reason": reason}
    if payload.get("exclude"):
        check_nodes(payload["exclude"], cluster, _nodes(settings, cluster))
    try:
        answer = asyncio.run(_say(settings.temporal, workflow_id, verb, words, signal=signal))
        if answer is None and not signal and not as_json and sys.stdin.isatty() and sys.stdout.isatty():
            import typer

            if typer.confirm(f"No worker answered within {ANSWER_LIMIT_S:g} s. Leave it as a signal for the next one?"):
                signal = True
                asyncio.run(_say(settings.temporal, workflow_id, verb, words, signal=True))
    except ConfigError as error:
        raise Trouble(str(error), UNUSABLE) from None
    except TemporalAway as error:
        raise Trouble(str(error)) from None
    except NotWatched as error:
        raise Trouble(_why_not_watched(settings, cluster, job_id, error.namespace)) from None
    if signal:
        answer = {"accepted": None, "message": f"{verb} is left for the job's workflow as a signal", "state": ""}
    if answer is None:
        raise Trouble(
            f"no worker answered for {workflow_id} within {ANSWER_LIMIT_S:g} s; it may still hear this later. "
            f"Is `relight worker` running? `relight {verb} {workflow_id} ... --signal` leaves it for the next worker"
        )
    if as_json:
        print_json({"job": workflow_id, **answer})
    else:
        state = f" (state {answer['state']})" if answer.get("state") else ""
        say(f"{workflow_id}: {answer.get('message') or verb}{state}")
    if answer.get("accepted") is False:
        raise SystemExit(1)


class NotWatched(Exception):
    """No workflow of that job runs."""

    def __init__(self, namespace: str) -> None:
        super().__init__(namespace)
        self.namespace = namespace


def _nodes(settings: Settings, cluster: str) -> Nodes:
    """The cluster's nodes, as the workers told them; nothing where the audit store cannot be asked."""
    from workers.cli_jobs import opened_store  # brings the database, which other words to a job do not need

    with contextlib.suppress(Trouble), opened_store(settings) as store:
        facts = store.facts(cluster)
        return facts.nodes if facts is not None else ()
    return ()


def _why_not_watched(settings: Settings, cluster: str, job_id: str, namespace: str) -> str:
    from workers.cli_jobs import opened_store

    with contextlib.suppress(Trouble), opened_store(settings) as store:
        return why_not_watched(store, cluster, job_id, namespace)
    return f"{_not_watched(cluster, job_id, namespace)}. `relight jobs` lists those it watches"


def _not_watched(cluster: str, job_id: str, namespace: str) -> str:
    return f"relight does not watch job {cluster}-{job_id} now (no workflow of that id runs in namespace {namespace})"


def why_not_watched(store: AuditStore, cluster: str, job_id: str, namespace: str) -> str:
    """What is known of a job whose workflow does not run."""
    said = _not_watched(cluster, job_id, namespace)
    life = store.latest_life(cluster, job_id)
    if life is not None and life.closed_at is not None:
        return f"{said}: its record was closed at {moment(life.closed_at)} ({life.close_reason}); submit it anew"
    near = meant(job_id, [row.job_id for row in store.jobs(cluster, limit=MOST_JOBS)])
    return f"{said}{near}{'' if near.endswith('?') else '.'} `relight jobs` lists those it watches"


async def _say(
    temporal: Any, workflow_id: str, verb: str, words: dict[str, Any], *, signal: bool
) -> dict[str, Any] | None:
    return await ask(await connect(temporal), workflow_id, verb, words, signal=signal)


class Refused(Trouble):
    """The job's workflow heard it and said no."""


async def ask(
    client: Client, workflow_id: str, verb: str, words: dict[str, Any], *, signal: bool = False, once: str | None = None
) -> dict[str, Any] | None:
    """The workflow's answer; {} for a signal; None when nobody answered in time. What bears the same name `once` is
    carried out once, and answered as it was the first time. Raises NotWatched, Refused, Trouble."""
    try:
        if signal:
            await client.get_workflow_handle(workflow_id).signal(verb, words)
            return {}
        return await asyncio.wait_for(_update(client, workflow_id, verb, words, once), ANSWER_LIMIT_S + 1)
    except (TimeoutError, WorkflowUpdateRPCTimeoutOrCancelledError):
        return None
    except WorkflowUpdateFailedError as error:
        cause = error.cause
        raise Refused(cause.message if isinstance(cause, ApplicationError) else str(cause or error)) from None
    except RPCError as error:
        if error.status in {RPCStatusCode.DEADLINE_EXCEEDED, RPCStatusCode.CANCELLED}:
            return None
        if error.status is RPCStatusCode.NOT_FOUND:
            raise NotWatched(client.namespace) from None
        raise Trouble(f"Temporal refused: {error.message}") from None


async def _update(
    client: Client, workflow_id: str, verb: str, words: dict[str, Any], once: str | None
) -> dict[str, Any]:
    answer = await client.get_workflow_handle(workflow_id).execute_update(
        verb, words, id=once, rpc_timeout=timedelta(seconds=ANSWER_LIMIT_S)
    )
    return dict(answer) if isinstance(answer, dict) else {"accepted": True, "message": str(answer or ""), "state": ""}
