"""Posts one JSON question and reads a bounded answer: within a deadline, within a size, never led elsewhere.

Every failure is a NoAnswer in words that hold no secret. Nothing of an answer is understood here.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Mapping
from pathlib import Path

import httpx

from recovery.attribution import AnswerStatus
from recovery.grounding import plain
from recovery.records import Record

CONNECT_S = 5.0
COMPLAINT_BYTES = 2_000


class Access(Record):
    """Where a provider is and how to speak to it. Secrets in files are read again for every question."""

    key: str
    """The section of the configuration, for messages."""
    url: str
    token: str = ""
    token_file: Path | None = None
    headers: Mapping[str, str] = {}
    verify: bool = True
    server_ca: Path | None = None
    client_cert: Path | None = None
    client_key: Path | None = None
    max_answer_bytes: int = 256 << 10


class NoAnswer(Exception):
    """There is no answer to work with. The text is fit for the record."""

    def __init__(self, status: AnswerStatus, text: str) -> None:
        super().__init__(plain(text, 300))
        self.status = status


async def post(access: Access, path: str, body: object, *, ends: float) -> bytes:
    """The answer's bytes; `ends` is a moment of the monotonic clock. Raises NoAnswer."""
    left = ends - time.monotonic()
    late = NoAnswer(AnswerStatus.LATE, "no answer within its deadline")
    if left <= 0:
        raise late
    try:
        async with asyncio.timeout(left):
            headers, tls = await asyncio.to_thread(_prepared, access)
            # A client for each question: they are rare, and files of certificates and tokens are rotated.
            async with (
                httpx.AsyncClient(
                    verify=tls,
                    follow_redirects=False,  # the evidence and the token would go along
                    timeout=httpx.Timeout(left, connect=min(CONNECT_S, left)),
                ) as client,
                client.stream(
                    "POST", access.url.rstrip("/") + path, content=json.dumps(body).encode(), headers=headers
                ) as answer,
            ):
                return await _read(access, answer)
    except (TimeoutError, httpx.TimeoutException):
        raise late from None
    except (httpx.HTTPError, httpx.InvalidURL, ssl.SSLError, OSError, ValueError) as error:
        reason = plain(str(error), 200) or type(error).__name__
        raise NoAnswer(AnswerStatus.FAILED, f"cannot be asked: {reason}") from None


async def _read(access: Access, answer: httpx.Response) -> bytes:
    limit = access.max_answer_bytes if answer.status_code == httpx.codes.OK else COMPLAINT_BYTES
    whole = bytearray()
    if answer.headers.get("content-encoding", "identity").lower() != "identity":
        # Not asked for. A small compressed answer can be of any size.
        raise NoAnswer(AnswerStatus.NONSENSE, "the answer is compressed, though that was not asked for")
    async for piece in answer.aiter_raw():
        whole += piece
        if len(whole) > limit:
            break
    if answer.status_code != httpx.codes.OK:
        said = plain(bytes(whole[:limit]).decode("utf-8", "replace"), 120)
        raise NoAnswer(AnswerStatus.FAILED, f"refused with HTTP {answer.status_code}{f': {said}' if said else ''}")
    if len(whole) > limit:
        text = f"the answer is larger than {limit >> 10} KiB ({access.key}.max_answer_kb)"
        raise NoAnswer(AnswerStatus.NONSENSE, text)
    return bytes(whole)


def _prepared(access: Access) -> tuple[dict[str, str], ssl.SSLContext]:
    """Headers with their secrets, and TLS. Raises ValueError."""
    headers = {"Content-Type": "application/json", "Accept": "application/json", "Accept-Encoding": "identity"}
    headers |= dict(access.headers)
    token = access.token
    if access.token_file is not None:
        try:
            token = access.token_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not text"
            raise ValueError(f"{access.key}.token_file: {access.token_file} cannot be read: {reason}") from None
    if token:
        if not token.isascii() or not token.isprintable():
            raise ValueError(f"{access.key}: the token holds characters that no header may hold")
        headers["Authorization"] = f"Bearer {token}"
    return headers, _tls(access)


def _tls(access: Access) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=str(access.server_ca) if access.server_ca else None)
    except OSError as error:
        raise ValueError(f"{access.key}.server_ca: {access.server_ca} cannot be used: {error}") from None
    if not access.verify:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if access.client_cert is not None:
        try:
            context.load_cert_chain(access.client_cert, access.client_key)
        except OSError as error:
            raise ValueError(f"{access.key}.client_cert: {access.client_cert} cannot be used: {error}") from None
    return context
