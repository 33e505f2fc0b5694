"""Responses of any length, part by part: memory holds a part, however long the response is."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import msgspec
from starlette.responses import Response, StreamingResponse

PART_BYTES = 1 << 20
JSON = "application/json"


async def map_encoded(values: AsyncIterator[dict[str, Any]]) -> AsyncGenerator[bytes, None]:
    """Elements of a JSON array."""
    async for each in values:
        yield msgspec.json.encode(each)


async def streamed(begin: bytes, elements: AsyncIterator[bytes], end: bytes) -> Response:
    """A JSON document of elements with commas between them. A short one is sent whole, and an error before the end of
    the first part is answered with its status."""
    parts = _parts(begin, elements, end)
    first = await anext(parts)
    second = await anext(parts, None)
    if second is None:
        return Response(first, media_type=JSON)

    async def all_parts() -> AsyncGenerator[bytes, None]:
        yield first
        yield second
        async for each in parts:
            yield each

    return StreamingResponse(all_parts(), media_type=JSON)


async def _parts(begin: bytes, elements: AsyncIterator[bytes], end: bytes) -> AsyncGenerator[bytes, None]:
    held, comma = bytearray(begin), b""
    async for each in elements:
        held += comma + each
        comma = b","
        if len(held) >= PART_BYTES:
            yield bytes(held)
            held.clear()
    yield bytes(held + end)
