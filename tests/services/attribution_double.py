"""A strict double of an attribution service and of a chat endpoint: real sockets, and every way to misbehave.

It refuses requests that do not keep to the published adapter request, and remembers what it was asked.
"""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
from collections.abc import Callable
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

Say = Callable[["Call"], None]

REQUIRED = {
    "schema_version": str,
    "workload_id": str,
    "scope": dict,
    "failure_context": dict,
    "workload_context": dict,
    "timeout_ms": int,
    "phase": str,
}
OPTIONAL = {"continue_session", "user_id"}


class Call:
    """One request, and how to answer it."""

    def __init__(self, handler: BaseHTTPRequestHandler, body: dict[str, Any], ending: threading.Event) -> None:
        self.handler, self.body, self.ending = handler, body, ending

    def send(self, answer: object, status: int = 200) -> None:
        data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.handler.send_response(status)
        self.handler.send_header("Content-Type", "application/json")
        self.handler.send_header("Content-Length", str(len(data)))
        self.handler.end_headers()
        self.handler.wfile.write(data)

    def chat(self, answer: object, **choice: Any) -> None:
        text = answer if isinstance(answer, str) else json.dumps(answer)
        self.send({"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop", **choice}]})


class AttributionDouble:
    """Serves POST /v1/attribution and POST /v1/chat/completions on loopback; `say` answers."""

    def __init__(self, say: Say | None = None, *, certificate: Path | None = None, key: Path | None = None) -> None:
        self.say: Say = say or (lambda call: call.send({"category": "unknown"}))
        self.asked: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.refused: list[str] = []
        self.ending = threading.Event()
        double = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                problem = wrong(self.path, body)
                double.headers.append(dict(self.headers))
                if problem:
                    double.refused.append(problem)
                    self.send_error(422, problem)
                    return
                double.asked.append(body)
                double.say(Call(self, body, double.ending))

            def log_message(self, *words: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.scheme = "http"
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate, key)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
            self.scheme = "https"
        self.server.handle_error = lambda *_: None  # type: ignore[method-assign]  # whoever asked has hung up
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.ending.set()
        self.server.shutdown()
        self.server.server_close()


def wrong(path: str, body: dict[str, Any]) -> str:
    """What is wrong with a request; empty: nothing."""
    if path == "/v1/chat/completions":
        fine = isinstance(body.get("model"), str) and body.get("messages") and body.get("stream") is False
        return "" if fine else "not a chat completion request"
    if path != "/v1/attribution":
        return f"nothing is served at {path}"
    for name, kind in REQUIRED.items():
        if type(body.get(name)) is not kind:
            return f"{name}: expected {kind.__name__}"
    if unknown := set(body) - set(REQUIRED) - OPTIONAL:
        return f"unknown: {sorted(unknown)}"
    if body["schema_version"] != "0.1.0" or body["phase"] not in {"fast", "slow"} or body["timeout_ms"] <= 0:
        return "schema_version, phase or timeout_ms"
    scope, failure, workload = body["scope"], body["failure_context"], body["workload_context"]
    if not isinstance(scope.get("nodes"), list) or not isinstance(scope.get("ranks"), list):
        return "scope.nodes and scope.ranks: expected lists"
    if not isinstance(failure.get("detection_signal"), str) or len(workload.get("workflow_id", "")) > 256:
        return "detection_signal or workflow_id"
    if type(workload.get("attempt_index")) is not int:
        return "workload_context.attempt_index: expected int"
    times = (failure["detected_at"], scope.get("start_time"), scope.get("end_time"), workload.get("job_end_time"))
    for time in times:
        with contextlib.suppress(TypeError):
            if time is not None and datetime.fromisoformat(time).tzinfo is None:
                return f"{time}: without an offset"
    return ""


# ------------------------------------------------------------------------------------------------ misbehaviour


def hang(call: Call) -> None:
    """Takes the question and never says anything."""
    call.ending.wait(60)


def drip(call: Call) -> None:
    """An answer that never ends, a byte now and then."""
    call.handler.send_response(200)
    call.handler.end_headers()
    while not call.ending.wait(0.05):
        call.handler.wfile.write(b" ")
        call.handler.wfile.flush()


def enormous(call: Call) -> None:
    """50 MB."""
    call.handler.send_response(200)
    call.handler.end_headers()
    for _ in range(50):
        call.handler.wfile.write(b" " * (1 << 20))


def error(call: Call) -> None:
    call.send({"error": "out of cheese"}, 500)


def elsewhere(call: Call) -> None:
    call.handler.send_response(307)
    call.handler.send_header("Location", "http://127.0.0.1:9/v1/attribution")
    call.handler.send_header("Content-Length", "0")
    call.handler.end_headers()


def hung_up(call: Call) -> None:
    call.handler.connection.close()


def compressed(call: Call) -> None:
    call.handler.send_response(200)
    call.handler.send_header("Content-Encoding", "gzip")
    call.handler.end_headers()
    call.handler.wfile.write(b"\x1f\x8b")


def says(data: bytes) -> Say:
    return lambda call: call.send(data)
