"""Malformed requests: headers, paths, bodies and log injection. None is a server error, none reaches the engine in
another form than the client sent, and none writes a second line or a terminal control character into a log."""

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from gateway.stub import RunningGateway, Stub, gateway_of, served
from rondo.base.telemetry.log import setup
from rondo.control.key import Rights
from rondo.supervisor.logs import RotatingLog, log_file
from support.raw_http import exchange, request
from support.waiting import wait_until

LIMIT = 100_000
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029]")


@pytest.fixture(scope="module")
def engine() -> Iterator[Stub]:
    with served(Stub()) as stub:
        yield stub


@pytest.fixture(scope="module")
def gateway(engine: Stub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """As on a public address: any Host is valid."""
    folder: Path = tmp_path_factory.mktemp("hostile")
    settings = {"keys": "required", "host": "0.0.0.0", "max_body_bytes": LIMIT}
    with gateway_of([engine.url], folder, **settings) as running:
        yield running


@pytest.fixture(scope="module")
def admin(gateway: RunningGateway) -> bytes:
    return f"Authorization: Bearer {gateway.gateway.keys.make('a', Rights('admin')).result()[1]}".encode()


@pytest.fixture(autouse=True)
def afterwards(gateway: RunningGateway, admin: bytes) -> Iterator[None]:
    """Others are served."""
    yield
    assert exchange(gateway.url, request(b'{"model":"m"}', admin))[0] == 200
    wait_until(lambda: gateway.gateway.forward.active == 0)


@pytest.mark.parametrize(
    "line",
    [
        b"X-A: a\rX-B: b",
        b"X-A: a\nX-B: b",
        b"X-A: a\x00b",
        b"X-A: a\x1b[31m",
        b"X-Request-Id: a\rSet-Cookie: b",
        b"X-A: a\r\n folded",
        b"X A: b",
        b": b",
        b"Transfer-Encoding: chunked\r\nContent-Length: 5",
        b"Content-Length: 1",
        b"Content-Length: -5",
        b"Transfer-Encoding: identity, nonsense",
        b"X-A: " + b"a" * 200_000,
        b"\r\n".join([b"X-A: b"] * 40_000),
    ],
    ids=lambda line: repr(line[:40]),
)
def test_a_malformed_head_is_a_400_here(
    gateway: RunningGateway, engine: Stub, admin: bytes, line: bytes
) -> None:
    before = len(engine.requests)
    status, body = exchange(gateway.url, request(b'{"model":"m"}', admin, line))
    assert status in (400, 0)  # 0: the connection was closed while the client sent
    assert b"Traceback" not in body
    assert len(engine.requests) == before


@pytest.mark.parametrize("value", ["caf\u00e9 \u2603".encode(), b"a" * 60_000, b"tab\tand space", b""])
def test_header_values_pass_as_they_are(
    gateway: RunningGateway, engine: Stub, admin: bytes, value: bytes
) -> None:
    assert exchange(gateway.url, request(b'{"model":"m"}', admin, b"X-Custom: " + value))[0] == 200
    assert engine.requests[-1]["headers"]["x-custom"].encode("latin-1") == value


def test_a_header_that_is_no_utf_8_does_not_break_the_request(
    gateway: RunningGateway, engine: Stub, admin: bytes
) -> None:
    assert exchange(gateway.url, request(b'{"model":"m"}', admin, b"X-Custom: a\xffb"))[0] == 200
    assert engine.requests[-1]["headers"]["x-custom"] == "a\xffb"


def test_headers_of_the_connection_are_not_passed_on(
    gateway: RunningGateway, engine: Stub, admin: bytes
) -> None:
    lines = (b"Connection: X-Named, keep-alive", b"X-Named: 1", b"X-Admin-Key: k", b"Proxy-Authorization: x")
    assert exchange(gateway.url, request(b'{"model":"m"}', admin, *lines))[0] == 200
    seen = engine.requests[-1]["headers"]
    assert not {"x-named", "x-admin-key", "proxy-authorization", "authorization"} & set(seen)


@pytest.mark.parametrize(
    "given", [b"a b", b"a\tb", b"\xff", b"x" * 200, b"<script>", b"%0a", "\u2028".encode()]
)
def test_a_request_id_with_other_characters_is_replaced(
    gateway: RunningGateway, engine: Stub, admin: bytes, given: bytes
) -> None:
    assert exchange(gateway.url, request(b'{"model":"m"}', admin, b"X-Request-Id: " + given))[0] == 200
    assert re.fullmatch(r"req-[A-Za-z0-9-]+", engine.requests[-1]["headers"]["x-request-id"])


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        (b"GET", b"/v1/completions", 405),
        (b"DELETE", b"/v1/completions", 405),
        (b"OPTIONS", b"/v1/completions", 405),
        (b"BREW", b"/v1/models", 400),
        (b"PROPFIND", b"/v1/models", 405),
        (b"POST", b"/v1/models", 405),
        (b"OPTIONS", b"*", 404),
        (b"POST", b"//v1/completions", 404),
        (b"POST", b"/v1/completions/", 404),
        (b"POST", b"/v1/x/../completions", 404),
        (b"POST", b"/V1/completions", 404),
        (b"POST", b"/v1/completions%00", 404),
        (b"POST", b"/v1/completions;a", 404),
        (b"GET", b"/health/", 404),
        (b"GET", b"/v1/%0a%1b[31m%ff", 404),
        (b"GET", b"/v1/\x1b[31m", 400),
        (b"GET", b"/v1/\xff", 400),
        (b"GET", b"/../../etc/passwd", 404),
        (b"GET", b"/assets/..", 404),
        (b"GET", b"/assets/%2e%2e%2fapp.py", 404),
        (b"GET", b"/assets/..%5capp.py", 404),
        (b"GET", b"/assets/%00", 404),
        (b"GET", b"/assets/" + b"a" * 5000, 404),
        (b"GET", b"/v1/health/logs/..%2fadmin-key", 404),
        (b"GET", b"/v1/health/logs/%2e%2e", 404),
        (b"GET", b"/v1/health/logs/a%00", 404),
        (b"GET", b"/v1/health/logs/gateway.log", 404),
        (b"GET", b"/v1/models/%ff%00", 404),
        (b"GET", b"/" + b"a" * 200_000, 400),
    ],
    ids=lambda value: repr(value[:40]) if isinstance(value, bytes) else str(value),
)
def test_paths_and_methods(
    gateway: RunningGateway, engine: Stub, admin: bytes, method: bytes, path: bytes, status: int
) -> None:
    before = len(engine.requests)
    got, body = exchange(gateway.url, request(b'{"model":"m"}', admin, method=method, path=path))
    assert got == status or (got == 0 and status == 400)
    assert len(engine.requests) == before
    if got in (404, 405):
        assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}


