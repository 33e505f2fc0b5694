"""The end of a client's connection, as a call: a task that waits for it would cost each request two turns of the event
loop."""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

KEY = "rondo.hangup"
CYCLE = "rondo.cycle"
"""Places in an ASGI scope, where our protocol serves the connection."""


def has_arrived(scope: Scope) -> bool:
    """Whether all of the request's body has been received."""
    cycle: RequestResponseCycle | None = scope.get(CYCLE)
    return cycle is not None and not cycle.more_body


class Hangup:
    """Calls made when the connection ends."""

    def __init__(self) -> None:
        self._ended = False
        self._calls: set[Callable[[], None]] = set()

    def add(self, call: Callable[[], None]) -> None:
        if self._ended:
            call()
        else:
            self._calls.add(call)

    def discard(self, call: Callable[[], None]) -> None:
        self._calls.discard(call)

    def end(self) -> None:
        self._ended = True
        for call in tuple(self._calls):
            call()
