"""Request bodies: how large they may be, and how they become checked requests without holding up other clients.

Parsing holds the interpreter's lock until it is done, in whichever thread: a body with many values is parsed in a child
process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TypeVar

from pydantic import BaseModel
from starlette.requests import Request

from rondo.base.errors import InvalidRequest, Overloaded
from rondo.client.protocol.prefix import pieces_of
from rondo.client.protocol.refusals import parse
from rondo.client.protocol.wire import WireModel
from rondo.engine.kv.events import CacheEvents, request_pieces
from rondo.server.workers.memory import return_memory
from rondo.server.workers.worker import OutOfMemory, OutOfTime, Workers
from rondo.web.errors import BodyTooLarge
from rondo.web.http import BODY_SECONDS, read_body

Body = TypeVar("Body", bound=WireModel)

BYTES_PER_TOKEN = 32
"""A token id takes at most 8 bytes, an English token about 5, and a CJK token in JSON's escaped form about 12."""
ROOM = 4 << 20
"""Bytes for all else in a body: further prompts of the request, tools, schemas."""
LARGEST = 64 << 20

SMALL = 64 << 10
"""Bytes of a body that is parsed at once, within a few milliseconds for any content."""
PLAIN = 2 << 20
"""Parsed at once if it has few values: long texts are quick."""
FEW_VALUES = 20_000
PARSE_SECONDS = 30.0
MOST_LISTED = 16_384
"""Elements of a list of messages, tools, texts or prompts; lists of token ids are as long as the body allows."""
MOST_VALUES = 100_000
"""Values of a request, each object, list and text, but not token ids."""
HELD = 8
"""So many bodies of the largest size are held in memory at a time, beside small ones."""


def body_limit(max_model_len: int) -> int:
    """Bytes of the largest body, where the settings name no limit."""
    return min(LARGEST, ROOM + BYTES_PER_TOKEN * max_model_len)


class Bodies:
    """Reads the bodies of the routes that ask the model. `limit` is in bytes, `idle_seconds` the longest wait for the
    next part of a body."""

    def __init__(
        self,
        limit: int,
        max_model_len: int,
        idle_seconds: float = BODY_SECONDS,
        events: CacheEvents | None = None,
    ) -> None:
        self._events = events
        self.limit = limit
        self._max_model_len = max_model_len
        self._idle_seconds = idle_seconds
        self._workers = Workers(nice=5)
        self._held = 0

    async def read(self, kind: type[Body], request: Request) -> tuple[Body, int]:
        """The checked request, and the size of its body in bytes."""
        held = 0

        def hold(size: int) -> None:
            nonlocal held
            more = max(size - SMALL, 0) - held
            self._check_memory(more)
            self._held += more
            held += more

        try:
            raw = await read_body(request, self.limit, self._idle_seconds, hold)
            body = await self._parse(kind, raw)
            self._note_prefixes(raw)
            return body, len(raw)
        finally:
            self._held -= held
            if held > PLAIN:
                await asyncio.to_thread(return_memory)

    def _note_prefixes(self, raw: bytes) -> None:
        """Hashes the prefixes of the prompt while a router reads the events of the prefix cache."""
        scheme = None if self._events is None else self._events.scheme
        if scheme is not None:
            request_pieces.set(pieces_of(raw, *scheme))

    def _check_memory(self, more: int) -> None:
        if more > 0 and self._held + more > HELD * self.limit:
            raise Overloaded(
                f"the server holds {self._held >> 20} MiB of unfinished request bodies. Try again later.",
                code="bodies_overloaded",
            )

    async def _parse(self, kind: type[Body], raw: bytes) -> Body:
        if len(raw) <= SMALL or (len(raw) <= PLAIN and _values(raw) <= FEW_VALUES):
            return parse_bounded(raw, kind, self._max_model_len)
        try:
            parsed: Body = await self._workers.run(
                parse_bounded, kind, self._max_model_len, data=raw, seconds=PARSE_SECONDS
            )
        except (OutOfTime, OutOfMemory) as error:
            raise BodyTooLarge(
                f"the request body has too many values to be parsed: {error.message} Send it in several requests.",
                code="body_too_large",
            ) from None
        return parsed


def parse_bounded(raw: bytes, kind: type[Body], max_model_len: int) -> Body:
    """The checked request, none of whose lists is too long to be worked on."""
    body = parse(kind, raw)
    for name in type(body).model_fields:
        given = getattr(body, name)
        if not isinstance(given, list) or not given or isinstance(given[0], int):
            continue
        if name == "messages" and len(given) > max_model_len:
            raise InvalidRequest(
                f"This model's maximum context length is {max_model_len} tokens. However, your messages resulted in "
                f"more: there are {len(given)} of them. Please reduce the length of the messages.",
                param=name,
                code="context_length_exceeded",
            )
        if len(given) > MOST_LISTED:
            raise InvalidRequest(
                f"{name} has {len(given)} elements: a request may list at most {MOST_LISTED}. Send several requests.",
                param=name,
            )
    if len(raw) > SMALL and _has_more_values(body, MOST_VALUES):
        raise InvalidRequest(
            f"the request has more than {MOST_VALUES} values (objects, lists, texts). Send several requests.",
            code="too_many_values",
        )
    return body


def _has_more_values(body: WireModel, most: int) -> bool:
    waiting: list[object] = [
        value for value in body.__dict__.values() if not (isinstance(value, list) and _holds_ids(value))
    ]
    while waiting:
        most -= len(waiting)
        if most < 0:
            return True
        waiting = [inner for value in waiting for inner in _inside(value)]
    return False


def _holds_ids(values: list[object]) -> bool:
    """Token ids, or lists of token ids, are checked to be nothing else."""
    first = values[0] if values else None
    return isinstance(first, int | list)


def _inside(value: object) -> Iterable[object]:
    if isinstance(value, BaseModel):
        return [*value.__dict__.values(), *(value.model_extra or {}).values()]
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _values(raw: bytes) -> int:
    """No fewer than the values in it: counted without parsing, so that commas inside texts count too."""
    return raw.count(b",") + raw.count(b"[") + raw.count(b"{")
