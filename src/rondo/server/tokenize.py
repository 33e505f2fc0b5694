"""`/tokenize`, `/detokenize` and `/tokenizer_info`, as vLLM has them: a prompt's tokens, without computing it."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from rondo.base.errors import InvalidRequest
from rondo.client.openai import BOTH_ENDS, ChatRequest, Message, TokenIds
from rondo.client.refusals import parse
from rondo.client.tools import Tool
from rondo.client.wire import Many, Wire
from rondo.server.http import read_body
from rondo.server.prompts import beside
from rondo.server.served import Served
from rondo.text.tokenizer import Tokenizer


class TokenizeRequest(Wire):
    """A text, or a conversation. `add_special_tokens` is true by default for a text, and false for a conversation,
    whose template writes them."""

    model: str | None = None
    prompt: str | None = None
    messages: Many[Message] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
    tools: Many[Tool] | None = None
    return_token_strs: bool | None = None

    def checked(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise InvalidRequest("give either prompt or messages.", param="prompt")
        if self.prompt is not None:
            chat = ("add_generation_prompt", "continue_final_message", "chat_template_kwargs", "tools")
            wrong = next((name for name in chat if getattr(self, name)), None)
            if wrong:
                raise InvalidRequest(f"{wrong} is for messages: a prompt has none.", param=wrong)
        elif self.continue_final_message and self.add_generation_prompt:
            raise InvalidRequest(BOTH_ENDS, param="continue_final_message")
        return self


def tokenizer_info_route(tokenizer: Tokenizer) -> Route:
    """`/tokenizer_info`, as vLLM has it: what tokenizer_config.json says."""

    async def tokenizer_info(request: Request) -> Response:
        return JSONResponse(tokenizer.info)

    return Route("/tokenizer_info", tokenizer_info)


class DetokenizeRequest(Wire):
    model: str | None = None
    tokens: TokenIds


async def tokenize(served: Served, request: Request) -> Response:
    raw = await read_body(request, served.max_body_bytes)
    body = parse(TokenizeRequest, raw).checked()
    served.adapter(body.model or served.name)
    tokens = await _tokens(served, body, len(raw))

    def render() -> Response:
        strings = None
        if body.return_token_strs:
            strings = [served.prompts.tokenizer.token(token) for token in tokens]
        answer = {"count": len(tokens), "max_model_len": served.max_model_len, "tokens": tokens}
        return JSONResponse(answer | {"token_strs": strings})

    return await beside(len(tokens), render)


async def _tokens(served: Served, body: TokenizeRequest, size: int) -> list[int]:
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


async def detokenize(served: Served, request: Request) -> Response:
    body = parse(DetokenizeRequest, await read_body(request, served.max_body_bytes))
    served.adapter(body.model or served.name)
    tokenizer = served.prompts.tokenizer
    if body.tokens and max(body.tokens) >= tokenizer.vocab_size:
        raise InvalidRequest(
            f"tokens has {max(body.tokens)}, but the vocabulary has only {tokenizer.vocab_size} tokens.",
            param="tokens",
        )

    def render() -> Response:
        return JSONResponse({"prompt": tokenizer.decode(body.tokens, skip_special=False)})

    return await beside(len(body.tokens), render)
