"""Fields of a model request that routing and limits need. All others are left for the engine to validate."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from rondo.base.errors import InvalidRequest

BYTES_PER_TOKEN = 4
DEFAULT_ANSWER_TOKENS = 256
"""Estimated length of an answer whose request states no maximum."""
MOST_ANSWER_TOKENS = 8192
"""Bound of the estimate: a high maximum is rarely reached."""
ABSENT = msgspec.Raw(b"")


class _Body(msgspec.Struct):
    """Values are not decoded: a conversation of 100,000 characters costs a few microseconds."""

    model: msgspec.Raw = ABSENT
    stream: msgspec.Raw = ABSENT
    stream_options: msgspec.Raw = ABSENT
    messages: msgspec.Raw = ABSENT
    instructions: msgspec.Raw = ABSENT
    prompt: msgspec.Raw = ABSENT
    input: msgspec.Raw = ABSENT
    max_tokens: msgspec.Raw = ABSENT
    max_completion_tokens: msgspec.Raw = ABSENT
    max_output_tokens: msgspec.Raw = ABSENT


_decoder = msgspec.json.Decoder(_Body)


@dataclass(frozen=True)
class Fields:
    model: str
    stream: bool
    wants_usage: bool
    """The client asked for the event with token counts, or set other options of the stream."""
    prompt: bytes
    """The prompt as it was sent, in JSON: equal prefixes of conversations have equal bytes."""
    answer_tokens: int

    @property
    def answer_bytes(self) -> int:
        return self.answer_tokens * BYTES_PER_TOKEN

    @property
    def tokens(self) -> int:
        """Estimate for rate limits, corrected when the response states its tokens."""
        return len(self.prompt) // BYTES_PER_TOKEN + self.answer_tokens


def read_fields(body: bytes) -> Fields:
    try:
        read = _decoder.decode(body)
        model = _value(read.model)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidRequest(
            f"The request body is not a JSON object: {error}.", code="invalid_json"
        ) from error
    if not isinstance(model, str) or not model:
        raise InvalidRequest(
            "The request needs a model: set the field 'model' to a name that GET /v1/models lists.",
            param="model",
            code="missing_model",
        )
    limits = (read.max_completion_tokens, read.max_output_tokens, read.max_tokens)
    stated = next((value for limit in limits if isinstance(value := _value(limit), int) and value > 0), None)
    return Fields(
        model=model,
        stream=bytes(read.stream) == b"true",
        wants_usage=bytes(read.stream_options) not in (b"", b"null"),
        prompt=b"".join(
            (bytes(read.instructions), bytes(read.messages), bytes(read.prompt), bytes(read.input))
        ),
        answer_tokens=min(stated or DEFAULT_ANSWER_TOKENS, MOST_ANSWER_TOKENS),
    )


def with_usage(body: bytes) -> bytes:
    """The body of a stream that ends with an event of token counts. It must not have `stream_options`."""
    opening = body.index(b"{") + 1
    return body[:opening] + b'"stream_options":{"include_usage":true},' + body[opening:]


def _value(raw: msgspec.Raw) -> object:
    return None if not bytes(raw) else msgspec.json.decode(raw)
