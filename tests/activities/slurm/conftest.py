"""One real cluster with accounting for all tests of the Slurm client, and a gate folder of its own for each test."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from activities.slurm.client import SlurmClient
from activities.slurm.transport import LocalGate
from recovery.records import JobView
from tests.cluster import ENDED, SlurmCluster
from tests.cluster.waiting import until

# Each node's hooks look for these files beside them: a slow epilog and a failing prolog are switched on by a test.
EPILOG = (
    'here=$(dirname "$0"); for slow in "$here/slow" "$here/slow-$SLURMD_NODENAME"; do '
    '[ ! -f "$slow" ] || sleep "$(cat "$slow")"; done; exit 0'
)
PROLOG = '[ ! -f "$(dirname "$0")/refuse" ]'


@pytest.fixture(scope="package")
def lab() -> Iterator[SlurmCluster]:
    """Four nodes with accounting."""
    with SlurmCluster(nodes=4, accounting=True, epilog=EPILOG, prolog=PROLOG) as cluster:
        yield cluster


@dataclass(frozen=True)
class Site:
    """A cluster, its client, and what tests do with both."""

    cluster: SlurmCluster
    client: SlurmClient
    gate_dir: Path

    def submit(self, script: str, *words: str, name: str = "job", comment: str = "relight", user: str = "alice") -> str:
        return str(self.cluster.submit(user, script, *words, name=name, comment=comment))

    def ended(self, script: str, *words: str, state: str = "FAILED", name: str = "job") -> str:
        """Submits a job and waits until it has ended so."""
        job = self.submit(script, *words, name=name)
        assert self.cluster.wait_state(job, ENDED) == state
        return job

    def running(self, *words: str, name: str = "job") -> str:
        job = self.submit("sleep 600", *words, name=name)
        self.cluster.wait_state(job, {"RUNNING"})
        return job

    def doomed(self, *words: str, name: str = "job") -> str:
        """A running job that fails when `fail` is called, at least a second (Slurm's clock) after it was submitted."""
        self._trigger.unlink(missing_ok=True)
        job = self.submit(f"until [ -e {self._trigger} ]; do sleep 0.1; done; exit 9", *words, name=name)
        self.cluster.wait_state(job, {"RUNNING"})
        return job

    def fail(self, job: str) -> None:
        asked = time.time()
        until(lambda: int(time.time()) > asked + 1, "the next second but one has begun", timeout_s=10)
        self._trigger.touch()
        assert self.cluster.wait_state(job, ENDED) == "FAILED"

    @property
    def _trigger(self) -> Path:
        return self.cluster.home("alice") / "fail"

    async def view(self, job: str) -> JobView:
        found = await self.client.job(job)
        assert found is not None
        return found

    def restarts(self, job: str) -> int:
        return int(self.cluster.show(job)["Restarts"])

    @contextlib.contextmanager
    def slow_epilog(self, seconds: int, node: str = "") -> Iterator[None]:
        """On one node, or on all."""
        with self._file(f"slow-{node}" if node else "slow", str(seconds)):
            yield

    @contextlib.contextmanager
    def failing_prolog(self) -> Iterator[None]:
        with self._file("refuse", ""):
            yield

    @contextlib.contextmanager
    def _file(self, name: str, content: str) -> Iterator[None]:
        path = self.cluster.layout.etc / name
        path.write_text(content)
        try:
            yield
        finally:
            path.unlink()

    def resume_drained(self) -> None:
        """Repairs what a failed prolog drained; Slurm takes a resume only when the node has settled."""

        def resumed() -> bool:
            drained = [node for node in self.cluster.nodes if "DRAIN" in self.cluster.node(node)["State"]]
            for node in drained:
                self.cluster.run("scontrol", "update", f"nodename={node}", "state=resume")
            return not drained

        until(resumed, "no node is drained", timeout_s=60)

    def clear(self) -> None:
        """Ends every job, so that the next test finds four idle nodes."""
        for user in ("alice", "bob"):
            self.cluster.run("scancel", f"--user={user}")

        def idle() -> bool:
            return self.cluster.run("sinfo", "-h", "-N", "-o", "%T").stdout.split() == ["idle"] * 4

        until(idle, "four idle nodes", timeout_s=60)


def soon(seconds: float = 30) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


def gate_env(cluster: SlurmCluster, gate_dir: Path, **more: str) -> dict[str, str]:
    return {**cluster.env, "RELIGHT_GATE_DIR": str(gate_dir), **more}


@pytest.fixture
def site(lab: SlurmCluster, tmp_path: Path) -> Iterator[Site]:
    found = Site(lab, SlurmClient("prod", LocalGate(env=gate_env(lab, tmp_path))), tmp_path)
    yield found
    found.clear()
