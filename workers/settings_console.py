"""Settings of the console: where it listens, who may look and who may act, and how its pages are reached."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, StringConstraints, model_validator

HeaderName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9-]{0,63}$")]
WebAddress = Annotated[str, StringConstraints(pattern=r"^https?://[^\s\"'<>]+$")]


class ProxySettings(BaseModel):
    """A reverse proxy that signs people in. Each of its requests must carry the key, which nobody else knows."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    key: SecretStr | None = None
    """What the proxy sends as `X-Relight-Proxy-Key`; better given as RELIGHT_CONSOLE__PROXY__KEY or key_file."""
    key_file: Path | None = None
    """File that holds the key."""
    user_header: HeaderName = "X-Remote-User"
    """Header in which the proxy names the person. The proxy must remove it from what comes from outside."""
    operators: tuple[Annotated[str, StringConstraints(min_length=1, max_length=200)], ...] = ()
    """People who may act; everybody else whom the proxy names may look."""

    @model_validator(mode="after")
    def _has_key(self) -> Self:
        if self.key is None and self.key_file is None:
            raise ValueError(
                "a proxy needs key or key_file: without it anybody who reaches the port could name himself"
            )
        return self


class ConsoleSettings(BaseModel):
    """The console: pages, HTTP API and metrics."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    listen: Annotated[str, StringConstraints(pattern=r"^(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]+):\d{1,5}$")] = "127.0.0.1:8230"
    """host:port. An address that others can reach needs tokens or a proxy."""
    tokens_file: Path | None = None
    """File of the tokens that let people and programs in, as `relight token` prints them, one a line."""
    tokens: SecretStr | None = None
    """The same lines; only their digests stand in them."""
    secret: SecretStr | None = None
    """Signs sessions; better given as RELIGHT_CONSOLE__SECRET or secret_file. Left out: a new one at each start, which
    signs everybody out. Several consoles behind one address need the same."""
    secret_file: Path | None = None
    """File that holds that secret."""
    session_hours: Annotated[float, Field(gt=0, le=720, allow_inf_nan=False)] = 12.0
    """How long somebody stays signed in."""
    proxy: ProxySettings | None = None
    """Left out: no header of a request is believed."""
    hosts: tuple[Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9.-]+$")], ...] = ()
    """Names by which browsers reach the console; requests for other names are refused. Left out: any name, and on
    loopback without sign-in only loopback's own."""
    https: bool = False
    """Browsers reach it over TLS, its own or a proxy's: cookies are then kept from plain connections."""
    tls_cert: Path | None = None
    """Certificate chain, for TLS without a proxy."""
    tls_key: Path | None = None
    """Key of that certificate."""
    temporal_ui: WebAddress | None = None
    """Address of the Temporal Web UI, for links to workflows."""
    deadline_s: Annotated[float, Field(gt=0, le=120, allow_inf_nan=False)] = 10.0
    """Longest wait for the audit store; then the page says so."""

    @model_validator(mode="after")
    def _both_or_none(self) -> Self:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("tls_cert and tls_key belong together, expected both or none")
        return self
