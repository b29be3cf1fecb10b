"""Who gets in, who may act, and what does not help anybody to: each attempt is a test."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.console.conftest import Client, Grounds, form_of
from workers.console import telling
from workers.console.gatekeeping import FORM_HEADER
from workers.console.sessions import COOKIE
from workers.console.tokens import Role, new, parse
from workers.settings import ConfigError

ACTION = "/api/v1/jobs/prod-12345/pause"
FORM = "/jobs/prod-12345/do/pause"
WISH = {"reason": "debugging"}
PROXY_KEY = "a-key-that-nobody-knows"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What reached Temporal."""
    said: list[tuple[Any, ...]] = []

    async def connect(_: object) -> object:
        await asyncio.sleep(0)
        return object()

    async def ask(_: object, workflow: str, verb: str, words: dict[str, Any], **how: Any) -> dict[str, Any]:
        await asyncio.sleep(0)
        said.append((workflow, verb, words, how))
        return {"accepted": True, "message": f"{verb} done", "state": "watching"}

    monkeypatch.setattr(telling, "connect", connect)
    monkeypatch.setattr(telling, "ask", ask)
    return said


@pytest.mark.parametrize("path", ["/", "/jobs", "/jobs/prod-12345", "/nodes", "/reports.csv", FORM])
def test_a_stranger_is_led_to_the_sign_in_page(path: str, grounds: Grounds, client: Client) -> None:
    grounds.story()
    told = client().get(path)
    assert (told.status_code, told.headers["location"].partition("?")[0]) == (303, "/sign-in")


@pytest.mark.parametrize("path", ["/api/v1/jobs", "/api/v1/jobs/prod-12345", "/api/v1/now", "/api/v1/live", "/metrics"])
def test_a_stranger_reads_nothing(path: str, grounds: Grounds, client: Client) -> None:
    grounds.story()
    told = client().get(path)
    assert (told.status_code, told.headers["www-authenticate"]) == (401, "Bearer")
    assert "alice" not in told.text


@pytest.mark.parametrize(
    "header",
    ["Bearer ", "Bearer wrong", "Basic YWRtaW46YWRtaW4=", "bearer", "Bearer " + "x" * 5000, "Bearer é\udcff"],
)
def test_a_wrong_token_is_nobody(header: str, grounds: Grounds, client: Client, asked: list[Any]) -> None:
    grounds.story()
    nobody = client()
    headers = {"Authorization": header.encode("utf-8", "surrogateescape")}
    assert nobody.get("/api/v1/jobs", headers=headers).status_code == 401
    assert nobody.post(ACTION, json=WISH, headers=headers).status_code == 401
    assert asked == []


@pytest.mark.parametrize("path", [ACTION, "/api/v1/jobs/prod-12345/force", "/api/v1/jobs/prod-12345/approve", FORM])
def test_a_stranger_cannot_act(path: str, grounds: Grounds, client: Client, asked: list[Any]) -> None:
    grounds.story()
    told = client().post(path, json=WISH)
    assert told.status_code in {303, 401}
    assert asked == []


@pytest.mark.parametrize("verb", ["pause", "resume", "force", "approve"])
def test_a_viewer_cannot_act_by_the_api(verb: str, grounds: Grounds, client: Client, asked: list[Any]) -> None:
    grounds.story()
    told = client(grounds.viewer).post(f"/api/v1/jobs/prod-12345/{verb}", json=WISH)
    assert told.status_code == 403
    assert "operator" in told.json()["detail"]
    assert asked == []


@pytest.mark.parametrize("deed", ["pause", "resume", "restart", "stop", "release", "approve", "reject"])
def test_a_viewer_cannot_act_by_a_form(deed: str, grounds: Grounds, client: Client, asked: list[Any]) -> None:
    grounds.story()
    viewer = client(grounds.viewer, browser=True)
    form = form_of(viewer.get("/").text)
    assert viewer.post(f"/jobs/prod-12345/do/{deed}", data={"form": form, **WISH}).status_code == 403
    assert asked == []


def test_an_operator_acts_and_stands_in_the_record_with_the_reason(
    grounds: Grounds, client: Client, asked: list[Any]
) -> None:
    grounds.story()
    told = client(grounds.operator).post(ACTION, json=WISH, headers={"Idempotency-Key": "one"})
    assert told.json() == {"job": "prod-12345", "accepted": True, "message": "pause done", "state": "watching"}
    (workflow, verb, words, how) = asked[0]
    assert (workflow, verb, words) == ("prod-12345", "pause", {"by": "oncall", "reason": "debugging"})
    assert how["once"].startswith("console:")


