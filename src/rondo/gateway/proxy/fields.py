"""Fields of a model request that routing and limits need. All others are left for the engine to validate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from rondo.base.errors import InvalidRequest
from rondo.client.protocol.prefix import ABSENT, PromptBody, hashes
from rondo.control.key import TIERS, ServiceTier

BYTES_PER_TOKEN = 4
DEFAULT_ANSWER_TOKENS = 256
"""Estimated length of an answer whose request states no maximum."""
MOST_ANSWER_TOKENS = 8192
"""Bound of the estimate: a high maximum is rarely reached."""
LONGEST_MODEL = 512
TIER_HEADER = b"x-service-tier"
READ_AT_ONCE = 512 << 10
"""Bytes of a body that is read within the event loop, in less than 0.3 ms; a larger one is read in a thread."""


class _Body(PromptBody):
    stream: msgspec.Raw = ABSENT
    stream_options: msgspec.Raw = ABSENT
    max_tokens: msgspec.Raw = ABSENT
    max_completion_tokens: msgspec.Raw = ABSENT
    max_output_tokens: msgspec.Raw = ABSENT
    service_tier: msgspec.Raw = ABSENT
    priority: msgspec.Raw = ABSENT
    store: msgspec.Raw = ABSENT


_decoder = msgspec.json.Decoder(_Body)
_all_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


@dataclass(frozen=True)
class Fields:
    model: str
    stream: bool
    stream_options: bytes
    """In JSON; empty if the request has none."""
    prompt: bytes
    """The prompt as it was sent, in JSON."""
    answer_tokens: int
    pieces: Sequence[int] = ()
    """Hashes of the prompt's prefixes."""
    tier: ServiceTier | None = None
    """The service tier that the request names."""
    store: bool = False

    @property
    def wants_usage(self) -> bool:
        """Whether the client requested the event of token counts. The engine refuses malformed options."""
        if self.stream_options in (b"", b"null"):
            return False
        try:
            options = msgspec.json.decode(self.stream_options)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return True
        return not isinstance(options, dict) or options.get("include_usage") not in (None, False)

    @property
    def prompt_tokens(self) -> int:
        """Estimate."""
        return len(self.prompt) // BYTES_PER_TOKEN

    @property
    def answer_bytes(self) -> int:
        return self.answer_tokens * BYTES_PER_TOKEN

    @property
    def tokens(self) -> int:
        """Estimate for rate limits, corrected when the response states its tokens."""
        return self.prompt_tokens + self.answer_tokens


def read_fields(body: bytes, piece: int = 1024, longest: int = 0) -> Fields:
    """`piece` and `longest`: size and number of the prompt's prefixes."""
    try:
        read = _decoder.decode(body)
        model = _value(read.model)
        limits = [
            _value(each) for each in (read.max_completion_tokens, read.max_output_tokens, read.max_tokens)
        ]
        tier = _tier(read)
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
    if len(model) > LONGEST_MODEL:
        raise InvalidRequest(
            f"The name of a model has at most {LONGEST_MODEL} characters.",
            param="model",
            code="invalid_model",
        )
    stated = next((limit for limit in limits if isinstance(limit, int) and limit > 0), None)
    text = read.text
    return Fields(
        model=model,
        stream=bytes(read.stream) == b"true",
        stream_options=bytes(read.stream_options),
        prompt=text,
        answer_tokens=min(stated or DEFAULT_ANSWER_TOKENS, MOST_ANSWER_TOKENS),
        pieces=hashes(read.root, text, piece, longest),
        tier=tier,
        store=bytes(read.store) == b"true",
    )


def tier_of(name: bytes) -> ServiceTier:
    """The service tier in a request's header."""
    found = next((tier for tier in TIERS if tier.encode() == name.strip().lower()), None)
    if found is None:
        raise InvalidRequest(
            f"{TIER_HEADER.decode()} is one of {', '.join(TIERS)}.",
            param=TIER_HEADER.decode(),
            code="invalid_service_tier",
        )
    return found


def _tier(read: _Body) -> ServiceTier | None:
    """By `service_tier`, or by vLLM's `priority`, a number whose lower values are served first. Other values are left
    for the engine to refuse."""
    named = _value(read.service_tier)
    if isinstance(named, str) and named in TIERS:
        return next(tier for tier in TIERS if tier == named)
    number = _value(read.priority)
    if isinstance(number, int) and not isinstance(number, bool) and number:
        return "priority" if number < 0 else "flex"
    return None


def with_usage(body: bytes, options: bytes) -> bytes:
    """The body of a stream that ends with an event of token counts. `options`: its present `stream_options`."""
    if not options:
        opening = body.index(b"{") + 1
        return body[:opening] + b'"stream_options":{"include_usage":true},' + body[opening:]
    given = msgspec.json.decode(options) or {}
    fields = _all_fields.decode(body)
    fields["stream_options"] = msgspec.Raw(msgspec.json.encode({**given, "include_usage": True}))
    return msgspec.json.encode(fields)


def _value(raw: msgspec.Raw) -> object:
    return None if not bytes(raw) else msgspec.json.decode(raw)
