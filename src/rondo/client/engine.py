"""Interface of an engine, local or remote, for the server, the RL loop and tests."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from rondo.base.errors import RondoError
from rondo.client.types import GenerateRequest, TokenChunk

PauseMode = Literal["keep", "wait", "abort"]
RunningRequests = Literal["retain", "recompute", "abort"]
"""Running requests at a switch of the weights: they keep their KV cache, compute it again, or end."""


class Engine(Protocol):
    def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        """Streams the request's samples. Leaving the iterator early aborts the request."""

    async def abort(self, request_id: str) -> None: ...

    async def pause(self, mode: PauseMode = "keep") -> None:
        """Stops between two steps. keep: running requests stay; wait: they finish first; abort: they end."""

    async def resume(self) -> None: ...

    async def sleep(self, level: int = 1, mode: PauseMode = "keep") -> None:
        """Releases the KV cache, and moves the weights to CPU memory (1) or drops them (2); `mode` as in `pause`."""

    async def wake(self, tags: Sequence[str] | None = None) -> None:
        """`tags` are "weights" and "kv_cache", both by default."""

    def adapters(self) -> Sequence[str]:
        """The names that a request's `adapter` may have."""

    def has_adapter(self, name: str) -> bool: ...

    async def load_adapter(self, name: str, path: str, replace: bool = False) -> None:
        """Serves the adapter in the folder `path` as `name`; with `replace`, also where the name is taken."""

    async def unload_adapter(self, name: str) -> None:
        """Running requests of the adapter finish; waiting ones end with an error."""

    async def start_weight_update(self) -> None:
        """Stops between two steps; nothing is computed until the update is finished."""

    async def finish_weight_update(self, version: int) -> None:
        """Continues with `version`: tokens carry it, and cached prefixes of older versions never hit."""

    async def check_weights(self, path: Path, version: int | None) -> None:
        """Raises the errors of `update_weights` that can be detected without reading the weights."""

    async def update_weights(self, path: Path, version: int, requests: RunningRequests = "retain") -> None:
        """Updates all weights from a model's folder, between two steps. On error the weights remain unchanged."""

    async def reset_prefix_cache(self) -> None: ...


@dataclass(frozen=True)
class WeightState:
    """`whole`: no tensor is missing or of another version."""

    updating: bool
    whole: bool
    asleep: bool


class ServedEngine(Engine, Protocol):
    """Operations of an engine for the server, in addition to generation."""

    max_model_len: int
    max_queued: int
    max_running: int | None
    """Samples in its largest batch; None if it is unknown."""

    @property
    def failure(self) -> RondoError | None:
        """Reason why the engine cannot serve any more; None while it can."""

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
        """Numbers of running and waiting samples."""

    def kv_load(self) -> dict[str, float]:
        """`kv_usage`, the used share of the KV cache, and `kv_free_tokens`; empty where they are unknown."""

    async def drain(self, seconds: float) -> None:
        """Takes no more requests and lets the running ones finish; after `seconds` they end as aborted."""

    def stop(self) -> None: ...


def fault_of(engine: ServedEngine) -> RondoError | None:
    """Why it ended, where it was not stopped."""
    failure = engine.failure
    return None if failure is None or failure.code == "shutting_down" else failure
