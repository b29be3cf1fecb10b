"""The section telemetry.logs: what is given reaches the store, and what cannot work is refused in words."""

from __future__ import annotations

from pathlib import Path

import pytest

from activities.telemetry.loki import Loki
from activities.telemetry.store_reader import StoreReader
from activities.telemetry.victorialogs import VictoriaLogs
from workers.settings import ConfigError, load_settings, printable
from workers.telemetry import log_source

BASE = "clusters:\n  prod: {}\n"


def written(folder: Path, section: str) -> Path:
    path = folder / "relight.yaml"
    path.write_text(f"{BASE}telemetry:\n  logs: {section}\n")
    return path


def test_without_the_section_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "relight.yaml"
    path.write_text(BASE)
    assert log_source(load_settings(path), "prod") is None


def test_what_is_given_reaches_the_store(tmp_path: Path) -> None:
    section = """{kind: loki, url: "http://loki:3100", tenant: team, job_field: job, node_fields: [where],
        selector: '{cluster="{cluster}"}', late_s: 30, headers: {X-Key: hush}}"""
    settings = load_settings(written(tmp_path, section))
    source = log_source(settings, "prod")
    assert isinstance(source, StoreReader)
    assert isinstance(source.store, Loki)
    assert source.store.query(["7"]) == '{cluster="prod", job=~"7"}'
    assert source.store.shape.node({"host": "no", "where": "n1:9100"}) == "n1"
    assert source.timing.late_s == 30
    assert "hush" not in str(printable(settings))
    section = '{kind: victorialogs, url: "https://logs/vl", tenant: "7:3"}'
    source = log_source(load_settings(written(tmp_path, section)), "prod")
    assert isinstance(source, StoreReader)
    assert isinstance(source.store, VictoriaLogs)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ('kind: splunk, url: "http://x"', "'victorialogs' or 'loki'"),
        ("kind: loki, url: loki", "telemetry.logs.url"),
        ('kind: loki, url: "http://me:secret@loki"', "login_file"),
        ('kind: loki, url: "http://x", job_field: "job.id"', "a label's name"),
        ('kind: loki, url: "http://x", job_field: "a=~b"', "telemetry.logs.job_field"),
        ('kind: loki, url: "http://x", selector: "cluster"', "expected labels such as"),
        ('kind: loki, url: "http://x", job_is_label: false', "expected a selector too"),
        ('kind: victorialogs, url: "http://x", tenant: team', "AccountID:ProjectID"),
        ('kind: victorialogs, url: "http://x", token_file: /a, login_file: /b', "expected one"),
        ('kind: victorialogs, url: "http://x", client_cert: /a', "belong together"),
        ('kind: victorialogs, url: "http://x", late: 5', "late_s"),
    ],
)
def test_what_cannot_work_is_refused(tmp_path: Path, more: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_settings(written(tmp_path, f"{{{more}}}"))
    assert words in str(refused.value)
    assert "secret" not in str(refused.value)
