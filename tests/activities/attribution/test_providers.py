"""Both providers over real sockets, against doubles that are slow, ill, enormous, malformed, wrong and lying."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from activities.attribution.asking import Access
from activities.attribution.chat import ChatModel, strict_schema
from activities.attribution.provider import Provider, Terms, ask
from activities.attribution.service import AttributionService
from recovery.attribution import AnswerStatus, AskedPhase, Attribution
from recovery.masking import MaskRules
from recovery.records import FaultClass
from tests.recovery.questions import LINES, question
from tests.services import attribution_double as misbehave
from tests.services.attribution_double import AttributionDouble, Call, Say

KINDS = ("http", "chat")


@pytest.fixture
def double() -> Iterator[AttributionDouble]:
    with AttributionDouble() as running:
        yield running


def service(url: str, *, send_evidence: bool = False, mask: MaskRules | None = None, **access: Any) -> Provider:
    terms = Terms(name="http", mask=mask or MaskRules())
    return AttributionService(terms, Access(key="attribution.http", url=url, **access), send_evidence=send_evidence)


def chat(url: str, *, structured: Any = "json_schema", **access: Any) -> Provider:
    terms = Terms(name="chat", log_lines=10)
    access_ = Access(key="attribution.chat", url=f"{url}/v1", **access)
    return ChatModel(terms, access_, model="some-model", structured=structured)


def provider(kind: str, url: str, **access: Any) -> Provider:
    return service(url, **access) if kind == "http" else chat(url, **access)


async def asked(one: Provider, *, within_s: float = 10.0, session: str = "", **more: Any) -> Attribution:
    return await ask(one, question(**more), AskedPhase.FAST, session, ends=time.monotonic() + within_s)


def both(answer: object) -> Say:
    """The answer in the form of whichever was asked."""

    def say(call: Call) -> None:
        if "messages" in call.body:
            call.chat(answer)
        else:
            call.send(answer)

    return say


GOOD = {
    "category": "hardware",
    "confidence": "medium",
    "suspects": [{"host": "n02", "rank": 5, "confidence": "high", "lines": ["L1"], "reason": "a vendor error"}],
    "lines": ["L1"],
    "explanation": "The adapter of n02 failed first.",
}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_good_answer_is_taken(double: AttributionDouble, kind: str) -> None:
    double.say = both(GOOD)
    told = await asked(provider(kind, double.url))
    assert not double.refused
    assert (told.status, told.category) == (AnswerStatus.ANSWERED, FaultClass.HARDWARE), told.problem
    assert [one.node for one in told.suspects] == ["n02"]
    assert told.dropped == ()
    assert "n02" in told.summary


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("say", "status", "words"),
    [
        (misbehave.error, AnswerStatus.FAILED, "HTTP 500"),
        (misbehave.elsewhere, AnswerStatus.FAILED, "HTTP 307"),
        (misbehave.hung_up, AnswerStatus.FAILED, "cannot be asked"),
        (misbehave.enormous, AnswerStatus.NONSENSE, "larger than 256 KiB"),
        (misbehave.compressed, AnswerStatus.NONSENSE, "compressed"),
        (misbehave.says(b""), AnswerStatus.NONSENSE, "not usable"),
        (misbehave.says(b"<html>login</html>"), AnswerStatus.NONSENSE, "not usable"),
        (misbehave.says(b"[" * 200_000), AnswerStatus.NONSENSE, "not usable"),
        (misbehave.says(b'{"category": "gremlins"}'), AnswerStatus.NONSENSE, "not usable"),
        (misbehave.says(b'{"choices": [{"message": null}]}'), AnswerStatus.NONSENSE, "not usable"),
        (both({"category": "hardware", "suspects": "n02"}), AnswerStatus.NONSENSE, "suspects"),
    ],
    ids=("500", "redirect", "hung-up", "50-MB", "gzip", "empty", "html", "deep", "word", "null", "shape"),
)
async def test_nonsense_is_told_and_nothing_else(
    double: AttributionDouble, kind: str, say: Say, status: AnswerStatus, words: str
) -> None:
    double.say = say
    told = await asked(provider(kind, double.url))
    assert (told.status, told.suspects, told.category) == (status, (), FaultClass.UNKNOWN)
    assert words in told.problem
    assert len(told.summary) < 1_000


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("say", [misbehave.hang, misbehave.drip], ids=("hangs", "drips"))
async def test_who_does_not_come_to_an_end_is_late(double: AttributionDouble, kind: str, say: Say) -> None:
    double.say = say
    told = await asked(provider(kind, double.url), within_s=0.5)
    assert told.status is AnswerStatus.LATE
    assert told.took_s >= 0.5


@pytest.mark.parametrize("kind", KINDS)
async def test_nobody_there_is_no_answer(kind: str) -> None:
    told = await asked(provider(kind, "http://127.0.0.1:9"))
    assert told.status is AnswerStatus.FAILED
    assert "cannot be asked" in told.problem


@pytest.mark.parametrize("kind", KINDS)
async def test_a_liar_gets_no_stranger_and_no_crowd_past(double: AttributionDouble, kind: str) -> None:
    strangers = [{"host": "login01", "lines": ["L1"]}, {"host": "n02", "rank": 99, "lines": ["L77"]}, {"rank": 12345}]
    double.say = both({"category": "hardware", "suspects": strangers, "lines": ["L9"]})
    told = await asked(provider(kind, double.url))
    assert {one.node for one in told.suspects} <= {"n02"}
    assert any("login01" in claim for claim in told.dropped)
    everybody = [{"host": node, "lines": ["L1", "L3"]} for node in question().nodes]
    double.say = both({"category": "hardware", "suspects": everybody})
    told = await asked(provider(kind, double.url))
    assert len(told.suspects) <= 2
    assert told.dropped


async def test_the_published_request_is_sent_and_no_evidence(double: AttributionDouble) -> None:
    double.say = lambda call: call.send({**GOOD, "session_id": "s-1", "workload_id": "12345"})
    told = await asked(service(double.url), session="s-0")
    (body,) = double.asked
    assert told.session == "s-1"
    assert body.keys() == {
        *("schema_version", "workload_id", "scope", "failure_context", "workload_context"),
        *("timeout_ms", "phase", "continue_session"),
    }
    assert body["workload_id"] == "12345"
    assert body["scope"]["nodes"] == list(question().nodes)
    assert body["scope"]["ranks"] == [1, 5]
    assert body["failure_context"].keys() == {"detected_at", "detection_signal"}
    assert body["workload_context"] == {
        "workflow_id": "prod-12345",
        "attempt_index": 0,
        "job_end_time": "2026-03-01T12:10:00Z",
    }
    assert 0 < body["timeout_ms"] <= 10_000
    assert body["continue_session"] == "s-0"
    assert "vendor error" not in str(body)
    assert "alice" not in str(body)


async def test_evidence_is_masked_before_it_is_sent(double: AttributionDouble) -> None:
    secret = LINES[0].model_copy(update={"text": "n02: token=hush-hush in /home/alice/x/train.py"})
    await asked(service(double.url, send_evidence=True), lines=(secret,))
    (line,) = double.asked[0]["failure_context"]["evidence"]
    assert line["text"] == "n02: token=*** in /***/train.py"
    assert (line["ref"], line["nodes"], line["rank"]) == ("L1", ["n02"], 5)
    off = MaskRules(secrets=False, paths=False, users=False)
    await asked(service(double.url, send_evidence=True, mask=off), lines=(secret,))
    assert "hush-hush" in str(double.asked[1])
    assert double.asked[1]["user_id"] == "alice"


async def test_a_model_is_asked_in_a_strict_schema_with_masked_lines(double: AttributionDouble) -> None:
    double.say = both(GOOD)
    secret = LINES[0].model_copy(update={"text": "n02: password=hush-hush by alice"})
    await asked(chat(double.url), lines=(secret, *LINES[1:]))
    (body,) = double.asked
    assert body["model"] == "some-model"
    form = body["response_format"]["json_schema"]
    assert form["strict"] is True
    assert form["schema"] == strict_schema()
    assert form["schema"]["required"] == ["category", "confidence", "suspects", "lines", "explanation"]
    text = json.dumps(body)
    assert "hush-hush" not in text
    assert "alice" not in text
    assert "link flapping" in text  # the tail of the log


@pytest.mark.parametrize("structured", ["json_object", "none"])
async def test_servers_without_schemas_are_told_the_schema_in_words(double: AttributionDouble, structured: str) -> None:
    double.say = both(GOOD)
    told = await asked(chat(double.url, structured=structured))
    assert told.status is AnswerStatus.ANSWERED
    body = double.asked[0]
    assert "Schema of the answer" in body["messages"][1]["content"]
    assert body.get("response_format") == ({"type": "json_object"} if structured == "json_object" else None)


async def test_a_model_that_breaks_off_or_refuses_said_nothing(double: AttributionDouble) -> None:
    for choice in ({"finish_reason": "length"}, {"message": {"content": None, "refusal": "no"}}):
        double.say = lambda call, choice=choice: call.chat(GOOD, **choice)  # type: ignore[misc]
        assert (await asked(chat(double.url))).status is AnswerStatus.NONSENSE


async def test_the_token_is_sent_read_anew_and_never_told(double: AttributionDouble, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("first-secret\n")
    one = service(double.url, token_file=file)
    await asked(one)
    file.write_text("second-secret\n")
    await asked(one)
    assert [seen["Authorization"] for seen in double.headers] == ["Bearer first-secret", "Bearer second-secret"]
    file.unlink()
    told = await asked(one)
    assert told.status is AnswerStatus.FAILED
    assert "attribution.http.token_file" in told.problem
    assert "secret" not in told.problem
    told = await asked(service(double.url, token="a\nb-secret"))
    assert told.status is AnswerStatus.FAILED
    assert "secret" not in told.problem


@pytest.fixture
def self_signed(tmp_path: Path) -> tuple[Path, Path]:
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate),
        ],
        check=True,
        capture_output=True,
        timeout=60,
    )
    return certificate, key


async def test_a_servers_certificate_is_checked(tmp_path: Path, self_signed: tuple[Path, Path]) -> None:
    certificate, key = self_signed
    with AttributionDouble(certificate=certificate, key=key) as double:
        assert double.url.startswith("https://")
        told = await asked(service(double.url))
        assert told.status is AnswerStatus.FAILED
        assert "CERTIFICATE_VERIFY_FAILED" in told.problem
        assert not double.asked
        assert (await asked(service(double.url, server_ca=certificate))).status is AnswerStatus.ANSWERED
        assert (await asked(service(double.url, verify=False))).status is AnswerStatus.ANSWERED
        told = await asked(service(double.url, server_ca=tmp_path / "none.pem"))
        assert "attribution.http.server_ca" in told.problem


class Broken:
    """A provider with a bug."""

    terms = Terms(name="broken")
    must_cite = False

    async def answer(self, *_: object, ends: float) -> Any:
        raise RuntimeError("a bug")


async def test_a_providers_bug_is_no_more_than_silence() -> None:
    told = await asked(Broken())
    assert (told.status, told.problem) == (AnswerStatus.FAILED, "RuntimeError: a bug")
