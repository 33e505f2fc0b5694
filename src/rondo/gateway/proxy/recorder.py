"""The response of a request to `/v1/responses`, stored as it passes.

Of a stream, only the last event, which has the whole response, waits until that is stored.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from starlette.types import Message, Send

from rondo.base.telemetry.log import get_logger
from rondo.control.key import Key
from rondo.control.objects.items import Item
from rondo.control.objects.responses import StoredResponse
from rondo.gateway.proxy.fields import READ_AT_ONCE
from rondo.gateway.proxy.metering import END, last_end
from rondo.gateway.queued.objects import Objects
from rondo.web.http import event_of

log = get_logger("rondo.gateway.responses")

LAST = ("completed", "incomplete", "failed")


@dataclass(frozen=True)
class WantedResponse:
    """A request, and what the gateway does with its response."""

    key: Key
    model: str
    store: bool
    background: bool
    previous: str | None
    conversation: str | None
    items: list[Item]
    """The input of this request alone."""
    metadata: Any
    body: bytes
    """For the engine."""

    @property
    def own_fields(self) -> dict[str, Any]:
        """Fields of the response that only the gateway knows."""
        known: dict[str, Any] = {"store": self.store, "previous_response_id": self.previous}
        if self.conversation is not None:
            known["conversation"] = {"id": self.conversation}
        return known | {"background": self.background}

    async def stored(self, shown: dict[str, Any]) -> StoredResponse:
        """`shown` is the response as clients get it."""
        if len(self.body) <= READ_AT_ONCE:
            return self._stored(shown)
        return await asyncio.to_thread(self._stored, shown)

    def _stored(self, shown: dict[str, Any]) -> StoredResponse:
        return StoredResponse(
            str(shown.get("id")),
            self.key.id,
            str(shown.get("status")),
            json.dumps(shown, ensure_ascii=False),
            json.dumps(self.items, ensure_ascii=False),
            self.previous,
            self.conversation,
        )


class ResponseRecorder:
    """`send` that stores the response as it passes."""

    def __init__(self, wanted: WantedResponse, objects: Objects, send: Send) -> None:
        self.wanted, self.objects, self._send = wanted, objects, send
        self._start: Message | None = None
        self._stream = self._passes = False
        self._held = bytearray()

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            await self._begin(message)
        elif self._passes:
            await self._send(message)
        elif self._stream:
            await self._on_events(message)
        else:
            self._held += message.get("body", b"")
            if not message.get("more_body", False):
                await self._on_whole()

    async def _begin(self, message: Message) -> None:
        kind = dict(message["headers"]).get(b"content-type", b"")
        self._passes = message["status"] != 200
        self._stream = kind.startswith(b"text/event-stream")
        if self._passes or self._stream:
            await self._send(message)
        else:
            self._start = message

    async def _on_whole(self) -> None:
        assert self._start is not None
        start, self._start = self._start, None
        body = bytes(self._held)
        try:
            response = json.loads(body)
        except ValueError:
            response = None
        if isinstance(response, dict) and isinstance(response.get("id"), str):
            body = json.dumps(
                await self._stored(response), ensure_ascii=False, separators=(",", ":")
            ).encode()
        headers = [(name, value) for name, value in start["headers"] if name != b"content-length"]
        headers.append((b"content-length", b"%d" % len(body)))
        await self._send({**start, "headers": headers})
        await self._send({"type": "http.response.body", "body": body, "more_body": False})

    async def end(self) -> None:
        """After a response that an engine cut off: the client gets that part, and the server closes the connection."""
        if self._start is not None:
            await self._send(self._start)
            await self._send({"type": "http.response.body", "body": bytes(self._held), "more_body": True})

    async def _on_events(self, message: Message) -> None:
        begin = max(0, len(self._held) - 3)
        self._held += message.get("body", b"")
        more = message.get("more_body", False)
        end = last_end(self._held, begin) if more else len(self._held)
        if not end and more:
            return
        whole = bytes(self._held[:end])
        del self._held[:end]
        if b'"response":' in whole:
            whole = b"".join([await self._event(event) for event in _events(whole)])
        await self._send({"type": "http.response.body", "body": whole, "more_body": more})

    async def _event(self, event: bytes) -> bytes:
        data = event[event.find(b"data:") + 5 :] if b"data:" in event else b""
        try:
            content = json.loads(data)
        except ValueError:
            return event
        response = content.get("response") if isinstance(content, dict) else None
        if not isinstance(response, dict):
            return event
        ended = str(content.get("type")).removeprefix("response.") in LAST
        changed = await self._stored(response) if ended else response | self.wanted.own_fields
        return event_of(content | {"response": changed}, content.get("type"))

    async def _stored(self, response: dict[str, Any]) -> dict[str, Any]:
        """The response as the client gets it, once it is stored. Without a working store the client gets it too."""
        wanted = self.wanted
        shown = response | wanted.own_fields
        if not wanted.store and wanted.conversation is None:
            return shown
        try:
            stored = await wanted.stored(shown)
            await asyncio.shield(self._keep(stored))
        except Exception as error:
            log.warning(
                "a response is not stored",
                extra={"response": str(shown.get("id")), "error": f"{type(error).__name__}: {error}"[:300]},
            )
            return shown | {"store": False}
        return shown

    async def _keep(self, stored: StoredResponse) -> None:
        if self.wanted.store:
            await self.objects.responses.keep(stored)
        else:
            await self.objects.responses.extend_conversation(stored)


def _events(data: bytes) -> Iterator[bytes]:
    """Each with its end; the last one may lack it."""
    begin = 0
    for end in END.finditer(data):
        yield data[begin : end.end()]
        begin = end.end()
    if begin < len(data):
        yield data[begin:]