def test_an_operator_acts_by_the_form_of_the_page(grounds: Grounds, client: Client, asked: list[Any]) -> None:
    grounds.story()
    operator = client(grounds.operator, browser=True)
    page = operator.get("/jobs/prod-12345/do/restart").text
    fields = {"form": form_of(page), "once": "k", "restart_count": "1", "reason": "bad node", "exclude": "n[03-04]"}
    assert "restart done" not in page
    told = operator.post("/jobs/prod-12345/do/restart", data=fields)
    assert "force done" in told.text
    assert asked[0][2] == {"by": "oncall", "reason": "bad node", "action": "restart", "exclude": ["n03", "n04"],
                           "restart_count": 1}  # fmt: skip


def test_a_form_of_another_site_does_nothing(grounds: Grounds, client: Client, asked: list[Any]) -> None:
    grounds.story()
    operator = client(grounds.operator, browser=True)
    form = form_of(operator.get(FORM).text)
    stranger = form_of(client().get("/sign-in").text)
    for fields, headers in (
        (WISH, {}),
        ({**WISH, "form": ""}, {}),
        ({**WISH, "form": "guess"}, {}),
        ({**WISH, "form": stranger}, {}),
        ({**WISH, "form": form}, {"Origin": "https://evil.example"}),
        ({**WISH, "form": form}, {"Sec-Fetch-Site": "cross-site"}),
        ({**WISH, "form": form}, {"Origin": "null"}),
    ):
        assert operator.post(FORM, data=fields, headers=headers).status_code == 403, (fields, headers)
    assert asked == []


def test_a_browsers_cookie_alone_does_not_act_by_the_api(grounds: Grounds, client: Client, asked: list[Any]) -> None:
    grounds.story()
    operator = client(grounds.operator, browser=True)
    assert operator.get("/api/v1/jobs").status_code == 200
    assert operator.post(ACTION, json=WISH).status_code == 403
    form = form_of(operator.get(FORM).text)
    assert operator.post(ACTION, json=WISH, headers={FORM_HEADER: form}).status_code == 200
    assert len(asked) == 1


def test_a_reason_is_demanded_and_words_that_do_not_belong_are_refused(
    grounds: Grounds, client: Client, asked: list[Any]
) -> None:
    grounds.story()
    operator = client(grounds.operator)
    for verb, wish in (
        ("pause", {}),
        ("pause", {"reason": "  "}),
        ("pause", {"reason": "x", "action": "restart"}),
        ("pause", {"reason": "x", "by": "root"}),
        ("force", {"reason": "x"}),
        ("force", {"reason": "x", "action": "drain"}),
        ("force", {"reason": "x", "action": "stop", "exclude": ["n01"]}),
        ("approve", {"reason": "x"}),
        ("explode", {"reason": "x"}),
    ):
        told = operator.post(f"/api/v1/jobs/prod-12345/{verb}", json=wish)
        assert told.status_code == 400, (verb, wish, told.text)
    assert operator.post(ACTION, content="not json").status_code == 400
    assert asked == []


def test_an_idempotency_key_is_not_for_two_demands(grounds: Grounds, client: Client, asked: list[Any]) -> None:
    grounds.story()
    operator = client(grounds.operator)
    key = {"Idempotency-Key": "one"}
    assert operator.post(ACTION, json=WISH, headers=key).status_code == 200
    assert operator.post(ACTION, json=WISH, headers=key).status_code == 200
    assert len({how["once"] for *_, how in asked}) == 1  # Temporal carries them out once: see test_console_live
    assert operator.post(ACTION, json={"reason": "another"}, headers=key).status_code == 422
    assert len(asked) == 2


def test_a_cookie_is_the_browsers_alone_and_cannot_be_made_by_hand(grounds: Grounds, client: Client) -> None:
    grounds.write(", https: true")
    page = client().get("/sign-in")
    cookie = page.headers["set-cookie"].lower()
    assert all(word in cookie for word in ("httponly", "samesite=lax", "secure"))
    grounds.write()
    browser = client(grounds.viewer, browser=True)
    value = browser.cookies[COOKIE]
    for forged in (value[:-2] + "xx", "WyJhIiwiYiJd." + value.split(".", 1)[1], "x" * 5000):
        nobody = client()
        assert nobody.get("/", headers={"Cookie": f"{COOKIE}={forged}"}).status_code == 303


