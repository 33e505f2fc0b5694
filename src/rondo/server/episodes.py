"""A recorded OpenAI endpoint, with its own address and key, for each episode of an agent."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass
from typing import cast

import uvicorn
from pydantic import Field
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from rondo.base.errors import RondoError, Unauthorized, Unavailable
from rondo.client.engine import Engine
from rondo.client.protocol.openai import ChatRequest, ModelCard, ModelList
from rondo.client.protocol.refusals import parse
from rondo.client.protocol.tools import ToolDefinition
from rondo.client.protocol.wire import WireModel
from rondo.rl.environments.agents import EpisodeAddress
from rondo.rl.environments.recording import Read, Recorder
from rondo.server.answers.prompts import ENDING, ChatPrompt, Prompts, beside, variables_of
from rondo.server.answers.replies import Replies
from rondo.server.answers.shapes import Tokens
from rondo.server.answers.turn import functions_of
from rondo.server.app import ModelApp
from rondo.server.routes.chat import chat
from rondo.server.routes.completions import completions
from rondo.server.routes.responses import responses
from rondo.server.served import ServedModel
from rondo.server.workers.bodies import Bodies
from rondo.text.conversation.answers import read_answer
from rondo.text.conversation.dialogue import Dialogue, Prompt
from rondo.text.parsing import choose_dialect
from rondo.web.errors import on_bug, on_http_error, on_rondo_error
from rondo.web.http import Json, bearer_of, read_body
from rondo.web.run import bind, url_of
from rondo.web.sockets.protocol import Protocol

NAME = "policy"
START_SECONDS, LOOK_SECONDS = 30.0, 0.005
MAX_BODY_BYTES = 64 << 20
MAX_SAMPLES = 1024
"""Of one request."""

Ask = Callable[[ServedModel, Request], Awaitable[ASGIApp]]


class RewardBody(WireModel):
    reward: float
    parts: dict[str, float] = Field({})


@dataclass(frozen=True)
class EpisodePrompts(Prompts):
    """Prompts that go on from the tokens of earlier answers."""

    recorder: Recorder
    replies: Replies

    async def of_chat(
        self, body: ChatRequest, tools: Sequence[ToolDefinition], size: int, add_special: bool = False
    ) -> ChatPrompt:
        if body.continue_final_message or body.add_generation_prompt is False:
            return await super().of_chat(body, tools, size, add_special)
        template = (self.tokenizer.tool_template if tools else self.tokenizer.chat_template) or ""
        shown = [tool.for_template() for tool in tools]
        dialogue = Dialogue(self.tokenizer, shown, variables_of(body, template))
        dialect, functions = self.replies.reading(tools), functions_of(tools)

        def reading(prompt: Prompt) -> Read:
            ending = prompt.text[-ENDING:]
            return lambda text: read_answer(text, dialect.parser(ending, functions), self.replies.new_call_id)

        messages = [message.for_template() for message in body.messages]
        prompt = await beside(size, lambda: self.recorder.prompt(dialogue, messages, reading))
        return ChatPrompt(prompt.ids, prompt.text[-ENDING:], False)


@dataclass(frozen=True)
class EpisodeServed(ServedModel):
    def is_base(self, name: str) -> bool:
        """Any model name is accepted: agents have fixed ones."""
        return True


class EpisodeRoutes:
    """The server of all episodes of a process, on a port of this machine alone. It runs on the event loop that plays
    them, and begins when the first of them does."""

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        self._host, self._port = host, port
        self._open: dict[str, tuple[Recorder, ServedModel]] = {}
        self._app = self._make_app()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._serving: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._server: _Server | None = None
        self._url = ""

    @contextlib.asynccontextmanager
    async def opened(self, recorder: Recorder) -> AsyncIterator[EpisodeAddress]:
        await self._listen()
        self._open[recorder.id] = recorder, _served(recorder)
        try:
            yield EpisodeAddress(f"{self._url}/episodes/{recorder.id}/v1", recorder.key)
        finally:
            recorder.close()
            del self._open[recorder.id]

    async def close(self) -> None:
        if self._server is not None and self._serving is not None:
            self._server.should_exit = True
            await asyncio.wait([self._serving])
        self._loop = None

    async def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._starting = loop, asyncio.Lock()
            self._serving = None
        async with self._starting:
            if self._serving is None or self._serving.done():
                listener = bind(self._host, self._port)
                self._server = _Server(_config(self._app))
                self._serving = asyncio.create_task(_serve(self._server, listener))
                await _started(self._server, self._serving)
                self._url = url_of(listener)

    def _make_app(self) -> ASGIApp:
        asked: dict[str, Ask] = {
            "chat/completions": chat,
            "completions": completions,
            "responses": responses,
        }
        routes = [
            Route(f"/episodes/{{id}}/v1/{path}", ModelApp(self._within(ask)), methods=["POST"])
            for path, ask in asked.items()
        ]
        routes.append(Route("/episodes/{id}/v1/models", self._models))
        routes.append(Route("/episodes/{id}/reward", ModelApp(self._reward), methods=["POST"]))
        handlers = {RondoError: on_rondo_error, HTTPException: on_http_error, Exception: on_bug}
        return Starlette(routes=routes, exception_handlers=handlers)

    def _within(self, ask: Ask) -> Callable[[Request], Awaitable[ASGIApp]]:
        async def handler(request: Request) -> ASGIApp:
            _, served = self._found(request)
            return await ask(served, request)

        return handler

    async def _models(self, request: Request) -> JSONResponse:
        _, served = self._found(request)
        card = ModelCard(
            id=served.name, created=served.created, max_model_len=served.max_model_len, parent=None
        )
        return JSONResponse(ModelList(data=[card]).model_dump())

    async def _reward(self, request: Request) -> ASGIApp:
        recorder, served = self._found(request)
        body = parse(RewardBody, await read_body(request, served.bodies.limit))
        recorder.reward(body.reward, body.parts)
        return Json({"reward": body.reward})

    def _found(self, request: Request) -> tuple[Recorder, ServedModel]:
        """A wrong key and a missing episode produce the same response."""
        found = self._open.get(request.path_params["id"])
        key = "" if found is None else found[0].key
        right = hmac.compare_digest(bearer_of(request.scope["headers"]), key.encode())
        if found is None or not right:
            raise Unauthorized(
                "there is no such episode, or its key is another: send it as 'Authorization: Bearer <key>'.",
                code="invalid_api_key",
            )
        return found


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Signals are the trainer's."""
        yield


