"""Makes the stored histories anew: `.venv/bin/python -m tests.workflows.record_histories`.

Run it only when a release is made: histories of released versions stay, and must go on replaying. Paths and names of
the machine are replaced, so that the files say nothing about where they were made.
"""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import sys
from pathlib import Path
from typing import Any

from temporalio.client import Client

from activities.contracts import EventKind
from tests.services import TemporalServer
from tests.stage import Stage

FOLDER = Path(__file__).parent / "histories"
NEUTRAL = "/srv/site"
CONTINUE_AFTER = 40
"""Events after which the server suggests continue-as-new, where a history of one is made."""


def main() -> int:
    version = sys.argv[1] if len(sys.argv) > 1 else "0.1.0"
    with Stage(nodes=4) as stage:
        stage.start_worker()
        jobs = {
            "crash-restarted": _crash(stage),
            "user-error-stopped": _mistake(stage),
            "monitor-advised": _monitor(stage),
            "approved": _approved(stage),
            "node-failed": _node_failed(stage),
        }
        runs = {name: (f"{stage.cluster_name}-{job}", None) for name, job in jobs.items()}
        runs["cluster-watch"] = (f"relight-watch-{stage.cluster_name}", None)
        asyncio.run(_save(stage, runs, version))
    with _with_short_histories() as stage:
        stage.start_worker()
        workflow_id = f"{stage.cluster_name}-{_continued(stage)}"
        ids = asyncio.run(_run_ids(stage, workflow_id))
        asyncio.run(
            _save(stage, {"continued-first": (workflow_id, ids[0]), "continued-last": (workflow_id, ids[-1])}, version)
        )
    return 0


def _broken_job(stage: Stage, name: str, comment: str, *, steps: int = 20) -> int:
    faults = stage.faults(name)
    job = stage.train("alice", name, nodes=2, steps=steps, comment=comment, faults=faults, step_time=0.2)
    stage.until(lambda: stage.trained(job, 6), f"{name} trains")
    shown = stage.slurm.show(job)
    victim = next(node for node in stage.hosts(shown["NodeList"]) if node != shown["BatchHost"])
    (faults / victim).write_text("gpu")
    return job


def _crash(stage: Stage) -> int:
    job = _broken_job(stage, "crash", "relight")
    stage.until(lambda: stage.events(job, EventKind.STATE, state="COMPLETED"), "it finishes", 150)
    return job


def _mistake(stage: Stage) -> int:
    faults = stage.faults("mistake")
    for node in stage.slurm.nodes:
        (faults / node).write_text("import")
    job = stage.train("bob", "mistake", nodes=1, steps=5, comment="relight", faults=faults)
    stage.until(lambda: stage.events(job, EventKind.ADVICE, action="stop"), "it is stopped")
    return job


def _monitor(stage: Stage) -> int:
    job = _broken_job(stage, "monitor", '{"relight": {"mode": "monitor"}}')
    stage.until(lambda: stage.events(job, EventKind.ADVICE, action="restart"), "it is advised upon")
    return job


def _approved(stage: Stage) -> int:
    job = _broken_job(stage, "approved", '{"relight": {"mode": "approve"}}')
    stage.until(lambda: stage.events(job, EventKind.ADVICE, action="restart"), "it waits for a yes")
    told = stage.temporal.run(
        *("workflow", "update", "execute", "--workflow-id", f"{stage.cluster_name}-{job}"),
        *("--name", "approve", "--input", '{"yes": true, "by": "oncall"}'),
    )
    assert told.returncode == 0, told.stderr
    stage.until(lambda: stage.events(job, EventKind.OUTCOME, kind="first_step"), "it is back", 150)
    return job


def _node_failed(stage: Stage) -> int:
    faults = stage.faults("nodefail")
    job = stage.train("alice", "nodefail", nodes=2, steps=60, comment="relight", faults=faults, step_time=0.2)
    stage.until(lambda: stage.trained(job, 3), "it trains")
    shown = stage.slurm.show(job)
    victim = next(node for node in stage.hosts(shown["NodeList"]) if node != shown["BatchHost"])
    stage.slurm.kill_node(victim)
    stage.until(lambda: stage.events(job, EventKind.OUTCOME), "it is guarded", 180)
    return job


def _with_short_histories() -> Stage:
    stage = Stage(nodes=4, accounting=False)
    limit = {"limit.historyCount.suggestContinueAsNew": str(CONTINUE_AFTER)}
    stage.temporal = TemporalServer(namespace="default", dynamic_config=limit)
    return stage


def _continued(stage: Stage) -> int:
    """A job that crashes and is paused and resumed, and whose workflow has continued as new meanwhile."""
    job = _broken_job(stage, "long", "relight", steps=2_000)
    stage.until(lambda: stage.events(job, EventKind.OUTCOME, kind="first_step"), "it is back", 150)
    for verb in ("pause", "resume"):
        answered = stage.relight(verb, str(job), "--by", "oncall")
        assert answered.returncode == 0, answered.stderr
    workflow_id = f"{stage.cluster_name}-{job}"
    stage.until(lambda: len(asyncio.run(_run_ids(stage, workflow_id))) > 1, "it has continued as new")
    return job


async def _client(stage: Stage) -> Client:
    return await stage.temporal.client()


async def _run_ids(stage: Stage, workflow_id: str) -> list[str]:
    """Runs of the workflow, oldest first."""
    client = await _client(stage)
    runs = [(one.start_time, one.run_id) async for one in client.list_workflows(f'WorkflowId="{workflow_id}"')]
    return [run_id for _, run_id in sorted(runs)]


async def _save(stage: Stage, runs: dict[str, tuple[str, str | None]], version: str) -> None:
    client = await _client(stage)
    words = {
        str(stage.folder): NEUTRAL,
        str(Path(sys.executable).parent.parent.parent): "/opt/relight",
        f"@{socket.gethostname()}": "@worker",
    }
    for name, (workflow_id, run_id) in runs.items():
        history = await client.get_workflow_handle(workflow_id, run_id=run_id).fetch_history()
        told = _neutral(json.loads(history.to_json()), words)
        path = FOLDER / version / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"workflow_id": workflow_id, "history": told}, separators=(",", ":")) + "\n")
        print(f"{path.name}: {len(told['events'])} events, {path.stat().st_size} bytes")


def _neutral(value: Any, words: dict[str, str]) -> Any:
    """The same with the machine's own paths replaced, also inside payloads; worker identities are left out."""
    if isinstance(value, dict):
        if set(value) >= {"metadata", "data"} and isinstance(value["data"], str):
            text = _replaced(base64.b64decode(value["data"]).decode(), words)
            return {**value, "data": base64.b64encode(text.encode()).decode()}
        return {key: "worker" if key == "identity" else _neutral(inner, words) for key, inner in value.items()}
    if isinstance(value, list):
        return [_neutral(inner, words) for inner in value]
    return _replaced(value, words) if isinstance(value, str) else value


def _replaced(text: str, words: dict[str, str]) -> str:
    for old, new in words.items():
        text = text.replace(old, new)
    return text


if __name__ == "__main__":
    sys.exit(main())
