"""The section `attribution` of the configuration: who outside may be asked why a job failed. Left out: nobody."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, StringConstraints, field_validator, model_validator

from recovery.attribution import Trust
from recovery.faults.expressions import ExpressionError, expression, said


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class MaskSettings(_Section):
    """What is taken out of evidence before it is sent."""

    secrets: bool = True
    """What looks like a password, token, key or login."""
    paths: bool = True
    """The folders of paths, except those every machine has; the file's name stays."""
    users: bool = True
    """The names of the job's user and account, and mail addresses; user_id is not sent either."""
    more: tuple[str, ...] = ()
    """Further expressions (RE2) that are replaced by ***."""

    @field_validator("more")
    @classmethod
    def _compiles(cls, more: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in more:
            try:
                expression(pattern)
            except ExpressionError as error:
                raise ValueError(f"{pattern!r:.80} is no expression: {said(error)}, expected RE2 syntax") from None
        return more


class ProviderSettings(_Section):
    """What every provider is told by."""

    url: Annotated[str, StringConstraints(pattern=r"^https?://[^\s/?#]+[^\s?#]*$")]
    """Where its API begins."""
    trust: Trust = Trust.WEAK
    """weak: a host it names is avoided when it is suspected a second time. strong: at once, where it says hardware or
    interconnect and relight itself cannot tell."""
    may_stop: bool = False
    """true: where relight cannot tell and it says that the job's own code is at fault, it is tried once more only."""
    token: SecretStr | None = None
    """Bearer token; better given in the environment or in token_file."""
    token_file: Path | None = None
    """File that holds the token; read again for every question, so that it may be rotated."""
    headers: dict[str, SecretStr] = Field(default_factory=dict)
    """More headers."""
    verify: bool = True
    """false accepts any certificate of the server. Not for production."""
    server_ca: Path | None = None
    """Certificate of the authority that signed the server's; left out: the system's."""
    client_cert: Path | None = None
    """This client's certificate, for mutual TLS."""
    client_key: Path | None = None
    """Key of that certificate."""
    max_answer_kb: Annotated[int, Field(ge=4, le=4_096)] = 256
    """Largest answer that is read."""

    @field_validator("url")
    @classmethod
    def _no_login(cls, url: str) -> str:
        if "@" in urlsplit(url).netloc:
            raise ValueError("holds a login, expected one without: give a token_file or a header")
        return url

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if (self.client_cert is None) != (self.client_key is None):
            raise ValueError("client_cert and client_key belong together, expected both or none")
        if self.token is not None and self.token_file is not None:
            raise ValueError("token and token_file are two ways to give one, expected one")
        return self


class ServiceSettings(ProviderSettings):
    """A service that takes the NVIDIA Attribution adapter request at /v1/attribution."""

    send_evidence: bool = False
    """true adds the lines of evidence, masked, to the request (failure_context.evidence). It is not part of the
    published request."""


class ChatSettings(ProviderSettings):
    """An endpoint that speaks OpenAI's chat completions; url ends before /chat/completions. It gets evidence lines."""

    model: Annotated[str, StringConstraints(min_length=1, max_length=200)]
    """Name of the model."""
    structured: Literal["json_schema", "json_object", "none"] = "json_schema"
    """How the server is made to answer in JSON: what it supports."""
    log_lines: Annotated[int, Field(ge=0, le=400)] = 40
    """Last lines of the job's log that are sent, masked, beside the lines of findings."""


class AttributionSettings(_Section):
    """Who outside is asked about a fault, beside the built-in rules."""

    fast_s: Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)] = 2.0
    """Longest that a decision waits for an answer, and only where relight itself cannot tell; 0: never."""
    slow_s: Annotated[float, Field(ge=0, le=900, allow_inf_nan=False)] = 120.0
    """Deadline of the thorough question, which nothing waits for; 0: it is not asked."""
    mask: MaskSettings = MaskSettings()
    http: ServiceSettings | None = None
    """A service of your own or NVIDIA's."""
    chat: ChatSettings | None = None
    """A language model."""
