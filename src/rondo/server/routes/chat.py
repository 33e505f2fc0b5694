"""`/v1/chat/completions`: a thin translation between OpenAI's shapes and the engine."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp

from rondo.base.ids import new_id
from rondo.client.protocol.openai import ChatRequest
from rondo.client.types import TokenChunk
from rondo.server.answers.answering import PendingCompletion, answer, ending
from rondo.server.answers.replies import ReplyReader, deltas_of, message_of
from rondo.server.answers.shapes import UsageCount, chat_logprobs, shown_prompt
from rondo.server.answers.turn import make_turn
from rondo.server.served import ServedModel


async def chat(served: ServedModel, request: Request) -> ASGIApp:
    body, size = await served.bodies.read(ChatRequest, request)
    request_id = new_id("chatcmpl")
    turn = await make_turn(served, body, request_id, size)
    replies: dict[int, ReplyReader] = {}
    tokens = served.tokens.named(body.return_tokens_as_token_ids)

    def reply(index: int) -> ReplyReader:
        if index not in replies:
            parallel = body.parallel_tool_calls is not False
            replies[index] = ReplyReader(
                turn.parser(), served.replies.new_call_id, body.include_reasoning, parallel
            )
        return replies[index]

    def choices(chunk: TokenChunk, index: int, whole: bool) -> list[dict[str, Any]]:
        said = reply(index).read(chunk.text, chunk.finish_reason is not None)
        end = ending(body, chunk)
        if end["finish_reason"] == "stop" and reply(index).called:
            end["finish_reason"] = "tool_calls"
        shown = {"logprobs": chat_logprobs(tokens, chunk)} | end
        if whole:
            return [{"index": index, "message": message_of(said)} | shown]
        deltas = deltas_of(said) if said or chunk.finish_reason else [{"content": ""}]
        if said.calls and chunk.finish_reason:
            deltas.append({})  # Clients take a call for complete at the event after it.
        return _events(index, deltas, shown)

    def beside(chunk: TokenChunk) -> dict[str, Any]:
        scores = chunk.prompt_logprobs
        if body.prompt_logprobs is None or scores is None:
            return {}
        return {"prompt_logprobs": shown_prompt(tokens, scores, body.prompt_logprobs)}

    def first(index: int) -> dict[str, Any]:
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def usage() -> UsageCount:
        return UsageCount(turn.thoughts)

    job = PendingCompletion(
        request_id,
        "chat.completion",
        served.shown(body.model),
        body,
        [turn.generate],
        choices,
        first,
        beside,
        usage,
        field="messages",
        prompt_ids=turn.generate.prompt_ids if body.return_token_ids else None,
    )
    return await answer(served, request, job)


def _events(index: int, deltas: list[dict[str, Any]], shown: dict[str, Any]) -> list[dict[str, Any]]:
    """The first event has the tokens, the last one the finish reason."""
    end = {name: shown[name] for name in ("finish_reason", "stop_reason")}
    nothing = dict.fromkeys(end)
    events = [{"index": index, "delta": delta, "logprobs": None} | nothing for delta in deltas]
    events[0] |= shown | nothing
    events[-1] |= end
    return events
