"""Asks a Prometheus-compatible server several questions at once, in threads, within one deadline.

Whatever goes wrong (nobody there, slow, refused, too much, nonsense) is told as the answer's trouble and never raised:
the caller is then blind, and says so. Answers are bounded in size and time.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import math
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests
import urllib3
from prometheus_api_client import PrometheusConnect
from prometheus_api_client.exceptions import PrometheusApiClientException
from requests.auth import AuthBase

from recovery.records import Record

ASKED_AT_ONCE = 4
CONNECT_S = 5.0
COMPLAINT_BYTES = 4_096
"""Longest part read of an answer that is not an answer."""
LONG_QUERY = 2_000
"""Characters from which a query is sent as a form: many servers and proxies refuse addresses over 4 to 8 kB."""
PIECE = 1 << 16


class PrometheusAccess(Record):
    """Where the server is and how to speak to it. Secrets are named by file and read again for every round."""

    url: str
    token_file: Path | None = None
    headers: Mapping[str, str] = {}
    headers_file: Path | None = None
    verify: bool = True
    server_ca: Path | None = None
    client_cert: Path | None = None
    client_key: Path | None = None
    deadline_s: float = 10.0
    max_answer_bytes: int = 16 << 20


@dataclass(frozen=True, slots=True)
class Series:
    """One row of an answer: its labels and its samples, as (seconds since 1970, value), oldest first."""

    labels: Mapping[str, str]
    samples: tuple[tuple[float, float], ...]

    @property
    def value(self) -> float:
        return self.samples[-1][1]

    @property
    def count(self) -> int:
        """The value as a number of things; 0 where it makes no sense."""
        return int(self.value) if math.isfinite(self.value) and self.value > 0 else 0


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back for one query: rows, or why there are none."""

    rows: tuple[Series, ...] = ()
    trouble: str = ""
    asked_at: float = 0.0
    """Our own clock in the middle of the question."""

    @property
    def server_time(self) -> float | None:
        """The server's clock, as an instant vector tells it."""
        return self.rows[0].samples[-1][0] if self.rows else None


