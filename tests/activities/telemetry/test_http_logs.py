"""A log store that is away, slow, ill, busy, broken or not a store: told in words, bounded, and never believed."""

from __future__ import annotations

import base64
import gzip
import json
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from activities.telemetry.http_logs import LogAccess
from activities.telemetry.logsource import ReadJob, SourceRead, nanoseconds
from activities.telemetry.loki import loki_source
from activities.telemetry.store_reader import StoreReader, StoreTiming
from activities.telemetry.victorialogs import victorialogs_source
from tests.cluster import ports
from tests.services.loki_double import LokiDouble, send

NOW = datetime(2030, 5, 6, 7, 8, 9, tzinfo=UTC)
JOB = ReadJob("7", ("7",), NOW - timedelta(minutes=10))
TIMING = StoreTiming(interval_s=0.0)
KINDS = {"loki": loki_source, "victorialogs": victorialogs_source}
AT = nanoseconds(NOW - timedelta(seconds=1))
ANSWERS = {
    "loki": json.dumps(
        {
            "status": "success",
            "data": {
                "resultType": "streams",
                "result": [{"stream": {"slurm_job_id": "7"}, "values": [[str(AT), "hello"]]}],
            },
        }
    ).encode(),
    "victorialogs": b'{"_time":"2030-05-06T07:08:08Z","_msg":"hello","slurm_job_id":"7"}\n',
}

Say = Callable[[BaseHTTPRequestHandler], None]