def _served(recorder: Recorder) -> ServedModel:
    tokenizer = recorder.tokenizer
    replies = Replies(choose_dialect(tokenizer.tool_template), tokenizer)
    return EpisodeServed(
        engine=cast(Engine, recorder),
        prompts=EpisodePrompts(tokenizer, recorder.max_model_len, tokenizer.vocab_size, recorder, replies),
        replies=replies,
        tokens=Tokens(tokenizer),
        name=NAME,
        aliases=frozenset(),
        max_model_len=recorder.max_model_len,
        max_queued=MAX_SAMPLES,
        bodies=Bodies(MAX_BODY_BYTES, recorder.max_model_len),
        allow_priority=False,
        created=int(time.time()),
        eos_ids=tokenizer.eos_ids,
    )


def _config(app: ASGIApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        ws="none",
        lifespan="off",
        loop="none",
        http=Protocol,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=1,
    )


async def _serve(server: uvicorn.Server, listener: socket.socket) -> None:
    with contextlib.closing(listener):
        await server.serve(sockets=[listener])


async def _started(server: uvicorn.Server, serving: asyncio.Task[None]) -> None:
    """Waits until the server runs: the port accepts connections earlier, and an error at start would be silent."""
    for _ in range(round(START_SECONDS / LOOK_SECONDS)):
        if server.started:
            return
        if serving.done():
            await serving
            break
        await asyncio.sleep(LOOK_SECONDS)
    raise Unavailable("the server of episodes did not begin; the log says why.")
