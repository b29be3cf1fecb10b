"""Asking a server that is away, slow, wrong, too talkative, or wants to know who asks: told in words, never raised."""

from __future__ import annotations

import gzip
import json
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from activities.telemetry.prometheus import Answer, Prometheus, PrometheusAccess
from tests.activities.telemetry.double import Double
from tests.cluster.waiting import until
from tests.services.prometheus import PrometheusServer


@pytest.fixture
def double() -> Iterator[Double]:
    with Double() as made:
        yield made


def access(double: Double, deadline_s: float = 30, **more: object) -> PrometheusAccess:
    return PrometheusAccess.model_validate({"url": f"http://{double.address}", "deadline_s": deadline_s, **more})


async def ask(given: PrometheusAccess, query: str = "up") -> Answer:
    server = Prometheus(given)
    try:
        return (await server.ask({"one": query}))["one"]
    finally:
        server.close()


async def test_an_answer_has_labels_and_samples(double: Double) -> None:
    answer = await ask(access(double))
    assert answer.trouble == ""
    assert (answer.rows[0].labels, answer.rows[0].samples) == ({"a": "b"}, ((1.0, 2.0),))
    assert answer.server_time == 1.0


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (500, b"<html>oops</html>", "refused with HTTP 500: <html>oops</html>"),
        (503, b"", "refused with HTTP 503"),
        (401, b"who are you", "see telemetry.prometheus.token_file"),
        (422, b'{"status":"error","error":"query processing would load too many samples"}', "too many samples"),
        (400, b'{"status":"error","error":"it\'s \\"bad\\""}', "it's"),
        (302, b"elsewhere", "refused with HTTP 302"),
        (200, b"<html>a login page</html>", "is not JSON"),
        (200, b"", "is not JSON"),
        (200, b"[]", "not what Prometheus says"),
        (200, b'{"data": {"result": [{"metric": {}}]}}', "not what Prometheus says"),
        (200, b'{"data": {"result": [{"metric": [], "value": [1, "2"]}]}}', "not what Prometheus says"),
        (200, b'{"data": {"result": [{"metric": {}, "value": [1, "two"]}]}}', "not what Prometheus says"),
        (200, b'{"data": {"result": null}}', "not what Prometheus says"),
        (200, b"[" * 200_000, "n"),
        (500, b"x" * 10_000_000, "refused with HTTP 500"),
    ],
)
async def test_a_wrong_answer_is_told_in_few_words(double: Double, status: int, body: bytes, told: str) -> None:
    double.say = lambda handler: double.send(handler, body, status, Location="http://127.0.0.1:1/")
    answer = await ask(access(double))
    assert told in answer.trouble
    assert len(answer.trouble) < 300
    assert answer.rows == ()
    assert len(double.asked) == 1  # neither tried again nor led elsewhere


async def test_a_huge_answer_is_cut_off_also_when_it_comes_packed(double: Double) -> None:
    huge = json.dumps({"data": {"result": [{"metric": {"a": "b" * 100}, "value": [1, "2"]}] * 40_000}}).encode()
    packed = gzip.compress(huge)
    assert len(packed) < 1 << 20 < len(huge)
    double.say = lambda handler: double.send(handler, packed, Content_Encoding="gzip")
    answer = await ask(access(double, max_answer_bytes=1 << 20))
    assert "larger than 1 MiB" in answer.trouble
    assert len((await ask(access(double))).rows) == 40_000


async def test_a_server_that_never_answers_costs_the_deadline_and_no_more(double: Double) -> None:
    double.say = lambda handler: double.ending.wait(60) and None
    server = Prometheus(access(double, deadline_s=0.3))
    first = await server.ask({"one": "up", "two": "up", "three": "up", "four": "up", "five": "up", "six": "up"})
    assert {answer.trouble for answer in first.values()} == {"no answer within 0.3 s"}
    double.say = double.fine
    until(lambda: all(one.done() for one in server._asked), "the questions were given up", timeout_s=30)
    assert (await server.ask({"one": "up"}))["one"].trouble == ""
    server.close()


async def test_while_a_question_hangs_no_more_are_asked(double: Double, monkeypatch: pytest.MonkeyPatch) -> None:
    server = Prometheus(access(double, deadline_s=0.2))
    free = threading.Event()
    monkeypatch.setattr(server, "_question", lambda *_: Answer(asked_at=float(free.wait(60))))
    assert "no answer" in (await server.ask({"one": "up"}))["one"].trouble
    assert "earlier questions" in (await server.ask({"one": "up"}))["one"].trouble
    free.set()
    until(lambda: all(one.done() for one in server._asked), "the question ended", timeout_s=30)
    assert (await server.ask({"one": "up"}))["one"].trouble == ""
    server.close()


