"""A real Slurm cluster on this machine: munged, slurmctld, N slurmds, and on request MariaDB and slurmdbd.

Each node lives in its own PID, host name and mount namespace, so that it can lose power, hang and reboot by itself.
Everything lies below one folder and ends with the process that made it, unless it is told to keep.
"""

import json
import os
import secrets
import shutil
import signal
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

from tests.cluster import accounts, daemons, ports
from tests.cluster.client import Client, ClusterError
from tests.cluster.config import Layout, Ports, Settings, hosts_file, slurm_conf
from tests.cluster.enclosure import Enclosure
from tests.cluster.nodes import Nodes
from tests.cluster.waiting import until

SLOW_S = 90  # how long a start may take on a machine that is busy with other clusters
ENDED = frozenset(
    {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "BOOT_FAIL", "DEADLINE"}
)
_DESCRIPTION = "cluster.json"


@dataclass(frozen=True)
class _Running:
    ports: Ports
    enclosure: Enclosure
    nodes: Nodes


class SlurmCluster(Client):
    """Use as a context manager, or start() and stop(). Needs root."""

    def __init__(
        self,
        *,
        nodes: int = 4,
        accounting: bool = False,
        name: str = "prod",
        first_job_id: int = 1,
        cred_expire_s: int = 5,
        min_job_age_s: int = 300,
        kill_wait_s: int = 2,
        slurmd_timeout_s: int = 10,
        cpus: int = 4,
        memory_mb: int = 1000,
        extra_conf: str = "",
        epilog: str | None = None,
        prolog: str | None = None,
        folder: Path | None = None,
    ) -> None:
        """`extra_conf` holds lines of slurm.conf; they replace ours of the same key. `epilog` and `prolog` are shell
        texts that every node runs as root. `folder` must not exist yet; by default it is a new one in /tmp that is
        removed at the end (a given one stays)."""
        settings = Settings(
            name=name,
            nodes=nodes,
            cpus=cpus,
            memory_mb=memory_mb,
            accounting=accounting,
            first_job_id=first_job_id,
            cred_expire_s=cred_expire_s,
            min_job_age_s=min_job_age_s,
            kill_wait_s=kill_wait_s,
            slurmd_timeout_s=slurmd_timeout_s,
            extra_conf=extra_conf,
        )
        self._temporary = folder is None
        chosen = folder or Path(tempfile.gettempdir()) / f"relight-cluster-{secrets.token_hex(4)}"
        super().__init__(settings, Layout(chosen.absolute()))
        self._hooks = {"epilog": epilog, "prolog": prolog}
        self._running: _Running | None = None

    # -- life ------------------------------------------------------------------------------------------------------

    def start(self) -> "SlurmCluster":
        """Returns when all nodes are idle. When that fails nothing is left running."""
        accounts.ensure()
        self._make_folder()
        hosts = self.dir / "hosts"
        hosts.write_text(hosts_file(self.settings))
        reservation = ports.reserve(Ports.needed(self.settings.nodes))
        enclosure = Enclosure.open(
            folder_to_remove=self.dir if self._temporary else None, hosts=hosts, locks=reservation.locks
        )
        self._run_in(enclosure, Ports(reservation.first))
        try:
            self._write()
            daemons.start_munged(enclosure, self.layout)
            if self.settings.accounting:
                daemons.start_accounting(enclosure, self.settings, self.layout, self._parts.ports)
            self._parts.nodes.boot(self.nodes)
            self.start_slurmctld()
            until(self._all_idle, f"all nodes of {self.dir} idle (see its log/)", timeout_s=SLOW_S)
        except BaseException as failure:
            failure.add_note(self._last_words())
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Ends every process of the cluster. Safe to call twice."""
        if self._running:
            self._running.enclosure.close()
            if self._temporary:
                shutil.rmtree(self.dir, ignore_errors=True)

    def keep(self) -> None:
        """Lets the cluster (and its folder) outlive this process: `attach(folder).stop()` ends it."""
        self._parts.enclosure.keep()

    @classmethod
    def attach(cls, folder: Path) -> "SlurmCluster":
        """The running cluster in that folder, made by another process. Raises ClusterError when there is none."""
        try:
            if folder.stat().st_uid != os.geteuid():  # it names a process that stop() will kill
                raise ClusterError(f"{folder} belongs to another account; choose another folder")
            told = json.loads((folder / _DESCRIPTION).read_text())
        except OSError as missing:
            raise ClusterError(f"no cluster in {folder}: {missing}") from missing
        enclosure = Enclosure.attach(told["first_pid"], told["first_ticks"])
        if enclosure is None:
            raise ClusterError(f"the cluster in {folder} is not running any more; start a new one")
        self = cls(folder=folder)
        self._temporary = told["remove_folder"]
        self.settings = Settings(**told["settings"])
        self._run_in(enclosure, Ports(told["first_port"]))
        return self

    def __enter__(self) -> "SlurmCluster":
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # -- facts -----------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def nodes(self) -> tuple[str, ...]:
        return self.settings.node_names

    @property
    def operator(self) -> str:
        """Account that may change everybody's jobs. Without accounting Slurm knows no admin levels: then root."""
        return accounts.OPERATOR if self.settings.accounting else "root"

    @property
    def running(self) -> bool:
        return self._running is not None and self._running.enclosure.alive

    @property
    def first_pid(self) -> int:
        """The process with which everything in the cluster ends."""
        return self._parts.enclosure.first_pid

    @property
    def _parts(self) -> _Running:
        if self._running is None:
            raise ClusterError("the cluster has not been started: use `with SlurmCluster(…) as c:` or c.start()")
        return self._running

    # -- faults: nodes ---------------------------------------------------------------------------------------------

    def kill_node(self, node: str) -> None:
        """Power loss: slurmd, step daemons and all job processes of the node are gone when this returns."""
        self._parts.nodes.kill(node)

    def start_node(self, node: str) -> None:
        """Boots a node; returns when its slurmd listens. See wait_node() for what Slurm thinks of it."""
        self._parts.nodes.start(node)

    def reboot_node(self, node: str) -> None:
        """Off and on again, within a second on a quiet machine; Slurm may not even notice."""
        self.kill_node(node)
        self.start_node(node)

    def hang_node(self, node: str) -> None:
        """Stops (SIGSTOP) everything on the node; it looks like a lost network and a frozen kernel."""
        self._parts.nodes.hang(node)

    def unhang_node(self, node: str) -> None:
        self._parts.nodes.unhang(node)

    def node_pids(self, node: str) -> tuple[int, ...]:
        """Every live process of the node, also slurmd and the step daemons; () when it is off."""
        return self._parts.nodes.pids(node)

    def job_pids(self, job: int, node: str) -> tuple[int, ...]:
        """Processes of the job on that node: the batch script and its children on the first node, and the ranks."""
        return self._parts.nodes.job_pids(job, node, only_steps=False)

    def rank_pids(self, job: int, node: str) -> tuple[int, ...]:
        """Only what srun started there, so that one rank can be killed and the batch script stays."""
        return self._parts.nodes.job_pids(job, node, only_steps=True)

    # -- faults: the controller ------------------------------------------------------------------------------------

    def kill_slurmctld(self) -> None:
        """kill -9; what happened in the last seconds is forgotten, as on a real site."""
        self._parts.enclosure.end("slurmctld", signal.SIGKILL)

    def stop_slurmctld(self) -> None:
        """Orderly end; it saves its state first."""
        self._parts.enclosure.end("slurmctld", signal.SIGTERM)

    def start_slurmctld(self) -> None:
        """Returns when it answers."""
        if self._parts.enclosure.pids("slurmctld"):
            raise ClusterError("slurmctld is running already")
        conf, log = self.layout.slurm_conf, self.layout.log
        self._parts.enclosure.start(["slurmctld", "-D", "-f", str(conf)], log=log / "slurmctld.console")
        self._parts.enclosure.until_answers("slurmctld", self._parts.ports.slurmctld, log / "slurmctld.log")
        until(
            lambda: " is UP" in self.run("scontrol", "ping").stdout,
            f"slurmctld answers (see {log}/slurmctld.log)",
            timeout_s=SLOW_S,
        )

    def hang_slurmctld(self) -> None:
        self._parts.enclosure.send_to("slurmctld", signal.SIGSTOP)

    def unhang_slurmctld(self) -> None:
        self._parts.enclosure.send_to("slurmctld", signal.SIGCONT)

    def stop_slurmdbd(self) -> None:
        """Accounting goes away; slurmctld queues what it has to tell."""
        self._parts.enclosure.end("slurmdbd", signal.SIGTERM)

    def start_slurmdbd(self) -> None:
        daemons.start_slurmdbd(self._parts.enclosure, self.layout, self._parts.ports)

    # -- making it -------------------------------------------------------------------------------------------------

    def _run_in(self, enclosure: Enclosure, numbers: Ports) -> None:
        self._running = _Running(numbers, enclosure, Nodes(self.nodes, self.layout, numbers, enclosure))

    def _make_folder(self) -> None:
        if len(str(self.dir)) > 80:
            raise ClusterError(f"{self.dir}: too long for the sockets in it; choose a path of at most 80 characters")
        for parent in self.dir.parents:
            if parent.exists() and not parent.stat().st_mode & 0o001:
                raise ClusterError(f"{self.dir}: other users cannot pass through {parent}; choose a folder below /tmp")
        self.dir.mkdir(parents=True)
        self.dir.chmod(0o755)

    def _write(self) -> None:
        layout, inside = self.layout, self._parts.enclosure
        daemons.prepare_folders(layout)
        for hook, text in self._hooks.items():
            if text is not None:
                path = layout.etc / f"{hook}.sh"
                path.write_text(text if text.startswith("#!") else f"#!/bin/bash\n{text}\n")
                path.chmod(0o755)
        layout.slurm_conf.write_text(
            slurm_conf(
                self.settings,
                layout,
                self._parts.ports,
                epilog=self._hooks["epilog"] is not None,
                prolog=self._hooks["prolog"] is not None,
            )
        )
        # Read by 23.11 and later, which otherwise insist on the machine's own cgroup tree.
        if daemons.slurm_release() >= (23, 11):
            (layout.etc / "cgroup.conf").write_text("CgroupPlugin=disabled\n")
        for user in (*accounts.USERS, accounts.OPERATOR):
            self.home(user)
        told = {
            "first_pid": inside.first_pid,
            "first_ticks": inside.first_ticks,
            "first_port": self._parts.ports.first,
            "remove_folder": self._temporary,
            "operator": self.operator,
            "users": list(accounts.USERS),
            "env": self.env,
            "settings": asdict(self.settings),
        }
        (layout.folder / _DESCRIPTION).write_text(json.dumps(told, indent=2) + "\n")

    def _all_idle(self) -> bool:
        states = self.run("sinfo", "-h", "-N", "-p", "main", "-o", "%T").stdout.split()
        return states == ["idle"] * self.settings.nodes

    def _last_words(self) -> str:
        words = [f"logs of the cluster in {self.dir}:"]
        for file in sorted(self.layout.log.glob("*")):
            tail = file.read_text(errors="replace").splitlines()[-6:]
            words += [f"--- {file.name}", *tail] if tail else []
        return "\n".join(words)
