"""The demo's stage: a 4-node Slurm cluster, Temporal with its Web UI, an SQLite audit store and one worker."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType

import yaml

from tests.cluster import ClusterError, SlurmCluster, processes
from tests.cluster.enclosure import Enclosure
from tests.cluster.waiting import until
from tests.services import TemporalServer

TRAINER = Path(__file__).parent.parent / "trainer" / "train.py"
RELIGHT = Path(sys.executable).with_name("relight")


def _free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class Stage:
    """Everything the demo runs on; gone when the block ends, unless kept."""

    def __init__(
        self, *, cluster_name: str = "prod", nodes: int = 4, first_job_id: int = 12345, mode: str = "act"
    ) -> None:
        self.slurm = SlurmCluster(
            nodes=nodes, accounting=True, name=cluster_name, first_job_id=first_job_id, min_job_age_s=300
        )
        # The stock ports, where they are free: then the stock `temporal` command needs no address.
        stock = _free(7233) and _free(8233)
        self.temporal = TemporalServer(
            ui=True, port=7233 if stock else None, ui_port=8233 if stock else None, namespace="default"
        )
        self.cluster_name, self.mode = cluster_name, mode
        self._worker: subprocess.Popen[bytes] | None = None
        self._kept = False

    def __enter__(self) -> Stage:
        try:
            self.slurm.start()
            self.temporal.start()
            self._write_settings()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._kept:
            return
        self.stop_worker()
        self.temporal.close()
        self.slurm.stop()

    @property
    def folder(self) -> Path:
        return self.slurm.dir

    @property
    def config(self) -> Path:
        return self.folder / "relight" / "relight.yaml"

    @property
    def database(self) -> str:
        return f"sqlite:///{self.folder}/relight/audit.db"

    @property
    def worker_log(self) -> Path:
        return self.folder / "relight" / "worker.log"

    @property
    def env(self) -> dict[str, str]:
        """The environment in which `relight` and `temporal` find everything."""
        return {
            **os.environ,
            "PATH": f"{RELIGHT.parent}:{os.environ['PATH']}",
            "RELIGHT_CONFIG": str(self.config),
            "TEMPORAL_ADDRESS": self.temporal.target,
            "TEMPORAL_NAMESPACE": self.temporal.namespace,
            "SLURM_CONF": self.slurm.env["SLURM_CONF"],
        }

    def _write_settings(self) -> None:
        home = self.config.parent
        (home / "gate").mkdir(parents=True)
        policy = home / "policy.yaml"
        policy.write_text(
            yaml.safe_dump(
                {
                    "clusters": {self.cluster_name: {"mode": self.mode}},
                    "policies": {"default": {"max_excluded_share": 0.5}},
                }
            )
        )
        self.config.write_text(
            yaml.safe_dump(
                {
                    "temporal": {"address": self.temporal.target, "namespace": self.temporal.namespace},
                    "database": {"url": self.database},
                    "policy_file": str(policy),
                    "evidence_dir": str(home / "evidence"),
                    "clusters": {
                        self.cluster_name: {
                            "slurm_conf": self.slurm.env["SLURM_CONF"],
                            "gate": {"dir": str(home / "gate")},
                        }
                    },
                }
            )
        )
        exports = "\n".join(
            f"export {name}={self.env[name]}"
            for name in ("RELIGHT_CONFIG", "TEMPORAL_ADDRESS", "TEMPORAL_NAMESPACE", "SLURM_CONF", "PATH")
        )
        (home / "env.sh").write_text(exports + "\n")

    def start_worker(self) -> None:
        """Starts `relight worker` and waits until it says that it watches."""
        log = self.worker_log.open("ab")
        self._worker = subprocess.Popen(
            [str(RELIGHT), "worker"],
            env=self.env,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        until(self._watches, "the worker watches the cluster", timeout_s=60)

    def _watches(self) -> bool:
        assert self._worker is not None
        if self._worker.poll() is not None:
            raise RuntimeError(
                f"the worker ended with {self._worker.returncode}:\n{self.worker_log.read_text()[-3000:]}"
            )
        return "watching" in self.worker_log.read_text()

    def stop_worker(self) -> None:
        if self._worker is not None and self._worker.poll() is None:
            self._worker.terminate()
            try:
                self._worker.wait(20)
            except subprocess.TimeoutExpired:
                self._worker.kill()
                self._worker.wait()

    def keep(self, note: Path) -> None:
        """Leaves everything running when the block ends; `end_kept(note)` ends it."""
        assert self._worker is not None
        self.slurm.keep()
        self.temporal.keep()
        self._kept = True
        server = self.temporal.enclosure
        told = {
            "folder": str(self.folder),
            "worker": [self._worker.pid, processes.start_ticks(self._worker.pid)],
            "temporal": [server.first_pid, server.first_ticks],
        }
        note.parent.mkdir(exist_ok=True)
        note.write_text(json.dumps(told))

    def train(self, user: str, name: str, *, nodes: int, steps: int, comment: str, faults: Path) -> int:
        """Submits a training job that resumes from its checkpoints; gives its id."""
        home = self.slurm.home(user)
        trainer = self.folder / "train.py"
        if not trainer.exists():
            shutil.copy(TRAINER, trainer)
        script = (
            "#!/bin/bash\n"
            f"exec srun --kill-on-bad-exit=1 python3 {trainer} --steps {steps} --step-time 0.25 --save-every 5 "
            f"--checkpoints {home}/{name} --faults {faults}\n"
        )
        return self.slurm.submit(
            user,
            script,
            f"--nodes={nodes}",
            "--ntasks-per-node=1",
            "--open-mode=append",
            f"--output={home}/%x-%j.out",
            name=name,
            comment=comment,
        )

    def faults(self, name: str) -> Path:
        """The folder in which a file named like a node breaks that node, for one job."""
        folder = self.folder / "faults" / name
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)
        return folder


def end_kept(note: Path) -> str:
    """Ends a demo that was left running; says what it did."""
    try:
        told = json.loads(note.read_text())
    except FileNotFoundError:
        return "no demo was left running"
    pid, ticks = told["worker"]
    if processes.alive(pid) and processes.start_ticks(pid) == ticks:
        os.killpg(pid, signal.SIGTERM)
        until(lambda: not processes.alive(pid), "the worker ends", timeout_s=30)
    server = Enclosure.attach(*told["temporal"])
    if server is not None:
        server.close()
    try:
        SlurmCluster.attach(Path(told["folder"])).stop()
    except ClusterError as gone:
        note.unlink()
        return f"the demo's cluster was gone already ({gone})"
    shutil.rmtree(told["folder"], ignore_errors=True)
    note.unlink()
    return "the demo was ended"
