"""Where the console may listen, and with what it refuses to start."""

from __future__ import annotations

import pytest

from tests.console.conftest import Grounds
from tests.workers.conftest import Relight, runner
from workers.console.app import create
from workers.console.serve import access_of, check_exposure
from workers.console.tokens import Role
from workers.settings import ConfigError


@pytest.fixture
def relight(capsys: pytest.CaptureFixture[str]) -> Relight:
    return runner(capsys)


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "192.0.2.7", "console.example"])
def test_where_others_can_reach_it_somebody_must_sign_in(host: str, grounds: Grounds) -> None:
    grounds.tokens.write_text("# nobody yet\n")
    settings = grounds.settings
    with pytest.raises(ConfigError, match="nobody could sign in"):
        check_exposure(host, access_of(settings), settings.console)
    with pytest.raises(ConfigError, match="which others can reach"):
        check_exposure(host, access_of(settings, open_to=Role.VIEWER), settings.console)


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "localhost"])
def test_on_loopback_it_opens_to_everybody_only_when_that_is_said(host: str, grounds: Grounds) -> None:
    grounds.tokens.write_text("")
    settings = grounds.settings
    with pytest.raises(ConfigError, match="--without-sign-in viewer"):
        check_exposure(host, access_of(settings), settings.console)
    check_exposure(host, access_of(settings, open_to=Role.VIEWER), settings.console)


def test_with_tokens_it_may_listen_anywhere(grounds: Grounds) -> None:
    check_exposure("0.0.0.0", access_of(grounds.settings), grounds.settings.console)


def test_the_command_says_what_is_missing(grounds: Grounds, relight: Relight) -> None:
    grounds.tokens.write_text("")
    told = relight("console", "--config", str(grounds.config), "--listen", "0.0.0.0:0")
    assert told.code == 2
    assert "relight token" in told.err
    told = relight("console", "--config", str(grounds.config), "--without-sign-in", "root")
    assert (told.code, "viewer or operator" in told.err) == (2, True)


def test_a_proxy_without_a_key_is_refused(grounds: Grounds) -> None:
    grounds.write(", proxy: {operators: [carol]}")
    with pytest.raises(ConfigError, match=r"console\.proxy"):
        _ = grounds.settings
    grounds.write(", proxy: {key: short, operators: [carol]}")
    with pytest.raises(ConfigError, match="at least 16"):
        access_of(grounds.settings)


def test_another_sites_name_that_points_here_is_not_served_without_sign_in(grounds: Grounds) -> None:
    from starlette.testclient import TestClient

    from workers.console.serve import LOOPBACK_NAMES

    access = access_of(grounds.settings, open_to=Role.OPERATOR)
    app = create(grounds.settings, grounds.store, access, hosts=LOOPBACK_NAMES)
    with TestClient(app, base_url="http://localhost:8230") as own:
        assert own.get("/").status_code == 200
        assert own.get("/", headers={"Host": "evil.example"}).status_code == 400


def test_a_new_token_is_shown_once_and_kept_as_a_digest(relight: Relight) -> None:
    told = relight("token", "oncall", "--role", "operator", "--json").json
    assert told["line"].startswith("oncall operator sha256:")
    assert told["token"] not in told["line"]
    assert relight("token", "on call").code == 2
    assert relight("token", "oncall", "--role", "root").code == 2
