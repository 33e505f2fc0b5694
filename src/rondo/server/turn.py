"""A chat request made ready for the engine, and for reading what comes back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rondo.client.openai import ChatRequest
from rondo.client.types import GenerateRequest
from rondo.engine.words import truncated
from rondo.server.prompts import ChatPrompt
from rondo.server.served import Served
from rondo.text.parsing import Dialect, Parser


@dataclass(frozen=True)
class Turn:
    generate: GenerateRequest
    dialect: Dialect
    functions: list[dict[str, Any]]
    prompt: ChatPrompt

    def parser(self) -> Parser | None:
        """For one sample's answer; None where all of it is content."""
        return self.dialect.parser(self.prompt.ending, self.functions, self.prompt.continued)


async def make_turn(served: Served, body: ChatRequest, id: str, size: int) -> Turn:
    """`size` is about how much text `body` is."""
    sampling = served.check(body, 1)
    tools = served.replies.check(body)
    prompt = await served.prompts.of_chat(body, tools, size)
    dialect = served.replies.reading(tools)
    sampling = sampling.with_(keep_special_tokens=served.replies.kept_tokens(dialect))
    ids = truncated(prompt.ids, sampling, served.max_model_len)
    generate = GenerateRequest(id, ids, sampling, body.priority, served.adapter(body.model))
    return Turn(generate, dialect, [tool.function.model_dump() for tool in tools], prompt)
