"""A model request on its way, and its place in the queue: service tier, owner, and the state of its wait."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from rondo.control.key import TIERS, Key, ServiceTier
from rondo.control.routing.router import Route
from rondo.control.routing.waiting import Ticket
from rondo.gateway.proxy.connection import Header
from rondo.gateway.proxy.fields import TIER_HEADER, Fields, tier_of
from rondo.gateway.proxy.metering import TokenMeter
from rondo.gateway.proxy.trace import RequestTrace

UNQUEUED = frozenset(["/tokenize", "/detokenize", "/v1/responses/input_tokens"])
"""Routes that take no place in an engine's batch."""


@dataclass(eq=False)
class Pass(Ticket):
    """A request at the gate."""

    fields: Fields = field(kw_only=True)
    begun: Callable[[], bool] = field(kw_only=True)
    """Whether a byte of the response has been sent."""
    task: asyncio.Task[object] | None = None
    """The task that forwards the request; it is cancelled when the request is preempted."""
    waited: float = 0.0
    """Seconds of earlier waits."""
    since: float = 0.0
    deadline: float = math.inf
    answer: asyncio.Future[Route] | None = None
    """Result of the present wait."""
    route: Route | None = None
    preemptions: int = 0
    preempted: bool = False
    """Its task has been cancelled for a request of a higher band."""

    @property
    def tier(self) -> str:
        return TIERS[self.band]


STREAMED_WITH_OPTIONS = frozenset(["/v1/chat/completions", "/v1/completions"])
"""Routes whose streams state token counts on request only."""


@dataclass
class Forwarded:
    path: str
    key: Key
    fields: Fields
    body: bytes
    headers: list[Header]
    request_id: str
    limits: dict[str, str] = field(default_factory=dict)
    meter: TokenMeter | None = None
    """Of the response that is passed on."""
    tried: list[str] = field(default_factory=list)
    started: bool = False
    """A byte of the response has been sent."""
    repeated: bool = False
    """A connection ended before a byte of the response, and the request was sent again."""
    ticket: Pass = field(init=False)
    trace: RequestTrace = field(default_factory=RequestTrace)

    @property
    def strip(self) -> bool:
        """Whether the event of token counts is requested for the gateway alone."""
        streams = self.fields.stream and self.path in STREAMED_WITH_OPTIONS
        return streams and not self.fields.wants_usage


def ticket_of(request: Forwarded, decode_factor: float) -> Pass:
    """Called in the task that forwards the request. A service tier that the request names is stated in its limits."""
    fields, key = request.fields, request.key
    named = named_tier(request.headers, fields)
    tier = key.tier(named or "default")
    if named is not None:
        request.limits[TIER_HEADER.decode()] = tier
    work, size = len(fields.prompt) + decode_factor * fields.answer_bytes, len(request.body)
    return Pass(
        *(fields.model, TIERS.index(tier), key.id, work, size),
        fields=fields,
        begun=lambda: request.started,
        task=None if request.path in UNQUEUED else asyncio.current_task(),
    )


def named_tier(headers: Iterable[tuple[bytes, bytes]], fields: Fields) -> ServiceTier | None:
    """The service tier that a request names in a header or in its body."""
    return next((tier_of(value) for name, value in headers if name == TIER_HEADER), fields.tier)
