"""relight's configuration: one YAML file and the environment, checked before anything starts.

Values come from `RELIGHT_…` variables (nested by `__`), then the file, then the defaults below. Secrets never appear
in a printed configuration, a log or an error.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, StringConstraints, ValidationError, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from recovery.yaml_lines import Lines, Problem, dotted, read_lines
from workers.settings_attribution import AttributionSettings, ChatSettings, MaskSettings, ServiceSettings
from workers.settings_console import ConsoleSettings, ProxySettings
from workers.settings_logs import LogsSettings
from workers.settings_prometheus import PrometheusSettings
from workers.settings_ssh import SshSettings

CONFIG_VARIABLE = "RELIGHT_CONFIG"
PREFIX = "RELIGHT_"
PLACES = (Path("/etc/relight/relight.yaml"), Path("relight.yaml"))

MINIMAL = """\
temporal:
  address: 127.0.0.1:7233
database:
  url: sqlite:////var/lib/relight/relight.db
policy_file: /etc/relight/policy.yaml
clusters:
  prod:
    slurm_conf: /etc/slurm/slurm.conf
"""

ClusterName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
"""Part of workflow ids and task queues. A variable (RELIGHT_CLUSTERS__PROD__…) reaches lower-case names only."""


class ConfigError(Exception):
    """The configuration cannot be used. The text names file, key, value and what was expected, one problem a line."""


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class TlsSettings(_Section):
    """TLS towards the Temporal server. Files, never contents."""

    enabled: bool = True
    """false switches TLS off where Temporal's own profile would switch it on."""
    server_ca: Path | None = None
    """Certificate of the authority that signed the server's; left out: the system's."""
    client_cert: Path | None = None
    """This client's certificate, for mutual TLS."""
    client_key: Path | None = None
    """Key of that certificate."""
    server_name: str | None = None
    """Name the server's certificate must carry, when it differs from the address."""

    @model_validator(mode="after")
    def _both_or_none(self) -> Self:
        if (self.client_cert is None) != (self.client_key is None):
            raise ValueError("client_cert and client_key belong together, expected both or none")
        return self


class TemporalSettings(_Section):
    """Where Temporal is. What is left out comes from Temporal's own variables and profile (TEMPORAL_ADDRESS,
    TEMPORAL_NAMESPACE, TEMPORAL_API_KEY, TEMPORAL_PROFILE, temporal.toml), then from the defaults of its tools."""

    address: Annotated[str, StringConstraints(pattern=r"^\S+:\d{1,5}$")] | None = None
    """host:port of the frontend; default 127.0.0.1:7233."""
    namespace: str | None = None
    """relight's own namespace; default `default`."""
    profile: str | None = None
    """Profile of Temporal's own configuration file."""
    api_key: SecretStr | None = None
    """API key; better given as RELIGHT_TEMPORAL__API_KEY or api_key_file."""
    api_key_file: Path | None = None
    """File that holds the API key."""
    tls: TlsSettings | None = None
    """`tls: {}` for TLS with the system's authorities."""


class DatabaseSettings(_Section):
    """The audit store."""

    url: SecretStr = SecretStr("sqlite:////var/lib/relight/relight.db")
    """sqlite:///PATH, postgresql://…, mysql://… ; a password in it belongs into the environment or url_file."""
    url_file: Path | None = None
    """File that holds the URL; it takes precedence."""


class RetentionSettings(_Section):
    """What is kept after Temporal has deleted its own."""

    keep_histories_every_h: Annotated[float, Field(ge=0, le=168, allow_inf_nan=False)] = 6.0
    """Hours between two rounds that keep the histories of closed workflows in evidence_dir; 0: none are kept. More
    often than the namespace's retention."""


class SweepSettings(_Section):
    interval_s: Annotated[float, Field(ge=0.2, le=300, allow_inf_nan=False)] = 2.0
    """Seconds from one sweep of a cluster to the next."""


class GateSettings(_Section):
    """The gate: the one script that runs Slurm's commands."""

    python: str = "python3"
    """Interpreter that runs it, 3.6 or newer."""
    dir: Path | None = None
    """Folder of its locks, its count of changes and the STOP file; default /var/lib/relight/gate/CLUSTER."""
    ceiling: Annotated[int, Field(ge=1, le=100_000)] = 60
    """Most changes to Slurm within an hour, whatever the policy says."""
    drain_ceiling: Annotated[int, Field(ge=0, le=10_000)] = 4
    """Most nodes taken out of service within an hour, whatever the policy says; 0: none, ever."""
    timeout_s: Annotated[float, Field(gt=0, le=600, allow_inf_nan=False)] = 100.0
    """Longest run of one call."""


