"""Settings of the durable queue."""

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
