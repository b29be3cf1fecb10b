"""A tiny log shipper for tests: follows the output files of jobs and puts their lines into a VictoriaLogs.

Like a real one it labels lines by itself, and keeps what it could not deliver until the store is back.
"""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

from tests.services.victorialogs import VictoriaLogsServer

EVERY_S = 0.3


class Forwarder:
    """`with Forwarder(server) as forwarder: forwarder.follow(job, path, node)`."""

    def __init__(self, server: VictoriaLogsServer) -> None:
        self._server = server
        self._files: dict[Path, tuple[str, str]] = {}
        self._read: dict[Path, int] = {}
        self._waiting: list[dict[str, str]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def follow(self, job: int, path: str, node: str) -> None:
        self._files = {**self._files, Path(path): (str(job), node)}

    def __enter__(self) -> Forwarder:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join(30)

    def _run(self) -> None:
        while not self._ended.wait(EVERY_S):
            for path, (job, node) in self._files.items():
                self._take(path, job, node)
            try:
                if self._waiting:
                    self._server.insert(self._waiting)
            except OSError:
                continue
            self._waiting = []

    def _take(self, path: Path, job: str, node: str) -> None:
        try:
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                data = file.read()
        except FileNotFoundError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._read[path] = self._read.get(path, 0) + len(whole)
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        self._waiting += [
            {"_time": now, "_msg": text, "slurm_job_id": job, "host": node, "file": path.name}
            for text in whole.decode(errors="replace").splitlines()
        ]
