"""An HTTP server in the place of Prometheus that answers as a test wants, for what no real one can be made to do."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs, urlsplit

ONE_ROW = {"status": "success", "data": {"resultType": "vector", "result": [{"metric": {"a": "b"}, "value": [1, "2"]}]}}


class Double:
    """An HTTP server that answers as a test wants, and remembers how it was asked."""

    def __init__(self) -> None:
        self.say: Callable[[BaseHTTPRequestHandler], None] = self.fine
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        double = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
                query = parse_qs(body or urlsplit(self.path).query).get("query", [""])[0]
                double.asked.append((self.command, query, dict(self.headers)))
                double.say(self)

            do_POST = do_GET

            def log_message(self, *words: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.server.handle_error = lambda *_: None  # type: ignore[method-assign]  # whoever asked has hung up
        self.ending = threading.Event()
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.server.server_address[1]}"

    @staticmethod
    def send(handler: BaseHTTPRequestHandler, body: bytes, status: int = 200, **headers: str) -> None:
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    def fine(self, handler: BaseHTTPRequestHandler) -> None:
        self.send(handler, json.dumps(ONE_ROW).encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ending.set()
        self.server.shutdown()
        self.server.server_close()
