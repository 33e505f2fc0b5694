"""What any engine offers, near or far: the one interface the server, the RL loop and tests rely on."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from rondo.base.errors import RondoError
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

    async def check_weights(self, path: Path, version: int | None) -> None:
        """Refuses what `update_weights` would, as far as it can be seen without reading the weights."""

    async def update_weights(self, path: Path, version: int) -> None:
        """A whole update from a model's folder, between two steps. If anything is wrong, all stays as it was."""

    async def reset_prefix_cache(self) -> None: ...


@dataclass(frozen=True)
class WeightState:
    """`whole`: none missing, none of another version."""

    updating: bool
    whole: bool
    asleep: bool


class ServedEngine(Engine, Protocol):
    """What the server asks of an engine beside its work."""

    max_model_len: int
    max_queued: int

    @property
    def failure(self) -> RondoError | None:
        """Why the engine cannot serve any more; None while it can."""

    @property
    def ready(self) -> bool: ...

    @property
    def is_paused(self) -> bool: ...

    @property
    def is_sleeping(self) -> bool: ...

    @property
    def weight_version(self) -> int: ...

    def weight_state(self) -> WeightState: ...

    def load(self) -> tuple[int, int]:
        """How many samples run, and how many wait."""

    async def drain(self, seconds: float) -> None:
        """Takes no more requests and lets the running ones finish; after `seconds` they end as aborted."""

    def stop(self) -> None: ...


def fault_of(engine: ServedEngine) -> RondoError | None:
    """Why it ended, where it was not stopped."""
    failure = engine.failure
    return None if failure is None or failure.code == "shutting_down" else failure
