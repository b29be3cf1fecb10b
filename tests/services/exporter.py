"""A fake exporter: serves the metrics of a scenario in Prometheus' text format, and misbehaves when told to.

It runs in a thread of the test, so that a test can change what the next scrape sees.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

Key = tuple[str, tuple[tuple[str, str], ...]]


class FakeExporter:
    """`with FakeExporter() as exporter: exporter.set("up_since", 1, gpu="0")`; `exporter.address` is what to scrape."""

    def __init__(self) -> None:
        self._values: dict[Key, float] = {}
        self._lock = threading.Lock()
        self._away = False
        self.scrapes = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_address[1]}"

    def set(self, metric: str, value: float, **labels: str) -> None:
        """What the next scrape shows for this series."""
        with self._lock:
            self._values[metric, tuple(sorted(labels.items()))] = value

    def drop(self, metric: str, **labels: str) -> None:
        """The series with these labels (among others) are not there any more."""
        with self._lock:
            gone = [key for key in self._values if key[0] == metric and set(labels.items()) <= set(key[1])]
            for key in gone:
                del self._values[key]

    def go_away(self) -> None:
        """Scrapes fail from now on."""
        self._away = True

    def come_back(self) -> None:
        self._away = False
        self.scrapes = 0

    def text(self) -> str | None:
        """What a scrape gets; None: an error."""
        self.scrapes += 1
        if self._away:
            return None
        with self._lock:
            return "".join(
                f"{name}{{{_labels(dict(labels))}}} {value}\n" for (name, labels), value in self._values.items()
            )

    def __enter__(self) -> FakeExporter:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{value}"' for name, value in labels.items())


def _handler(exporter: FakeExporter) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            text = exporter.text()
            self.send_response(200 if text is not None else 500)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write((text or "").encode())

        def log_message(self, *words: object) -> None:
            pass

    return Handler
