"""A site whose job logs are in VictoriaLogs only: a fault is seen there and mended, and an outage of it is no hang."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from activities.contracts import EventKind
from activities.sweep_cursor import BlindTime, read_cursor
from tests.integration.forwarder import Forwarder
from tests.integration.story import told_on_failure
from tests.services.victorialogs import NotToBeHad, VictoriaLogsServer, ensure
from tests.stage import Stage

# The first of them may have to build the server.
pytestmark = pytest.mark.timeout(1_800)

POLICY = {"hang_floor_s": 12, "hang_start_s": 60, "hang_one_witness_s": 5}


@pytest.fixture(scope="module")
def server() -> Iterator[VictoriaLogsServer]:
    try:
        ensure()
    except NotToBeHad as reason:
        pytest.skip(str(reason))
    with VictoriaLogsServer() as server:
        yield server


@pytest.fixture(scope="module")
def stage(server: VictoriaLogsServer) -> Iterator[Stage]:
    logs = {"kind": "victorialogs", "url": server.url, "interval_s": 1, "settle_s": 5}
    with Stage(kill_wait_s=2, policy=POLICY, telemetry={"logs": logs}, sees_files=False) as made:
        made.start_worker()
        yield made


def _step(stage: Stage, job: int) -> int:
    """The last completed step that the sweep knows of."""
    row = stage.store.watched_job(stage.cluster_name, str(job))
    return row.step or 0 if row is not None else 0


def _blind(stage: Stage, job: int) -> tuple[BlindTime, ...]:
    row = stage.store.watched_job(stage.cluster_name, str(job))
    return read_cursor(row.cursor).blind if row is not None else ()


def test_a_job_is_watched_and_brought_back_by_its_lines_in_the_store_and_left_alone_while_that_is_away(
    stage: Stage, server: VictoriaLogsServer
) -> None:
    faults = stage.faults("stored")
    job = stage.train(
        "alice", "stored", "--exclusive", nodes=2, steps=5000, comment="relight", faults=faults, step_time=0.2
    )
    with Forwarder(server) as forwarder, told_on_failure(stage, job):
        stage.slurm.wait_state(job, {"RUNNING"})
        shown = stage.slurm.show(job)
        forwarder.follow(job, shown["StdOut"], shown["BatchHost"])
        stage.until(lambda: _step(stage, job) >= 10, "the sweep sees steps in the store")
        victim = next(node for node in stage.hosts(shown["NodeList"]) if node != shown["BatchHost"])
        (faults / victim).write_text("gpu")

        stage.until(lambda: stage.events(job, EventKind.OUTCOME, kind="restarted"), "it is restarted")
        stage.until(lambda: stage.events(job, EventKind.OUTCOME, kind="first_step"), "it goes on")
        assert stage.restarts(job) == 1
        assert stage.slurm.show(job)["ExcNodeList"] == victim
        assert victim not in stage.hosts(stage.slurm.show(job)["NodeList"])
        verdict = stage.events(job, EventKind.VERDICT)[-1].body
        assert (verdict["fault_class"], verdict["signature"]) == ("hardware", "cuda.ecc")
        found = stage.events(job, EventKind.FINDING, signature="cuda.ecc")
        assert {event.body["source"] for event in found} == {f"victorialogs:{job}"}
        assert all(event.body["evidence"] and event.body["line"] > 1 for event in found)

        before = _step(stage, job)
        stage.until(lambda: _step(stage, job) >= before + 20, "the new attempt's steps are seen in the store")
        server.stop()
        stage.until(lambda: any(one.end is None for one in _blind(stage, job)), "the sweep knows that it is blind")
        # Longer than a silence may last: 0.2 s a step.
        goes_to = _step(stage, job) + 75
        stage.until(lambda: stage.trained(job, goes_to), "the job goes on unseen")
        assert _step(stage, job) < goes_to
        server.start()
        stage.until(lambda: _step(stage, job) >= goes_to + 5, "what was printed meanwhile is read, and it goes on")
        (away,) = [one for one in _blind(stage, job) if one.attempt == 1 and "cannot be reached" in one.why]
        assert away.end is not None
        assert (away.end - away.begin).total_seconds() > POLICY["hang_floor_s"]
        assert stage.slurm.state(job) == "RUNNING"
        assert stage.restarts(job) == 1
        assert not stage.events(job, EventKind.FINDING, detector="progress")
        assert [event.body["rule"] for event in stage.events(job, EventKind.ADVICE, action="restart")] == ["suspect"]
        assert not [event for event in stage.events(job, EventKind.ADVICE) if "hang" in event.body["rule"]]

        stage.slurm.run("scancel", str(job))
        stage.until(
            lambda: any(
                "the log was not readable from" in one.summary for one in stage.events(job, EventKind.WATCHDOG)
            ),
            "the blind time is on the job's record",
        )
