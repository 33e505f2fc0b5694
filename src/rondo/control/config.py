"""Settings of the durable queue and the router."""

from __future__ import annotations

from pydantic import Field

from rondo.base.config import Section


class QueueConfig(Section):
    lease: float = Field(
        60.0, gt=0, description="seconds after which work goes to another worker, unless its own has called"
    )
    attempts: int = Field(3, gt=0, description="how often a request is tried before it is a dead letter")
    rest: float = Field(
        1.0, ge=0, description="seconds before the second try; each further one waits twice as long"
    )
    longest_rest: float = Field(60.0, ge=0, description="the most seconds between two tries")
    keep: float = Field(
        7 * 86400.0, ge=0, description="seconds that results are kept after all of a group ended"
    )
    prune_every: float = Field(60.0, ge=0, description="seconds between two deletions of old groups")


class RouterConfig(Section):
    failures: int = Field(3, gt=0, description="after so many in a row an engine is left alone for a while")
    shut: float = Field(5.0, gt=0, description="seconds that it is left alone before one request is tried")
    piece: int = Field(
        256, gt=0, description="characters in the pieces by which beginnings of prompts are known"
    )
    pieces: int = Field(65536, gt=0, description="how many pieces are remembered of each engine")
    longest: int = Field(512, gt=0, description="how many pieces of one prompt are looked at")
