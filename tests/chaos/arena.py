"""What chaos is played on: one stage for many runs, worker processes that a supervisor starts again, and its mending.

Breaks and mends on request; what is broken when stands in `tests/chaos/play.py`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

import psycopg

from tests.cluster import processes
from tests.cluster.waiting import until
from tests.integration.sabotage import Sabotage
from tests.services import PostgresServer
from tests.services.attribution_double import AttributionDouble, Call, drip, enormous
from tests.stage import Stage

NODES = 10
STEP_DEADLINE_S = 20  # short, so that a worker also wakes up after it
POLICY = {
    "hang_floor_s": 10,
    "hang_start_s": 25,
    "hang_phase_s": 40,
    "hang_one_witness_s": 8,
    "step_deadline_s": STEP_DEADLINE_S,
    "max_actions_per_hour": 100_000,
}
MEMORY_LIMIT = """SelectTypeParameters=CR_Core_Memory
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
"""
ATTRIBUTION = {
    "RELIGHT_ATTRIBUTION__HTTP__TOKEN": "chaos",
    "RELIGHT_ATTRIBUTION__FAST_S": "5",
    "RELIGHT_ATTRIBUTION__SLOW_S": "8",
}
DISK_SIZE = "16m"
ROOT = Path(__file__).parents[2]


class Arena:
    """`with Arena() as arena:`; `healthy()` between runs."""

    def __init__(self) -> None:
        self.sabotage = Sabotage()
        self.postgres = PostgresServer()
        self.attribution = AttributionDouble()
        self.wanted = 1
        self.accounting_away = False
        self.slurmctld_hangs = False
        self.hung_nodes: set[str] = set()
        self._disks: list[Path] = []
        self.slurmctld_away = False
        self.temporal_away = False
        self.database_away = False
        self.asleep: dict[int, tuple[int, ...]] = {}  # a worker's pid to all that sleeps with it
        self.dead_nodes: set[str] = set()
        self._workers: list[subprocess.Popen[bytes]] = []
        self._not_before = 0.0

    def __enter__(self) -> Arena:
        try:
            self.postgres.start()
            self.attribution.__enter__()
            os.environ.update({**ATTRIBUTION, "RELIGHT_ATTRIBUTION__HTTP__URL": self.attribution.url})
            self.stage = Stage(
                nodes=NODES,
                kill_wait_s=2,
                cred_expire_s=20,
                extra_conf=MEMORY_LIMIT,
                database=self.postgres.url,
                policy=POLICY,
                **(self.sabotage.settings | {"gate": self.sabotage.settings["gate"] | {"ceiling": 100_000}}),
            )
            self.stage.__enter__()
            self._make_disks()
            self.healthy()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_workers()
        for disk in self._disks:
            subprocess.run(["umount", "--lazy", str(disk)], check=False)
        if hasattr(self, "stage"):
            self.stage.__exit__(None, None, None)
        self.attribution.__exit__(None, None, None)
        for name in (*ATTRIBUTION, "RELIGHT_ATTRIBUTION__HTTP__URL"):
            os.environ.pop(name, None)
        self.postgres.close()
        self.sabotage.close()

    # -- workers ---------------------------------------------------------------------------------------------------

    @property
    def awake(self) -> list[int]:
        """Pids of the workers that live and do not sleep, oldest first."""
        return [one.pid for one in self._workers if one.poll() is None and one.pid not in self.asleep]

    def supervise(self) -> None:
        """As a service manager would: a worker that ended is started again, at most one every second."""
        self._workers = [one for one in self._workers if one.poll() is None]
        if len(self.awake) >= self.wanted or time.monotonic() < self._not_before:
            return
        self._not_before = time.monotonic() + 1
        with self.stage.worker_log.open("ab") as log:
            self._workers.append(
                subprocess.Popen(
                    [sys.executable, "-m", "tests.chaos.striking_worker", str(self.sabotage.folder)],
                    cwd=ROOT,
                    env=self.stage.env,
                    stdout=log,
                    stderr=log,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
            )

    def kill_worker(self) -> None:
        if self.awake:
            os.kill(self.awake[0], signal.SIGKILL)

    def sleep_worker(self) -> int | None:
        """Stops the oldest worker with all its children; gives its pid."""
        if not self.awake:
            return None
        pid = self.awake[0]
        self.asleep[pid] = tuple(one for one in processes.everyone() if _session(one) == pid)
        for one in self.asleep[pid]:
            _send(one, signal.SIGSTOP)
        return pid

    def wake_worker(self, pid: int) -> None:
        """First what it had started, as the kernel may."""
        for one in sorted(self.asleep.pop(pid, ()), reverse=True):
            _send(one, signal.SIGCONT)
        _send(pid, signal.SIGCONT)

    def _end_workers(self) -> None:
        for pid in tuple(self.asleep):
            self.wake_worker(pid)
        for one in self._workers:
            one.terminate()
        for one in self._workers:
            try:
                one.wait(20)
            except subprocess.TimeoutExpired:
                one.kill()
                one.wait()
        self._workers = []

    # -- what relight stands on ------------------------------------------------------------------------------------

    def kill_slurmctld(self) -> None:
        self.slurmctld_away = True
        self.stage.slurm.kill_slurmctld()

    def start_slurmctld(self) -> None:
        self.stage.slurm.start_slurmctld()
        self.slurmctld_away = False

    def hang_slurmctld(self) -> None:
        self.slurmctld_away = self.slurmctld_hangs = True
        self.stage.slurm.hang_slurmctld()

    def unhang_slurmctld(self) -> None:
        self.stage.slurm.unhang_slurmctld()
        self.slurmctld_away = self.slurmctld_hangs = False

    def stop_accounting(self) -> None:
        self.accounting_away = True
        self.stage.slurm.stop_slurmdbd()

    def start_accounting(self) -> None:
        self.stage.slurm.start_slurmdbd()
        self.accounting_away = False

    def kill_temporal(self) -> None:
        self.temporal_away = True
        self.stage.temporal.kill()

    def start_temporal(self) -> None:
        self.stage.temporal.start()
        self.temporal_away = False

    def stop_database(self) -> None:
        self.database_away = True
        self.postgres.stop()

    def start_database(self) -> None:
        self.postgres.start()
        self.database_away = False

    def read_only(self, on: bool) -> None:
        """For every session, from its next transaction on."""
        with psycopg.connect(
            host="127.0.0.1",
            port=self.postgres.port,
            user="postgres",
            dbname="relight",
            autocommit=True,
            options="-c default_transaction_read_only=off",
        ) as session:
            session.execute(f"alter system set default_transaction_read_only = {'on' if on else 'off'}")
            session.execute("select pg_reload_conf()")

    def kill_node(self, node: str) -> None:
        if node not in self.dead_nodes:
            self.dead_nodes.add(node)
            self.stage.slurm.kill_node(node)

    def start_node(self, node: str) -> None:
        if node in self.dead_nodes:
            self.stage.slurm.start_node(node)
            self.dead_nodes.discard(node)

    def hang_node(self, node: str) -> None:
        if node not in self.dead_nodes | self.hung_nodes:
            self.hung_nodes.add(node)
            self.stage.slurm.hang_node(node)

    def unhang_node(self, node: str) -> None:
        if node in self.hung_nodes:
            self.stage.slurm.unhang_node(node)
            self.hung_nodes.discard(node)

    def _make_disks(self) -> None:
        """Small file systems where the worker keeps files, so that they can be full."""
        for name in ("gate", "evidence"):
            disk = self.stage.config.parent / name
            disk.mkdir(exist_ok=True)
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_SIZE},mode=700", "chaos", str(disk)], check=True)
            self._disks.append(disk)

    def fill_disks(self) -> None:
        for disk in self._disks:
            with contextlib.suppress(OSError), (disk / "filler").open("wb", buffering=0) as filler:
                while True:
                    filler.write(bytes(4096))

    def free_disks(self) -> None:
        for disk in self._disks:
            (disk / "filler").unlink(missing_ok=True)

    def misbehave(self, how: str) -> None:
        """What the attribution service does from now on; "" is to answer that it cannot tell."""
        says = {"lies": _lie, "hangs": drip, "fails": lambda call: call.send({}, 500), "floods": enormous}
        self.attribution.say = says.get(how) or (lambda call: call.send({"category": "unknown"}))

    # -- mending ---------------------------------------------------------------------------------------------------

    def mend(self) -> None:
        """Everything relight stands on is there again; sleepers that are to wake up later sleep on."""
        if self.slurmctld_hangs:
            self.unhang_slurmctld()
        if self.slurmctld_away:
            self.start_slurmctld()
        if self.accounting_away:
            self.start_accounting()
        self.free_disks()
        self.misbehave("")
        if self.temporal_away:
            self.start_temporal()
        if self.database_away:
            self.start_database()
        self.read_only(False)
        for node in sorted(self.hung_nodes):
            self.unhang_node(node)
        for node in sorted(self.dead_nodes):
            self.start_node(node)
        self.resume_nodes()

    def resume_nodes(self) -> None:
        """Slurm drains a node that could not launch a job, and waits for a person."""
        for node in self.stage.slurm.nodes:
            if {"DRAIN", "DOWN"} & set(self.stage.slurm.node(node)["State"].rstrip("*").split("+")):
                self.stage.slurm.run("scontrol", "update", f"nodename={node}", "state=resume")

    def healthy(self) -> None:
        """Ready for the next run: one worker that watches, no job, all nodes idle."""
        self.mend()
        for pid in tuple(self.asleep):
            self.wake_worker(pid)
        for left in (self.sabotage.folder / "armed").iterdir():
            left.unlink()
        self.stage.slurm.run("scancel", "--state=PENDING,RUNNING,SUSPENDED", "-u", "alice,bob")
        self._end_workers()
        self.wanted = 1
        begins = self.stage.worker_log.stat().st_size if self.stage.worker_log.exists() else 0
        self._not_before = 0.0
        try:
            until(lambda: self._watches(begins), "a worker watches", timeout_s=90, every_s=0.2)
        except AssertionError as failure:
            failure.add_note(self.stage.worker_log.read_text(errors="replace")[-3000:])
            raise
        until(self._idle, "all nodes are idle again", timeout_s=120, every_s=0.5)

    def _watches(self, begins: int) -> bool:
        self.supervise()
        return b"watching" in self.stage.worker_log.read_bytes()[begins:]

    def _idle(self) -> bool:
        self.resume_nodes()
        states = self.stage.slurm.run("sinfo", "-h", "-N", "-p", "main", "-o", "%T").stdout.split()
        return states == ["idle"] * NODES


def _lie(call: Call) -> None:
    """Blames the innocent, and somebody who has nothing to do with it."""
    hosts = [{"host": host, "confidence": "high"} for host in ("login01", *call.body["scope"]["nodes"])]
    call.send({"category": "hardware", "confidence": "high", "suspects": hosts, "explanation": "Trust me."})


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return -1


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
