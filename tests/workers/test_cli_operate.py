"""pause, resume, force and approve, spoken to a workflow on a real Temporal server."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from temporalio import workflow
from temporalio.client import Client
from temporalio.exceptions import ApplicationError
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from tests.services import TemporalServer
from tests.workers.conftest import Relight

T = TypeVar("T")


@workflow.defn(name="JobRecovery", sandboxed=False)
class Listener:
    """Hears what JobRecovery hears and answers as it does, without a job behind it."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    @workflow.run
    async def run(self, _: Any = None) -> None:
        await workflow.wait_condition(lambda: False)

    def _hear(self, verb: str, raw: Any) -> dict[str, Any]:
        self.heard.append([verb, raw])
        return {"accepted": True, "message": f"{verb} is done", "state": "watching"}

    @workflow.update(name="pause")
    async def on_pause(self, raw: Any = None) -> dict[str, Any]:
        return self._hear("pause", raw)

    @workflow.update(name="resume")
    async def on_resume(self, raw: Any = None) -> dict[str, Any]:
        return self._hear("resume", raw)

    @workflow.update(name="force")
    async def on_force(self, raw: Any = None) -> dict[str, Any]:
        return self._hear("force", raw)

    @workflow.update(name="approve")
    async def on_approve(self, raw: Any = None) -> dict[str, Any]:
        return self._hear("approve", raw)

    @on_approve.validator
    def check_approve(self, raw: Any = None) -> None:
        raise ApplicationError("nothing waits for an approval", type="Refused")

    @workflow.signal(name="pause")
    def hear_pause(self, raw: Any = None) -> None:
        self._hear("signal pause", raw)

    @workflow.query(name="heard")
    def tell(self) -> list[Any]:
        return self.heard


class Temporal:
    """A client and a worker in a thread of their own, so that commands can run in this one."""

    def __init__(self, server: TemporalServer) -> None:
        self.queue = f"cli-{uuid.uuid4()}"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.client = self.do(Client.connect(server.target, namespace=server.namespace))
        self._worker = self.do(self._start())

    async def _start(self) -> Worker:
        worker = Worker(
            self.client, task_queue=self.queue, workflows=[Listener], workflow_runner=UnsandboxedWorkflowRunner()
        )
        await worker.__aenter__()
        return worker

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=60)

    def start(self, job_id: int, queue: str | None = None) -> None:
        self.do(self.client.start_workflow("JobRecovery", id=f"prod-{job_id}", task_queue=queue or self.queue))

    def heard(self, job_id: int) -> Any:
        return self.do(self.client.get_workflow_handle(f"prod-{job_id}").query("heard"))

    def end(self, job_id: int) -> None:
        self.do(self.client.get_workflow_handle(f"prod-{job_id}").terminate("the test is over"))

    def close(self) -> None:
        self.do(self._worker.__aexit__(None, None, None))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=30)
        self._loop.close()


@pytest.fixture(scope="module")
def temporal(temporal_server: TemporalServer) -> Iterator[Temporal]:
    running = Temporal(temporal_server)
    yield running
    running.close()


@pytest.fixture
def job_id(temporal: Temporal) -> Iterator[int]:
    number = 1_000_000 + uuid.uuid4().int % 1_000_000_000
    temporal.start(number)
    yield number
    temporal.end(number)


