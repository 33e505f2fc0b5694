"""Clients that end their data after the request and wait for the answer, and clients of HTTP/1.0, which has no chunks.

After the end of its data a client's socket may be half-closed, so that it waits for the answer, or gone: TCP shows the
difference only to a write, since a socket that is gone answers with a reset. Where no answer has begun, that write is
the interim response `100 Continue`, which clients of HTTP/1.1 skip.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

PROBE_SECONDS = 1.0
"""Before the first probe, which causes the reset, and before the second, which notices it."""
REST_SECONDS = 15.0
"""Between further probes."""
PROBE = b"HTTP/1.1 100 Continue\r\n\r\n"


class HalfClosed(HttpToolsProtocol):
    _probe: asyncio.TimerHandle | None = None
    _probes = 0

    def eof_received(self) -> bool:  # type: ignore[override]
        """Whether the connection stays open, for the answer to a request that has arrived whole."""
        cycle = self.cycle
        if cycle is None or cycle.response_complete or cycle.more_body:
            return False
        cycle.keep_alive = False  # It is the last one, also where requests are pipelined.
        self._probe_later()
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        if self._probe is not None:
            self._probe.cancel()
        super().connection_lost(exc)

    def on_headers_complete(self) -> None:
        super().on_headers_complete()
        if self.scope["http_version"] == "1.0" and self.cycle is not None:
            _without_chunks(self.cycle)

    def _probe_later(self) -> None:
        seconds = PROBE_SECONDS if self._probes < 2 else REST_SECONDS
        self._probe = self.loop.call_later(seconds, self._send_probe)

    def _send_probe(self) -> None:
        if self.transport.is_closing():
            return
        waiting = not (self.pipeline or self.cycle.response_started)
        if waiting and self.cycle.scope["http_version"] != "1.0":
            self.transport.write(PROBE)
            self._probes += 1
        self._probe_later()


def _without_chunks(cycle: RequestResponseCycle) -> None:
    """A body without a Content-Length ends with the connection, and there are no interim responses."""
    send, delimited = cycle.send, False
    cycle.waiting_for_100_continue = False

    async def send_plainly(message: Any) -> None:
        nonlocal delimited
        if message["type"] == "http.response.start":
            delimited = all(name.lower() != b"content-length" for name, _ in message.get("headers", ()))
            if delimited:
                cycle.chunked_encoding = False
        elif delimited:
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    cycle.send = send_plainly  # type: ignore[method-assign]