@pytest.mark.parametrize("host", [b"[", b"[::1", b"a b", b"x/@y", b"\xff", b"x:99999", b"", b"a,b"])
def test_any_host_header_is_answered(gateway: RunningGateway, admin: bytes, host: bytes) -> None:
    for path in (b"/v1/completions", b"/nothing", b"/health", b"/v1/models/nothing"):
        status, _ = exchange(gateway.url, request(b'{"model":"m"}', admin, path=path, host=host))
        assert status in (200, 400, 404, 405), (host, path)


NESTED = 20_000
BODIES = {
    "nothing": b"",
    "no JSON": b"{nope",
    "cut off": b'{"model": "m", "prompt": "a',
    "two values": b"{}{}",
    "not an object": b"[1]",
    "byte order mark": b'\xef\xbb\xbf{"model":"m"}',
    "UTF-16": '{"model":"m"}'.encode("utf-16"),
    "invalid UTF-8 in the model": b'{"model":"m\xff"}',
    "lone surrogate": rb'{"model":"m","user":"\ud800"}',
    "NaN": b'{"model":"m","temperature":NaN}',
    "infinite maximum": b'{"model":"m","max_tokens":1e999}',
    "huge maximum": b'{"model":"m","max_tokens":' + b"9" * 5000 + b"}",
    "huge number elsewhere": b'{"model":"m","max_output_tokens":' + b"9" * 5000 + b"}",
    "deep arrays": b'{"model":"m","messages":' + b"[" * NESTED + b"]" * NESTED + b"}",
    "deep objects": b'{"a":' * 10_000 + b"1" + b"}" * 10_000,
    "deep maximum": b'{"model":"m","max_tokens":' + b"[" * NESTED + b"]" * NESTED + b"}",
    "deep model": b'{"model":' + b"[" * NESTED + b"]" * NESTED + b"}",
    "long model": b'{"model":"' + b"a" * 90_000 + b'"}',
    "empty model": b'{"model":""}',
}


