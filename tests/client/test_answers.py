import httpx
import pytest

import rondo
from rondo.base.errors import InvalidRequest, NotFound, Overloaded, RondoError, Unavailable
from rondo.client.answers import SseParser


def read(body: bytes) -> list[dict]:
    transport = httpx.MockTransport(lambda request: httpx.Response(200, content=body))
    with rondo.Client("http://x", transport=transport) as client:
        return list(client.stream_complete("p", model="m"))


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x0b", "\x1c"])
def test_lines_of_a_stream_end_at_newlines_alone(separator):
    event = f'data: {{"text": "a{separator}b"}}\n\n'
    if separator >= "\x80":  # JSON itself forbids the others, bare
        assert read(event.encode() + b"data: [DONE]\n\n") == [{"text": f"a{separator}b"}]
    else:
        with pytest.raises(RondoError, match="no JSON object"):
            read(event.encode())


def test_events_come_in_any_pieces():
    data = 'data: {"text": "ä€"}\r\n\r\n: a comment\n\ndata:{"n": 1}\n\ndata: [DONE]\n\n'.encode()
    for size in (1, 2, 7, len(data)):
        events = SseParser()
        pieces = [data[i : i + size] for i in range(0, len(data), size)]
        assert [e for piece in pieces for e in events.push(piece)] == [{"text": "ä€"}, {"n": 1}]


@pytest.mark.parametrize("event", [b"data: {nope\n\n", b"data: [1]\n\n", b"data: \xff\n\n"])
def test_a_bad_event_is_a_rondo_error(event):
    with pytest.raises(RondoError) as caught:
        read(event)
    assert caught.value.code == "bad_event"


@pytest.mark.parametrize(
    ("kind", "code", "error", "status"),
    [
        ("invalid_request_error", None, InvalidRequest, 400),
        ("invalid_request_error", "model_not_found", NotFound, 404),
        ("rate_limit_error", "queue_full", Overloaded, 429),
        ("server_error", "engine_failed", Unavailable, 503),
        ("internal_error", None, RondoError, 500),
    ],
)
def test_an_error_inside_a_stream_is_what_it_was(kind, code, error, status):
    body = f'data: {{"error": {{"message": "no", "type": "{kind}", "code": "{code}"}}}}\n\n'
    with pytest.raises(RondoError) as caught:
        read(body.encode())
    assert (type(caught.value), caught.value.status) == (error, status)


@pytest.mark.parametrize("body", [b'{"error": "no"}', b"[]", b"no"])
def test_an_answer_that_is_not_openais_is_still_a_rondo_error(body):
    transport = httpx.MockTransport(lambda request: httpx.Response(502, content=body))
    with rondo.Client("http://x", transport=transport) as client, pytest.raises(RondoError) as caught:
        client.models()
    assert caught.value.status == 502