@pytest.fixture(autouse=True)
def _configured(config: Path, temporal_server: TemporalServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELIGHT_TEMPORAL__ADDRESS", temporal_server.target)
    monkeypatch.setenv("RELIGHT_TEMPORAL__NAMESPACE", temporal_server.namespace)


def test_what_an_operator_says_reaches_the_workflow_and_its_answer_comes_back(
    relight: Relight, temporal: Temporal, job_id: int
) -> None:
    job = f"prod-{job_id}"
    paused = relight("pause", job, "--by", "oncall", "--reason", "debugging")
    assert (paused.code, paused.out) == (0, f"{job}: pause is done (state watching)\n")
    assert relight("resume", str(job_id), "--by", "oncall").code == 0
    forced = relight(
        "force",
        job,
        "--action",
        "restart",
        "--exclude",
        "n[01-02],n07",
        "--restart-count",
        "3",
        "--by",
        "oncall",
        "--json",
    )
    assert forced.json == {"job": job, "accepted": True, "message": "force is done", "state": "watching"}
    assert temporal.heard(job_id) == [
        ["pause", {"by": "oncall", "reason": "debugging"}],
        ["resume", {"by": "oncall", "reason": ""}],
        [
            "force",
            {"action": "restart", "exclude": ["n01", "n02", "n07"], "restart_count": 3, "by": "oncall", "reason": ""},
        ],
    ]


def test_who_asks_is_the_login_name_unless_told(
    relight: Relight, temporal: Temporal, job_id: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUDO_USER", "alice")
    relight("pause", str(job_id))
    assert temporal.heard(job_id)[0][1]["by"] == "alice"


def test_a_refusal_is_shown_with_its_reason_and_ends_with_1(relight: Relight, temporal: Temporal, job_id: int) -> None:
    refused = relight("approve", str(job_id), "--yes")
    assert (refused.code, refused.out) == (1, "")
    assert refused.err == "relight: nothing waits for an approval\n"
    assert relight("approve", str(job_id), "--no", "--json").json == {"error": "nothing waits for an approval"}


def test_a_job_that_is_not_watched_is_told(relight: Relight, temporal: Temporal) -> None:
    for words in (("pause", "prod-7"), ("pause", "prod-7", "--signal")):
        told = relight(*words)
        assert told.code == 1
        assert "relight does not watch job prod-7 now" in told.err


def test_a_closed_job_is_told(relight: Relight, temporal: Temporal) -> None:
    number = 900_000_001
    temporal.start(number)
    temporal.end(number)
    told = relight("pause", str(number))
    assert told.code == 1
    assert f"relight does not watch job prod-{number} now" in told.err


def test_without_a_worker_the_command_gives_up_in_time_and_offers_the_signal(
    relight: Relight, temporal: Temporal, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = 900_000_002
    temporal.start(number, queue=f"nobody-{uuid.uuid4()}")
    monkeypatch.setattr("workers.cli_operate.ANSWER_LIMIT_S", 1.0)
    told = relight("pause", str(number), "--by", "oncall")
    assert told.code == 1
    assert "no worker answered" in told.err
    assert "--signal" in told.err
    left = relight("pause", str(number), "--by", "oncall", "--signal")
    assert left.code == 0
    assert "left for the job's workflow as a signal" in left.out
    temporal.end(number)


def test_a_signal_reaches_the_workflow(relight: Relight, temporal: Temporal, job_id: int) -> None:
    assert relight("pause", str(job_id), "--by", "oncall", "--signal", "--json").json["accepted"] is None
    assert temporal.heard(job_id) == [["signal pause", {"by": "oncall", "reason": ""}]]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("force", "prod-1", "--action", "explode"), "expected restart, stop or release"),
        (("force", "prod-1", "--action", "restart", "--exclude", "@all"), "groups are not read"),
        (("force", "prod-1", "--action", "restart", "--exclude", "n[1-99999999]"), "at most"),
        (("force", "prod-1", "--action", "stop", "--exclude", "n01"), "--exclude goes with --action restart only"),
        (("approve", "prod-1"), "say --yes or --no"),
    ],
)
def test_what_cannot_be_meant_is_not_sent(relight: Relight, words: tuple[str, ...], told: str) -> None:
    refused = relight(*words)
    assert refused.code == 2
    assert told in refused.err


def test_a_server_that_is_away_is_told(relight: Relight, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELIGHT_TEMPORAL__ADDRESS", "127.0.0.1:1")
    told = relight("pause", "prod-1")
    assert told.code == 1
    assert "Temporal at 127.0.0.1:1" in told.err
    assert "config check" in told.err
