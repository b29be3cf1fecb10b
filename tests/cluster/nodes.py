"""The nodes of a test cluster: each is a PID, host name and mount namespace of its own with one slurmd in it.

Everything here happens to whole nodes or to processes on them; Slurm is not asked and not told.
"""

import signal
from collections.abc import Iterable

from tests.cluster import ports, processes
from tests.cluster.client import ClusterError
from tests.cluster.config import Layout, Ports
from tests.cluster.enclosure import Enclosure, send
from tests.cluster.waiting import until

# bash is the first process of a node and reaps what jobs leave behind; when slurmd ends, the node is off.
_NODE = 'hostname "$1" && slurmd -D -f "$2" -N "$1" & wait $!'


class Nodes:
    def __init__(self, names: tuple[str, ...], layout: Layout, numbers: Ports, enclosure: Enclosure) -> None:
        self.names = names
        self._layout = layout
        self._numbers = numbers
        self._enclosure = enclosure

    def boot(self, names: Iterable[str]) -> None:
        """Starts slurmd on these nodes and does not wait."""
        for name in names:
            self._enclosure.start(
                [
                    *("unshare", "--pid", "--uts", "--mount", "--fork", "--kill-child", "--mount-proc"),
                    *("bash", "-c", _NODE, "relight-node", name, str(self._layout.slurm_conf)),
                ],
                log=self._layout.log / f"slurmd-{name}.console",
            )

    def start(self, name: str) -> None:
        if self._first_process(name) is not None:
            raise ClusterError(f"node {name} is on already")
        self.boot([name])
        port = self._numbers.nodes + self.names.index(name)
        log = self._layout.log / f"slurmd-{name}.log"
        until(lambda: ports.answers(port), f"slurmd of {name} listens (see {log})", timeout_s=90)

    def kill(self, name: str) -> None:
        first, pids = self._first_process(name), self.pids(name)
        if first is None:
            raise ClusterError(f"node {name} is off")
        send([first], signal.SIGKILL)
        until(lambda: not any(map(processes.alive, (first, *pids))), f"node {name} is off", timeout_s=60)

    def hang(self, name: str) -> None:
        def all_stopped() -> bool:
            going = [pid for pid in self.pids(name) if processes.state(pid) not in ("T", "t")]
            send(going, signal.SIGSTOP)
            return not going

        until(all_stopped, f"everything on {name} stopped", timeout_s=30)

    def unhang(self, name: str) -> None:
        send(self.pids(name), signal.SIGCONT)

    def pids(self, name: str) -> tuple[int, ...]:
        """Every live process of the node; () when it is off."""
        first = self._first_process(name)
        if first is None:
            return ()
        here = processes.namespace(first)
        return tuple(pid for pid in processes.everyone() if processes.namespace(pid) == here and processes.alive(pid))

    def job_pids(self, job: int, name: str, *, only_steps: bool) -> tuple[int, ...]:
        """Processes of a job there, without Slurm's own; `only_steps`: only those that srun started."""
        found = []
        for pid in self.pids(name):
            told = processes.environment(pid)
            ours = told.get("SLURM_JOB_ID") == str(job) and not processes.program(pid).startswith("slurmstepd")
            if ours and (not only_steps or told.get("SLURM_STEP_ID", "").isdigit()):
                found.append(pid)
        return tuple(sorted(found))

    def _first_process(self, name: str) -> int | None:
        if name not in self.names:
            raise ClusterError(f"no node {name!r} in this cluster; it has {', '.join(self.names)}")
        # unshare above it carries the same words, but is not the first of a namespace.
        words = ("relight-node", name, str(self._layout.slurm_conf))
        for pid in processes.everyone():
            argv = processes.command_line(pid)
            if argv[:1] == ("bash",) and argv[-3:] == words and processes.nesting(pid)[-1:] == (1,):
                return pid if processes.alive(pid) else None
        return None
