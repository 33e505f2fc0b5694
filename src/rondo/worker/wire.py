"""Bodies of the lease API: /v1/queue/leases, /heartbeat, /finish and /release."""

from __future__ import annotations

import msgspec

NONE = msgspec.Raw(b"null")


class LeaseCall(msgspec.Struct):
    """Requests for `models`, at most `limit`; waits up to `wait` seconds for the first one. `held`: number of requests
    that the worker holds already."""

    worker: str
    models: list[str]
    limit: int = 1
    wait: float = 0.0
    held: int = 0


class LeasedItem(msgspec.Struct):
    id: str
    lease: str
    model: str
    attempts: int
    item: msgspec.Raw
    """{"path": ..., "body": {...}}"""
    suspect: bool = False
    """It was in flight at a crash: the worker leases nothing more until it has ended."""


class LeaseReply(msgspec.Struct):
    items: list[LeasedItem]
    lease_seconds: float
    """Time without a heartbeat after which the leases expire."""
    suspects: bool = False
    """Whether suspects of a crash wait for a worker that holds nothing."""


class HeldCall(msgspec.Struct):
    """A heartbeat, or a return: pairs of request id and lease. A return without pairs is of everything."""

    worker: str
    held: list[tuple[str, str]] | None = None


class HeldReply(msgspec.Struct):
    lost: list[str] = []
    """Requests of a heartbeat that the worker no longer holds: it drops them."""
    released: int = 0


class FinishedItem(msgspec.Struct, omit_defaults=True):
    """A result (an `ItemResult`), or an error with `again` if another attempt may help. `in_flight`: after a crash of
    the engine, the number of requests that it executed for the worker."""

    id: str
    lease: str
    result: msgspec.Raw = NONE
    error: str | None = None
    again: bool = False
    in_flight: int = 0


class FinishCall(msgspec.Struct):
    worker: str
    results: list[FinishedItem]


class FinishReply(msgspec.Struct):
    verdicts: list[str]
    """done, resting, dead, stale or unknown, in order."""