@pytest.mark.parametrize("name", BODIES)
def test_a_malformed_body_is_a_400_here(
    gateway: RunningGateway, engine: Stub, admin: bytes, name: str
) -> None:
    before = len(engine.requests)
    status, body = exchange(gateway.url, request(BODIES[name], admin))
    assert (status, json.loads(body)["error"]["type"]) == (400, "invalid_request_error")
    assert len(body) < 2000
    assert len(engine.requests) == before


def test_of_equal_fields_the_last_counts_for_the_key_as_for_the_engine(
    gateway: RunningGateway, engine: Stub
) -> None:
    """Otherwise a key for one model could reach another."""
    text = gateway.gateway.keys.make("m alone", Rights(models=("m",))).result()[1]
    own = f"Authorization: Bearer {text}".encode()
    for body, status in (
        (b'{"model":"m","model":"n"}', 403),
        (b'{"model":"m","mod\\u0065l":"n"}', 403),
        (b'{"model":"n","model":"m"}', 200),
        (b'{"model":"m","Model":"n"}', 200),
    ):
        assert exchange(gateway.url, request(body, own))[0] == status
        assert status != 200 or engine.requests[-1]["body"]["model"] == "m"


@pytest.mark.parametrize("encoding", [b"gzip", b"br", b"deflate, gzip", b"nonsense"])
def test_a_body_with_a_content_encoding_is_a_415(
    gateway: RunningGateway, engine: Stub, admin: bytes, encoding: bytes
) -> None:
    before = len(engine.requests)
    status, body = exchange(gateway.url, request(b'{"model":"m"}', admin, b"Content-Encoding: " + encoding))
    assert (status, json.loads(body)["error"]["code"]) == (415, "unsupported_content_encoding")
    assert len(engine.requests) == before


@pytest.mark.parametrize(
    ("chunks", "status"),
    [
        (b"d\r\n" + b'{"model":"m"}' + b"\r\n0\r\n\r\n", 200),
        (b"D;ext=1\r\n" + b'{"model":"m"}' + b"\r\n0\r\nX-T: 1\r\n\r\n", 200),
        (b"zz\r\n{}\r\n0\r\n\r\n", 400),
        (b"-1\r\n{}\r\n0\r\n\r\n", 400),
        (b"ffffffffffffffffff\r\n{}\r\n0\r\n\r\n", 400),
        (b"2\r\n{}garbage\r\n0\r\n\r\n", 400),
        (b"0\r\n" + b"X-T: b\r\n" * 80_000, 400),
        (b"fffffff\r\n" + b" " * (LIMIT + 1), 413),
    ],
    ids=lambda value: repr(value[:30]) if isinstance(value, bytes) else str(value),
)
def test_chunked_bodies(gateway: RunningGateway, admin: bytes, chunks: bytes, status: int) -> None:
    got, _ = exchange(gateway.url, request(chunks, admin, b"Transfer-Encoding: chunked"))
    assert got == status or (got == 0 and status in (400, 413))


