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

    def adapters(self) -> Sequence[str]:
        """The names that a request's `adapter` may have."""

    def has_adapter(self, name: str) -> bool: ...

    async def load_adapter(self, name: str, path: str, replace: bool = False) -> None:
        """Serves the adapter in the folder `path` as `name`; with `replace`, also where the name is taken."""

    async def unload_adapter(self, name: str) -> None:
        """Requests that have begun with it finish; those that have not end with an error."""

    async def start_weight_update(self) -> None:
        """Stops between two steps; nothing is computed until the update is finished."""

    async def finish_weight_update(self, version: int) -> None:
        """Continues with `version`: tokens carry it, and cached prefixes of older versions never hit."""
