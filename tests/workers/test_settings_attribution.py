"""The section attribution: off by default, what is given reaches the providers, secrets are never shown."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from activities.attribution.chat import ChatModel
from activities.attribution.service import AttributionService
from recovery.attribution import AskedPhase, Trust
from recovery.masking import MaskRules
from tests.recovery.questions import question
from workers.attribution import attributors
from workers.settings import ConfigError, load_settings, printable

BASE = "clusters:\n  prod: {}\n"


def written(folder: Path, section: str) -> Path:
    path = folder / "relight.yaml"
    path.write_text(f"{BASE}attribution: {section}\n")
    return path


def test_without_a_provider_nobody_is_asked(tmp_path: Path) -> None:
    path = tmp_path / "relight.yaml"
    path.write_text(BASE)
    assert attributors(load_settings(path)) is None
    assert attributors(load_settings(written(tmp_path, "{fast_s: 1}"))) is None


def test_what_is_given_reaches_the_providers(tmp_path: Path) -> None:
    section = """{fast_s: 1.5, slow_s: 0, mask: {users: false, more: ['Manhattan-\\d+']},
        http: {url: "https://why.example", trust: strong, send_evidence: true, max_answer_kb: 8, server_ca: /ca.pem},
        chat: {url: "http://llm:8000/v1", model: some-model, may_stop: true, log_lines: 7, structured: none}}"""
    made = attributors(load_settings(written(tmp_path, section)))
    assert made is not None
    service, chat = made.providers
    assert (made.fast_s, made.slow_s) == (1.5, 0.0)
    assert isinstance(service, AttributionService)
    assert isinstance(chat, ChatModel)
    assert (service.terms.name, service.terms.trust, service.terms.may_stop) == ("http", Trust.STRONG, False)
    assert service.terms.mask == MaskRules(users=False, more=(r"Manhattan-\d+",))
    asked = service.request(question(), AskedPhase.FAST, "", left_s=1.0)
    assert asked.failure_context.evidence is not None
    assert (chat.terms.name, chat.terms.trust, chat.terms.may_stop) == ("chat", Trust.WEAK, True)
    assert chat.terms.log_lines == 7
    assert "response_format" not in chat.request(question())


def test_secrets_are_never_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELIGHT_ATTRIBUTION__CHAT__TOKEN", "hush-token")
    section = '{chat: {url: "http://llm/v1", model: m, headers: {X-Key: hush-header}}}'
    settings = load_settings(written(tmp_path, section))
    shown = yaml.safe_dump(printable(settings))
    assert "hush" not in shown
    assert "http://llm/v1" in shown
    assert settings.attribution.chat is not None
    assert settings.attribution.chat.token is not None
    assert settings.attribution.chat.token.get_secret_value() == "hush-token"


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ('{http: {url: "why"}}', "attribution.http.url"),
        ('{http: {url: "http://me:secret@why"}}', "token_file"),
        ('{http: {url: "http://why", token: secret, token_file: /a}}', "expected one"),
        ('{http: {url: "http://why", token: {secret: 1}}}', "attribution.http.token"),
        ('{http: {url: "http://why", client_key: /a}}', "belong together"),
        ('{http: {url: "http://why", trust: blind}}', "'weak' or 'strong'"),
        ('{http: {url: "http://why", model: m}}', "is not known; known here: url"),
        ('{chat: {url: "http://why"}}', "attribution.chat.model"),
        ("{fast_s: 60}", "attribution.fast_s"),
        ("{slow_s: .inf}", "attribution.slow_s"),
        ("{mask: {more: ['(']}}", "RE2"),
        ("{nvidia: {}}", "known here: fast_s"),
    ],
)
def test_what_cannot_work_is_refused(tmp_path: Path, section: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load_settings(written(tmp_path, section))
    assert words in str(refused.value)
    assert "secret" not in str(refused.value).replace("client_secret", "")