class NodeCheckSettings(_Section):
    """The site's own command that tells whether a drained node is well again."""

    command: Annotated[tuple[Annotated[str, StringConstraints(min_length=1)], ...], Field(min_length=1, max_length=64)]
    """Program and its words; the node's name is added as the last one. Exit status 0 means that the node is well. It
    runs on the worker's host, as the worker's user, without a shell."""
    timeout_s: Annotated[float, Field(gt=0, le=3600, allow_inf_nan=False)] = 60.0
    """After this it is ended and the node stays out of service."""
    every_s: Annotated[float, Field(ge=1, le=86_400, allow_inf_nan=False)] = 300.0
    """Time between two checks of one node."""


class ClusterSettings(_Section):
    """One Slurm cluster."""

    slurm_conf: Path | None = None
    """slurm.conf of the cluster; left out: what Slurm's commands find by themselves."""
    path: str | None = None
    """PATH with Slurm's commands; left out: the worker's own."""
    gate: GateSettings = GateSettings()
    ssh: SshSettings | None = None
    """Reach the cluster over SSH; left out: Slurm's commands work on the worker's own machine."""
    node_check: NodeCheckSettings | None = None
    """Checks drained nodes; left out: they come back after their time, or when a person clears them."""


class TelemetrySettings(_Section):
    """What relight looks at besides Slurm and the jobs' own log files."""

    prometheus: PrometheusSettings | None = None
    """Metrics of GPUs, fabric and hosts; left out: jobs are watched by Slurm and their logs alone."""
    logs: LogsSettings | None = None
    """A log store; left out: the jobs' own output files are read."""


class Settings(BaseSettings):
    """Everything a relight process is told."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True, use_attribute_docstrings=True
    )

    temporal: TemporalSettings = TemporalSettings()
    database: DatabaseSettings = DatabaseSettings()
    policy_file: Path | None = None
    """Left out: built-in defaults, and every cluster in monitor mode."""
    evidence_dir: Path = Path("/var/lib/relight/evidence")
    """Where the ends of logs are kept before a restart truncates them, and the histories of closed workflows."""
    catalogue: tuple[Path, ...] = ()
    """More fault catalogues, beside the built-in one."""
    retention: RetentionSettings = RetentionSettings()
    sweep: SweepSettings = SweepSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    attribution: AttributionSettings = AttributionSettings()
    console: ConsoleSettings = ConsoleSettings()
    clusters: dict[ClusterName, ClusterSettings] = Field(default_factory=dict)
    """By the name that workflow ids begin with."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """How much the worker's log tells."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return env_settings, init_settings  # the file's values are handed in as init: the environment wins

    def gate_dir(self, cluster: str) -> Path:
        return self.clusters[cluster].gate.dir or Path("/var/lib/relight/gate") / cluster

    @property
    def database_url(self) -> str:
        """The URL with its password; only for connecting. Raises ConfigError."""
        if self.database.url_file is not None:
            return read_secret(self.database.url_file, "database.url_file")
        return self.database.url.get_secret_value()


def read_secret(path: Path, key: str) -> str:
    """The one line of a secret file. Raises ConfigError, which never shows what is in it."""
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise ConfigError(f"{key}: {path} cannot be read ({reason}), expected a file that holds the secret") from None
    if not text:
        raise ConfigError(f"{key}: {path} is empty, expected the secret on one line")
    return text


def find_config(config: Path | None = None, environ: Mapping[str, str] | None = None) -> Path | None:
    """The configuration file: `config`, RELIGHT_CONFIG, /etc/relight/relight.yaml, ./relight.yaml; None without any."""
    named = config or Path((environ or os.environ).get(CONFIG_VARIABLE, "") or ".")
    if named != Path("."):
        return named
    return next((place for place in PLACES if place.exists()), None)


def load_settings(config: Path | None = None) -> Settings:
    """The effective configuration. Raises ConfigError with every problem found."""
    path = find_config(config)
    read = Lines(data={})
    name = "environment"
    if path is not None:
        name = str(path)
        read = read_lines(_text(path), name)
        if read.problems:
            raise ConfigError("\n".join(str(problem) for problem in read.problems))
        if not isinstance(read.data, dict):
            raise ConfigError(f"{name}: expected keys such as temporal and clusters, for example:\n\n{MINIMAL}")
    try:
        settings = Settings(**read.data)
    except ValidationError as error:
        raise ConfigError("\n".join(_explain(item, read, name) for item in error.errors())) from None
    except ValueError as error:  # a variable that should hold JSON and does not
        raise ConfigError(f'environment: {error}, expected JSON such as ["/etc/relight/more.yaml"]') from None
    if not settings.clusters:
        raise ConfigError(_no_clusters(path))
    return settings


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"configuration file {path} does not exist. A minimal one:\n\n{MINIMAL}") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError(f"configuration file {path} cannot be read: {reason}") from None


