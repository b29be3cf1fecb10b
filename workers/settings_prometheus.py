"""The section `telemetry.prometheus` of the configuration: where metrics are asked for, and how they are read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, StringConstraints, field_validator, model_validator

_SELECTOR = re.compile(r'\s*[a-zA-Z_]\w*\s*(?:=|!=|=~|!~)\s*"(?:[^"\\\n]|\\.)*"\s*')

HostLabel = Annotated[str, StringConstraints(pattern=r"^[a-zA-Z_][a-zA-Z0-9_]*$")]


class PrometheusSettings(BaseModel):
    """Prometheus, or anything that speaks its API (VictoriaMetrics, Thanos, Mimir …). Try it by
    `relight doctor telemetry`."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    url: Annotated[str, StringConstraints(pattern=r"^https?://[^\s/?#]+[^\s?#]*$")]
    """Where its API begins: what stands before /api/v1/query."""
    token_file: Path | None = None
    """File that holds a bearer token; read again for every round, so that it may be rotated."""
    headers: dict[str, SecretStr] = Field(default_factory=dict)
    """More headers, such as X-Scope-OrgID. Those with secrets are better kept in headers_file."""
    headers_file: Path | None = None
    """File with more headers, one `Name: value` a line; read again for every round."""
    verify: bool = True
    """false accepts any certificate of the server. Not for production."""
    server_ca: Path | None = None
    """Certificate of the authority that signed the server's; left out: the system's."""
    client_cert: Path | None = None
    """This client's certificate, for mutual TLS."""
    client_key: Path | None = None
    """Key of that certificate."""
    selector: str = ""
    """Matchers put into every query, such as `cluster="{cluster}"`, where {cluster} stands for the cluster's name here.
    Needed where one server holds several clusters."""
    host_labels: tuple[HostLabel, ...] = ()
    """Labels that hold the host's name, most telling first; left out: Hostname, hostname, exported_hostname, nodename,
    node, host, instance, exported_instance."""
    interval_s: Annotated[float, Field(ge=1, le=300, allow_inf_nan=False)] = 15.0
    """Seconds from one round of queries to the next. More often than it scrapes is of no use."""
    deadline_s: Annotated[float, Field(ge=0.5, le=120, allow_inf_nan=False)] = 10.0
    """Longest that one round may take; then relight does without. A sweep never waits for it."""
    max_answer_mb: Annotated[int, Field(ge=1, le=256)] = 16
    """Largest answer that is read."""
    idle_s: Annotated[int, Field(ge=30, le=3600)] = 180
    """Tensor cores and fabric that do nothing for so long are called idle. At least 4 times the scrape interval."""
    lookback_s: Annotated[int, Field(ge=300, le=14_400)] = 1_800
    """How far back it is looked for changes, so that none is lost while relight or Prometheus is away."""

    @field_validator("url")
    @classmethod
    def _no_login(cls, url: str) -> str:
        if "@" in urlsplit(url).netloc:
            raise ValueError("holds a login, expected one without: write it as an Authorization header in headers_file")
        return url

    @field_validator("selector")
    @classmethod
    def _matchers(cls, text: str) -> str:
        rest = text
        while rest:
            match = _SELECTOR.match(rest)
            after = rest[match.end() :] if match else ""
            if match is None or (after and not after.startswith(",")):
                raise ValueError(f'is {text!r:.80}, expected matchers such as cluster="prod", joined by commas')
            rest = after[1:]
        return text.strip()

    @model_validator(mode="after")
    def _both_or_none(self) -> Self:
        if (self.client_cert is None) != (self.client_key is None):
            raise ValueError("client_cert and client_key belong together, expected both or none")
        return self
