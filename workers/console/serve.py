"""Starts the console: checks that it may listen where it is told to, opens the store, serves until it is stopped.

What it serves is not made here.
"""

from __future__ import annotations

import ipaddress
import logging
import secrets
import sys
from pathlib import Path

import uvicorn

from activities.audit.store import AuditStore
from workers.console.access import Access
from workers.console.app import create
from workers.console.sessions import Sessions
from workers.console.tokens import Role, Tokens
from workers.naming import settings_of
from workers.screen import UNUSABLE, Trouble
from workers.settings import ConfigError, Settings, read_secret
from workers.settings_console import ConsoleSettings

LEAST_SECRET = 16
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]", "::1")

log = logging.getLogger("relight.console")


def run_console(config: Path | None, *, listen: str, open_to: str) -> None:
    """Never returns normally: ends with an exit code."""
    settings = settings_of(config)
    logging.basicConfig(
        level=settings.log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    host, port = host_and_port(listen or settings.console.listen)
    role = _role(open_to)
    try:
        access = access_of(settings, open_to=role)
        check_exposure(host, access, settings.console)
        store = AuditStore(settings.database_url, timeout_s=min(5.0, settings.console.deadline_s), existing=True)
    except (ConfigError, ValueError) as error:
        raise Trouble(str(error), UNUSABLE) from None
    hosts = settings.console.hosts
    if role is not None:
        hosts = (*LOOPBACK_NAMES, *hosts)  # another site's name that points here must not act for whoever sits here
    with store:
        app = create(settings, store, access, hosts=hosts)
        console = settings.console
        scheme = "https" if console.tls_cert is not None else "http"
        log.info("the console listens on %s://%s:%d", scheme, host, port)
        server = uvicorn.Server(
            uvicorn.Config(
                app,
                host=host.strip("[]"),
                port=port,
                log_level="warning",
                access_log=False,
                proxy_headers=False,  # no header says who asks unless the proxy's key comes with it
                server_header=False,
                timeout_graceful_shutdown=2,  # live feeds never end by themselves
                limit_concurrency=1000,
                ssl_certfile=console.tls_cert,
                ssl_keyfile=console.tls_key,
            )
        )
        try:
            server.run()
        except SystemExit:
            raise Trouble(f"the console cannot listen on {host}:{port}: see the line above") from None
    raise SystemExit(0)


def host_and_port(text: str) -> tuple[str, int]:
    host, found, port = text.rpartition(":")
    if not found or not host or not port.isdigit() or int(port) > 65_535:
        raise Trouble(f"--listen {text!r}: expected host:port, as 127.0.0.1:8230 or [::1]:8230", UNUSABLE)
    return host, int(port)


def _role(word: str) -> Role | None:
    if word and word not in set(Role):
        raise Trouble(f"--without-sign-in {word!r}: expected viewer or operator", UNUSABLE)
    return Role(word) if word else None


def access_of(settings: Settings, *, open_to: Role | None = None) -> Access:
    """Raises ConfigError."""
    console = settings.console
    tokens = Tokens(console.tokens_file, console.tokens.get_secret_value() if console.tokens is not None else "")
    key = ""
    if console.proxy is not None:
        key = _secret(console.proxy.key, console.proxy.key_file, "console.proxy.key")
    return Access(
        tokens,
        Sessions(
            _secret(console.secret, console.secret_file, "console.secret") or secrets.token_urlsafe(32),
            hours=console.session_hours,
            https=console.https or console.tls_cert is not None,
        ),
        proxy=console.proxy,
        proxy_key=key,
        open_to=open_to,
    )


def _secret(value: object, file: Path | None, key: str) -> str:
    text = ""
    if file is not None:
        text = read_secret(file, f"{key}_file")
    elif value is not None and hasattr(value, "get_secret_value"):
        text = str(value.get_secret_value())
    if text and len(text) < LEAST_SECRET:
        raise ConfigError(f"{key}: it has {len(text)} characters, expected at least {LEAST_SECRET} random ones")
    return text


def check_exposure(host: str, access: Access, console: ConsoleSettings) -> None:
    """Raises ConfigError where somebody could get in who should not."""
    guarded = bool(access.tokens) or console.proxy is not None
    if access.open_to is not None and not _is_loopback(host):
        raise ConfigError(
            f"--without-sign-in: the console would listen on {host}, which others can reach; expected a loopback "
            "address such as 127.0.0.1. Make a token with `relight token NAME --role operator` and leave the option out"
        )
    if guarded or access.open_to is not None:
        return
    raise ConfigError(
        f"console: nobody could sign in to {host}: no console.tokens_file, console.tokens or console.proxy is set. "
        "`relight token NAME --role operator` makes a token; on loopback, --without-sign-in viewer lets everybody on "
        "this host look"
    )


def _is_loopback(host: str) -> bool:
    plain = host.strip("[]")
    if plain == "localhost":
        return True
    try:
        return ipaddress.ip_address(plain).is_loopback
    except ValueError:
        return False
