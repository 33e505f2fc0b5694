"""`/v1/responses`, without a memory: chat requests in another shape, answered as items and typed events."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import replace
from functools import cached_property
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from rondo.base.errors import InvalidRequest, NotFound
from rondo.base.ids import new_id
from rondo.client.protocol.openai import ChatRequest
from rondo.client.protocol.responses import NOT_STORED, InputTokensRequest, ResponsesRequest, under_its_names
from rondo.client.types import GenerateRequest, TokenChunk
from rondo.server.answers.response_items import Event, Output
from rondo.server.answers.shapes import UsageCount, chat_logprobs
from rondo.server.answers.turn import ChatTurn, make_turn
from rondo.server.served import ServedModel
from rondo.text.parsing import Content, Part
from rondo.web.http import EventStream, Json, event_of, note_ignored, unless_gone


async def responses(served: ServedModel, request: Request) -> ASGIApp:
    body, size = await served.bodies.read(ResponsesRequest, request)
    chat = body.to_chat()
    id = new_id("resp")
    with under_its_names():
        turn = await make_turn(served, chat, id, size)
    answering = Answering(served, body, chat, turn)
    if answering.parser is not None and body.wants_logprobs:
        raise InvalidRequest(
            "include: log-probabilities are not supported where reasoning or calls are taken out of the text; "
            "/v1/chat/completions has them.",
            param="include",
        )
    note_ignored(body)
    if body.stream:
        return EventStream(answering.events())
    return await unless_gone(request.receive, answering.whole())


async def input_tokens(served: ServedModel, request: Request) -> ASGIApp:
    """How many tokens the prompt of a response has, without computing it."""
    body, size = await served.bodies.read(InputTokensRequest, request)
    chat = body.to_chat(served.name)
    served.adapter(chat.model)
    with under_its_names():
        prompt = await served.prompts.of_chat(chat, served.replies.check(chat), size)
    return Json({"object": "response.input_tokens", "input_tokens": len(prompt.ids)})


def stored_routes() -> list[Route]:
    """Routes for stored responses."""

    async def missing(request: Request) -> Response:
        raise NotFound(
            f"there is no response {request.path_params['id']!r} here. {NOT_STORED}", param="response_id"
        )

    return [
        Route("/v1/responses/{id}", missing, methods=["GET", "DELETE"]),
        Route("/v1/responses/{id}/cancel", missing, methods=["POST"]),
        Route("/v1/responses/{id}/input_items", missing, methods=["GET"]),
    ]


STATUS = {"stop": "completed", "length": "incomplete", "abort": "failed"}
ABORTED = {"code": "server_error", "message": "the answer was cut off by the server."}


class Answering:
    """One active request. Whole and streamed responses use the same events, except for the first ones, which only a
    stream sends."""

    def __init__(
        self, served: ServedModel, body: ResponsesRequest, chat: ChatRequest, turn: ChatTurn
    ) -> None:
        self._served = served
        self._body = body
        self._chat = chat
        self._turn = turn
        self.parser = turn.parser()
        self._output = Output(served.replies.new_call_id, chat.parallel_tool_calls is not False)
        self._usage = UsageCount(turn.thoughts)
        self._created = int(time.time())
        self._number = 0

    async def whole(self) -> Json:
        response: dict[str, Any] = {}
        async with aclosing(self._chunks(replace(self._turn.generate, whole=True))) as chunks:
            async for chunk in chunks:
                for event in self._read(chunk):
                    response = event.get("response", response)
        return Json(response)

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Begins with the first chunk: until then the engine may refuse the request."""
        begun = False
        async with aclosing(self._chunks(self._turn.generate)) as chunks:
            async for chunk in chunks:
                if not begun:
                    begun = True
                    response = self._response("in_progress")
                    yield self._sent({"type": "response.created", "response": response})
                    yield self._sent({"type": "response.in_progress", "response": response})
                for event in self._read(chunk):
                    yield self._sent(event)

    async def _chunks(self, generate: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        with self._served.under_way(generate.id, [generate]), under_its_names():
            async with aclosing(self._served.engine.generate(generate)) as stream:
                async for chunk in stream:
                    yield chunk

    def _read(self, chunk: TokenChunk) -> Iterator[Event]:
        self._usage.count(chunk)
        logprobs = (chat_logprobs(self._served.tokens, chunk) or {}).get("content", [])
        for part in self._parts(chunk):
            yield from self._output.add(part, logprobs)
        if chunk.finish_reason is not None:
            status = STATUS[chunk.finish_reason]
            yield from self._output.end("completed" if status == "completed" else "incomplete")
            yield {"type": f"response.{status}", "response": self._response(status)}

    def _parts(self, chunk: TokenChunk) -> list[Part]:
        if self.parser is None:
            silent = chunk.token_ids and chunk.finish_reason is None
            return [Content(chunk.text)] if chunk.text or chunk.logprobs or silent else []
        return self.parser.feed(chunk.text) + (self.parser.finish() if chunk.finish_reason else [])

    def _sent(self, event: Event) -> bytes:
        numbered = event | {"sequence_number": self._number}
        self._number += 1
        return event_of(numbered, event["type"])

    def _response(self, status: str) -> dict[str, Any]:
        body = self._body
        choice = body.tool_choice
        return {
            "id": self._turn.generate.id,
            "object": "response",
            "created_at": self._created,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "error": ABORTED if status == "failed" else None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "model": self._served.shown(body.model),
            "output": list(self._output.items),
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": self._chat.reasoning_effort, "summary": None},
            "background": False,
            "service_tier": "default",
            "store": False,
            "temperature": self._turn.generate.sampling.temperature,
            "text": {"format": _format(body)},
            "tool_choice": choice or "auto" if isinstance(choice, str | None) else choice.model_dump(),
            "tools": self._tools,
            "top_logprobs": body.top_logprobs or 0,
            "top_p": self._turn.generate.sampling.top_p,
            "truncation": "disabled",
            "usage": None if status == "in_progress" else self._used(),
            "user": body.user,
        }

    @cached_property
    def _tools(self) -> list[dict[str, Any]]:
        return [tool.model_dump() for tool in self._body.tools or []]

    def _used(self) -> dict[str, Any]:
        used = self._usage.body()
        return {
            "input_tokens": used["prompt_tokens"],
            "input_tokens_details": used["prompt_tokens_details"] | {"cache_write_tokens": 0},
            "output_tokens": used["completion_tokens"],
            "output_tokens_details": used["completion_tokens_details"],
            "total_tokens": used["total_tokens"],
        }


def _format(body: ResponsesRequest) -> dict[str, Any]:
    given = body.text.format if body.text is not None else None
    return {"type": "text"} if given is None else given.model_dump(by_alias=True, exclude_none=True)
