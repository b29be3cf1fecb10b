"""How long a restarted four-node job waits behind small ones on a full cluster, with and without `keep_nodes`."""

from __future__ import annotations

import argparse
import time

from activities.contracts import EventKind
from tests.bench.report import Goal, Report
from tests.cluster.waiting import until
from tests.stage import Stage

SMALL = "exec sleep {seconds}"
BY_AGE = "PriorityType=priority/multifactor\nPriorityWeightAge=1000000\nPriorityMaxAge=1"
"""As on most sites: who has waited longer goes first, and a requeue begins anew."""


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--nodes", type=int, default=5, help="nodes of the cluster; the large job takes four")
    parser.add_argument("--small", type=int, default=20, help="small jobs that wait in the queue")
    parser.add_argument("--seconds", type=int, default=15, help="how long each small job runs")


def run(given: argparse.Namespace) -> Report:
    """Wait of a restarted four-node job behind small ones."""
    waits = {how: _wait(given, how) for how in ("off", "reservation")}
    rows = tuple((how, f"{wait:.1f}") for how, wait in waits.items())
    shorter = waits["off"] / waits["reservation"]
    return Report(
        bench="keep-nodes",
        columns=("KEEP_NODES", "WAIT s"),
        rows=rows,
        goals=(Goal("wait without, in units of the wait with", shorter, 2.0),),
        values={"wait_s": waits, "nodes": given.nodes, "small_jobs": given.small, "small_job_s": given.seconds},
    )


def _wait(given: argparse.Namespace, how: str) -> float:
    """From the failure of the large job to its next start, with every other node busy and small jobs waiting."""
    policy = {"keep_nodes": how, "max_kept_share": 1.0}
    with Stage(nodes=given.nodes, mode="act", policy=policy, extra_conf=BY_AGE) as stage:
        stage.start_worker()
        faults = stage.faults("large")
        script = (
            f'[ -n "$SLURM_RESTART_COUNT" ] && exec sleep 1\nuntil [ -e {faults}/fail ]; do sleep 0.1; done\nexit 9'
        )
        large = stage.slurm.submit("alice", script, "--nodes=4", "--exclusive", comment="relight", name="large")
        stage.slurm.wait_state(large, {"RUNNING"})
        until(lambda: stage.store.watched_job("prod", str(large)), "relight watches it", timeout_s=60)
        for number in range(given.small + given.nodes - 4):
            stage.slurm.submit(
                "bob", SMALL.format(seconds=given.seconds), "--nodes=1", "--exclusive", name=f"small-{number}"
            )
        (faults / "fail").touch()
        failed_at = time.monotonic()
        until(lambda: stage.restarts(large) == 1, "relight restarts it", timeout_s=60)
        limit = 120 + given.small * given.seconds
        until(lambda: stage.slurm.state(large) in {"RUNNING", "COMPLETED"}, "it runs again", timeout_s=limit)
        wait = time.monotonic() - failed_at
        held = [event.summary for event in stage.events(large, EventKind.STEP, action="hold")]
        if how == "reservation" and not any(text.startswith("holds n") for text in held):
            raise RuntimeError(f"no nodes were held: {held}")
        return wait
