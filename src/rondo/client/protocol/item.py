"""Queued requests and their results as JSON text. An item is a model route with its body; each worker sends it to an
engine as it is, so that every field of every route is supported.

    {"path": "/v1/chat/completions", "body": {...}}
    {"status": 200, "request_id": "req-...", "body": {...}, "input_tokens": 12, "output_tokens": 34, "flops": 5.6e9}

A failed item has no result. Its reason is a text, and for an engine's refusal the JSON of the response: `Refusal`.
"""

from __future__ import annotations

import msgspec

from rondo.base.errors import InvalidRequest

ITEM_PATHS = frozenset(
    (
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/embeddings",
        "/v1/score",
        "/v1/rerank",
        "/v2/rerank",
        "/score",
        "/rerank",
        "/tokenize",
        "/detokenize",
    )
)
"""Model routes whose requests can be queued."""


_ABSENT = msgspec.Raw(b"")


class StateFields(msgspec.Struct, kw_only=True):
    """Fields of a body that need the gateway's stored responses and conversations, which an engine does not have."""

    store: msgspec.Raw = _ABSENT
    background: msgspec.Raw = _ABSENT
    previous_response_id: msgspec.Raw = _ABSENT
    conversation: msgspec.Raw = _ABSENT

    @property
    def used(self) -> str:
        """Name of the first one with a value other than null and false."""
        values = {name: bytes(getattr(self, name)) for name in StateFields.__struct_fields__}
        return next((name for name, value in values.items() if value not in (b"", b"null", b"false")), "")


class Item(msgspec.Struct, frozen=True):
    """One request. `body` is JSON as the client sent it."""

    path: str
    body: msgspec.Raw


class ItemResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """Response of an engine, with its token counts and the floating-point operations of the forward passes."""

    status: int
    request_id: str
    body: msgspec.Raw
    input_tokens: int = 0
    output_tokens: int = 0
    flops: float | None = None
    """None where the worker does not know the shape of the model."""


class Refusal(msgspec.Struct, frozen=True):
    """Reason of a dead letter that an engine refused: status and body of its response."""

    status: int
    request_id: str
    body: msgspec.Raw


_items = msgspec.json.Decoder(Item)
_results = msgspec.json.Decoder(ItemResult)
_refusals = msgspec.json.Decoder(Refusal)
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


def item_text(path: str, body: bytes) -> str:
    """`New.body` of a request to `path`; `body` is a JSON object."""
    if path not in ITEM_PATHS:
        raise InvalidRequest(
            f"requests to {path!r} cannot be queued; possible paths: {', '.join(sorted(ITEM_PATHS))}.",
            param="path",
        )
    try:
        return msgspec.json.encode(Item(path, msgspec.Raw(body))).decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"a request's body is not valid UTF-8: {error}.", param="body") from error


def with_model(body: bytes, model: str) -> bytes:
    """The body, a JSON object, with another model; all other values stay as they are."""
    fields = _fields.decode(body)
    fields["model"] = msgspec.Raw(msgspec.json.encode(model))
    return msgspec.json.encode(fields)


def read_item(text: str | bytes) -> Item:
    try:
        return _items.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"a queued request is not of the form {{path, body}}: {error}.") from error


def result_text(result: ItemResult | Refusal) -> str:
    return msgspec.json.encode(result).decode()


def read_result(text: str | bytes) -> ItemResult:
    return _results.decode(text)


def read_refusal(reason: str) -> Refusal | None:
    """None if the reason is a plain text, or was shortened."""
    try:
        return _refusals.decode(reason)
    except (msgspec.DecodeError, RecursionError):
        return None
