"""`/v1/chat/completions`: a thin translation between OpenAI's shapes and the engine."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp

from rondo.base.ids import new_id
from rondo.client.openai import ChatRequest, parse
from rondo.client.types import GenerateRequest, TokenChunk
from rondo.server.answering import Job, answer, ending
from rondo.server.http import read_body
from rondo.server.served import Served
from rondo.server.shapes import chat_logprobs


async def chat(served: Served, request: Request) -> ASGIApp:
    raw = await read_body(request, served.max_body_bytes)
    body = parse(ChatRequest, raw)
    sampling = served.check(body, 1)
    prompt = await served.prompts.of_chat(body, len(raw))
    request_id = new_id("chatcmpl")
    generate = GenerateRequest(request_id, prompt, sampling, body.priority, served.adapter(body.model))

    def choice(chunk: TokenChunk, index: int, whole: bool) -> dict[str, Any]:
        text = {"message": {"role": "assistant", "content": chunk.text, "refusal": None}}
        shown: dict[str, Any] = {"index": index} | (text if whole else {"delta": {"content": chunk.text}})
        return shown | {"logprobs": chat_logprobs(served.tokens, chunk)} | ending(body, chunk, whole)

    def first(index: int) -> dict[str, Any]:
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    job = Job(request_id, "chat.completion", served.shown(body.model), body, [generate], choice, first)
    return await answer(served, request, job)
