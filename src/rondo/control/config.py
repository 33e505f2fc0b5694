"""Settings of the durable queue and the router."""

from __future__ import annotations

from pydantic import Field

from rondo.base.settings.config import Section


class QueueConfig(Section):
    lease: float = Field(60.0, gt=0, description="seconds without a heartbeat after which a lease expires")
    attempts: int = Field(3, gt=0, description="attempts before a request becomes a dead letter")
    rest: float = Field(1.0, ge=0, description="seconds before the second attempt; doubles with each attempt")
    longest_rest: float = Field(60.0, ge=0, description="maximum seconds between two attempts")
    keep: float = Field(
        7 * 86400.0, ge=0, description="seconds that results are retained after their group ended"
    )
    prune_every: float = Field(60.0, ge=0, description="seconds between two deletions of old groups")


class RouterConfig(Section):
    failures: int = Field(3, gt=0, description="consecutive failures that open an engine's circuit breaker")
    shut: float = Field(
        5.0, gt=0, description="seconds before an open circuit breaker lets one request through"
    )
    piece: int = Field(1024, gt=0, description="bytes per prefix piece")
    pieces: int = Field(65536, gt=0, description="prefix pieces remembered per engine")
    longest: int = Field(256, gt=0, description="prefix pieces considered per prompt")
    decode_factor: float = Field(
        8.0,
        ge=0,
        description="work of one byte of an answer, as a multiple of one byte of an uncached prompt",
    )
