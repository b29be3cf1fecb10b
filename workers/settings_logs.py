"""The section `telemetry.logs` of the configuration: a log store that jobs' logs are read from instead of files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, StringConstraints, field_validator, model_validator

from activities.telemetry.store_shape import FILE_FIELDS, NODE_FIELDS, RANK_FIELDS

FieldName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_.:/-]{0,99}$")]
_LOKI_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_VICTORIA_TENANT = re.compile(r"\d{1,10}(:\d{1,10})?")


class LogsSettings(BaseModel):
    """VictoriaLogs or Loki, where jobs' logs are collected. Only worth it where relight cannot read the files. Try it
    by `relight doctor telemetry`."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    kind: Literal["victorialogs", "loki"]
    """Which of the two it is."""
    url: Annotated[str, StringConstraints(pattern=r"^https?://[^\s/?#]+[^\s?#]*$")]
    """Where its API begins: what stands before /select/logsql or /loki/api."""
    prefer: Literal["store", "files"] = "store"
    """Which one counts where both exist. store: files are not read at all. files: a job's own files count wherever one
    of them can be read, and the store only for jobs without such a file."""
    tenant: str = ""
    """Loki: X-Scope-OrgID. VictoriaLogs: AccountID:ProjectID."""
    token_file: Path | None = None
    """File that holds a bearer token; read again for every question, so that it may be rotated."""
    login_file: Path | None = None
    """File that holds user:password; read again for every question."""
    headers: dict[str, SecretStr] = Field(default_factory=dict)
    """More headers. Those with secrets are better kept in headers_file."""
    headers_file: Path | None = None
    """File with more headers, one `Name: value` a line; read again for every question."""
    verify: bool = True
    """false accepts any certificate of the server. Not for production."""
    server_ca: Path | None = None
    """Certificate of the authority that signed the server's; left out: the system's."""
    client_cert: Path | None = None
    """This client's certificate, for mutual TLS."""
    client_key: Path | None = None
    """Key of that certificate."""
    selector: str = ""
    """Put into every query, in the store's own language, such as `{cluster="{cluster}"}`, where {cluster} between
    the quotes stands for the cluster's name here. Needed where one store holds several clusters."""
    job_field: FieldName = "slurm_job_id"
    """Label or field that holds the job's number. The shipper must set it: one taken out of the printed text could name
    another user's job."""
    job_is_label: bool = True
    """Loki: false where job_field is structured metadata; selector is needed then."""
    node_fields: tuple[FieldName, ...] = NODE_FIELDS
    """Labels or fields that may hold the node's name; the first that is there counts."""
    rank_fields: tuple[FieldName, ...] = RANK_FIELDS
    """The same for the rank."""
    file_fields: tuple[FieldName, ...] = FILE_FIELDS
    """The same for the file."""
    interval_s: Annotated[float, Field(ge=1, le=300, allow_inf_nan=False)] = 5.0
    """Seconds from one read of all jobs' logs to the next."""
    deadline_s: Annotated[float, Field(ge=0.5, le=120, allow_inf_nan=False)] = 10.0
    """Longest that one read may take; what is missing then comes with the next."""
    late_s: Annotated[float, Field(ge=1, le=1_800, allow_inf_nan=False)] = 60.0
    """How late a line may arrive, by its own time, and still be seen. Costs reading that stretch again."""
    backlog_s: Annotated[float, Field(ge=60, le=86_400, allow_inf_nan=False)] = 3_600.0
    """Farthest that is read back while watching, after an outage; what is older is blind time."""
    settle_s: Annotated[float, Field(ge=0, le=60, allow_inf_nan=False)] = 10.0
    """How long after an attempt's end its last lines are waited for, unless a broken node is named before. As long as
    lines usually take from the node into the store."""
    max_answer_mb: Annotated[int, Field(ge=4, le=256)] = 16
    """Largest answer that is read."""

    @field_validator("url")
    @classmethod
    def _no_login(cls, url: str) -> str:
        if "@" in urlsplit(url).netloc:
            raise ValueError("holds a login, expected one without: write user:password into a login_file")
        return url

    @model_validator(mode="after")
    def _fits_the_store(self) -> Self:
        if (self.client_cert is None) != (self.client_key is None):
            raise ValueError("client_cert and client_key belong together, expected both or none")
        if self.token_file is not None and self.login_file is not None:
            raise ValueError("token_file and login_file are two ways to log in, expected one")
        if self.kind == "victorialogs":
            if self.tenant and not _VICTORIA_TENANT.fullmatch(self.tenant):
                raise ValueError(f"tenant is {self.tenant!r:.80}, expected AccountID:ProjectID, such as 0:0")
            return self
        if not self.tenant.isprintable():
            raise ValueError("tenant holds control characters, expected a name")
        if not _LOKI_LABEL.fullmatch(self.job_field):
            raise ValueError(f"job_field is {self.job_field!r:.80}, expected a label's name: letters, digits and '_'")
        if self.selector and not (self.selector.strip().startswith("{") and self.selector.strip().endswith("}")):
            raise ValueError(f'selector is {self.selector!r:.80}, expected labels such as {{cluster="prod"}}')
        if not self.job_is_label and not self.selector.strip("{} "):
            raise ValueError("job_is_label is false, expected a selector too: Loki wants at least one label")
        return self
