"""Preparation of a chat request: engine parameters and parsers of the answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rondo.base.errors import InvalidRequest
from rondo.client.protocol.openai import ChatRequest
from rondo.client.protocol.tools import NamedTool, ToolDefinition
from rondo.client.structured import StructuredOutputsParams
from rondo.client.types import GenerateRequest
from rondo.engine.entrypoints.token_limits import truncated
from rondo.engine.structured.checker import options_of
from rondo.server.answers.prompts import ChatPrompt
from rondo.server.answers.replies import Replies
from rondo.server.answers.thoughts import ThoughtCount
from rondo.server.served import ServedModel
from rondo.text.parsing import OutputParser, ToolCallFormat


@dataclass(frozen=True)
class ChatTurn:
    generate: GenerateRequest
    dialect: ToolCallFormat
    functions: list[dict[str, Any]]
    prompt: ChatPrompt
    replies: Replies

    def parser(self) -> OutputParser | None:
        """Parser of one sample's answer; None if all of it is content."""
        return self.dialect.parser(self.prompt.ending, self.functions, self.prompt.continued)

    def thoughts(self) -> ThoughtCount:
        """Counter of one sample's reasoning tokens."""
        plain = self.dialect.without_calls()
        return self.replies.count_thoughts(plain.parser(self.prompt.ending, (), self.prompt.continued))


async def make_turn(served: ServedModel, body: ChatRequest, id: str, size: int) -> ChatTurn:
    """`size` is about how much text `body` is."""
    sampling = served.check(body, 1)
    tools = served.replies.check(body)
    form = sampling.structured_outputs
    if form is not None and tools and not _is_json(form):
        raise InvalidRequest(
            f"{form.param} of this kind and tools exclude each other: leave out one of them.",
            param=form.param,
        )
    prompt = await served.prompts.of_chat(body, tools, size)
    dialect = served.replies.reading(tools)
    if form is not None and not _is_json(form):
        dialect = (
            ToolCallFormat()
        )  # The form is that of the whole answer, which begins with no reasoning then.
    sampling = replace(
        sampling,
        keep_special_tokens=served.replies.kept_tokens(dialect),
        structured_outputs=_form(served, body, dialect, prompt, tools, form),
    )
    ids = truncated(prompt.ids, sampling, served.max_model_len)
    adapter = served.adapter(body.model)
    salt = served.salts.of(body.cache_salt)
    generate = GenerateRequest(
        id, ids, sampling, body.priority, adapter, cache_salt=salt, whole=body.whole_samples
    )
    return ChatTurn(generate, dialect, functions_of(tools), prompt, served.replies)


def _form(
    served: ServedModel,
    body: ChatRequest,
    dialect: ToolCallFormat,
    prompt: ChatPrompt,
    tools: Sequence[ToolDefinition],
    form: StructuredOutputsParams | None,
) -> StructuredOutputsParams | None:
    """Structured output of the whole answer: reasoning may precede the requested form, and calls may replace it."""
    required = body.required_tools()
    thought = dialect.thought(prompt.ending, prompt.continued)
    if not required and (form is None or (not tools and thought is None)):
        return form
    wanted = None if required or form is None else form
    grammar = dialect.grammar(
        served.replies.special_id,
        served.replies.template,
        thought,
        functions_of(required or tools),
        None if wanted is None else json.loads(wanted.source),
        options=None if wanted is None else options_of(wanted),
        parallel=body.parallel_tool_calls is not False and not isinstance(body.tool_choice, NamedTool),
    )
    return StructuredOutputsParams(grammar=grammar, param="tool_choice" if wanted is None else wanted.param)


def _is_json(form: StructuredOutputsParams) -> bool:
    return form.kind in ("json", "json_object")


def functions_of(tools: Sequence[ToolDefinition]) -> list[dict[str, Any]]:
    """Functions for parsers and grammars, with the original schemas and without copies."""
    each = (tool.function for tool in tools)
    return [{"name": one.name, "parameters": one.parameters, "strict": one.strict} for one in each]
