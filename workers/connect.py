"""One way to reach Temporal for every process: relight's settings, then Temporal's own variables and profile."""

from __future__ import annotations

import asyncio
from typing import Any

from temporalio.client import Client
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.envconfig import ClientConfig
from temporalio.service import TLSConfig

from workers.settings import ConfigError, TemporalSettings, read_secret

DEFAULT_ADDRESS = "127.0.0.1:7233"
DEFAULT_NAMESPACE = "default"
CONNECT_LIMIT_S = 10.0


class TemporalAway(Exception):
    """Temporal cannot be reached. The text names the address and what to do."""


def connect_options(settings: TemporalSettings) -> dict[str, Any]:
    """Arguments of Client.connect: what the settings leave out comes from Temporal's own configuration.

    Raises ConfigError.
    """
    try:
        options: dict[str, Any] = dict(ClientConfig.load_client_connect_config(profile=settings.profile))
    except (RuntimeError, ValueError) as error:
        raise ConfigError(f"Temporal's own configuration (TEMPORAL_... variables, temporal.toml): {error}") from None
    options["target_host"] = settings.address or options.get("target_host") or DEFAULT_ADDRESS
    options["namespace"] = settings.namespace or options.get("namespace") or DEFAULT_NAMESPACE
    key = settings.api_key.get_secret_value() if settings.api_key else None
    if settings.api_key_file is not None:
        key = read_secret(settings.api_key_file, "temporal.api_key_file")
    if key:
        options["api_key"] = key
        options.setdefault("tls", True)  # an API key never travels in clear
    if settings.tls is not None:
        options["tls"] = _tls(settings) if settings.tls.enabled else False
    return options


def _tls(settings: TemporalSettings) -> TLSConfig:
    tls = settings.tls
    assert tls is not None

    def content(key: str) -> bytes | None:
        path = getattr(tls, key)
        if path is None:
            return None
        try:
            return bytes(path.read_bytes())
        except OSError as error:
            raise ConfigError(f"temporal.tls.{key}: {path} cannot be read: {error.strerror}") from None

    return TLSConfig(
        server_root_ca_cert=content("server_ca"),
        client_cert=content("client_cert"),
        client_private_key=content("client_key"),
        domain=tls.server_name,
    )


async def connect(settings: TemporalSettings) -> Client:
    """A client that speaks relight's models. Raises TemporalAway, ConfigError."""
    options = connect_options(settings)
    try:
        return await asyncio.wait_for(
            Client.connect(**options, data_converter=pydantic_data_converter), timeout=CONNECT_LIMIT_S
        )
    except (RuntimeError, TimeoutError) as error:
        reason = str(error).splitlines()[0] if str(error) else f"no answer within {CONNECT_LIMIT_S:g} s"
        raise TemporalAway(
            f"Temporal at {options['target_host']} (namespace {options['namespace']}) cannot be reached: {reason}. "
            "Is it running, and is temporal.address right (`relight config check`)?"
        ) from None
