"""Speaks to a test cluster as its users do: submits, looks, waits. Starts and breaks nothing."""

import os
import pwd
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.cluster import scontrol
from tests.cluster.config import Layout, Settings
from tests.cluster.enclosure import PATH
from tests.cluster.waiting import until


class ClusterError(Exception):
    """A command against the cluster failed; the text holds the command and what it said."""


class Client:
    """Needs only the cluster's folder, and root to act as other users."""

    def __init__(self, settings: Settings, layout: Layout) -> None:
        self.settings = settings
        self.layout = layout

    @property
    def dir(self) -> Path:
        return self.layout.folder

    @property
    def env(self) -> dict[str, str]:
        """The whole environment for a client of this cluster."""
        return {"SLURM_CONF": str(self.layout.slurm_conf), "PATH": PATH, "LANG": "C.UTF-8"}

    def home(self, user: str) -> Path:
        """The folder below jobs/ in which that user's jobs start and leave their output."""
        folder = self.layout.jobs / user
        if not folder.exists():
            folder.mkdir(mode=0o755)
            entry = pwd.getpwnam(user)
            os.chown(folder, entry.pw_uid, entry.pw_gid)
        return folder

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

    def settled_attempts(self, job: int | str) -> list[dict[str, str]]:
        """The same, once accounting (which lags) tells of the newest attempt what the scheduler tells."""

        def caught_up() -> bool:
            rows = self.attempts(job)
            return bool(rows) and rows[-1]["State"].split(" ")[0] == self.state(job)

        until(caught_up, f"accounting knows how job {job} is", timeout_s=60, every_s=0.2)
        return self.attempts(job)

    def output(self, job: int | str) -> str:
        """What the job has printed so far into its StdOut file; "" while there is none."""
        try:
            return Path(self.show(job)["StdOut"]).read_text(errors="surrogateescape")
        except FileNotFoundError:
            return ""
