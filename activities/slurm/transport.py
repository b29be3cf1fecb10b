"""How a request reaches the gate: as a local child process here, over SSH in `ssh.py`, behind the same Protocol.

A transport carries words and bytes. It must not interpret them, and must leave no child behind.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from activities.slurm.errors import GateBroken, SlurmTimeout

GATE = Path(__file__).with_name("gate.py")
"""The gate script. It runs on Python 3.6 and newer and imports nothing of relight."""


class GateTransport(Protocol):
    """Carries one request to a gate and brings its JSON document back."""

    async def call(self, words: Sequence[str]) -> bytes:
        """Raises SlurmTimeout when no answer came in time, GateBroken when the gate cannot be run."""
        ...

    async def close(self) -> None: ...


class LocalGate:
    """Runs the gate as a child process of this one, on a machine where Slurm's commands work.

    `env` is the child's whole environment (default: this process's own); the gate passes only PATH and SLURM_CONF on.
    `timeout_s` bounds one call as a whole; the gate's own limits (100 s) end before the default does.
    """

    def __init__(
        self,
        python: str = sys.executable,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 110.0,
        script: Path = GATE,
    ) -> None:
        self._python = python
        self._env = dict(os.environ if env is None else env)
        self._timeout_s = timeout_s
        self._script = script

    async def call(self, words: Sequence[str]) -> bytes:
        try:
            # -I -S: neither the environment nor site packages can change what the gate does. Its own session: a kill
            # reaches the Slurm command as well.
            child = await asyncio.create_subprocess_exec(
                self._python, "-I", "-S", str(self._script), *words,
                stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
                env=self._env, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise GateBroken(f"cannot run the gate {self._script} with {self._python}: {error.strerror}") from error
        try:
            out, err = await asyncio.wait_for(child.communicate(), self._timeout_s)
        except TimeoutError:
            raise SlurmTimeout(f"the gate did not answer '{' '.join(words[:2])}' in {self._timeout_s:g} s") from None
        finally:
            if child.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                await child.wait()
        if not out:
            said = err.decode("utf-8", "replace").strip()[-300:]
            raise GateBroken(f"the gate answered nothing to '{' '.join(words[:2])}' (exit {child.returncode}): {said}")
        return out

    async def close(self) -> None:
        """Nothing stays between calls."""
