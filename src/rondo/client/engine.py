"""What any engine offers, near or far: the one interface the server, the RL loop and tests rely on."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Literal, Protocol

from rondo.client.types import GenerateRequest, TokenChunk

PauseMode = Literal["keep", "wait", "abort"]


class Engine(Protocol):
    def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        """Streams the request's samples. Leaving the iterator early aborts the request."""

    async def abort(self, request_id: str) -> None: ...

    async def pause(self, mode: PauseMode = "keep") -> None:
        """Stops between two steps. keep: running requests stay; wait: they finish first; abort: they end."""

    async def resume(self) -> None: ...

    async def sleep(self, level: int = 1, mode: PauseMode = "keep") -> None:
        """Gives the KV cache back, and moves the weights to CPU memory (1) or drops them (2); `mode` as in `pause`."""

    async def wake(self, tags: Sequence[str] | None = None) -> None:
        """`tags` are "weights" and "kv_cache", both by default."""

    async def start_weight_update(self) -> None:
        """Stops between two steps; nothing is computed until the update is finished."""

    async def finish_weight_update(self, version: int) -> None:
        """Continues with `version`: tokens carry it, and cached prefixes of older versions never hit."""
