"""Strikes at an exact point of a Slurm change: scripts that stand in for the gate's interpreter and for `scontrol`.

The product knows nothing of them: its settings name an interpreter and a PATH, and these are on it. A strike happens
once, for one job, at one point; everything else passes through.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.cluster import processes
from tests.cluster.waiting import until

# -I -S gate.py VERB JOB …; the parent is the worker.
_PYTHON = """#!/bin/sh
name="$4-$5"
[ -e "{folder}/armed/$name" ] || name="$4-any"
if [ -e "{folder}/armed/$name" ] && mv "{folder}/armed/$name" "{folder}/taken/$name"; then
  read -r order < "{folder}/taken/$name"
  echo "$$ $PPID" > "{folder}/pids/$name"
  mv "{folder}/taken/$name" "{folder}/struck/$name"
  case "$order" in
    worker-before) kill -9 $PPID; exit 137 ;;
    worker-after) "{python}" "$@" > "{folder}/pids/$name.answer"; kill -9 $PPID; exit 137 ;;
    stop) kill -STOP $PPID $$ ;;
    pause) until [ -e "{folder}/go/$name" ]; do sleep 0.02; done ;;
  esac
fi
exec "{python}" "$@"
"""

# requeue JOB; the parent is the gate, and the gate's parent the worker.
_SCONTROL = """#!/bin/sh
[ "$1" = requeue ] || exec "{scontrol}" "$@"
"{scontrol}" "$@"
status=$?
echo "$2 $status" >> "{folder}/requeues"
name="between-$2"
if [ -e "{folder}/armed/$name" ] && mv "{folder}/armed/$name" "{folder}/struck/$name"; then
  read -r order < "{folder}/struck/$name"
  worker=$(sed -n 's/^PPid:[^0-9]*//p' /proc/$PPID/status)
  case "$order" in
    worker) kill -9 $worker ;;
    worker-and-gate) kill -9 $worker $PPID ;;
    pause) until [ -e "{folder}/go/$name" ]; do sleep 0.02; done ;;
  esac
fi
exit $status
"""

# A folder named like a job makes its launch fail once, or its end last until the folder is gone.
_PROLOG = 'rmdir "{folder}/failing-launch/$SLURM_JOB_ID" 2>/dev/null && exit 1\nexit 0'
_EPILOG = 'for i in $(seq 600); do [ -d "{folder}/slow-end/$SLURM_JOB_ID" ] || exit 0; sleep 0.1; done'


class Sabotage:
    """Made before its stage: `Stage(**sabotage.settings)`. `point` is a gate verb, or `between` requeue and update."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="relight-sabotage-"))
        self.folder.chmod(0o755)
        for name in ("armed", "taken", "struck", "pids", "go", "bin", "failing-launch", "slow-end"):
            (self.folder / name).mkdir()
        scontrol = shutil.which("scontrol")
        assert scontrol is not None
        self._script("gate-python", _PYTHON.format(folder=self.folder, python=sys.executable))
        self._script("scontrol", _SCONTROL.format(folder=self.folder, scontrol=scontrol))

    def _script(self, name: str, text: str) -> None:
        path = self.folder / "bin" / name
        path.write_text(text)
        path.chmod(0o755)

    @property
    def settings(self) -> dict[str, Any]:
        """Arguments of a Stage on which the strikes work."""
        return {
            "gate": {"python": str(self.folder / "bin" / "gate-python")},
            "path": f"{self.folder}/bin:{os.environ['PATH']}",
            "prolog": _PROLOG.format(folder=self.folder),
            "epilog": _EPILOG.format(folder=self.folder),
        }

    def arm(self, point: str, job: int | str, order: str) -> None:
        """From now on the next call at that point (`job` may be "any") is struck as ordered."""
        draft = self.folder / f"{point}-{job}"
        (self.folder / "struck" / draft.name).unlink(missing_ok=True)
        draft.write_text(f"{order}\n")
        draft.rename(self.folder / "armed" / draft.name)

    def struck(self, point: str, job: int | str) -> bool:
        return (self.folder / "struck" / f"{point}-{job}").exists()

    def go(self, point: str, job: int | str) -> None:
        """Lets a paused call go on."""
        (self.folder / "go" / f"{point}-{job}").touch()

    def pids(self, point: str, job: int | str) -> tuple[int, int]:
        """Of the gate that was struck, and of its worker."""
        gate, worker = (self.folder / "pids" / f"{point}-{job}").read_text().split()
        return int(gate), int(worker)

    def wake_gate(self, point: str, job: int | str) -> None:
        """Continues a stopped gate, and waits for its end; its worker stays stopped."""
        gate, _ = self.pids(point, job)
        os.kill(gate, signal.SIGCONT)
        until(lambda: not processes.alive(gate), f"the stopped gate of job {job} ends", timeout_s=60)

    def requeues(self, job: int | str) -> int:
        """How often `scontrol requeue` of that job was accepted, by whomever the gate ran it for."""
        try:
            lines = (self.folder / "requeues").read_text().splitlines()
        except FileNotFoundError:
            return 0
        return lines.count(f"{job} 0")

    def fail_launch(self, job: int) -> None:
        (self.folder / "failing-launch" / str(job)).mkdir()

    def keep_completing(self, job: int) -> None:
        """The end of an attempt lasts, at most a minute, until it may `complete`."""
        (self.folder / "slow-end" / str(job)).mkdir()

    def complete(self, job: int) -> None:
        (self.folder / "slow-end" / str(job)).rmdir()

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
