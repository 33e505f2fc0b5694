"""Token counts of responses, and the fields that routing reads."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rondo.base.errors import InvalidRequest
from rondo.gateway.proxy.fields import DEFAULT_ANSWER_TOKENS, MOST_ANSWER_TOKENS, read_fields, with_usage
from rondo.gateway.proxy.metering import TokenMeter

COUNTS = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}\n\n'
EVENTS = [
    b'data: {"choices":[{"delta":{"content":"\\"usage\\""}}]}\n\n',
    b": waiting\n\n",
    COUNTS,
    b"data: [DONE]\n\n",
]


@given(st.data())
def test_a_stream_cut_anywhere_is_metered_and_stripped_alike(data: st.DataObject) -> None:
    whole = b"".join(EVENTS)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=20)))
    parts = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)])]
    for strip in (False, True):
        meter = TokenMeter(stream=True, strip=strip)
        out = b"".join(meter.feed(part) for part in parts) + meter.finish()
        assert out == (whole.replace(COUNTS, b"") if strip else whole)
        assert (meter.input_tokens, meter.output_tokens) == (3, 2)


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
    assert json.loads(with_usage(b' {"model":"m","stream":true}')) == {
        "stream_options": {"include_usage": True},
        "model": "m",
        "stream": True,
    }
    explicit = b'{"model":"m","stream_options":null}'
    assert json.loads(with_usage(explicit))["stream_options"] is None
