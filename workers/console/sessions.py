"""Signed cookies of browsers, and the form tokens that prove that a form came from our own page.

A session names the token it was opened with, never the token itself; whether that one still counts is asked each time.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from itsdangerous import BadData, Signer, URLSafeTimedSerializer
from starlette.requests import Request
from starlette.responses import Response

COOKIE = "relight_session"


@dataclass(frozen=True)
class Session:
    key: str
    """Random; form tokens are bound to it."""
    fingerprint: str = ""
    """Of the token it was opened with; empty for a browser that is known by other means, or not at all."""


class Sessions:
    def __init__(self, secret: str, *, hours: float = 12, https: bool = False) -> None:
        self._serializer = URLSafeTimedSerializer(secret, salt="relight.session")
        self._signer = Signer(secret, salt="relight.form")
        self._seconds = int(hours * 3600)
        self._https = https

    def read(self, request: Request) -> Session | None:
        """The browser's session; None without one that we signed and that still lasts."""
        value = request.cookies.get(COOKIE, "")
        if not value or len(value) > 1000:
            return None
        try:
            data = self._serializer.loads(value, max_age=self._seconds)
        except BadData:
            return None
        if not isinstance(data, list) or len(data) != 2 or not all(isinstance(one, str) for one in data):
            return None
        return Session(data[0], data[1])

    def open(self, fingerprint: str = "") -> Session:
        """A new one: nobody keeps the key that he had before he signed in."""
        return Session(secrets.token_urlsafe(16), fingerprint)

    def write(self, response: Response, session: Session) -> None:
        response.set_cookie(
            COOKIE,
            self._serializer.dumps([session.key, session.fingerprint]),
            max_age=self._seconds,
            httponly=True,
            samesite="lax",
            secure=self._https,
            path="/",
        )

    def end(self, response: Response) -> None:
        response.delete_cookie(COOKIE, httponly=True, samesite="lax", secure=self._https, path="/")

    def form_token(self, session: Session) -> str:
        return self._signer.sign(session.key).decode()

    def is_own_form(self, request: Request, token: str) -> bool:
        """Whether a form (or a script of ours) was filled in on a page that we gave to this browser."""
        session = self.read(request)
        if session is None or _is_from_elsewhere(request):
            return False
        try:
            return secrets.compare_digest(self._signer.unsign(token).decode(), session.key)
        except (BadData, UnicodeDecodeError, TypeError):
            return False


def _is_from_elsewhere(request: Request) -> bool:
    """What browsers themselves say of where a request began."""
    if request.headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}:
        return True
    origin = request.headers.get("origin")
    return origin is not None and origin.partition("://")[2] != request.headers.get("host", "")
