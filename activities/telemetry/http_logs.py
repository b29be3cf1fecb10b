"""Asks a log store over HTTP: within a deadline, within a size, with login and tenant, and never led elsewhere.

A server that is busy or ill is asked again a little later, within the deadline; one that stays ill is left alone for a
while. Every failure is a LogTrouble in words; nothing of an answer is understood here.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import random
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path

import httpx

from recovery.records import Record

KEY = "telemetry.logs"
TRIES = 3
FIRST_WAIT_S = 0.3
LONGEST_REST_S = 60.0
LONGEST_ASKED_REST_S = 300.0
"""A server may ask for a longer rest than we would take, but not for ever."""
CONNECT_S = 5.0
COMPLAINT_BYTES = 32_768
SAID_LENGTH = 240
"""Longest part of it that is told."""
ILL = frozenset({429, 500, 502, 503, 504})


class LogAccess(Record):
    """Where the store is and how to speak to it. Secrets are named by file and read again for every question."""

    url: str
    token_file: Path | None = None
    login_file: Path | None = None
    headers: Mapping[str, str] = {}
    headers_file: Path | None = None
    verify: bool = True
    server_ca: Path | None = None
    client_cert: Path | None = None
    client_key: Path | None = None
    deadline_s: float = 10.0
    max_answer_bytes: int = 16 << 20


class LogTrouble(Exception):
    """The store could not be asked, or did not answer the question. The text is fit for an operator."""

    def __init__(self, text: str, *, status: int = 0, again: bool = False, rest_s: float = 0.0) -> None:
        super().__init__(text)
        self.status = status
        self.again = again
        """It may go better in a moment."""
        self.rest_s = rest_s
        """How long the server wants to be left alone."""


class AnswerTooLarge(LogTrouble):
    """The answer is larger than allowed, and a part of it is of no use."""


@dataclass(frozen=True, slots=True)
class Body:
    """An answer. `cut`: why it is not whole: it ended at the allowed size, or the connection broke within it."""

    data: bytes
    cut: str = ""
    broken: bool = False


class LogHttp:
    """One store, asked by one event loop at a time."""

    def __init__(self, access: LogAccess) -> None:
        self.access = access
        self._client: httpx.AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._rest_until = 0.0
        self._failed = 0
        self._last = ""

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def ask(
        self, method: str, path: str, params: Mapping[str, str], *, ends: float, partial: bool = False
    ) -> Body:
        """The answer to one question; `ends` is a moment of the monotonic clock. Raises LogTrouble.

        `partial`: the beginning of an answer is of use.
        """
        now = time.monotonic()
        if now < self._rest_until:
            text = f"left alone for {self._rest_until - now:.0f} s more, because it {self._last}"
            raise LogTrouble(text, again=True)
        wait = FIRST_WAIT_S
        for left in range(TRIES - 1, -1, -1):
            try:
                body = await self._once(method, path, params, ends, partial)
            except LogTrouble as trouble:
                pause = max(wait * random.uniform(0.7, 1.3), trouble.rest_s)  # noqa: S311
                if not trouble.again or not left or time.monotonic() + pause >= ends:
                    self._note(trouble)
                    raise
                await asyncio.sleep(pause)
                wait *= 3
            else:
                self._failed, self._rest_until = 0, 0.0
                return body
        raise AssertionError("the last try returns or raises")

    def _note(self, trouble: LogTrouble) -> None:
        """A server that is ill for long is asked ever more seldom."""
        if not trouble.again:
            return
        self._last = str(trouble)[:200]
        self._failed += 1
        own = min(LONGEST_REST_S, 2.0 ** min(self._failed, 10)) if self._failed > 1 else 0.0
        rest = max(own, min(trouble.rest_s, LONGEST_ASKED_REST_S))
        self._rest_until = time.monotonic() + rest

    async def _once(self, method: str, path: str, params: Mapping[str, str], ends: float, partial: bool) -> Body:
        left = ends - time.monotonic()
        late = f"gave no answer within {self.access.deadline_s:g} s"
        if left <= 0:
            raise LogTrouble(late, again=True)
        try:
            headers = await asyncio.to_thread(self._headers)
            client = self._connected()
            async with asyncio.timeout(left):
                request = client.build_request(
                    method,
                    self.access.url.rstrip("/") + path,
                    params=params if method == "GET" else None,
                    data=dict(params) if method != "GET" else None,
                    headers=headers,
                )
                answer = await client.send(request, stream=True)
                try:
                    return await self._body(answer, partial)
                finally:
                    await answer.aclose()
        except (TimeoutError, httpx.TimeoutException):
            raise LogTrouble(late, again=True) from None
        except (httpx.HTTPError, httpx.InvalidURL, ssl.SSLError, OSError, ValueError) as error:
            raise _unreachable(error) from None

    async def _body(self, answer: httpx.Response, partial: bool) -> Body:
        if answer.status_code != httpx.codes.OK:
            said = b""
            with contextlib.suppress(httpx.HTTPError):
                async for piece in answer.aiter_raw():
                    said += piece
                    if len(said) >= COMPLAINT_BYTES:
                        break
            raise _refused(answer, said[:COMPLAINT_BYTES])
        kind = answer.headers.get("content-type", "")
        if "json" not in kind.lower():
            raise LogTrouble(f"the answer is {kind[:60] or 'of no type'}, not JSON: does {KEY}.url lead to the store?")
        if answer.headers.get("content-encoding", "identity").lower() != "identity":
            # Not asked for. A small compressed answer can be of any size.
            raise LogTrouble("the answer is compressed, though that was not asked for")
        limit = self.access.max_answer_bytes
        whole = bytearray()
        try:
            async for piece in answer.aiter_raw():
                whole += piece
                if len(whole) > limit:
                    if not partial:
                        raise AnswerTooLarge(f"the answer is larger than {limit >> 20} MiB ({KEY}.max_answer_mb)")
                    return Body(bytes(whole[:limit]), cut=f"larger than {limit >> 20} MiB ({KEY}.max_answer_mb)")
        except (httpx.RemoteProtocolError, httpx.ReadError):
            if not partial or not whole:
                raise
            return Body(bytes(whole), cut="the connection broke within the answer", broken=True)
        return Body(bytes(whole))

    def _connected(self) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            # Connections belong to a loop; those of a loop that is gone went with it.
            self._client = httpx.AsyncClient(
                verify=self._tls(),
                follow_redirects=False,  # the login would go along
                timeout=httpx.Timeout(self.access.deadline_s, connect=CONNECT_S),
                limits=httpx.Limits(max_connections=4),
            )
            self._loop = loop
        return self._client

    def _tls(self) -> ssl.SSLContext:
        try:
            context = ssl.create_default_context(cafile=str(self.access.server_ca) if self.access.server_ca else None)
        except OSError as error:
            raise ValueError(f"{KEY}.server_ca: {self.access.server_ca} cannot be used: {error}") from None
        if not self.access.verify:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if self.access.client_cert is not None:
            try:
                context.load_cert_chain(self.access.client_cert, self.access.client_key)
            except OSError as error:
                raise ValueError(f"{KEY}.client_cert: {self.access.client_cert} cannot be used: {error}") from None
        return context

    def _headers(self) -> dict[str, str]:
        """Headers with their secrets, read anew because tokens are rotated. Raises ValueError."""
        headers = {"Accept": "application/json, application/stream+json", "Accept-Encoding": "identity"}
        headers |= dict(self.access.headers)
        if (path := self.access.headers_file) is not None:
            for number, line in enumerate(_secret(path, "headers_file").splitlines(), start=1):
                name, colon, value = line.partition(":")
                if not line.strip():
                    continue
                if not colon or not name.strip() or " " in name.strip():
                    raise ValueError(f"{KEY}.headers_file: {path}:{number} is not `Name: value`")
                headers[name.strip()] = value.strip()
        if (path := self.access.login_file) is not None:
            login = _secret(path, "login_file").strip()
            if ":" not in login or "\n" in login:
                raise ValueError(f"{KEY}.login_file: {path} is not `user:password` on one line")
            headers["Authorization"] = "Basic " + base64.b64encode(login.encode()).decode()
        if (path := self.access.token_file) is not None:
            headers["Authorization"] = f"Bearer {_secret(path, 'token_file').strip()}"
        return headers


def _secret(path: Path, key: str) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{KEY}.{key}: {path} is not text") from None
    except OSError as error:
        raise ValueError(f"{KEY}.{key}: {path} cannot be read: {error.strerror}") from None
    if not text.strip():
        raise ValueError(f"{KEY}.{key}: {path} is empty")
    return text


def _refused(answer: httpx.Response, said: bytes) -> LogTrouble:
    status = answer.status_code
    if answer.is_redirect:
        place = answer.headers.get("location", "")[:120]
        return LogTrouble(f"leads elsewhere (HTTP {status} to {place}), which is not followed: correct {KEY}.url")
    hint = {
        401: f"; see {KEY}.token_file, login_file and tenant",
        403: f"; see {KEY}.token_file, login_file and tenant",
        404: f"; does {KEY}.url lead to the store?",
    }.get(status, "")
    text = f"refused with HTTP {status}: {_complaint(said)}{hint}"
    rest = _retry_after(answer.headers.get("retry-after", "")) if status in ILL else 0.0
    return LogTrouble(text, status=status, again=status in ILL, rest_s=rest)


def _complaint(said: bytes) -> str:
    text = said.decode("utf-8", "replace")
    with contextlib.suppress(ValueError, RecursionError):
        found = json.loads(text)
        if isinstance(found, dict):
            text = str(found.get("error") or found.get("message") or text)
    plain = "".join(letter if letter.isprintable() else " " for letter in text) or "without a word"
    text = " ".join(plain.split())
    # Servers repeat the question first: the reason stands at the end.
    return text if len(text) <= SAID_LENGTH else f"{text[:60]} … {text[60 - SAID_LENGTH :]}"


def _retry_after(text: str) -> float:
    """Seconds that a server asks for, as a number or a date; 0 for anything else."""
    with contextlib.suppress(ValueError):
        return max(0.0, min(float(text), 86_400.0))
    with contextlib.suppress(ValueError, TypeError):
        when = parsedate_to_datetime(text)
        when = when if when.tzinfo else when.replace(tzinfo=UTC)
        return max(0.0, min((when - datetime.now(UTC)).total_seconds(), 86_400.0))
    return 0.0


def _unreachable(error: Exception) -> LogTrouble:
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    if "CERTIFICATE_VERIFY_FAILED" in reason or "SSL" in reason:
        return LogTrouble(f"TLS failed: {reason}; see {KEY}.server_ca")
    if isinstance(error, ValueError | httpx.InvalidURL):
        return LogTrouble(reason)
    return LogTrouble(f"cannot be reached: {reason}", again=True)