@pytest.mark.parametrize("path", [b"/v1/keys", b"/v1/engines", b"/v1/completions"])
def test_large_bodies_are_refused_before_they_are_read(gateway: RunningGateway, path: bytes) -> None:
    """Also those of clients without a key."""
    status, _ = exchange(gateway.url, request(b" " * 1000, path=path, length=10**12))
    assert status in (401, 413, 0)  # 0: the client ended its data within the body
    status, _ = exchange(
        gateway.url,
        request(b"fffffff\r\n" + b" " * (3 << 20), b"Transfer-Encoding: chunked", path=path),
    )
    assert status in (401, 413, 0)


@pytest.mark.parametrize(
    "url",
    [
        "http://[",
        "http://[::1",
        "http://h:99999",
        "http://h:x",
        "http://user:pw@127.0.0.1:9",
        "http://127.0.0.1:9\n/x",
        "http://127.0.0.1:9/\x1b[31m",
        "http://127.0.0.1:9?a=b",
        "http://127.0.0.1:9#f",
        "http:///v1/models",
        "ftp://127.0.0.1",
        "unix:/run/x.sock",
    ],
)
def test_a_url_that_is_no_engines_is_a_400(gateway: RunningGateway, admin: bytes, url: str) -> None:
    body = json.dumps({"url": url}).encode()
    status, answer = exchange(gateway.url, request(body, admin, path=b"/v1/engines"))
    assert (status, json.loads(answer)["error"]["param"]) == (400, "url")


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "a\n"},
        {"name": "\x1b[31m"},
        {"name": "a\u2028b"},
        {"name": "\x00"},
        {"name": "x", "models": ["a\x00"]},
        {"name": "x", "models": ["\x1b[31m"]},
        {"name": "x", "models": [""]},
        {"name": "x", "tokens_per_day": 10**30},
        {"name": "x", "expires_in": -1},
    ],
)
def test_keys_have_printable_names(gateway: RunningGateway, admin: bytes, fields: dict[str, object]) -> None:
    status, _ = exchange(gateway.url, request(json.dumps(fields).encode(), admin, path=b"/v1/keys"))
    assert status == 400


@pytest.mark.parametrize("format", ["human", "json", "auto"])
def test_no_client_writes_lines_or_control_characters_into_a_log(
    gateway: RunningGateway, admin: bytes, format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RONDO_HOME", str(tmp_path))
    written = io.StringIO()
    evil = "a\n2026 forged\r\x1b[31m\x9b2J\u2028b"
    setup(format, "debug", written)  # type: ignore[arg-type]
    try:
        sent = [
            request(json.dumps({"model": evil}).encode(), admin),
            request(json.dumps({"model": "m", "user": evil}).encode(), admin, b"X-Request-Id: forged forged"),
            request(b"", admin, method=b"GET", path=b"/v1/models/%0aforged%1b%5b31m%c2%9b"),
            request(b"", admin, method=b"GET", path=b"/v1/health/logs/%0aforged"),
            request(b"", b"Authorization: Bearer \xc2\x9bforged", method=b"GET", path=b"/v1/key"),
            request(json.dumps({"name": "x", "role": evil}).encode(), admin, path=b"/v1/keys"),
            request(json.dumps({"url": f"http://{evil}"}).encode(), admin, path=b"/v1/engines"),
        ]
        for each in sent:
            assert exchange(gateway.url, each)[0] < 500
    finally:
        setup()
    assert written.getvalue()
    lines = written.getvalue().splitlines(keepends=True)
    assert not [line for line in lines if CONTROL.search(line)]
    assert not [line for line in lines if line.startswith(("2026 forged", "forged"))]
    log = RotatingLog(log_file("gateway"), 1 << 20, 1)
    log.write(written.getvalue().encode())
    log.close()
    key = admin.decode().removeprefix("Authorization: ")
    shown = httpx.get(gateway.url + "/v1/health/logs/gateway", headers={"authorization": key}).json()["text"]
    assert not CONTROL.search(shown)