class Prometheus:
    """One server. Made once; threads and connections are kept."""

    def __init__(self, access: PrometheusAccess) -> None:
        self.access = access
        self._threads = ThreadPoolExecutor(max_workers=ASKED_AT_ONCE, thread_name_prefix="prometheus")
        self._local = threading.local()
        self._asked: list[Future[Answer]] = []
        if not access.verify:
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def ask(self, queries: Mapping[str, str], *, ends: float | None = None) -> dict[str, Answer]:
        """The answers to PromQL queries, by the same names. Never raises; takes `deadline_s` at most, or until `ends`
        (of the monotonic clock). One caller at a time."""
        if not queries:
            return {}
        if any(not one.done() for one in self._asked):
            # A thread that hangs in a name server's silence cannot be ended; asking on would only queue up behind it.
            return dict.fromkeys(queries, Answer(trouble="earlier questions have not been answered yet"))
        ends = time.monotonic() + self.access.deadline_s if ends is None else ends
        try:
            headers = await asyncio.to_thread(self._headers)
        except (OSError, ValueError) as error:
            return dict.fromkeys(queries, Answer(trouble=str(error)[:300]))
        asked = {name: self._threads.submit(self._question, query, headers, ends) for name, query in queries.items()}
        self._asked = list(asked.values())
        waiting = {name: asyncio.wrap_future(one) for name, one in asked.items()}
        await asyncio.wait(waiting.values(), timeout=max(0.0, ends - time.monotonic()) + 0.2)
        late = Answer(trouble=f"no answer within {self.access.deadline_s:g} s")
        answers = {name: one.result() if one.done() else late for name, one in waiting.items()}
        for one in waiting.values():
            one.cancel()  # what has not begun yet need not begin
        return answers

    # ------------------------------------------------------------------------------------------------ in a thread

    def _question(self, query: str, headers: Mapping[str, str], ends: float) -> Answer:
        began = time.time()
        left = ends - time.monotonic()
        if left <= 0:
            return Answer(trouble=f"no answer within {self.access.deadline_s:g} s")
        try:
            server = self._server()
            server.auth = _Headers(headers)
            server._session.ends = ends
            found = server.custom_query(query, timeout=(min(CONNECT_S, left), left))
            return Answer(rows=_rows(found), asked_at=(began + time.time()) / 2)
        except PrometheusApiClientException as error:
            return Answer(trouble=_complaint(str(error)))
        except _TooMuch as error:
            return Answer(trouble=str(error))
        except (requests.exceptions.Timeout, urllib3.exceptions.TimeoutError):
            return Answer(trouble=f"no answer within {self.access.deadline_s:g} s")
        except requests.exceptions.SSLError as error:
            return Answer(trouble=f"TLS failed: {_short(error)}; see telemetry.prometheus.server_ca")
        except requests.exceptions.JSONDecodeError:
            return Answer(trouble="the answer is not JSON: does telemetry.prometheus.url lead to a Prometheus API?")
        except (requests.exceptions.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
            return Answer(trouble=f"cannot be reached: {_short(error)}")
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
            return Answer(trouble=f"the answer is not what Prometheus says: {_short(error)}")

    def _server(self) -> Any:
        """This thread's own: connections are kept, and no two threads share one."""
        server = getattr(self._local, "server", None)
        if server is None:
            session = _Bounded(self.access.max_answer_bytes)
            session.verify = (
                str(self.access.server_ca) if self.access.server_ca and self.access.verify else self.access.verify
            )
            if self.access.client_cert is not None:
                session.cert = (str(self.access.client_cert), str(self.access.client_key or self.access.client_cert))
            # No retries: the next round comes soon enough, and a retry would eat this one's deadline.
            server = PrometheusConnect(self.access.url.rstrip("/"), session=session, retry=urllib3.Retry(0, read=False))
            self._local.server = server
        return server

    def _headers(self) -> dict[str, str]:
        """Headers with their secrets, read anew because tokens are rotated. Raises ValueError, OSError."""
        headers = dict(self.access.headers)
        if (path := self.access.headers_file) is not None:
            for number, line in enumerate(_secret(path, "headers_file").splitlines(), start=1):
                name, colon, value = line.partition(":")
                if not line.strip():
                    continue
                if not colon or not name.strip() or " " in name.strip():
                    raise ValueError(f"telemetry.prometheus.headers_file: {path}:{number} is not `Name: value`")
                headers[name.strip()] = value.strip()
        if (path := self.access.token_file) is not None:
            headers["Authorization"] = f"Bearer {_secret(path, 'token_file').strip()}"
        return headers


class _TooMuch(Exception):
    """The answer is larger than allowed."""


class _Headers(AuthBase):
    """Sets the headers in the way of requests' authentication, so that no .netrc of the machine takes its place."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._given = headers

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        request.headers.update(self._given)
        return request


class _Bounded(requests.Session):
    """A session whose answers end at a number of bytes and at a moment, and that is never led elsewhere."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self._limit = limit
        self.ends = 0.0

    def request(self, method: Any, url: Any, *words: Any, **named: Any) -> requests.Response:
        params = named.get("params") or {}
        if len(str(params.get("query", ""))) > LONG_QUERY:
            method, named["data"], named["params"] = "POST", params, None
        named |= {"stream": True, "allow_redirects": False}  # other headers than Authorization would go along
        with contextlib.closing(super().request(method, url, *words, **named)) as answer:
            return self._whole(answer)

    def _whole(self, answer: requests.Response) -> requests.Response:
        limit = self._limit if answer.status_code == requests.codes.ok else COMPLAINT_BYTES
        body = bytearray()
        # One read of the network at a time: a server that trickles must not hold a thread past the deadline.
        while piece := answer.raw.read1(PIECE, decode_content=True):
            body += piece
            if time.monotonic() > self.ends:
                raise requests.exceptions.ReadTimeout("the answer comes too slowly")
            if len(body) > limit:
                if limit == COMPLAINT_BYTES:
                    break
                raise _TooMuch(
                    f"the answer is larger than {self._limit >> 20} MiB (telemetry.prometheus.max_answer_mb)"
                )
        whole = requests.Response()
        whole.status_code, whole.headers, whole.url = answer.status_code, answer.headers, answer.url
        whole.encoding = "utf-8"
        whole.raw = io.BytesIO(bytes(body[:limit]))
        return whole


def _rows(found: Any) -> tuple[Series, ...]:
    """The rows of a vector or matrix. Raises KeyError, TypeError or ValueError for anything else."""
    rows = []
    for row in found:
        pairs: Sequence[Any] = row["values"] if "values" in row else [row["value"]]
        samples = tuple((float(at), float(value)) for at, value in pairs)
        if samples:
            rows.append(
                Series(labels={str(name): str(value) for name, value in row["metric"].items()}, samples=samples)
            )
    return tuple(rows)


def _secret(path: Path, key: str) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"telemetry.prometheus.{key}: {path} is not text") from None
    except OSError as error:
        raise OSError(f"telemetry.prometheus.{key}: {path} cannot be read: {error.strerror}") from None
    if not text.strip():
        raise ValueError(f"telemetry.prometheus.{key}: {path} is empty")
    return text


def _complaint(text: str) -> str:
    """`HTTP Status Code 422 (b'{"status":"error","error":"…"}')` in few words."""
    code, _, rest = text.removeprefix("HTTP Status Code ").partition(" ")
    said = rest.strip().removeprefix("(b").removesuffix(")")[1:-1]
    with contextlib.suppress(ValueError, TypeError, AttributeError):
        said = str(json.loads(said.replace("\\'", "'").replace("\\\\", "\\")).get("error", said))
    hint = "; see telemetry.prometheus.token_file and headers_file" if code in {"401", "403"} else ""
    return f"refused with HTTP {code}: {' '.join(said.split())[:160]}{hint}"


def _short(error: Exception) -> str:
    """The innermost reason, without the query: all questions of a round then fail with the same words."""
    reason: Any = error
    while isinstance(inner := getattr(reason, "reason", None) or next(iter(reason.args), None), Exception):
        reason = inner
    text = " ".join(str(reason).split()).rpartition(" connection: ")[2]
    return text[:160] or type(reason).__name__
