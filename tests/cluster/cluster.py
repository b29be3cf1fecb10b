"""A real Slurm cluster on this machine: munged, slurmctld, N slurmds, and on request MariaDB and slurmdbd.

Each node lives in its own PID, host name and mount namespace, so that it can lose power, hang and reboot by itself.
Everything lies below one folder and ends with the process that made it, unless it is told to keep.
"""

import json
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from types import TracebackType

from tests.cluster import accounts, daemons, ports, processes, scontrol
from tests.cluster.config import Layout, Ports, Settings, hosts_file, slurm_conf
from tests.cluster.enclosure import PATH, Enclosure, send
from tests.cluster.waiting import until

SLOW_S = 90  # how long a start may take on a machine that is busy with other clusters
ENDED = frozenset(
    {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "BOOT_FAIL", "DEADLINE"}
)
_NODE = 'hostname "$1" && slurmd -D -f "$2" -N "$1" & wait $!'
_DESCRIPTION = "cluster.json"


class ClusterError(Exception):
    """A command against the cluster failed; the text holds the command and what it said."""


class SlurmCluster:
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
        self.settings = Settings(
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
        self._hooks = {"epilog": epilog, "prolog": prolog}
        self._given = folder
        self._layout: Layout | None = None
        self._ports: Ports | None = None
        self._enclosure: Enclosure | None = None

    # -- life ------------------------------------------------------------------------------------------------------

    def start(self) -> "SlurmCluster":
        """Returns when all nodes are idle. When that fails nothing is left running."""
        accounts.ensure()
        folder = self._new_folder()
        self._layout = Layout(folder)
        reservation = ports.reserve(Ports.needed(self.settings.nodes))
        self._ports = Ports(reservation.first)
        hosts = folder / "hosts"
        hosts.write_text(hosts_file(self.settings))
        self._enclosure = Enclosure.open(
            folder_to_remove=None if self._given else folder, hosts=hosts, locks=reservation.locks
        )
        try:
            self._write()
            daemons.start_munged(self._enclosure, self._layout)
            if self.settings.accounting:
                daemons.start_accounting(self._enclosure, self.settings, self._layout, self._ports)
            self._boot(self.settings.node_names)
            self.start_slurmctld()
            until(self._all_idle, f"all nodes of {folder} idle (see its log/)", timeout_s=SLOW_S)
        except BaseException as failure:
            failure.add_note(self._last_words())
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Ends every process of the cluster. Safe to call twice."""
        if self._enclosure:
            self._enclosure.close()
        if self._layout and not self._given:
            shutil.rmtree(self._layout.folder, ignore_errors=True)

    def keep(self) -> None:
        """Lets the cluster (and its folder) outlive this process: `attach(folder).stop()` ends it."""
        self._inside.keep()

    @classmethod
    def attach(cls, folder: Path) -> "SlurmCluster":
        """The running cluster in that folder, made by another process. Raises ClusterError when there is none."""
        try:
            told = json.loads((folder / _DESCRIPTION).read_text())
        except OSError as missing:
            raise ClusterError(f"no cluster in {folder}: {missing}") from missing
        enclosure = Enclosure.attach(told["first_pid"], told["first_ticks"])
        if enclosure is None:
            raise ClusterError(f"the cluster in {folder} is not running any more; start a new one")
        self = cls(folder=None if told["remove_folder"] else folder)
        self.settings = Settings(**told["settings"])
        self._layout = Layout(folder)
        self._ports = Ports(told["first_port"])
        self._enclosure = enclosure
        return self

    def __enter__(self) -> "SlurmCluster":
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # -- facts -----------------------------------------------------------------------------------------------------

    @property
    def layout(self) -> Layout:
        if self._layout is None:
            raise ClusterError("the cluster has not been started: use `with SlurmCluster(…) as c:` or c.start()")
        return self._layout

    @property
    def dir(self) -> Path:
        return self.layout.folder

    @property
    def name(self) -> str:
        return self.settings.name

    @property
    def nodes(self) -> tuple[str, ...]:
        return self.settings.node_names

    @property
    def env(self) -> dict[str, str]:
        """The whole environment for a client of this cluster."""
        return {"SLURM_CONF": str(self.layout.slurm_conf), "PATH": PATH, "LANG": "C.UTF-8"}

    @property
    def operator(self) -> str:
        """Account that may change everybody's jobs. Without accounting Slurm knows no admin levels: then root."""
        return accounts.OPERATOR if self.settings.accounting else "root"

    @property
    def running(self) -> bool:
        return self._enclosure is not None and self._enclosure.alive

    @property
    def _inside(self) -> Enclosure:
        self.layout  # noqa: B018 - raises when not started
        assert self._enclosure is not None
        return self._enclosure

    def home(self, user: str) -> Path:
        """The folder below jobs/ in which that user's jobs start and leave their output."""
        folder = self.layout.jobs / user
        if not folder.exists():
            folder.mkdir(mode=0o755)
            entry = pwd.getpwnam(user)
            os.chown(folder, entry.pw_uid, entry.pw_gid)
        return folder

    # -- commands --------------------------------------------------------------------------------------------------

    def run(
        self,
        *argv: str,
        user: str | None = None,
        stdin: str | None = None,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 60,
        check: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command (as root, or as `user`) against this cluster. `check` raises ClusterError when it fails."""
        account = pwd.getpwnam(user) if user else None
        done = subprocess.run(
            argv,
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            env={**self.env, **({"USER": user, "LOGNAME": user} if user else {}), **(env or {})},
            cwd=cwd or (self.home(user) if user else self.dir),
            user=account.pw_uid if account else None,
            group=account.pw_gid if account else None,
            extra_groups=[] if account else None,
            timeout=timeout_s,
            check=False,
        )
        if check and done.returncode != 0:
            raise ClusterError(f"{' '.join(argv)} (as {user or 'root'}) gave {done.returncode}: {done.stderr.strip()}")
        return done

    def submit(
        self,
        user: str,
        script: str,
        *sbatch_args: str,
        name: str | None = None,
        comment: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> int:
        """Submits a batch script as that user, from that user's folder (output: slurm-%j.out there unless told)."""
        text = script if script.startswith("#!") else f"#!/bin/bash\n{script}"
        number, path = tempfile.mkstemp(prefix="script-", suffix=".sh", dir=self.home(user))
        with os.fdopen(number, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
        os.chmod(path, 0o755)
        words = [f"--job-name={name or 'job'}", *([] if comment is None else [f"--comment={comment}"]), *sbatch_args]
        done = self.run("sbatch", "--parsable", *words, path, user=user, env=env, check=True)
        return int(done.stdout.strip().split(";")[0])

    def show(self, job: int | str) -> dict[str, str]:
        """scontrol's fields of a job (`12` or "12_3"). Raises ClusterError when Slurm does not know it (any more)."""
        return scontrol.fields(self.run("scontrol", "show", "job", str(job), check=True).stdout)

    def node(self, node: str) -> dict[str, str]:
        """scontrol's fields of a node, such as State and Reason."""
        return scontrol.fields(self.run("scontrol", "show", "node", node, check=True).stdout)

    def state(self, job: int | str) -> str:
        """Base state as scontrol says it: PENDING, RUNNING, COMPLETING, FAILED, …"""
        return self.show(job)["JobState"]

    def wait_state(self, job: int | str, states: Iterable[str], timeout_s: float = 60) -> str:
        """Waits until the job is in one of the states and says in which."""
        wanted, seen = set(states), ["?"]

        def reached() -> bool:
            seen.append(self.state(job))
            return seen[-1] in wanted

        try:
            until(reached, f"job {job} in {sorted(wanted)}", timeout_s=timeout_s, every_s=0.1)
        except AssertionError as failure:
            failure.add_note(f"last seen: {self.show(job)}")
            raise
        return seen[-1]

    def wait_node(self, node: str, prefixes: Iterable[str], timeout_s: float = 60) -> str:
        """Waits until the node's State starts with one of these ("IDLE", "DOWN", "ALLOCATED+DRAIN") and says it."""
        wanted, seen = tuple(prefixes), ["?"]

        def reached() -> bool:
            seen.append(self.node(node)["State"])
            return seen[-1].startswith(wanted)

        until(reached, f"node {node} in {wanted}", timeout_s=timeout_s, every_s=0.1)
        return seen[-1]

    def attempts(self, job: int | str) -> list[dict[str, str]]:
        """One row per attempt from accounting, oldest first (times as Slurm prints them)."""
        if not self.settings.accounting:
            raise ClusterError("attempts need accounting: SlurmCluster(accounting=True)")
        names = "JobID,JobIDRaw,JobName,User,State,ExitCode,NodeList,Submit,Start,End,Reason,Comment"
        done = self.run(
            "sacct", "-D", "-X", "-n", "-P", "--delimiter=\x1f", "-j", str(job), f"--format={names}", check=True
        )
        rows = [row.split("\x1f") for row in done.stdout.splitlines() if row]
        return [dict(zip(names.split(","), row, strict=True)) for row in rows]

    def output(self, job: int | str) -> str:
        """What the job has printed so far into its StdOut file; "" while there is none."""
        try:
            return Path(self.show(job)["StdOut"]).read_text(errors="surrogateescape")
        except FileNotFoundError:
            return ""

    # -- faults: nodes ---------------------------------------------------------------------------------------------

    def kill_node(self, node: str) -> None:
        """Power loss: slurmd, step daemons and all job processes of the node are gone when this returns."""
        first, pids = self._first_of(node), self.node_pids(node)
        send([first], signal.SIGKILL)
        until(lambda: not any(map(processes.alive, (first, *pids))), f"node {node} is off", timeout_s=60)

    def start_node(self, node: str) -> None:
        """Boots a node; returns when its slurmd listens. See wait_node() for what Slurm thinks of it."""
        if self._find(node):
            raise ClusterError(f"node {node} is on already")
        self._boot([node])
        port = self._port_of(node)
        log = self.layout.log / f"slurmd-{node}.log"
        until(lambda: ports.answers(port), f"slurmd of {node} listens (see {log})", timeout_s=SLOW_S)

    def reboot_node(self, node: str) -> None:
        """Off and on again, within a second on a quiet machine; Slurm may not even notice."""
        self.kill_node(node)
        self.start_node(node)

    def hang_node(self, node: str) -> None:
        """Stops (SIGSTOP) everything on the node; it looks like a lost network and a frozen kernel."""

        def all_stopped() -> bool:
            going = [pid for pid in self.node_pids(node) if processes.state(pid) not in ("T", "t")]
            send(going, signal.SIGSTOP)
            return not going

        until(all_stopped, f"everything on {node} stopped", timeout_s=30)

    def unhang_node(self, node: str) -> None:
        send(self.node_pids(node), signal.SIGCONT)

    def node_pids(self, node: str) -> tuple[int, ...]:
        """Every live process of the node, also slurmd and the step daemons; () when it is off."""
        first = self._find(node)
        if first is None:
            return ()
        here = processes.namespace(first)
        return tuple(pid for pid in processes.everyone() if processes.namespace(pid) == here and processes.alive(pid))

    def job_pids(self, job: int, node: str) -> tuple[int, ...]:
        """Processes of the job on that node: the batch script and its children on the first node, and the ranks."""
        return self._job_pids(job, node, only_steps=False)

    def rank_pids(self, job: int, node: str) -> tuple[int, ...]:
        """Only what srun started there, so that one rank can be killed and the batch script stays."""
        return self._job_pids(job, node, only_steps=True)

    def _job_pids(self, job: int, node: str, *, only_steps: bool) -> tuple[int, ...]:
        found = []
        for pid in self.node_pids(node):
            told = processes.environment(pid)
            ours = told.get("SLURM_JOB_ID") == str(job) and not processes.program(pid).startswith("slurmstepd")
            if ours and (not only_steps or told.get("SLURM_STEP_ID", "").isdigit()):
                found.append(pid)
        return tuple(sorted(found))

    def _find(self, node: str) -> int | None:
        # The node's first process is the bash that hosts its slurmd; unshare above it carries the same words.
        if node not in self.nodes:
            raise ClusterError(f"no node {node!r} in this cluster; it has {', '.join(self.nodes)}")
        words = ("relight-node", node, str(self.layout.slurm_conf))
        for pid in processes.everyone():
            argv = processes.command_line(pid)
            if argv[:1] == ("bash",) and argv[-3:] == words and processes.nesting(pid)[-1:] == (1,):
                return pid if processes.alive(pid) else None
        return None

    def _first_of(self, node: str) -> int:
        first = self._find(node)
        if first is None:
            raise ClusterError(f"node {node} is off")
        return first

    def _port_of(self, node: str) -> int:
        assert self._ports is not None
        return self._ports.nodes + self.nodes.index(node)

    def _boot(self, nodes: Iterable[str]) -> None:
        for node in nodes:
            self._inside.start(
                [
                    *("unshare", "--pid", "--uts", "--mount", "--fork", "--kill-child", "--mount-proc"),
                    *("bash", "-c", _NODE, "relight-node", node, str(self.layout.slurm_conf)),
                ],
                log=self.layout.log / f"slurmd-{node}.console",
            )

    # -- faults: the controller ------------------------------------------------------------------------------------

    def kill_slurmctld(self) -> None:
        """kill -9; what happened in the last seconds is forgotten, as on a real site."""
        self._inside.end("slurmctld", signal.SIGKILL)

    def stop_slurmctld(self) -> None:
        """Orderly end; it saves its state first."""
        self._inside.end("slurmctld", signal.SIGTERM)

    def start_slurmctld(self) -> None:
        """Returns when it answers."""
        if self._inside.pids("slurmctld"):
            raise ClusterError("slurmctld is running already")
        conf, log = self.layout.slurm_conf, self.layout.log
        self._inside.start(["slurmctld", "-D", "-f", str(conf)], log=log / "slurmctld.console")
        assert self._ports is not None
        self._inside.until_answers("slurmctld", self._ports.slurmctld, log / "slurmctld.log")
        until(
            lambda: " is UP" in self.run("scontrol", "ping").stdout,
            f"slurmctld answers (see {log}/slurmctld.log)",
            timeout_s=SLOW_S,
        )

    def hang_slurmctld(self) -> None:
        self._inside.send_to("slurmctld", signal.SIGSTOP)

    def unhang_slurmctld(self) -> None:
        self._inside.send_to("slurmctld", signal.SIGCONT)

    def stop_slurmdbd(self) -> None:
        """Accounting goes away; slurmctld queues what it has to tell."""
        self._inside.end("slurmdbd", signal.SIGTERM)

    def start_slurmdbd(self) -> None:
        assert self._ports is not None
        daemons.start_slurmdbd(self._inside, self.layout, self._ports)

    # -- making it -------------------------------------------------------------------------------------------------

    def _new_folder(self) -> Path:
        if self._given is None:
            folder = Path(tempfile.mkdtemp(prefix="relight-cluster-"))
        else:
            folder = self._given.absolute()
            folder.mkdir(parents=True)
        folder.chmod(0o755)
        if len(str(folder)) > 80:
            raise ClusterError(f"{folder}: too long for the sockets in it; choose a path of at most 80 characters")
        for parent in folder.parents:
            if not parent.stat().st_mode & 0o001:
                raise ClusterError(f"{folder}: other users cannot pass through {parent}; choose a folder below /tmp")
        return folder

    def _write(self) -> None:
        assert self._ports is not None
        layout, inside = self.layout, self._inside
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
                self._ports,
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
            "first_port": self._ports.first,
            "remove_folder": self._given is None,
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