@pytest.fixture(params=sorted(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def double() -> Iterator[LokiDouble]:
    with LokiDouble() as double:
        yield double


def source(kind: str, double: LokiDouble, **access: object) -> StoreReader:
    return KINDS[kind](LogAccess.model_validate({"url": double.url, "deadline_s": 20.0, **access}), None, TIMING)


async def ask(reader: StoreReader) -> SourceRead:
    return await reader.read([JOB], {}, now=NOW)


def texts(read: SourceRead) -> list[bytes]:
    return [line.data for chunk in read.chunks for line in chunk.lines]


def in_turn(*answers: Say) -> Say:
    """Answers one after the other, then always with the last."""
    left = list(answers)
    return lambda handler: (left.pop(0) if len(left) > 1 else left[0])(handler)


def fine(kind: str) -> Say:
    return lambda handler: send(handler, ANSWERS[kind])


def failing(status: int, body: bytes = b"no", **headers: str) -> Say:
    return lambda handler: send(handler, body, status, "text/plain", **headers)


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
async def test_a_busy_or_ill_server_is_asked_again(kind: str, double: LokiDouble, status: int) -> None:
    double.say = in_turn(failing(status), fine(kind))
    found = await ask(source(kind, double))
    assert (texts(found), found.trouble) == ([b"hello"], "")
    assert len(double.headers) == 2


async def test_a_server_that_stays_ill_is_asked_a_few_times_only_and_then_left_alone(
    kind: str, double: LokiDouble
) -> None:
    double.say = failing(503, b"overloaded")
    reader = source(kind, double)
    for _ in range(4):
        found = await ask(reader)
        assert "HTTP 503: overloaded" in found.trouble
        assert found.behind == {"7"}
    assert len(double.headers) == 6
    assert "left alone" in found.trouble


async def test_how_long_to_wait_is_the_servers_to_say(kind: str, double: LokiDouble) -> None:
    ready = threading.Event()
    timer = threading.Timer(1.5, ready.set)

    def busy(handler: BaseHTTPRequestHandler) -> None:
        if not timer.is_alive() and not ready.is_set():
            timer.start()
        (fine(kind) if ready.is_set() else failing(429, Retry_After="2"))(handler)

    double.say = busy
    assert texts(await ask(source(kind, double))) == [b"hello"]
    assert len(double.headers) == 2
    timer.cancel()


@pytest.mark.parametrize("said", ["3600", "a date"])
async def test_a_wait_behind_the_deadline_is_not_waited_for_but_kept(kind: str, double: LokiDouble, said: str) -> None:
    if said == "a date":
        said = format_datetime(datetime.now(UTC) + timedelta(hours=1))
    double.say = in_turn(failing(429, b"too many outstanding requests", Retry_After=said), fine(kind))
    reader = source(kind, double)
    assert "too many outstanding" in (await ask(reader)).trouble
    assert "left alone" in (await ask(reader)).trouble
    assert len(double.headers) == 1


@pytest.mark.parametrize("status", [400, 401, 403, 404])
async def test_a_refusal_is_told_and_not_repeated(kind: str, double: LokiDouble, status: int) -> None:
    double.say = failing(status, b'{"status":"error","error":"because\\u0007 of that"}')
    found = await ask(source(kind, double))
    assert f"HTTP {status}: because of that" in found.trouble
    assert len(double.headers) == 1


async def test_a_redirect_is_not_followed_and_takes_no_login_along(
    kind: str, double: LokiDouble, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("secret")
    with LokiDouble() as other:
        other.say = fine(kind)
        double.say = failing(307, b"", Location=f"{other.url}/elsewhere")
        found = await ask(source(kind, double, token_file=tmp_path / "token"))
        assert "leads elsewhere (HTTP 307" in found.trouble
        assert other.headers == []


async def test_a_slow_server_costs_no_more_than_the_deadline(kind: str, double: LokiDouble) -> None:
    ending = threading.Event()

    def trickle(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "application/json")
        handler.end_headers()
        while not ending.wait(0.1):  # each byte in time, the whole never
            handler.wfile.write(b" ")
            handler.wfile.flush()

    double.say = trickle
    try:
        found = await ask(source(kind, double, deadline_s=1.0))
    finally:
        ending.set()
    assert "no answer within 1 s" in found.trouble


async def test_nobody_there_is_told(kind: str) -> None:
    reservation = ports.reserve(1)
    try:
        access = LogAccess(url=f"http://127.0.0.1:{reservation.first}", deadline_s=20.0)
        found = await ask(KINDS[kind](access, None, TIMING))
        assert "cannot be reached" in found.trouble
    finally:
        reservation.release()


@pytest.mark.parametrize(
    ("body", "kind_of_body", "words"),
    [
        (b"<html>hello</html>", "text/html", "not JSON"),
        (b"<html>hello</html>\n", "application/json", "answer"),
        (b"[" * 100_000 + b"\n", "application/json", "answer"),
        (b'{"status":"error","data":null}\n', "application/json", "not what"),
        (b"[1, 2]\n", "application/json", "not what"),
        (b'"text"\n', "application/json", "not what"),
        (b'{"status":"success","data":{"resultType":"matrix","result":[]}}\n', "application/json", "not what"),
        (
            b'{"status":"success","data":{"resultType":"streams","result":[{"stream":{},"values":[[1,2]]}, 5]}}\n',
            "application/json",
            "not what",
        ),
    ],
)
async def test_nonsense_is_not_believed(
    kind: str, double: LokiDouble, body: bytes, kind_of_body: str, words: str
) -> None:
    double.say = lambda handler: send(handler, body, 200, kind_of_body)
    found = await ask(source(kind, double))
    assert words in found.trouble
    assert found.chunks == ()


async def test_an_answer_that_breaks_off_is_asked_for_again(kind: str, double: LokiDouble) -> None:
    def broken(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "application/json")
        handler.send_header("Content-Length", "100000")
        handler.end_headers()
        handler.wfile.write(ANSWERS[kind][: len(ANSWERS[kind]) // 2])
        handler.close_connection = True

    double.say = in_turn(broken, fine(kind))
    reader = source(kind, double)
    first = await ask(reader)
    found = first if first.chunks else await reader.read([JOB], first.cursors, now=NOW)
    assert texts(found) == [b"hello"]
    double.say = broken
    found = await reader.read([JOB], found.cursors, now=NOW)
    assert found.trouble
    assert found.chunks == ()


async def test_of_a_broken_answer_of_lines_the_whole_lines_are_used(double: LokiDouble) -> None:
    double.say = lambda handler: send(handler, ANSWERS["victorialogs"] + b'{"_time":"2030-05-06T07:0')
    found = await ask(source("victorialogs", double))
    assert texts(found) == [b"hello"]
    assert "broke off" in found.trouble
    assert found.behind == {"7"}


async def test_an_error_told_behind_the_lines_is_trouble(double: LokiDouble) -> None:
    double.say = lambda handler: send(handler, ANSWERS["victorialogs"] + b"cannot execute query: out of memory\n")
    found = await ask(source("victorialogs", double))
    assert texts(found) == [b"hello"]
    assert "out of memory" in found.trouble


async def test_an_enormous_answer_is_cut_and_asked_for_in_smaller_pieces(double: LokiDouble) -> None:
    for at in range(200):
        double.push({"slurm_job_id": "7"}, AT + at, f"{at:03}" + "x" * 10_000)
    found = await ask(source("loki", double, max_answer_bytes=200_000))
    assert not found.trouble
    assert [text[:3] for text in texts(found)] == [f"{at:03}".encode() for at in range(200)]
    assert len(double.asked) > 10


async def test_an_answer_without_end_takes_no_memory_and_no_time(kind: str, double: LokiDouble) -> None:
    def endless(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Type", "application/json")
        handler.end_headers()
        while True:
            handler.wfile.write(b'{"a":"' + b"x" * 60_000)

    double.say = endless
    found = await ask(source(kind, double, max_answer_bytes=1 << 20))
    assert found.trouble
    assert found.chunks == ()


async def test_a_compressed_answer_is_not_taken(kind: str, double: LokiDouble) -> None:
    packed = gzip.compress(ANSWERS[kind])
    double.say = lambda handler: send(handler, packed, Content_Encoding="gzip")
    assert "compressed" in (await ask(source(kind, double))).trouble
    assert double.headers[0]["Accept-Encoding"] == "identity"


async def test_lines_of_jobs_not_asked_for_are_dropped(kind: str, double: LokiDouble) -> None:
    double.say = lambda handler: send(handler, ANSWERS[kind].replace(b'"7"', b'"8"'))
    found = await ask(source(kind, double))
    assert (found.chunks, found.trouble) == ((), "")


async def test_logins_are_read_anew_and_a_missing_one_is_told(kind: str, double: LokiDouble, tmp_path: Path) -> None:
    double.say = fine(kind)
    token, login, more = tmp_path / "token", tmp_path / "login", tmp_path / "headers"
    token.write_text("one\n")
    reader = source(kind, double, token_file=token, headers={"X-Site": "here"})
    await ask(reader)
    token.write_text("two\n")
    await ask(reader)
    assert [asked["Authorization"] for asked in double.headers] == ["Bearer one", "Bearer two"]
    assert double.headers[0]["X-Site"] == "here"
    token.unlink()
    assert f"telemetry.logs.token_file: {token} cannot be read" in (await ask(reader)).trouble
    login.write_text("me:pass:word\n")
    more.write_text("X-More: yes\n")
    await ask(source(kind, double, login_file=login, headers_file=more))
    assert double.headers[-1]["Authorization"] == "Basic " + base64.b64encode(b"me:pass:word").decode()
    assert double.headers[-1]["X-More"] == "yes"
    login.write_text("no colon\n")
    found = await ask(source(kind, double, login_file=login))
    assert "user:password" in found.trouble
    assert "no colon" not in found.trouble


@pytest.fixture(scope="module")
def key_and_certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    key, certificate = folder / "key", folder / "certificate"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-keyout", str(key)]
    where = ["-out", str(certificate), "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*make, *where], check=True, capture_output=True)
    return key, certificate


async def test_the_servers_certificate_is_checked(
    kind: str, double: LokiDouble, key_and_certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    key, certificate = key_and_certificate
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    double.wrap(context)
    double.say = fine(kind)
    url = double.url.replace("http:", "https:")
    assert "TLS failed" in (await ask(source(kind, double, url=url))).trouble
    assert double.headers == []
    assert texts(await ask(source(kind, double, url=url, server_ca=certificate))) == [b"hello"]
    assert texts(await ask(source(kind, double, url=url, verify=False))) == [b"hello"]
    missing = await ask(source(kind, double, url=url, server_ca=tmp_path / "none"))
    assert "telemetry.logs.server_ca" in missing.trouble


async def test_a_store_is_not_asked_more_often_than_told(kind: str, double: LokiDouble) -> None:
    double.say = failing(400)
    reader = KINDS[kind](LogAccess(url=double.url), None, StoreTiming(interval_s=300.0))
    first = await ask(reader)
    again = await reader.read([JOB], first.cursors, now=NOW)
    assert (first.asked, again.asked) == (True, False)
    assert again.trouble == first.trouble != ""
    assert again.cursors == first.cursors
    assert len(double.headers) == 1


async def test_what_is_too_old_after_an_outage_is_a_gap(kind: str, double: LokiDouble) -> None:
    double.say = fine(kind)
    reader = KINDS[kind](LogAccess(url=double.url), None, StoreTiming(interval_s=0.0, backlog_s=120.0))
    found = await ask(reader)
    (gap,) = found.gaps["7"]
    assert gap.span.end == NOW - timedelta(seconds=120)
    assert "backlog_s" in gap.why
    assert found.chunks[0].gaps == (gap,)
    later = await reader.read([JOB], found.cursors, now=NOW + timedelta(seconds=60))
    assert later.gaps == {}
