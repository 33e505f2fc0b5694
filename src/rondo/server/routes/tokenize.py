"""`/tokenize`, `/detokenize` and `/tokenizer_info`, as vLLM has them: a prompt's tokens, without computing it."""

from __future__ import annotations

import json
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rondo.base.errors import InvalidRequest
from rondo.client.protocol.openai import ChatRequest
from rondo.client.protocol.texts import DetokenizeRequest, TokenizeRequest
from rondo.server.answers.prompts import beside
from rondo.server.served import ServedModel
from rondo.text.tokenizer import Tokenizer

MOST_TOKENS = 1 << 16
LISTED = 1 << 14
"""Elements per JSON write: the encoder holds the interpreter's lock for each call."""


def tokenizer_info_route(tokenizer: Tokenizer) -> Route:
    """`/tokenizer_info` of vLLM: the content of tokenizer_config.json."""

    async def tokenizer_info(request: Request) -> Response:
        return JSONResponse(tokenizer.info)

    return Route("/tokenizer_info", tokenizer_info)


async def tokenize(served: ServedModel, request: Request) -> Response:
    given, size = await served.bodies.read(TokenizeRequest, request)
    body = given.checked()
    served.adapter(body.model or served.name)
    tokens = await _tokens(served, body, size)

    def render() -> Response:
        strings = None
        if body.return_token_strs:
            strings = [served.prompts.tokenizer.token(token) for token in tokens]
        head = f'{{"count":{len(tokens)},"max_model_len":{served.max_model_len},"tokens":'
        shown = "null" if strings is None else _listed(strings)
        text = f'{head}{_listed(tokens)},"token_strs":{shown}}}'
        return Response(text.encode(), media_type="application/json")

    return await beside(len(tokens), render)


def _listed(values: Sequence[object]) -> str:
    parts = [
        json.dumps(values[at : at + LISTED], ensure_ascii=False)[1:-1] for at in range(0, len(values), LISTED)
    ]
    return f"[{','.join(parts)}]"


def _most_tokens(served: ServedModel) -> int:
    """Token ids of one request to `/detokenize`."""
    return max(MOST_TOKENS, 4 * served.max_model_len)


async def _tokens(served: ServedModel, body: TokenizeRequest, size: int) -> list[int]:
    special = body.add_special_tokens
    if body.messages is None:
        [tokens] = await served.prompts.of_texts([body.prompt or ""], special is not False, bounded=False)
        return tokens
    if not body.messages:
        raise InvalidRequest("messages is empty: give at least one.", param="messages")
    chat = ChatRequest(
        model=served.name,
        messages=body.messages,
        add_generation_prompt=body.add_generation_prompt is not False,
        continue_final_message=body.continue_final_message,
        chat_template_kwargs=body.chat_template_kwargs,
    )
    tools = served.replies.shown(body.tools or [])
    return (await served.prompts.of_chat(chat, tools, size, add_special=bool(special))).ids


async def detokenize(served: ServedModel, request: Request) -> Response:
    body, _ = await served.bodies.read(DetokenizeRequest, request)
    served.adapter(body.model or served.name)
    tokenizer = served.prompts.tokenizer
    if len(body.tokens) > _most_tokens(served):
        raise InvalidRequest(
            f"tokens has {len(body.tokens)} token ids: at most {_most_tokens(served)} are detokenized in one request. "
            "Send several.",
            param="tokens",
        )
    if body.tokens and max(body.tokens) >= tokenizer.vocab_size:
        raise InvalidRequest(
            f"tokens has {max(body.tokens)}, but the vocabulary has only {tokenizer.vocab_size} tokens.",
            param="tokens",
        )

    def render() -> Response:
        return JSONResponse({"prompt": tokenizer.decode(body.tokens, skip_special=False)})

    return await beside(len(body.tokens), render)
