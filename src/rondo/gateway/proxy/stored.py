"""Stored responses, and responses that continue others: `/v1/responses` in front of an engine that stores nothing.

The context of a previous response or of a conversation is put before the request's input, and `recorder.py` stores the
engine's response.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive, Scope, Send

from rondo.base.errors import InvalidRequest, NotFound, RondoError
from rondo.base.ids import new_id
from rondo.client.protocol.item import item_text, with_model
from rondo.control.key import Key
from rondo.control.objects.items import Item, items_of
from rondo.control.objects.responses import check_size
from rondo.control.queue.work import New
from rondo.gateway.auth import Authenticator
from rondo.gateway.config import GatewayConfig
from rondo.gateway.proxy.fields import READ_AT_ONCE
from rondo.gateway.proxy.forward import Forward
from rondo.gateway.proxy.recorder import ResponseRecorder, WantedResponse
from rondo.gateway.queued.objects import Objects
from rondo.web.errors import of_rondo
from rondo.web.http import Json, check_json, read_body

CREATE, COUNT = "/v1/responses", "/v1/responses/input_tokens"
PATHS = frozenset([CREATE, COUNT])
OWN = ("store", "previous_response_id", "conversation", "background")
"""Fields that the gateway applies, and that an engine does not get."""
ABSENT = msgspec.Raw(b"")

_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


class StoredResponses:
    """An ASGI application for the routes of `PATHS`, in front of the one that forwards to engines."""

    def __init__(
        self, config: GatewayConfig, auth: Authenticator, objects: Objects, forward: Forward
    ) -> None:
        self.config, self.auth, self.objects, self.forward = config, auth, objects, forward

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            body = await self._body(scope, receive)
            wanted = await self._read(scope, body)
            if wanted is not None and wanted.background:
                answer = await self._begin(wanted)
                await Json(answer)(scope, receive, send)
                return
        except ClientDisconnect:
            return
        except RondoError as error:
            await of_rondo(error)(scope, receive, send)
            return
        if wanted is None:
            await self.forward(scope, _replayed(body, receive), send)
        elif scope["path"] == COUNT:
            await self.forward(scope, _replayed(wanted.body, receive), send)
        else:
            recorder = ResponseRecorder(wanted, self.objects, send)
            await self.forward(scope, _replayed(wanted.body, receive), recorder)
            await recorder.end()

    async def _body(self, scope: Scope, receive: Receive) -> bytes:
        key = await self.auth.key_of(scope["headers"])
        key.may("inference")
        request = Request(scope, receive)
        check_json(request)
        return await read_body(
            request, self.config.max_body_bytes, self.config.body_seconds, section=self.config.section
        )

    async def _read(self, scope: Scope, body: bytes) -> WantedResponse | None:
        """None for a request that the gateway neither stores nor completes, among them malformed ones."""
        key = await self.auth.key_of(scope["headers"])
        read = _parsed(body) if len(body) <= READ_AT_ONCE else await asyncio.to_thread(_parsed, body)
        if read is None:
            return None
        fields, own, input, model, metadata = read
        counted = scope["path"] == COUNT
        previous, conversation = _previous_of(own), _conversation_of(own)
        stored = not counted and self._stored(own["store"])
        background = _flag("background", own["background"]) or False
        if background:
            _check_background(stored, _value(fields.get("stream", ABSENT)), model)
        if not stored and previous is None and conversation is None:
            return None if not any(value is not None for value in own.values()) else _plain(key, fields)
        items = items_of(input)
        context: list[Item] | None = None
        if previous is not None or conversation is not None:
            owner, largest = None if key.rights.role == "admin" else key.id, self.config.max_body_bytes
            context = await self.objects.responses.context(owner, previous, conversation, largest)
        whole = await self._whole(fields, context, items, len(body), previous)
        return WantedResponse(
            key,
            model if isinstance(model, str) else "",
            stored,
            background,
            previous,
            conversation,
            items,
            metadata,
            whole,
        )

    async def _whole(
        self,
        fields: dict[str, msgspec.Raw],
        context: list[Item] | None,
        items: list[Item],
        size: int,
        previous: str | None,
    ) -> bytes:
        """The request for the engine. A large one, or one with a context of any size, is written in a thread."""
        if context is None and size <= READ_AT_ONCE:
            return msgspec.json.encode(fields)

        def write() -> bytes:
            if context is not None:
                fields["input"] = msgspec.Raw(msgspec.json.encode([*context, *items]))
            return msgspec.json.encode(fields)

        body = await asyncio.to_thread(write)
        if context is not None:
            param = "conversation" if previous is None else "previous_response_id"
            check_size(param, len(body), self.config.max_body_bytes)
        return body

    def _stored(self, wanted: object) -> bool:
        flag, policy = _flag("store", wanted), self.config.responses.store
        if flag and policy == "never":
            raise InvalidRequest(
                "This gateway stores no responses (responses.store is never): set store to false.",
                param="store",
            )
        return flag if flag is not None else policy == "default"

    async def _begin(self, wanted: WantedResponse) -> dict[str, Any]:
        """Queues a response in the background."""
        key, model = wanted.key, wanted.model
        key.may_use(model)
        await self.forward.usage.check_quota(key)
        known = self.objects.queue.models()
        if known is not None and model not in known:
            raise NotFound(
                f"The model {model!r} does not exist: GET /v1/models lists the models.",
                param="model",
                code="model_not_found",
            )
        target = self.forward.loading.target(model)
        asked = wanted.body if target == model else with_model(wanted.body, target)
        text = await asyncio.to_thread(item_text, CREATE, asked)
        prompt = New(target, text)
        body = _queued_body(wanted)
        stored = await wanted.stored(body)
        await self.objects.responses.begin(stored, prompt)
        return body


def _plain(key: Key, fields: Mapping[str, msgspec.Raw]) -> WantedResponse:
    """A request whose own fields have no effect, such as `store: false`."""
    return WantedResponse(key, "", False, False, None, None, [], None, msgspec.json.encode(fields))


def _parsed(body: bytes) -> tuple[dict[str, msgspec.Raw], dict[str, Any], Any, Any, Any] | None:
    """All fields, those of the gateway, input, model and metadata; None for a body that is no JSON object."""
    try:
        fields = _fields.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        return None
    try:
        body.decode()
        own = {name: _value(fields.pop(name, ABSENT)) for name in OWN}
        input, model, metadata = (_value(fields.get(name, ABSENT)) for name in ("input", "model", "metadata"))
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"The request body is not valid JSON: {error}.", code="invalid_value") from error
    return fields, own, input, model, metadata


def _queued_body(wanted: WantedResponse) -> dict[str, Any]:
    return {
        "id": new_id("resp"),
        "object": "response",
        "created_at": int(time.time()),
        "status": "queued",
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "model": wanted.model,
        "output": [],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "metadata": wanted.metadata or {},
        "usage": None,
        **wanted.own_fields,
    }


def _check_background(stored: bool, stream: object, model: object) -> None:
    if not stored:
        raise InvalidRequest(
            "background needs a stored response: leave store out, or set it to true.", param="store"
        )
    if stream:
        raise InvalidRequest(
            "stream is not supported with background: retrieve the response until its status is completed.",
            param="stream",
        )
    if not isinstance(model, str) or not model:
        raise InvalidRequest("The request needs a model: GET /v1/models lists the models.", param="model")


def _previous_of(own: Mapping[str, Any]) -> str | None:
    previous = own["previous_response_id"]
    if previous is not None and (not isinstance(previous, str) or not previous):
        raise InvalidRequest("previous_response_id is the id of a response.", param="previous_response_id")
    if previous is not None and own["conversation"] is not None:
        raise InvalidRequest(
            "previous_response_id and conversation exclude each other: set one of them.",
            param="previous_response_id",
        )
    return previous


def _conversation_of(own: Mapping[str, Any]) -> str | None:
    given = own["conversation"]
    id = given.get("id") if isinstance(given, dict) else given
    if given is not None and (not isinstance(id, str) or not id):
        raise InvalidRequest("conversation is an id, or an object with an id.", param="conversation")
    return id


def _flag(name: str, value: object) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise InvalidRequest(f"{name} is true or false.", param=name)
    return value


def _value(raw: msgspec.Raw) -> Any:
    return None if not bytes(raw) else msgspec.json.decode(raw)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """`receive` that begins with a body that was read before."""
    sent = False

    async def replay() -> Message:
        nonlocal sent
        if sent:
            return await receive()
        sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay
