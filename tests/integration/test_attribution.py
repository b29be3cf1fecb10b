"""A service that lies, hangs and floods is configured: jobs fail, and each comes out as it would have without it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from activities.contracts import EventKind
from tests.integration.story import told_on_failure
from tests.services.attribution_double import AttributionDouble, Call, drip, enormous
from tests.stage import Stage


class Liar:
    """Names strangers and innocents, blames the user, hangs or floods: by job."""

    def __init__(self) -> None:
        self.slow: set[str] = set()
        self.floods: set[str] = set()

    def __call__(self, call: Call) -> None:
        job = call.body["workload_id"]
        if job in self.slow:
            drip(call)
        elif job in self.floods:
            enormous(call)
        else:
            call.send(self.lie(call.body))

    @staticmethod
    def lie(body: dict[str, Any]) -> dict[str, Any]:
        innocent = body["scope"]["nodes"][0]  # the batch host: never the one that the tests break
        return {
            "category": "user" if body["phase"] == "slow" else "hardware",
            "confidence": "high",
            "suspects": [{"host": "login01", "confidence": "high"}, {"host": innocent, "confidence": "high"}],
            "explanation": "Trust me.",
        }


@pytest.fixture(scope="module")
def liar() -> Iterator[tuple[AttributionDouble, Liar]]:
    says = Liar()
    with AttributionDouble(says) as double:
        yield double, says


@pytest.fixture(scope="module")
def stage(liar: tuple[AttributionDouble, Liar]) -> Iterator[Stage]:
    """Act mode with a service configured in the environment, as a site would give its address."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("RELIGHT_ATTRIBUTION__HTTP__URL", liar[0].url)
        environment.setenv("RELIGHT_ATTRIBUTION__HTTP__TOKEN", "hush-token")
        environment.setenv("RELIGHT_ATTRIBUTION__FAST_S", "5")
        environment.setenv("RELIGHT_ATTRIBUTION__SLOW_S", "8")
        with Stage(nodes=8, kill_wait_s=2, cred_expire_s=20) as made:
            made.start_worker()
            yield made


def _fails_once(stage: Stage, name: str) -> int:
    """Ends with a code that tells nothing the first time, and well the second time."""
    flag = stage.slurm.home("alice") / f"{name}-flag"
    script = f"#!/bin/bash\nif [ ! -e {flag} ]; then sleep 3; touch {flag}; exit 7; fi\nsleep 1\n"
    return stage.slurm.submit("alice", script, "--nodes=2", comment="relight", name=name)


def test_no_job_comes_out_otherwise(stage: Stage, liar: tuple[AttributionDouble, Liar]) -> None:
    double, says = liar
    faults = stage.faults("clear")
    clear = stage.train("alice", "clear", nodes=2, steps=16, comment="relight", faults=faults, step_time=0.2)
    unclear, slow, flooded = (_fails_once(stage, name) for name in ("unclear", "slow", "flooded"))
    says.slow.add(str(slow))
    says.floods.add(str(flooded))
    with told_on_failure(stage, clear, unclear, slow, flooded):
        stage.until(lambda: stage.trained(clear, 5), "it trains")
        shown = stage.slurm.show(clear)
        victim = next(node for node in stage.hosts(shown["NodeList"]) if node != shown["BatchHost"])
        (faults / victim).write_text("gpu")
        for job in (clear, unclear, slow, flooded):
            stage.until(lambda job=job: stage.restarts(job) == 1, "it is restarted", 60)
            stage.until(lambda job=job: stage.slurm.state(job) == "COMPLETED", "it finishes", 60)
        assert stage.hosts(stage.slurm.show(clear)["ExcNodeList"]) == [victim]
        for job in (unclear, slow, flooded):
            assert stage.slurm.show(job)["ExcNodeList"] == "(null)"
            advice = stage.events(job, EventKind.ADVICE, action="restart")
            assert [event.body["rule"] for event in advice] == ["unknown"]
            assert advice[0].body["exclude"] == []
        status = {job: _said(stage, job, phase="fast") for job in (unclear, slow, flooded)}
        assert status == {unclear: ["answered"], slow: ["late"], flooded: ["nonsense"]}
        assert _said(stage, clear, phase="fast") == []  # where the rules can tell, nothing waits
        stage.until(lambda: _said(stage, clear, phase="slow"), "the thorough answer is on record")
        (event,) = stage.events(unclear, EventKind.ATTRIBUTION, phase="fast")
        assert event.body["dropped"] == ["host 'login01': not part of the job's allocation"]
        (plan,) = [event for event in stage.events(unclear, EventKind.VERDICT) if event.attempt == 0]
        assert [one["confidence"] for one in plan.body["suspects"] if one["by"]] == ["low"]
    assert not double.refused
    assert all(seen["Authorization"] == "Bearer hush-token" for seen in double.headers)
    history = stage.temporal.run(
        *("workflow", "show", "--workflow-id", f"{stage.cluster_name}-{unclear}", "-o", "json")
    ).stdout
    assert json.loads(history)["events"]
    assert "hush-token" not in history + stage.worker_log.read_text()
    assert "hush-token" not in stage.relight("config", "check").stdout


def _said(stage: Stage, job: int, *, phase: str) -> list[object]:
    return [event.body["status"] for event in stage.events(job, EventKind.ATTRIBUTION, phase=phase)]