async def test_an_answer_that_trickles_is_given_up(double: Double) -> None:
    def trickle(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "100000")
        handler.end_headers()
        while not double.ending.wait(0.05):
            handler.wfile.write(b" ")
            handler.wfile.flush()

    double.say = trickle
    server = Prometheus(access(double, deadline_s=0.5))
    assert "no answer" in (await server.ask({"one": "up"}))["one"].trouble
    until(lambda: all(one.done() for one in server._asked), "the thread is free again", timeout_s=30)
    server.close()


async def test_an_answer_that_breaks_off_is_told(double: Double) -> None:
    def broken(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "100000")
        handler.end_headers()
        handler.wfile.write(b'{"data"')
        handler.close_connection = True

    double.say = broken
    assert (await ask(access(double))).trouble != ""


async def test_nobody_there_is_told(double: Double) -> None:
    answer = await ask(PrometheusAccess(url="http://127.0.0.1:9", deadline_s=30))
    assert answer.trouble == "cannot be reached: [Errno 111] Connection refused"
    answer = await ask(PrometheusAccess(url="http://no-such-host.invalid:9090", deadline_s=30))
    assert answer.trouble != ""


async def test_a_long_query_goes_as_a_form(double: Double) -> None:
    assert (await ask(access(double), "up + " * 1_000 + "1")).trouble == ""
    assert [method for method, _, _ in double.asked] == ["POST"]
    assert len(double.asked[0][1]) == 5_001


async def test_token_and_headers_are_read_again_each_time_and_never_shown(double: Double, tmp_path: Path) -> None:
    token, headers = tmp_path / "token", tmp_path / "headers"
    token.write_text("first-secret\n")
    headers.write_text("X-Scope-OrgID: training\n\nX-Key: abc:def\n")
    server = Prometheus(access(double, token_file=token, headers_file=headers, headers={"X-Plain": "yes"}))
    await server.ask({"one": "up"})
    token.write_text("second-secret")
    await server.ask({"one": "up"})
    sent = [asked[2] for asked in double.asked]
    assert [one["Authorization"] for one in sent] == ["Bearer first-secret", "Bearer second-secret"]
    assert (sent[1]["X-Scope-OrgID"], sent[1]["X-Key"], sent[1]["X-Plain"]) == ("training", "abc:def", "yes")
    double.say = lambda handler: double.send(handler, b"no", 403)
    assert "second-secret" not in (await server.ask({"one": "up"}))["one"].trouble
    headers.write_text("not a header: my-secret words\nX")
    refused = (await server.ask({"one": "up"}))["one"].trouble
    assert "headers:1 is not `Name: value`" in refused
    assert "my-secret" not in refused
    headers.write_text("")
    assert "is empty" in (await server.ask({"one": "up"}))["one"].trouble
    token.unlink()
    headers.write_text("A: b")
    assert "token cannot be read" in (await server.ask({"one": "up"}))["one"].trouble
    server.close()


async def test_a_machines_netrc_does_not_replace_the_token(
    double: Double, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login somebody password else\n")
    (tmp_path / "token").write_text("right")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    await ask(access(double, token_file=tmp_path / "token"))
    await ask(access(double))
    assert [asked[2].get("Authorization") for asked in double.asked] == ["Bearer right", None]


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """A certificate for 127.0.0.1 that nobody signed; its key lies beside it."""
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-keyout", str(key), "-out", str(certificate), "-days", "2", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=IP:127.0.0.1"),
        ],
        check=True,
        capture_output=True,
        timeout=60,
    )
    return certificate


async def test_tls_is_checked_unless_it_is_switched_off(double: Double, certificate: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, certificate.with_name("key.pem"))
    double.server.socket = context.wrap_socket(double.server.socket, server_side=True)
    url = f"https://{double.address}"
    assert (await ask(access(double, url=url))).trouble.startswith("TLS failed")
    assert (await ask(access(double, url=url, server_ca=certificate))).trouble == ""
    assert (await ask(access(double, url=url, verify=False))).trouble == ""
    assert (await ask(access(double, url=url, server_ca=certificate.with_name("none")))).trouble != ""


async def test_a_real_server_that_stops_in_its_tracks_and_comes_back() -> None:
    with PrometheusServer() as real:
        server = Prometheus(PrometheusAccess(url=real.url, deadline_s=30))
        assert (await server.ask({"one": "vector(1)"}))["one"].rows[0].value == 1
        bad = (await server.ask({"one": "sum by ("}))["one"].trouble
        assert "refused with HTTP 400" in bad
        assert "parse error" in bad
        server.access = server.access.model_copy(update={"deadline_s": 0.5})
        real.hang()
        began = time.monotonic()
        assert "no answer" in (await server.ask({"one": "vector(1)"}))["one"].trouble
        assert time.monotonic() - began < 60
        real.unhang()
        server.access = server.access.model_copy(update={"deadline_s": 30.0})
        until(lambda: all(one.done() for one in server._asked), "the question was given up", timeout_s=60)
        assert (await server.ask({"one": "vector(1)"}))["one"].trouble == ""
        server.close()
