"""A stage for relight: a real Slurm cluster, a real Temporal server, an audit store and a worker process."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml

from activities.audit.records import Event
from activities.audit.store import AuditStore
from tests.cluster import ClusterError, SlurmCluster, processes
from tests.cluster.enclosure import Enclosure
from tests.cluster.waiting import until
from tests.services import TemporalServer

TRAINER = Path(__file__).parent / "trainer" / "train.py"
RELIGHT = Path(sys.executable).with_name("relight")


def _free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class Stage:
    """Everything relight runs on, for the demo and for tests; gone when the block ends, unless kept."""

    def __init__(
        self,
        *,
        cluster_name: str = "prod",
        nodes: int = 4,
        first_job_id: int = 12345,
        mode: str = "act",
        policy: Mapping[str, Any] | None = None,
        policies: Mapping[str, Mapping[str, Any]] | None = None,
        accounting: bool = True,
        ui: bool = False,
        database: str = "",
        gate: Mapping[str, Any] | None = None,
        path: str = "",
        prometheus: Mapping[str, Any] | None = None,
        telemetry: Mapping[str, Any] | None = None,
        sees_files: bool = True,
        ssh: Mapping[str, Any] | None = None,
        **slurm: Any,
    ) -> None:
        """`policy`: numbers of the default policy; `policies`: others by name; `gate`, `path`, `ssh`: settings of the
        cluster; `prometheus`: of metrics; `telemetry`: that section; `sees_files` False: the worker runs where the
        users' folders are not mounted; the rest is Slurm's."""
        self.slurm = SlurmCluster(
            nodes=nodes, accounting=accounting, name=cluster_name, first_job_id=first_job_id, **slurm
        )
        # The stock ports, where they are free: then the stock `temporal` command needs no address.
        stock = ui and _free(7233) and _free(8233)
        self.temporal = TemporalServer(
            ui=ui, port=7233 if stock else None, ui_port=8233 if stock else None, namespace="default"
        )
        self.cluster_name, self.mode = cluster_name, mode
        # Jobs of different tests fail of the same thing on one stage, and have nothing to do with each other.
        usual = {"max_excluded_share": 0.5, "incident_jobs": 1000, **(policy or {})}
        self._policies = {"default": usual} | {name: usual | dict(more) for name, more in (policies or {}).items()}
        self._database, self._gate, self._path = database, dict(gate or {}), path
        self._prometheus = dict(prometheus or {})
        self._telemetry, self._sees_files = dict(telemetry or {}), sees_files
        self._ssh = dict(ssh or {})
        self._worker: subprocess.Popen[bytes] | None = None
        self._kept = False
        self._store: AuditStore | None = None

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
        if self._store is not None:
            self._store.close()
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
        return self._database or f"sqlite:///{self.folder}/relight/audit.db"

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
        home.mkdir(parents=True, mode=0o750)
        (home / "gate").mkdir(mode=0o750)
        policy = home / "policy.yaml"
        policy.write_text(
            yaml.safe_dump(
                {
                    "clusters": {self.cluster_name: {"mode": self.mode}},
                    "policies": self._policies,
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
                    "telemetry": self._telemetry | ({"prometheus": self._prometheus} if self._prometheus else {}),
                    "clusters": {
                        self.cluster_name: {
                            "slurm_conf": self.slurm.env["SLURM_CONF"],
                            "gate": {"dir": str(home / "gate"), "ceiling": 1000, **self._gate},
                            **({"path": self._path} if self._path else {}),
                            **({"ssh": self._ssh} if self._ssh else {}),
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

    @property
    def store(self) -> AuditStore:
        """The audit store, for reading."""
        if self._store is None:
            self._store = AuditStore(self.database)
        return self._store

    def events(self, job: int | str, kind: str = "", /, **body: Any) -> list[Event]:
        """Rows of the job's audit log, oldest first."""
        return [
            event
            for event in self.store.events(self.cluster_name, str(job))
            if (not kind or event.kind == kind) and all(event.body.get(key) == value for key, value in body.items())
        ]

    def relight(self, *words: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        """Runs the `relight` command as an operator would."""
        return subprocess.run(
            [str(RELIGHT), *words],
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def state(self, job: int | str) -> dict[str, Any]:
        """What the job's workflow answers to the query `state`, asked with the stock command."""
        told = self.temporal.run(
            *("workflow", "query", "--workflow-id", f"{self.cluster_name}-{job}", "--type", "state", "-o", "json")
        )
        if told.returncode != 0:
            raise RuntimeError(f"query state of {job}: {told.stderr}")
        answer: dict[str, Any] = json.loads(told.stdout)["queryResult"][0]
        return answer

    def until(self, ready: Callable[[], object], what: str, timeout_s: float = 90) -> None:
        """Waits; where it was in vain, the worker's last words are added."""
        try:
            until(ready, what, timeout_s=timeout_s, every_s=0.1)
        except AssertionError as failure:
            failure.add_note(f"worker: {self.worker_log.read_text(errors='replace')[-3000:]}")
            raise

    @property
    def worker_pid(self) -> int:
        assert self._worker is not None
        return self._worker.pid

    @property
    def worker_lives(self) -> bool:
        return self._worker is not None and self._worker.poll() is None

    def kill_worker(self) -> None:
        """kill -9, as a crash would."""
        assert self._worker is not None
        self._worker.kill()
        self._worker.wait()

    def start_worker(self) -> None:
        """Starts `relight worker` and waits until it says that it watches."""
        begins = self.worker_log.stat().st_size if self.worker_log.exists() else 0
        log = self.worker_log.open("ab")
        words = [str(RELIGHT), "worker"]
        if not self._sees_files:
            users = self.slurm.home("alice").parent
            hidden = f'mount -t tmpfs none {users} && exec "$@"'
            words = ["unshare", "--mount", "sh", "-c", hidden, "worker", *words]
        self._worker = subprocess.Popen(
            words,
            env=self.env,
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        until(lambda: self._watches(begins), "the worker watches the cluster", timeout_s=120)

    def _watches(self, begins: int) -> bool:
        assert self._worker is not None
        if self._worker.poll() is not None:
            raise RuntimeError(
                f"the worker ended with {self._worker.returncode}:\n{self.worker_log.read_text()[-3000:]}"
            )
        return b"watching" in self.worker_log.read_bytes()[begins:]

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

    def train(
        self,
        user: str,
        name: str,
        *more: str,
        nodes: int,
        steps: int,
        comment: str,
        faults: Path,
        step_time: float = 0.25,
        append: bool = True,
        trainer_args: str = "",
    ) -> int:
        """Submits a training job that resumes from its checkpoints; gives its id."""
        home = self.slurm.home(user)
        trainer = self.folder / "train.py"
        if not trainer.exists():
            shutil.copy(TRAINER, trainer)
        script = (
            "#!/bin/bash\n"
            f"exec srun --kill-on-bad-exit=1 python3 {trainer} --steps {steps} --step-time {step_time} --save-every 5 "
            f"--checkpoints {home}/{name} --faults {faults} {trainer_args}\n"
        )
        return self.slurm.submit(
            user,
            script,
            f"--nodes={nodes}",
            "--ntasks-per-node=1",
            *(["--open-mode=append"] if append else []),
            f"--output={home}/%x-%j.out",
            *more,
            name=name,
            comment=comment,
        )

    def hosts(self, folded: str) -> list[str]:
        """Node names of a host list, as Slurm expands it."""
        if folded in {"", "(null)", "None assigned"}:
            return []
        return self.slurm.run("scontrol", "show", "hostnames", folded).stdout.split()

    def restarts(self, job: int | str) -> int:
        """Slurm's restart count, read so that no job name can forge it."""
        return int(self.slurm.run("squeue", "-h", "-t", "all", "-j", str(job), "-O", "RestartCnt").stdout)

    def log(self, job: int | str) -> str:
        """What the job has printed so far."""
        try:
            return Path(self.slurm.show(job)["StdOut"]).read_text(errors="replace")
        except (OSError, KeyError):
            return ""

    def trained(self, job: int | str, step: int) -> bool:
        """Whether the job has completed that step."""
        return f"iteration {step:8d}/" in self.log(job)

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
