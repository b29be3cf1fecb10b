"""The section telemetry.prometheus: what is taken, what is refused and how that is told; secrets stay secret."""

from pathlib import Path

import pytest

from activities.telemetry.hostnames import HOST_LABELS
from recovery.faults.catalogue import Catalogue
from workers.settings import ConfigError, Settings, load_settings, printable
from workers.telemetry import metrics_source, metrics_watch


def load(folder: Path, section: str) -> Settings:
    path = folder / "relight.yaml"
    path.write_text(f"clusters: {{prod: {{}}}}\ntelemetry: {section}\n")
    return load_settings(path)


def test_an_address_is_enough(tmp_path: Path) -> None:
    source = metrics_source(load(tmp_path, "{prometheus: {url: 'https://metrics.example:9090/prom/'}}"), "prod")
    assert source is not None
    assert source.access.url == "https://metrics.example:9090/prom/"
    assert source.access.verify
    assert source.shape.host_labels == HOST_LABELS
    assert source.interval_s == 15


def test_all_of_it_reaches_the_watch(tmp_path: Path) -> None:
    section = """{prometheus: {url: 'http://p:9090', token_file: /t, headers_file: /h, headers: {X-Scope-OrgID: gpu},
      verify: false, server_ca: /ca, client_cert: /c, client_key: /k, selector: 'cluster="{cluster}", env=~"a|b"',
      host_labels: [machine, instance], interval_s: 30, deadline_s: 5, max_answer_mb: 4, idle_s: 240,
      lookback_s: 900}}"""
    source = metrics_source(load(tmp_path, section), "prod")
    assert source is not None
    assert source.access.headers == {"X-Scope-OrgID": "gpu"}
    assert (source.access.token_file, source.access.headers_file) == (Path("/t"), Path("/h"))
    assert (source.access.verify, source.access.server_ca) == (False, Path("/ca"))
    assert (source.access.client_cert, source.access.client_key) == (Path("/c"), Path("/k"))
    assert (source.access.deadline_s, source.access.max_answer_bytes) == (5, 4 << 20)
    assert source.shape.selector == 'cluster="prod", env=~"a|b"'
    assert source.shape.host_labels == ("machine", "instance")
    assert (source.shape.idle_s, source.shape.lookback_s, source.interval_s) == (240, 900, 30)


def test_without_the_section_nothing_is_watched(tmp_path: Path) -> None:
    settings = load(tmp_path, "{}")
    assert metrics_source(settings, "prod") is None
    assert not metrics_watch(settings, "prod", Catalogue.built_in()).configured


def test_the_environment_can_name_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELIGHT_CLUSTERS__PROD__SLURM_CONF", "/etc/slurm/slurm.conf")
    monkeypatch.setenv("RELIGHT_TELEMETRY__PROMETHEUS__URL", "http://p:9090")
    source = metrics_source(load_settings(), "prod")
    assert source is not None
    assert source.access.url == "http://p:9090"


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ("{prometheus: {}}", "telemetry.prometheus.url"),
        ("{prometheus: {url: 'p:9090'}}", "telemetry.prometheus.url"),
        ("{prometheus: {url: 'http://p:9090/api?x=1'}}", "telemetry.prometheus.url"),
        ("{prometheus: {url: 'http://joe:hush@p:9090'}}", "holds a login"),
        ("{prometheus: {url: 'http://p', selector: 'cluster=prod'}}", 'expected matchers such as cluster="prod"'),
        ("""{prometheus: {url: 'http://p', selector: 'a="b"} or up{c="d"'}}""", "expected matchers"),
        ("{prometheus: {url: 'http://p', client_cert: /c}}", "belong together"),
        ("{prometheus: {url: 'http://p', host_labels: ['a-b']}}", "host_labels"),
        ("{prometheus: {url: 'http://p', deadline_s: 0}}", "deadline_s"),
        ("{prometheus: {url: 'http://p', interval: 3}}", "known here: url, token_file"),
        ("{prometeus: {}}", "known here: prometheus"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_place(tmp_path: Path, section: str, told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, section)
    assert told in str(refused.value)
    assert "relight.yaml:2" in str(refused.value)
    assert "hush" not in str(refused.value)


def test_headers_are_never_printed(tmp_path: Path) -> None:
    settings = load(tmp_path, "{prometheus: {url: 'http://p', headers: {X-Key: hush}}}")
    assert "hush" not in str(printable(settings))
    assert "hush" not in repr(settings)
