"""A PID namespace that servers are started in, so that the kernel ends all of them when its first process ends.

The first process waits on a pipe held by the owner: when the owner stops, crashes or is killed, everything inside is
gone at once and its folder is removed. Nothing started here can outlive the session, whatever it forks.
"""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.cluster import ports, processes
from tests.cluster.waiting import NeverHappened, until

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# bash, because it reaps the orphans that end up with the first process of a namespace.
_FIRST_PROCESS = """
[ -z "$2" ] || mount --bind "$2" /etc/hosts || exit 1
echo ready
exec >/dev/null
read -r word
if [ "$word" = keep ]; then exec 0</dev/null; while :; do sleep 3600; done; fi
kill -KILL -1
[ -z "$1" ] || rm -rf -- "$1"
"""


class Enclosure:
    """Programs that live and end together. Needs root."""

    def __init__(self, first_pid: int, owner: subprocess.Popen[bytes] | None) -> None:
        self.first_pid = first_pid
        self.first_ticks = processes.start_ticks(first_pid)
        self._owner = owner

    @classmethod
    def open(
        cls, *, folder_to_remove: Path | None = None, hosts: Path | None = None, locks: Sequence[int] = ()
    ) -> "Enclosure":
        """Makes a new one. Programs inside see `hosts` as /etc/hosts. `locks` are open files that its first process
        takes over (they are closed here)."""
        if os.geteuid() != 0:
            raise PermissionError("test servers need root (they get their own namespaces); run ./dev with sudo")
        owner = subprocess.Popen(
            [
                *("unshare", "--pid", "--ipc", "--mount", "--fork", "--kill-child"),
                *("bash", "-c", _FIRST_PROCESS, "enclosure", str(folder_to_remove or ""), str(hosts or "")),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C in a terminal is for the owner alone
            pass_fds=locks,
            cwd="/",
            env={"PATH": PATH},
        )
        for descriptor in locks:
            os.close(descriptor)
        assert owner.stdout is not None
        assert owner.stderr is not None
        if owner.stdout.readline() != b"ready\n":
            complaint = owner.stderr.read().decode(errors="replace").strip()
            owner.wait(timeout=60)
            raise PermissionError(f"root may not make namespaces here ({complaint}); in a container use --privileged")
        owner.stdout.close()
        owner.stderr.close()
        return cls(processes.children(owner.pid)[0], owner)

    @classmethod
    def attach(cls, first_pid: int, first_ticks: int) -> "Enclosure | None":
        """One that another process made and kept, or None when it is gone."""
        if processes.start_ticks(first_pid) != first_ticks or not processes.alive(first_pid):
            return None
        return cls(first_pid, None)

    @property
    def alive(self) -> bool:
        return processes.alive(self.first_pid) and processes.start_ticks(self.first_pid) == self.first_ticks

    def start(
        self,
        argv: Sequence[str],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> None:
        """Starts a program in its own session, output appended to `log`, and does not wait for anything."""
        if not self.alive:
            raise RuntimeError(f"cannot start {argv[0]}: its enclosure (pid {self.first_pid}) has ended")
        become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"] if user else []
        # --root and --wd are the first process's own: entering a mount namespace would leave a chroot otherwise.
        enter = ["nsenter", f"--target={self.first_pid}", "--pid", "--ipc", "--mount", "--root", "--wd"]
        with log.open("ab") as output:
            # setsid --fork ends at once, so that the program belongs to the first process inside, which reaps it.
            subprocess.run(
                [*enter, "setsid", "--fork", *become, *argv],
                check=True,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={"PATH": PATH, "LANG": "C.UTF-8", **(env or {})},
                cwd="/",
                timeout=60,
            )

    def pids(self, program: str) -> tuple[int, ...]:
        """Live processes directly inside (not in namespaces below) whose program's file name starts so."""
        here = processes.namespace(self.first_pid)
        return tuple(
            pid
            for pid in processes.everyone()
            if processes.program(pid).startswith(program) and processes.namespace(pid) == here and processes.alive(pid)
        )

    def until_answers(self, program: str, port: int, log: Path, *, timeout_s: float = 90) -> None:
        """Waits until a started program accepts connections; raises with the end of its log when it does not, soon
        when it has ended."""

        started = time.monotonic()

        def settled() -> bool:
            if ports.answers(port):
                return True
            # For a moment after start() it is still the program that starts it.
            return time.monotonic() - started > 5 and not self.pids(program)

        try:
            until(settled, f"{program} answers on port {port}", timeout_s=timeout_s)
            if not ports.answers(port):
                raise NeverHappened(f"{program} has ended instead of answering on port {port}")
        except NeverHappened as failure:
            tail = log.read_text(errors="replace")[-2000:] if log.exists() else "(empty)"
            failure.add_note(f"--- {log}\n{tail}")
            raise

    def send_to(self, program: str, number: signal.Signals) -> tuple[int, ...]:
        pids = self.pids(program)
        send(pids, number)
        return pids

    def end(self, program: str, number: signal.Signals, *, timeout_s: float = 60) -> None:
        """Signals the processes of one program and waits until they are gone; killed when they take too long."""
        pids = self.send_to(program, number)
        try:
            until(lambda: not any(map(processes.alive, pids)), f"{program} {pids} ended", timeout_s=timeout_s)
        except AssertionError:
            send(pids, signal.SIGKILL)
            raise

    def keep(self) -> None:
        """From now on everything inside lives until close(), also after this process has ended."""
        if self._owner and self._owner.stdin and not self._owner.stdin.closed:
            self._owner.stdin.write(b"keep\n")
            self._owner.stdin.close()

    def close(self) -> None:
        """Ends everything inside at once. Safe to call twice."""
        if self.alive:
            os.kill(self.first_pid, signal.SIGKILL)
        until(lambda: not self.alive, f"enclosure {self.first_pid} ended", timeout_s=60, every_s=0.005)
        if self._owner:
            if self._owner.stdin and not self._owner.stdin.closed:
                self._owner.stdin.close()
            self._owner.wait(timeout=60)


def send(pids: Sequence[int], number: signal.Signals) -> None:
    """Signals processes; one that has just ended is no error."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
