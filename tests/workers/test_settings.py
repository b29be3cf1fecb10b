"""Configuration: where it comes from, which value wins, what is told when it is wrong, and that secrets stay secret."""

from pathlib import Path

import pytest

from workers.connect import connect_options
from workers.settings import (
    MINIMAL,
    ConfigError,
    Settings,
    find_config,
    load_settings,
    printable,
    unknown_variables,
    without_password,
)


def write(folder: Path, text: str, name: str = "relight.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def refused(path: Path | None) -> str:
    with pytest.raises(ConfigError) as caught:
        load_settings(path)
    return str(caught.value)


def test_the_example_in_the_messages_works(tmp_path: Path) -> None:
    loaded = load_settings(write(tmp_path, MINIMAL))
    assert loaded.temporal.address == "127.0.0.1:7233"
    assert loaded.clusters["prod"].slurm_conf == Path("/etc/slurm/slurm.conf")
    assert loaded.sweep.interval_s == 2.0
    assert loaded.gate_dir("prod") == Path("/var/lib/relight/gate/prod")


def test_without_any_configuration_a_minimal_example_is_shown() -> None:
    message = refused(None)
    assert "etc/relight.yaml" in message
    assert "RELIGHT_CONFIG" in message
    assert "clusters:\n  prod:" in message


def test_the_file_is_found_by_option_then_variable_then_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_config() is None
    write(tmp_path, MINIMAL)
    assert find_config() == Path("relight.yaml")
    (tmp_path / "etc").mkdir()
    assert find_config() == Path("relight.yaml")
    system = write(tmp_path / "etc", MINIMAL)
    assert find_config() == system
    monkeypatch.setenv("RELIGHT_CONFIG", "/elsewhere.yaml")
    assert find_config() == Path("/elsewhere.yaml")
    assert find_config(Path("/given.yaml")) == Path("/given.yaml")


def test_the_environment_wins_over_the_file_and_only_where_it_speaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, "sweep: {interval_s: 5}\nclusters: {prod: {gate: {ceiling: 9, python: python3.6}}}\n")
    monkeypatch.setenv("RELIGHT_CLUSTERS__PROD__GATE__CEILING", "7")
    monkeypatch.setenv("RELIGHT_TEMPORAL__ADDRESS", "temporal:7233")
    loaded = load_settings(path)
    assert loaded.clusters["prod"].gate.ceiling == 7
    assert loaded.clusters["prod"].gate.python == "python3.6"
    assert loaded.sweep.interval_s == 5
    assert loaded.temporal.address == "temporal:7233"


def test_the_environment_alone_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELIGHT_CLUSTERS__PROD__SLURM_CONF", "/etc/slurm/slurm.conf")
    assert list(load_settings().clusters) == ["prod"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("clusters: {prod: {}}\nsweep: {interval_s: 0}", ":2: sweep.interval_s: is 0, expected greater than or equal"),
        ("clusters: {prod: {}}\nsweep: {interval: 1}", ":2: sweep.interval: is not known; known here: interval_s"),
        ("cluster: {}", ":1: cluster: is not known; known here: temporal, database"),
        ("clusters: {prod: {gate: {ceilling: 1}}}", "clusters.prod.gate.ceilling: is not known; known here: python"),
        ("clusters: {'a b': {}}", "clusters.a b: is 'a b', expected letters, digits"),
        ("clusters: {prod: {slurm_conf: 5}}", "clusters.prod.slurm_conf: is 5, expected a path"),
        ("clusters: [prod]", ":1: clusters: is a list, expected a mapping of keys to values"),
        ("temporal: {address: localhost}", "temporal.address: is 'localhost', expected host:port"),
        ("temporal: {tls: {client_cert: /x}}", "temporal.tls: client_cert and client_key belong together"),
        ("log_level: loud", "log_level: is 'loud', expected 'debug', 'info', 'warning' or 'error'"),
        ("clusters: {}", "no cluster is named"),
        ("- a", "expected keys such as temporal and clusters"),
        ("a: {", "not valid YAML"),
        ("clusters: {prod: {}}\nclusters: {}", ":2: clusters: stands twice"),
    ],
)
def test_each_mistake_is_told_with_file_line_key_value_and_expectation(tmp_path: Path, text: str, told: str) -> None:
    path = write(tmp_path, text)
    message = refused(path)
    assert str(path) in message
    assert told in message


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    assert "does not exist" in refused(tmp_path / "absent.yaml")
    assert "Is a directory" in refused(tmp_path)
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    assert "not UTF-8" in refused(tmp_path / "binary.yaml")


