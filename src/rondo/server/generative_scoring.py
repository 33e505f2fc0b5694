"""`/generative_scoring`, as vLLM has it: how likely a token is to follow on a query and an item."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import aclosing

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from rondo.base.errors import InvalidRequest, Unavailable
from rondo.base.ids import new_id
from rondo.client.blame import blaming
from rondo.client.openai import TokenIds
from rondo.client.types import GenerateRequest, SamplingParams
from rondo.client.wire import CacheSalt, Many, Wire
from rondo.server.embeddings import MAX_INPUTS
from rondo.server.http import gather, unless_gone
from rondo.server.served import Served


class GenerativeScoringRequest(Wire):
    model: str | None = None
    query: str | TokenIds
    items: Many[str] | Many[TokenIds]
    label_token_ids: TokenIds = Field(min_length=1)
    apply_softmax: bool = True
    item_first: bool = False
    add_special_tokens: bool = True
    priority: int = 0
    cache_salt: CacheSalt | None = None


async def generative_scoring(served: Served, request: Request) -> Response:
    body, _ = await served.bodies.read(GenerativeScoringRequest, request)
    adapter = served.adapter(body.model or served.name)
    served.check_priority(body.priority)
    labels = list(dict.fromkeys(body.label_token_ids))
    known = served.prompts.tokenizer.vocab_size
    if max(labels) >= known:
        raise InvalidRequest(
            f"label_token_ids has {max(labels)}, but the vocabulary has only {known} tokens.",
            param="label_token_ids",
        )
    most = min(MAX_INPUTS, served.max_queued)
    if not 1 <= len(body.items) * len(labels) <= most:
        raise InvalidRequest(
            f"{len(body.items)} items with {len(labels)} labels: give 1 to {most} pairs in one request.",
            param="items",
        )
    name = new_id("score")
    prompts = await _prompts(served, body)
    salt = served.salts.of(body.cache_salt)
    requests = [
        GenerateRequest(f"{name}-{i}-{label}", prompt, _only(label), body.priority, adapter, cache_salt=salt)
        for i, prompt in enumerate(prompts)
        for label in labels
    ]
    with blaming("items"), served.under_way(name, requests):
        logprobs = await unless_gone(request.receive, gather([_logprob(served, one) for one in requests]))
    size = len(labels)
    data = [
        {
            "index": i,
            "object": "score",
            "score": _score(logprobs[i * size : (i + 1) * size], body.apply_softmax),
        }
        for i in range(len(prompts))
    ]
    count = sum(map(len, prompts))
    usage = {"prompt_tokens": count, "completion_tokens": len(prompts), "total_tokens": count + len(prompts)}
    head = {"id": name, "object": "list", "created": int(time.time())}
    return JSONResponse(
        head | {"model": served.shown(body.model or served.name), "data": data, "usage": usage}
    )


async def _prompts(served: Served, body: GenerativeScoringRequest) -> list[list[int]]:
    """Query and item are tokenized apart, so that the query's tokens are the same before each item."""
    texts = [item for item in body.items if isinstance(item, str)]
    with blaming("query"):
        query = body.query
        ids = (
            (await served.prompts.of_texts([query], body.add_special_tokens))[0]
            if isinstance(query, str)
            else query
        )
        if ids:
            served.prompts.check([ids], "query")
    with blaming("items"):
        encoded = iter(await served.prompts.of_texts(texts, add_special=False))
    own = [next(encoded) if isinstance(item, str) else item for item in body.items]
    served.prompts.check(own, "items", common=len(ids))
    return [item + ids if body.item_first else ids + item for item in own]


def _only(label: int) -> SamplingParams:
    """The label is what is sampled, and its probability is that of the model as it is."""
    return SamplingParams(
        max_tokens=1,
        temperature=0.0,
        allowed_token_ids=(label,),
        logprobs=0,
        logprobs_mode="raw",
        ignore_eos=True,
        detokenize=False,
    )


async def _logprob(served: Served, request: GenerateRequest) -> float:
    async with aclosing(served.engine.generate(request)) as chunks:
        async for chunk in chunks:
            if chunk.logprobs:
                return chunk.logprobs[0]
    raise Unavailable("the request was ended before its score was there. Try again.", code="aborted")


def _score(logprobs: Sequence[float], softmax: bool) -> float:
    """The first label's probability: among the labels, or among all tokens."""
    if not softmax:
        return math.exp(logprobs[0])
    largest = max(logprobs)
    return math.exp(logprobs[0] - largest) / sum(math.exp(one - largest) for one in logprobs)
