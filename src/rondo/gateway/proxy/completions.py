"""Chat completions with `store: true`, stored as they pass: the end of the response waits until that is done."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable

import msgspec
from starlette.types import Message, Send

from rondo.base.errors import InvalidRequest
from rondo.base.telemetry.log import get_logger
from rondo.control.objects.completions import Completions
from rondo.control.objects.items import Item
from rondo.gateway.proxy.fields import READ_AT_ONCE
from rondo.gateway.proxy.ticket import Forwarded

log = get_logger("rondo.gateway.completions")

CREATE = "/v1/chat/completions"
LARGEST = 16 << 20
"""Bytes of a response; larger ones pass without being stored."""
DONE = b"[DONE]"
DONE_LINE = re.compile(rb"^data: ?\[DONE\]", re.MULTILINE)
LONGEST_END = len(b"\ndata: [DONE]")

ABSENT = msgspec.Raw(b"null")

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


class CompletionStorage:
    def __init__(self, completions: Completions) -> None:
        self.completions = completions

    async def begin(self, request: Forwarded, send: Send) -> CompletionRecorder:
        """Removes the fields for the store from the engine's request."""
        if len(request.body) <= READ_AT_ONCE:
            return self._begin(request, send)
        return await asyncio.to_thread(self._begin, request, send)

    def _begin(self, request: Forwarded, send: Send) -> CompletionRecorder:
        if self.completions.config.store == "never":
            raise InvalidRequest(
                "This gateway stores no completions (responses.store is never): leave store out.",
                param="store",
            )
        fields = _fields.decode(request.body)
        del fields["store"]
        metadata = _metadata(msgspec.json.decode(fields.pop("metadata", ABSENT)))
        messages = fields.get("messages", ABSENT)
        request.body = msgspec.json.encode(fields)
        return CompletionRecorder(self.completions, request, metadata, messages, send)


class CompletionRecorder:
    """`send` that stores the completion before its end passes."""

    def __init__(
        self,
        completions: Completions,
        request: Forwarded,
        metadata: dict[str, str],
        messages: msgspec.Raw,
        send: Send,
    ) -> None:
        self.completions, self.request = completions, request
        self._metadata, self._messages, self._send = metadata, messages, send
        self._held = bytearray()
        self._passes = self._stream = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            kind = dict(message["headers"]).get(b"content-type", b"")
            self._stream = kind.startswith(b"text/event-stream")
            self._passes = message["status"] != 200
        elif not self._passes:
            begin = max(0, len(self._held) - LONGEST_END)
            self._held += message.get("body", b"")
            ended = self._stream and DONE_LINE.search(self._held, begin) is not None
            if len(self._held) > LARGEST:
                self._passes = True
                log.warning("a completion is too large to be stored", extra={"bytes": len(self._held)})
            elif ended or not message.get("more_body", False):
                self._passes = True
                await self._keep()
        await self._send(message)

    async def _keep(self) -> None:
        """Without a working store the client gets its response too."""
        try:
            read = await asyncio.to_thread(self._read)
            if read is not None:
                await asyncio.shield(self._write(*read))
        except Exception as error:
            log.warning(
                "a completion is not stored", extra={"error": f"{type(error).__name__}: {error}"[:300]}
            )

    async def _write(self, completion: Item, messages: list[Item]) -> None:
        await self.completions.keep(self.request.key.id, completion, messages)

    def _read(self) -> tuple[Item, list[Item]] | None:
        completion = self._completion()
        if completion is None:
            return None
        return completion, stored_messages(completion["id"], msgspec.json.decode(self._messages))

    def _completion(self) -> Item | None:
        """None for a response that an engine cut off."""
        completion = completion_of(_chunks(self._held)) if self._stream else json.loads(self._held)
        if not isinstance(completion, dict) or not isinstance(completion.get("id"), str):
            return None
        choices = completion.get("choices") or []
        if not choices or any(choice.get("finish_reason") is None for choice in choices):
            return None
        meter = self.request.meter
        if completion.get("usage") is None and meter is not None and meter.tokens is not None:
            completion["usage"] = {
                "prompt_tokens": meter.input_tokens or 0,
                "completion_tokens": meter.output_tokens or 0,
                "total_tokens": meter.tokens,
            }
        return completion | {"metadata": self._metadata}


def stored_messages(id: str, messages: object) -> list[Item]:
    """Messages of a request, each with an id, as OpenAI's API lists them."""
    if not isinstance(messages, list):
        return []
    shown = []
    for place, message in enumerate(messages):
        content = message.get("content")
        parts = content if isinstance(content, list) else None
        if parts is not None:
            texts = [part.get("text") for part in parts if isinstance(part, dict)]
            content = "".join(text for text in texts if isinstance(text, str))
        shown.append({**message, "id": f"{id}-{place}", "content": content, "content_parts": parts})
    return shown


def completion_of(chunks: Iterable[Item]) -> Item | None:
    """The completion that a stream of chunks amounts to."""
    whole: Item | None = None
    choices: dict[int, Item] = {}
    for chunk in chunks:
        head = {name: value for name, value in chunk.items() if name != "choices" and value is not None}
        whole = head if whole is None else {**whole, **head}
        for part in chunk.get("choices") or []:
            place = part.get("index", 0)
            empty = {"index": place, "message": {"role": "assistant", "content": None}, "finish_reason": None}
            _add(choices.setdefault(place, empty), part)
    if whole is None:
        return None
    return whole | {"object": "chat.completion", "choices": [choices[place] for place in sorted(choices)]}


def _add(choice: Item, part: Item) -> None:
    for name, value in (part.get("delta") or {}).items():
        if name == "tool_calls":
            _add_calls(choice["message"].setdefault("tool_calls", []), value or [])
        elif isinstance(value, str) and name != "role":
            choice["message"][name] = (choice["message"].get(name) or "") + value
    for name, values in (part.get("logprobs") or {}).items():
        known = choice.setdefault("logprobs", {})
        known[name] = [*(known.get(name) or []), *values] if isinstance(values, list) else values
    if part.get("finish_reason") is not None:
        choice["finish_reason"] = part["finish_reason"]


def _add_calls(calls: list[Item], parts: list[Item]) -> None:
    for part in parts:
        place = part.get("index", 0)
        while len(calls) <= place:
            calls.append({"id": None, "type": "function", "function": {"name": "", "arguments": ""}})
        call = calls[place]
        call["id"] = part.get("id") or call["id"]
        for name in ("name", "arguments"):
            call["function"][name] += (part.get("function") or {}).get(name) or ""


def _chunks(held: bytearray) -> Iterable[Item]:
    for line in held.splitlines():
        data = line.removeprefix(b"data:").strip()
        if line.startswith(b"data:") and data != DONE:
            yield json.loads(data)


def _metadata(given: object) -> dict[str, str]:
    if given is None:
        return {}
    if (
        not isinstance(given, dict)
        or len(given) > 16
        or not all(
            isinstance(value, str) and len(value) <= 512 and len(name) <= 64 for name, value in given.items()
        )
    ):
        raise InvalidRequest(
            "metadata is an object of at most 16 strings: names up to 64 characters, values up to 512.",
            param="metadata",
        )
    return given
