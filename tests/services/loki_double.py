"""A strict double of Loki's range queries, after its documented API: it refuses what the real one would refuse.

There is no package of Loki to run here. What it cannot show: a real server's timing, sharding and caches.
"""

from __future__ import annotations

import json
import re
import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from urllib.parse import parse_qs, urlsplit

NS = 1_000_000_000
RANGE_QUERY = "/loki/api/v1/query_range"
LONGEST_S = 721 * 3_600
_MATCHER = re.compile(r'([a-zA-Z_]\w*)(=~|!~|!=|=)"((?:[^"\\\n]|\\.)*)"')

Say = Callable[[BaseHTTPRequestHandler], None]


@dataclass
class _Entry:
    at: int
    text: str
    more: Mapping[str, str]


class _Refused(Exception):
    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass
class LokiDouble:
    """`with LokiDouble() as loki: loki.push({"slurm_job_id": "1"}, at, "text")`. Labels are strings, times nanoseconds.

    `say` may be replaced to answer anything else."""

    tenants: bool = False
    most: int = 5_000
    say: Say | None = None
    asked: list[dict[str, str]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._streams: dict[tuple[str, tuple[tuple[str, str], ...]], list[_Entry]] = {}
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign]  # whoever asked has hung up
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def wrap(self, context: ssl.SSLContext) -> None:
        """From now on it speaks TLS."""
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)

    def push(
        self,
        labels: Mapping[str, str],
        at: int,
        text: str,
        *,
        tenant: str = "fake",
        more: Mapping[str, str] | None = None,
    ) -> None:
        """Adds an entry. Like the real one, it keeps one of two that agree in stream, time and text."""
        with self._lock:
            stream = self._streams.setdefault((tenant, tuple(sorted(labels.items()))), [])
            if not any((one.at, one.text) == (at, text) for one in stream):
                stream.append(_Entry(at, text, more or {}))

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        """Answers as Loki does."""
        try:
            body, status, kind = json.dumps(self._found(handler)), 200, "application/json; charset=UTF-8"
        except _Refused as refused:
            body, status, kind = f"{refused}\n", refused.status, "text/plain; charset=utf-8"
        send(handler, body.encode("utf-8", "surrogatepass"), status, kind)

    def _found(self, handler: BaseHTTPRequestHandler) -> object:
        place = urlsplit(handler.path)
        if place.path != RANGE_QUERY:
            raise _Refused(404, "404 page not found")
        given = {name: values[-1] for name, values in parse_qs(place.query, keep_blank_values=True).items()}
        self.asked.append(given)
        tenant = handler.headers.get("X-Scope-OrgID")
        if self.tenants and not tenant:
            raise _Refused(401, "no org id")
        strange = given.keys() - {"query", "limit", "start", "end", "since", "step", "interval", "direction"}
        if strange:
            raise _Refused(400, f"double: not in the documented API: {sorted(strange)}")
        start, end, limit = (_whole(given, name) for name in ("start", "end", "limit"))
        if end <= start:
            raise _Refused(400, "end timestamp must not be before or equal to start time")
        if (end - start) / NS > LONGEST_S:
            raise _Refused(
                400, f"the query time range exceeds the limit (query length: {(end - start) / NS}s, limit: 30d1h)"
            )
        if limit <= 0:
            raise _Refused(400, "limit must be a positive value")
        if limit > self.most:
            raise _Refused(
                400,
                f"max entries limit per query exceeded, limit > max_entries_limit_per_query ({limit} > {self.most})",
            )
        if given.get("direction", "backward") not in {"forward", "backward"}:
            raise _Refused(400, "invalid direction")
        backward = given.get("direction", "backward") == "backward"
        matchers, filters = _parsed(given.get("query", ""))
        hits: list[tuple[int, tuple[tuple[str, str], ...], str]] = []
        with self._lock:
            for (owner, labels), entries in self._streams.items():
                if owner != (tenant if self.tenants else "fake") or not _agrees(matchers, dict(labels)):
                    continue
                for entry in entries:
                    all_labels = {**dict(labels), **entry.more}
                    if start <= entry.at < end and _agrees(filters, all_labels):
                        # Structured metadata comes back among the labels of the stream.
                        hits.append((entry.at, tuple(sorted(all_labels.items())), entry.text))
        hits.sort(key=lambda hit: hit[0], reverse=backward)
        streams: dict[tuple[tuple[str, str], ...], list[list[str]]] = {}
        for at, labels, text in hits[:limit]:
            streams.setdefault(labels, []).append([str(at), text])
        result = [{"stream": dict(labels), "values": values} for labels, values in streams.items()]
        return {"status": "success", "data": {"resultType": "streams", "result": result, "stats": {}}}

    def __enter__(self) -> LokiDouble:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()


def send(
    handler: BaseHTTPRequestHandler, body: bytes, status: int = 200, kind: str = "application/json", **headers: str
) -> None:
    handler.send_response(status)
    handler.send_header("Content-Type", kind)
    handler.send_header("Content-Length", str(len(body)))
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(body)


def _whole(given: Mapping[str, str], name: str) -> int:
    text = given.get(name, "")
    if not re.fullmatch(r"-?\d{1,19}", text):
        raise _Refused(400, f'could not parse "{text}" to a timestamp or number ({name})')
    return int(text)


_Matchers = list[tuple[str, str, str]]


def _parsed(query: str) -> tuple[_Matchers, _Matchers]:
    """Stream matchers, and label filters behind them."""
    whole = re.fullmatch(r"\{(.*)\}(?: \| (.*))?", query)
    if whole is None:
        raise _Refused(400, f"parse error at line 1, col 1: syntax error: unexpected {query[:20]}")
    matchers, filters = _matchers(whole[1]), _matchers(whole[2] or "")
    if not any(sign in {"=", "=~"} and not re.fullmatch(f"(?:{value})", "") for _, sign, value in matchers):
        raise _Refused(
            400,
            "parse error : queries require at least one regexp or equality matcher that does not have an "
            'empty-compatible value. For instance, app=~".*" does not meet this requirement, but app=~".+" will',
        )
    return matchers, filters


def _matchers(text: str) -> _Matchers:
    found: _Matchers = []
    rest = text.strip()
    while rest:
        match = _MATCHER.match(rest)
        if match is None:
            raise _Refused(400, f"parse error at line 1, col {len(text) - len(rest) + 1}: syntax error: {rest[:20]}")
        found.append((match[1], match[2], re.sub(r"\\(.)", r"\1", match[3])))
        rest = rest[match.end() :].lstrip()
        if rest and not rest.startswith(","):
            raise _Refused(400, f"parse error at line 1, col {len(text) - len(rest) + 1}: syntax error: {rest[:20]}")
        rest = rest[1:].lstrip()
    return found


def _agrees(matchers: _Matchers, labels: Mapping[str, str]) -> bool:
    for name, sign, value in matchers:
        has = labels.get(name, "")
        same = bool(re.fullmatch(value, has)) if sign in {"=~", "!~"} else has == value
        if same == sign.startswith("!"):
            return False
    return True


def _handler(double: LokiDouble) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            double.headers.append(dict(self.headers))
            (double.say or double.answer)(self)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            double.headers.append(dict(self.headers))
            if double.say is None:
                send(self, b"double: the documented method is GET\n", 405, "text/plain")
            else:
                double.say(self)

        def log_message(self, *words: object) -> None:
            pass

    return Handler