def test_a_token_that_is_taken_away_takes_its_sessions_along(grounds: Grounds, client: Client) -> None:
    browser, program = client(grounds.operator, browser=True), client(grounds.operator)
    assert browser.get("/").status_code == 200
    _, line = new("other", Role.OPERATOR)
    grounds.tokens.write_text(line + "\n")
    assert browser.get("/").status_code == 303
    assert program.get("/api/v1/now").status_code == 401
    grounds.tokens.unlink()
    assert program.get("/api/v1/now").status_code == 401


def test_signing_out_ends_it(grounds: Grounds, client: Client) -> None:
    browser = client(grounds.viewer, browser=True)
    assert browser.post("/sign-out", data={"form": form_of(browser.get("/").text)}).status_code == 303
    assert browser.get("/").status_code == 303


def test_who_guesses_tokens_is_sent_away_and_locks_nobody_out(grounds: Grounds, client: Client) -> None:
    browser = client()
    form = form_of(browser.get("/sign-in").text)
    told = [browser.post("/sign-in", data={"form": form, "token": f"guess{n}"}).status_code for n in range(7)]
    assert told[:5] == [401] * 5
    assert told[5:] == [429] * 2
    right = browser.post("/sign-in", data={"form": form, "token": grounds.viewer})
    assert right.status_code == 303  # else whoever guesses, also behind the same proxy, keeps out who is on call


def test_after_signing_in_nobody_is_sent_to_another_site(grounds: Grounds, client: Client) -> None:
    browser = client()
    for back in ("https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)", "/\r\nX: y"):
        form = form_of(browser.get("/sign-in").text)
        told = browser.post("/sign-in", data={"form": form, "token": grounds.viewer, "back": back})
        assert (told.status_code, told.headers["location"]) == (303, "/"), back
        browser.cookies.clear()


def _behind_proxy(grounds: Grounds, client: Client) -> TestClient:
    grounds.write(f", proxy: {{key: {PROXY_KEY}, operators: [carol]}}")
    return client()


def test_a_proxys_word_counts_with_its_key_only(grounds: Grounds, client: Client, asked: list[Any]) -> None:
    grounds.story()
    browser = _behind_proxy(grounds, client)
    named = {"X-Remote-User": "carol"}
    for headers in (named, {**named, "X-Relight-Proxy-Key": ""}, {**named, "X-Relight-Proxy-Key": "guess"}):
        assert browser.get("/", headers=headers).status_code == 303
        assert browser.post(ACTION, json=WISH, headers=headers).status_code == 401
    known = {**named, "X-Relight-Proxy-Key": PROXY_KEY}
    page = browser.get("/jobs/prod-12345/do/pause", headers=known)
    assert browser.post(ACTION, json=WISH, headers=known).status_code == 403  # a form of ours is needed here as well
    done = browser.post(FORM, data={"form": form_of(page.text), **WISH}, headers=known)
    assert "pause done" in done.text
    assert asked[0][2]["by"] == "carol"
    viewer = {**known, "X-Remote-User": "mallory"}
    assert browser.get("/", headers=viewer).status_code == 200
    assert browser.get(FORM, headers=viewer).status_code == 403


def test_no_header_is_believed_unless_a_proxy_is_configured(grounds: Grounds, client: Client) -> None:
    headers = {"X-Remote-User": "root", "X-Forwarded-User": "root", "X-Relight-Proxy-Key": "", "X-Forwarded-For": "::1"}
    assert client().get("/", headers=headers).status_code == 303


@pytest.mark.parametrize(
    "line",
    ["oncall", "oncall root sha256:" + "0" * 64, "on call viewer sha256:x", "a viewer sha256:ABC", "a viewer plain"],
)
def test_a_line_of_tokens_that_cannot_be_used_is_refused_without_being_shown(line: str) -> None:
    with pytest.raises(ConfigError, match=r"tokens: line 2: expected|tokens: line 2: role") as refused:
        parse(f"# ours\n{line}\n", "tokens")
    assert "plain" not in str(refused.value)
