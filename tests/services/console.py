"""`relight console` as a process of its own, as an operator starts it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

import httpx

from tests.cluster import ports
from tests.cluster.waiting import until

RELIGHT = Path(sys.executable).with_name("relight")


class ConsoleProcess:
    """Listens on a free port of loopback; gone when the block ends."""

    def __init__(self, config: Path, env: Mapping[str, str] | None = None) -> None:
        self._config, self._env = config, dict(env if env is not None else os.environ)
        self._ports = ports.reserve(1)
        self.url = f"http://127.0.0.1:{self._ports.first}"
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> ConsoleProcess:
        words = [str(RELIGHT), "console", "--config", str(self._config), "--listen", self.url.removeprefix("http://")]
        self._process = subprocess.Popen(
            words, env=self._env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        try:
            until(self._answers, "the console answers", timeout_s=60, every_s=0.1)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            assert self._process.stderr is not None
            raise RuntimeError(f"the console ended with {self._process.returncode}: {self._process.stderr.read()}")
        try:
            return httpx.get(f"{self.url}/readyz", timeout=10).status_code == 200
        except httpx.TransportError:
            return False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.communicate(timeout=30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.communicate()
        self._ports.release()
