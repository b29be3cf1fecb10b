"""Prometheus in its own folder: scrapes what a test tells it to, and can be given a past.

The past is written as blocks before the server starts, so that a test of half an hour's samples takes a second.
"""

import json
import shutil
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlencode

from tests.cluster.enclosure import PATH
from tests.cluster.waiting import until
from tests.services.home import SLOW_S, Home


@dataclass(frozen=True)
class Line:
    """Samples of one series in the past: (seconds since 1970, value)."""

    name: str
    labels: Mapping[str, str]
    samples: Sequence[tuple[float, float]]


class PrometheusServer:
    """`with PrometheusServer(past=[Line(…)]) as server: ask(server.url)`. Needs root, as all servers here."""

    def __init__(
        self,
        targets: Mapping[str, Mapping[str, str]] | None = None,
        *,
        past: Iterable[Line] = (),
        scrape_s: float = 0.5,
    ) -> None:
        """`targets` maps host:port to the labels its series get (`job` among them)."""
        self._targets = dict(targets or {})
        self._past = list(past)
        self._scrape_s = scrape_s
        self._home: Home | None = None

    @property
    def _started(self) -> Home:
        if self._home is None:
            raise RuntimeError("PrometheusServer has not been started")
        return self._home

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._started.port}"

    def start(self) -> "PrometheusServer":
        first = self._home is None
        home = self._home = self._home or Home("prometheus", "prometheus")
        try:
            data, config = home.folder / "data", home.folder / "prometheus.json"
            if first:
                data.mkdir()
                if self._past:
                    _write_past(self._past, home.folder / "past", data)
                config.write_text(json.dumps(self._config()))  # JSON is YAML
                (home.folder / "targets.json").write_text(json.dumps(self._target_list()))
            home.start(
                [
                    *(prometheus_program(), f"--config.file={config}", f"--storage.tsdb.path={data}"),
                    *(f"--web.listen-address=127.0.0.1:{home.port}", "--storage.tsdb.retention.time=30d"),
                    "--log.level=warn",
                ]
            )
            until(self._ready, f"Prometheus on port {home.port} is ready (see {home.log})", timeout_s=SLOW_S)
        except BaseException:
            self.close()
            raise
        return self

    def query(self, text: str) -> list[dict[str, Any]]:
        """The rows of an instant query, straight from the server."""
        with urllib.request.urlopen(f"{self.url}/api/v1/query?{urlencode({'query': text})}", timeout=30) as answer:
            rows: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        return rows

    def stop(self) -> None:
        self._started.end(signal.SIGTERM)

    def hang(self) -> None:
        """Keeps its connections and answers nobody until unhang()."""
        self._started.enclosure.send_to("prometheus", signal.SIGSTOP)

    def unhang(self) -> None:
        self._started.enclosure.send_to("prometheus", signal.SIGCONT)

    def close(self) -> None:
        """Removes the server with its data."""
        if self._home:
            self._home.close()
            self._home = None

    def __enter__(self) -> "PrometheusServer":
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def _config(self) -> dict[str, Any]:
        every = f"{int(self._scrape_s * 1000)}ms"
        return {
            "global": {"scrape_interval": every, "scrape_timeout": every},
            "scrape_configs": [
                {
                    "job_name": "exporters",
                    "file_sd_configs": [{"files": [str(self._started.folder / "targets.json")]}],
                }
            ],
        }

    def _target_list(self) -> list[dict[str, Any]]:
        return [{"targets": [address], "labels": dict(labels)} for address, labels in self._targets.items()]


def prometheus_program() -> str:
    found = shutil.which("prometheus", path=PATH)
    if not found:
        raise FileNotFoundError("no prometheus command: run ./dev setup (package prometheus)")
    return found


def _write_past(past: Iterable[Line], text: Path, data: Path) -> None:
    """Blocks of the given samples, made by Prometheus' own tool."""
    by_name: dict[str, list[Line]] = {}
    for line in past:
        by_name.setdefault(line.name, []).append(line)
    with text.open("w", encoding="utf-8") as out:
        for name, lines in by_name.items():
            out.write(f"# TYPE {name} unknown\n")
            for line in lines:
                labels = ",".join(f'{label}="{value}"' for label, value in sorted(line.labels.items()))
                out.writelines(f"{name}{{{labels}}} {value} {at:.3f}\n" for at, value in line.samples)
        out.write("# EOF\n")
    begun = time.monotonic()
    done = subprocess.run(
        ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(text), str(data)],
        capture_output=True,
        text=True,
        env={"PATH": PATH},
        timeout=120,
        check=False,
    )
    if done.returncode != 0:
        took = time.monotonic() - begun
        raise RuntimeError(f"promtool could not write the past ({took:.0f} s): {done.stderr[-1500:]}")
