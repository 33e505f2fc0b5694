"""Token counts of responses, and the fields that routing reads."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rondo.base.errors import InvalidRequest
from rondo.gateway.proxy.fields import DEFAULT_ANSWER_TOKENS, MOST_ANSWER_TOKENS, read_fields, with_usage
from rondo.gateway.proxy.metering import LARGEST_EVENT, TokenMeter

COUNTS = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'
EVENTS = [
    b'data: {"choices":[{"delta":{"content":"\\"usage\\""}}]}\n\n',
    b": waiting\n\n",
    COUNTS,
    b"data: [DONE]\n\n",
]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@given(st.data())
def test_a_stream_cut_anywhere_is_metered_and_stripped_alike(end: bytes, data: st.DataObject) -> None:
    whole, counts = (text.replace(b"\n", end) for text in (b"".join(EVENTS), COUNTS))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=20)))
    parts = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)])]
    for strip in (False, True):
        meter = TokenMeter(stream=True, strip=strip)
        out = b"".join(meter.feed(part) for part in parts) + meter.finish()
        assert out == (whole.replace(counts, b"") if strip else whole)
        assert (meter.input_tokens, meter.output_tokens) == (3, 2)


def test_a_stream_without_events_passes_in_bounded_pieces() -> None:
    meter = TokenMeter(stream=True, strip=True)
    passed = [meter.feed(b"x" * 60_000) for _ in range(100)] + [meter.finish()]
    assert sum(map(len, passed)) == 6_000_000
    assert max(map(len, passed)) <= LARGEST_EVENT + 60_000


def test_the_last_event_of_a_response_stream_has_its_counts_and_stays() -> None:
    event = (
        b'event: response.completed\ndata: {"response":{"usage":{"input_tokens":7,"output_tokens":1}}}\n\n'
    )
    meter = TokenMeter(stream=True, strip=True)
    assert meter.feed(event) == event
    assert meter.tokens == 8


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[1]", b"\xff", b'{"usage": 5}', b'{"usage": null}', b'{"usage"']
)
def test_a_body_without_counts_has_none(body: bytes) -> None:
    meter = TokenMeter(stream=False, strip=False)
    assert meter.feed(body) == body
    assert meter.finish() == b""
    assert meter.tokens is None


def test_fields_of_each_kind_of_request() -> None:
    chat = read_fields(b'{"model":"m","messages":[1, 2],"max_tokens":7,"stream":true,"unknown":{"a":[]}}')
    assert (chat.model, chat.prompt, chat.answer_tokens, chat.stream) == ("m", b"[1, 2]", 7, True)
    completion = read_fields(b'{"model":"m","prompt":"abc"}')
    assert (completion.prompt, completion.answer_tokens) == (b'"abc"', DEFAULT_ANSWER_TOKENS)
    response = read_fields(b'{"model":"m","input":"abc","instructions":"x","max_output_tokens":99999999}')
    assert (response.prompt, response.answer_tokens) == (b'"x""abc"', MOST_ANSWER_TOKENS)
    assert read_fields(b'{"model":"m","max_tokens":"no"}').answer_tokens == DEFAULT_ANSWER_TOKENS


def test_a_body_nested_deeply_is_refused_not_fatal() -> None:
    with pytest.raises(InvalidRequest):
        read_fields(b'{"model":"m","messages":' + b"[" * 200_000)


def test_counts_are_requested_in_front_of_all_other_fields() -> None:
    assert json.loads(with_usage(b' {"model":"m","stream":true}', b"")) == {
        "stream_options": {"include_usage": True},
        "model": "m",
        "stream": True,
    }


@pytest.mark.parametrize("given", [None, {}, {"include_usage": False}, {"include_obfuscation": False}])
def test_counts_are_requested_beside_the_options_of_the_client(given: object) -> None:
    body = json.dumps({"model": "m", "stream_options": given, "messages": [1]}).encode()
    fields = read_fields(body)
    assert not fields.wants_usage
    assert json.loads(with_usage(body, fields.stream_options)) == {
        "model": "m",
        "stream_options": {**(given if isinstance(given, dict) else {}), "include_usage": True},
        "messages": [1],
    }


@pytest.mark.parametrize("given", ['{"include_usage":true}', '{"include_usage":"x"}', "[1]", "7"])
def test_options_that_request_counts_and_malformed_ones_pass(given: str) -> None:
    assert read_fields(f'{{"model":"m","stream_options":{given}}}'.encode()).wants_usage


def test_events_without_counts_are_counted() -> None:
    meter = TokenMeter(stream=True, strip=True)
    for part in (b'data: {"a":1}\n\n', b'data: {"a":1}\n\ndata: {"a"', b":2}\n\n: waiting\n\n"):
        meter.feed(part)
    assert (meter.tokens, meter.events) == (None, 3)
