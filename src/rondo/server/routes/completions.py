"""`/v1/completions`: a thin translation between OpenAI's shapes and the engine."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.types import ASGIApp

from rondo.base.errors import InvalidRequest
from rondo.base.ids import new_id
from rondo.client.protocol.openai import CompletionRequest
from rondo.client.types import GenerateRequest, TokenChunk
from rondo.engine.entrypoints.token_limits import truncated
from rondo.server.answers.answering import PendingCompletion, answer, ending
from rondo.server.answers.shapes import completion_logprobs, echo_logprobs, shown_prompt
from rondo.server.served import ServedModel

MAX_PROMPTS = 2048


async def completions(served: ServedModel, request: Request) -> ASGIApp:
    body, _ = await served.bodies.read(CompletionRequest, request)
    prompts = body.prompts()
    if len(prompts) > MAX_PROMPTS:
        raise InvalidRequest(f"at most {MAX_PROMPTS} prompts in one request.", param="prompt")
    sampling = served.check(body, len(prompts))
    texts = [prompt for prompt in prompts if isinstance(prompt, str)]
    bounded = body.truncate_prompt_tokens is None
    encoded = iter(await served.prompts.of_texts(texts, body.add_special_tokens, bounded))
    each = [next(encoded) if isinstance(prompt, str) else prompt for prompt in prompts]
    ids = [truncated(prompt, sampling, served.max_model_len) for prompt in each]
    if len(ids) > 1:
        served.prompts.check(ids, "prompt")  # One alone the engine looks at.
    request_id = new_id("cmpl")
    adapter, salt = served.adapter(body.model), served.salts.of(body.cache_salt)
    requests = [
        GenerateRequest(
            f"{request_id}-{i}",
            prompt,
            sampling,
            body.priority,
            adapter,
            cache_salt=salt,
            whole=body.whole_samples,
        )
        for i, prompt in enumerate(ids)
    ]
    offsets: dict[int, int] = {}
    tokens = served.tokens.named(body.return_tokens_as_token_ids)

    def echoed(at: int) -> str:
        given, used = prompts[at], ids[at]
        if isinstance(given, str) and len(used) == len(each[at]):
            return given
        return served.prompts.tokenizer.decode(list(used))

    def choices(chunk: TokenChunk, index: int, whole: bool) -> list[dict[str, Any]]:
        text, begun = chunk.text, index in offsets
        logprobs, offset = None, offsets.get(index, 0)
        scores, at = chunk.prompt_logprobs, index // (body.n or 1)
        if body.echo and not begun:
            text = echoed(at) + text
            if body.logprobs is not None and scores is not None:
                logprobs, offset = echo_logprobs(tokens, ids[at], scores, body.logprobs)
        # The tokens' own lengths, and not the chunks' of text: text may be held back, or cut at a stop string.
        answered, offsets[index] = completion_logprobs(tokens, chunk, offset)
        if logprobs is not None and answered is not None:
            answered = {key: each and each + (answered[key] or []) for key, each in logprobs.items()}
        shown = {"index": index, "text": text, "logprobs": answered} | ending(body, chunk)
        if body.prompt_logprobs is not None and scores is not None:
            shown["prompt_logprobs"] = shown_prompt(tokens, scores, body.prompt_logprobs)
        if body.return_token_ids and not begun:
            shown["prompt_token_ids"] = list(ids[at])
        return [shown]

    job = PendingCompletion(
        request_id,
        "text_completion",
        served.shown(body.model),
        body,
        requests,
        choices,
        silent=body.max_tokens == 0,
    )
    return await answer(served, request, job)
