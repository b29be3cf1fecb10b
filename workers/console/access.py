"""Who asks, and what they may do: looking is a viewer's, acting is an operator's.

Nothing here decides what an action does, and no request is believed for where it comes from alone.
"""

from __future__ import annotations

import hmac
import logging
from dataclasses import dataclass
from enum import StrEnum

from starlette.requests import Request

from workers.console.sessions import Sessions
from workers.console.throttle import Throttle
from workers.console.tokens import Role, Tokens
from workers.console.words import shown
from workers.settings_console import ProxySettings

PROXY_KEY = "X-Relight-Proxy-Key"

log = logging.getLogger("relight.console")


class How(StrEnum):
    """By what somebody is known."""

    TOKEN = "token"  # noqa: S105 - a word, not a secret
    SESSION = "session"
    PROXY = "proxy"
    OPEN = "open"


@dataclass(frozen=True)
class Identity:
    name: str
    role: Role
    how: How

    @property
    def may_act(self) -> bool:
        return self.role is Role.OPERATOR

    @property
    def of_browser(self) -> bool:
        """Whether a browser gives it by itself, so that another site's page could make use of it."""
        return self.how is not How.TOKEN


class Access:
    """Tells who asks."""

    def __init__(
        self,
        tokens: Tokens,
        sessions: Sessions,
        *,
        proxy: ProxySettings | None = None,
        proxy_key: str = "",
        open_to: Role | None = None,
    ) -> None:
        self.tokens = tokens
        self.sessions = sessions
        self.open_to = open_to
        self._proxy = proxy
        self._proxy_key = proxy_key
        self._throttle = Throttle()

    def identify(self, request: Request) -> Identity | None:
        """None: nobody we know. A wrong token is not made up for by a cookie."""
        header = request.headers.get("authorization")
        if header is not None:
            return self._by_token(request, header)
        return self._by_proxy(request) or self._by_session(request) or self._as_anybody()

    def sign_in(self, request: Request, token: str) -> tuple[str, bool]:
        """The fingerprint of a token that is known, or "" ; and whether too many were tried already.

        A known token is let in however many others were tried: who guesses must not lock out who is on call, and of
        256 random bits nobody guesses one.
        """
        known = self.tokens.find(token)
        if known is None:
            hot = self._throttle.is_hot(_place(request))
            self._throttle.failed(_place(request))
            if not hot:
                log.warning("sign-in refused from %s: unknown token", _place(request))
            return "", hot
        log.info("%s (%s) signed in from %s", known.name, known.role, _place(request))
        return known.fingerprint, False

    def _by_token(self, request: Request, header: str) -> Identity | None:
        scheme, _, token = header.partition(" ")
        known = self.tokens.find(token.strip()) if scheme.lower() == "bearer" else None
        if known is None:
            self._throttle.failed(_place(request))
            return None
        return Identity(known.name, known.role, How.TOKEN)

    def _by_proxy(self, request: Request) -> Identity | None:
        if self._proxy is None or not self._proxy_key:
            return None
        key = request.headers.get(PROXY_KEY, "")
        name = request.headers.get(self._proxy.user_header, "").strip()
        if not name or not hmac.compare_digest(key.encode(), self._proxy_key.encode()):
            return None
        role = Role.OPERATOR if name in self._proxy.operators else Role.VIEWER
        return Identity(shown(name, 200), role, How.PROXY)

    def _by_session(self, request: Request) -> Identity | None:
        session = self.sessions.read(request)
        if session is None or not session.fingerprint:
            return None
        known = self.tokens.by_fingerprint(session.fingerprint)  # a token that was taken away takes its sessions along
        return Identity(known.name, known.role, How.SESSION) if known is not None else None

    def _as_anybody(self) -> Identity | None:
        return None if self.open_to is None else Identity("somebody on this host", self.open_to, How.OPEN)


def _place(request: Request) -> str:
    return request.client.host if request.client is not None else "unknown"