def test_a_wrong_variable_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, MINIMAL)
    monkeypatch.setenv("RELIGHT_SWEEP__INTERVAL_S", "often")
    assert "environment variable RELIGHT_SWEEP__INTERVAL_S" in refused(path)
    monkeypatch.delenv("RELIGHT_SWEEP__INTERVAL_S")
    monkeypatch.setenv("RELIGHT_CATALOGUE", "/a.yaml")
    assert 'expected JSON such as ["/etc/relight/more.yaml"]' in refused(path)


def test_misspelt_variables_are_found() -> None:
    environ = {"RELIGHT_SWEP__INTERVAL_S": "1", "RELIGHT_SWEEP__INTERVAL_S": "1", "RELIGHT_CONFIG": "x", "HOME": "/"}
    assert unknown_variables(environ) == ("RELIGHT_SWEP__INTERVAL_S",)


SECRET = "correct-horse"


def test_secrets_are_never_shown(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        f"temporal: {{api_key: {SECRET}}}\n"
        f"database: {{url: 'postgresql://relight:{SECRET}@db/relight?sslpassword={SECRET}'}}\n"
        "clusters: {prod: {}}\n",
    )
    loaded = load_settings(path)
    assert loaded.database_url.count(SECRET) == 2
    for shown in (str(printable(loaded)), repr(loaded), loaded.model_dump_json()):
        assert SECRET not in shown
    assert printable(loaded)["database"]["url"] == "postgresql://relight:***@db/relight"


@pytest.mark.parametrize(
    "text",
    [
        f"database: {{url: [{SECRET}]}}",
        f"database: {{url: x, urll: {SECRET}}}",
        f"database: [{SECRET}]",
        f"temporal: {{api_key: {{a: {SECRET}}}}}",
    ],
)
def test_no_error_shows_a_secret(tmp_path: Path, text: str) -> None:
    assert SECRET not in refused(write(tmp_path, text))


def test_passwords_are_taken_out_of_urls() -> None:
    assert without_password("mysql://u:p:q@h:3306/db") == "mysql://u:***@h:3306/db"
    assert without_password("sqlite:////var/lib/x.db") == "sqlite:////var/lib/x.db"
    assert without_password("postgresql://u@h/db") == "postgresql://u@h/db"


def test_secrets_can_stand_in_files(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("postgresql://u:p@h/db\n")
    (tmp_path / "key").write_text(f"{SECRET}\n")
    (tmp_path / "empty").write_text("\n")
    loaded = load_settings(
        write(
            tmp_path,
            f"temporal: {{api_key_file: {tmp_path}/key}}\n"
            f"database: {{url_file: {tmp_path}/url}}\n"
            "clusters: {prod: {}}",
        )
    )
    assert loaded.database_url == "postgresql://u:p@h/db"
    options = connect_options(loaded.temporal)
    assert (options["api_key"], options["tls"]) == (SECRET, True)  # an API key never travels in clear
    for name, told in (("empty", "is empty"), ("absent", "cannot be read")):
        gone = Settings.model_validate({"database": {"url_file": str(tmp_path / name)}, "clusters": {"prod": {}}})
        with pytest.raises(ConfigError, match=told):
            _ = gone.database_url


def test_temporals_own_configuration_fills_what_the_file_leaves_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = load_settings(write(tmp_path, "clusters: {prod: {}}")).temporal
    assert connect_options(nothing) == {"target_host": "127.0.0.1:7233", "namespace": "default"}
    monkeypatch.setenv("TEMPORAL_ADDRESS", "cloud:7233")
    monkeypatch.setenv("TEMPORAL_NAMESPACE", "relight.abc")
    assert connect_options(nothing) == {"target_host": "cloud:7233", "namespace": "relight.abc"}
    own = load_settings(write(tmp_path, "temporal: {namespace: mine}\nclusters: {prod: {}}")).temporal
    assert connect_options(own) == {"target_host": "cloud:7233", "namespace": "mine"}


def test_tls_files_are_read_and_a_missing_one_is_named(tmp_path: Path) -> None:
    for name in ("ca", "cert", "key"):
        (tmp_path / name).write_text(name)
    text = (
        f"temporal: {{tls: {{server_ca: {tmp_path}/ca, client_cert: {tmp_path}/cert, client_key: {tmp_path}/key}}}}\n"
    )
    tls = connect_options(load_settings(write(tmp_path, text + "clusters: {prod: {}}")).temporal)["tls"]
    assert (tls.server_root_ca_cert, tls.client_cert, tls.client_private_key) == (b"ca", b"cert", b"key")
    (tmp_path / "ca").unlink()
    with pytest.raises(ConfigError, match=r"temporal\.tls\.server_ca: .* cannot be read"):
        connect_options(load_settings(write(tmp_path, text + "clusters: {prod: {}}")).temporal)