def _no_clusters(path: Path | None) -> str:
    if path is not None:
        return f"{path}: clusters: no cluster is named, expected at least one, for example:\n\n{MINIMAL}"
    places = ", ".join(str(place) for place in PLACES)
    return (
        f"no configuration: none of {places} exists, {CONFIG_VARIABLE} is not set and --config was not given.\n"
        f"A minimal {PLACES[0]}:\n\n{MINIMAL}"
    )


def _explain(item: Any, read: Lines, name: str) -> str:
    path = tuple(part for part in item["loc"] if part != "[key]")
    key = dotted(path)
    line = read.line(path) if path in read.lines or item["type"] == "missing" else None
    variable = PREFIX + "__".join(str(part) for part in path).upper()
    given = variable in {known.upper() for known in os.environ}
    where = f"environment variable {variable}" if given and line is None else name
    if item["type"] == "extra_forbidden":
        return str(Problem(where, line, key, f"is not known; known here: {_known(path[:-1])}"))
    if item["type"] == "value_error":
        return str(Problem(where, line, key, str(item["msg"]).removeprefix("Value error, ")))
    return str(Problem(where, line, key, f"{_shown(item['input'], path)}, expected {_expected(item, path)}"))


def _shown(value: object, path: tuple[Any, ...]) -> str:
    """What was given, never a secret: not the value of one, and not a container that may hold one."""
    if _is_secret(path):
        return "is not usable"
    if isinstance(value, dict | list):
        return f"is a {'mapping' if isinstance(value, dict) else 'list'}"
    return f"is {value!r:.80}"


def _expected(item: Any, path: tuple[Any, ...]) -> str:
    if item["type"] == "string_pattern_mismatch":
        return "host:port" if path[-1] == "address" else "letters, digits, '-', '_' and '.'"
    if item["type"] == "path_type":
        return "a path"
    text = str(item["msg"]).removeprefix("Input should be ")
    return "a mapping of keys to values" if "dictionary" in text else f"{text[0].lower()}{text[1:]}"


def _is_secret(path: tuple[Any, ...]) -> bool:
    return bool(path) and path[-1] in {"api_key", "url", "token", "tokens", "secret", "key"}


def _known(parent: tuple[Any, ...]) -> str:
    shapes: dict[tuple[Any, ...], type[BaseModel]] = {
        (): Settings,
        ("temporal",): TemporalSettings,
        ("temporal", "tls"): TlsSettings,
        ("database",): DatabaseSettings,
        ("retention",): RetentionSettings,
        ("sweep",): SweepSettings,
        ("telemetry",): TelemetrySettings,
        ("telemetry", "prometheus"): PrometheusSettings,
        ("telemetry", "logs"): LogsSettings,
        ("attribution",): AttributionSettings,
        ("attribution", "mask"): MaskSettings,
        ("attribution", "http"): ServiceSettings,
        ("attribution", "chat"): ChatSettings,
        ("console",): ConsoleSettings,
        ("console", "proxy"): ProxySettings,
    }
    below: dict[int, type[BaseModel]] = {2: ClusterSettings, 3: GateSettings}
    if parent[2:] == ("node_check",):
        below[3] = NodeCheckSettings
    shape = below.get(len(parent)) if parent[:1] == ("clusters",) else shapes.get(parent)
    return ", ".join(shape.model_fields) if shape else "other keys"


def unknown_variables(environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """RELIGHT_… variables that no setting reads: most likely misspelt."""
    sections = {field.upper() for field in Settings.model_fields}
    # RELIGHT_GATE_… are the gate's own, for a gate started by hand.
    own = {CONFIG_VARIABLE}
    return tuple(
        name
        for name in sorted(environ or os.environ)
        if name.startswith(PREFIX)
        and name not in own
        and not name.startswith("RELIGHT_GATE_")
        and name.removeprefix(PREFIX).split("__")[0].upper() not in sections
    )


def printable(settings: Settings) -> dict[str, Any]:
    """The effective configuration without secrets, as plain data."""
    data: dict[str, Any] = settings.model_dump(mode="json")
    data["database"]["url"] = without_password(settings.database.url.get_secret_value())
    return data


def without_password(url: str) -> str:
    """A database URL as it may be shown."""
    scheme, found, rest = url.partition("://")
    if not found or "@" not in rest:
        return url
    login, _, place = rest.rpartition("@")
    user = login.partition(":")[0]
    return f"{scheme}://{user}{':***' if ':' in login else ''}@{place.partition('?')[0]}"
