"""Parsing of an answer into content, reasoning and tool calls."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from rondo.base.errors import InvalidRequest
from rondo.base.ids import new_id
from rondo.client.protocol.openai import ChatRequest
from rondo.client.protocol.tools import ToolDefinition
from rondo.server.answers.thoughts import ReadTexts, ThoughtCount
from rondo.text.parsing import ArgumentsDelta, Call, Content, OutputParser, Part, Reasoning, ToolCallFormat
from rondo.text.tokenizer import Tokenizer

SHORT_ID = string.ascii_letters + string.digits
SHORT_ID_LENGTH = 9
"""The only id length that Mistral's templates accept."""


def short_call_id() -> str:
    return "".join(secrets.choice(SHORT_ID) for _ in range(SHORT_ID_LENGTH))


def call_id() -> str:
    return new_id("call")


@dataclass(frozen=True)
class Replies:
    """Parsers of the served model's answers."""

    dialect: ToolCallFormat
    tokenizer: Tokenizer
    auto_tool_choice: bool = True

    def check(self, body: ChatRequest) -> list[ToolDefinition]:
        """The tools that the model may call; raises if a tool request is not supported."""
        tools = self.shown(body.callable_tools())
        if not tools:
            return []
        if self.dialect.calls is None:
            raise InvalidRequest(
                "tools are not supported: how this model writes calls is not known. The server's setting "
                "--tool-call-parser says it.",
                param="tools",
                code="unsupported_parameter",
            )
        if not self.auto_tool_choice and not body.required_tools():
            raise InvalidRequest(
                'tool_choice "auto" is turned off here (server.auto_tool_choice).', param="tool_choice"
            )
        return tools

    def shown(self, tools: list[ToolDefinition]) -> list[ToolDefinition]:
        """`tools`, if the chat template shows any."""
        if tools and "tools" not in self.template:
            raise InvalidRequest(
                "tools are not supported: this model's chat template does not show them to it.",
                param="tools",
                code="unsupported_parameter",
            )
        return tools

    def reading(self, tools: Sequence[ToolDefinition]) -> ToolCallFormat:
        return self.dialect if tools else self.dialect.without_calls()

    def kept_tokens(self, dialect: ToolCallFormat) -> tuple[int, ...]:
        """Special tokens that the format's parser needs."""
        ids = (self.special_id(marker) for marker in dialect.markers)
        return tuple(id for id in ids if id is not None)

    def special_id(self, text: str) -> int | None:
        """Id of a special token; None for a marker in plain text."""
        id = self.tokenizer.token_id(text)
        return id if id in self.tokenizer.special_ids else None

    def count_thoughts(self, parser: OutputParser | None) -> ThoughtCount:
        """Counter of reasoning tokens for one sample, with the parser's markers."""
        return ThoughtCount(parser, self._read_texts)

    @cached_property
    def _read_texts(self) -> ReadTexts:
        return ReadTexts(self.tokenizer, self.kept_tokens(self.dialect.without_calls()))

    @property
    def template(self) -> str:
        return self.tokenizer.tool_template or ""

    @property
    def new_call_id(self) -> Callable[[], str]:
        return short_call_id if self.dialect.calls == "mistral" else call_id


@dataclass
class CallDelta:
    """Increment of the call number `index`; `id` and `name` are set in its first increment."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass
class ReplyDelta:
    """Increment of an answer."""

    content: str = ""
    reasoning: str = ""
    calls: list[CallDelta] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning or self.calls)


class ReplyReader:
    """Parser of one sample's answer."""

    def __init__(
        self,
        parser: OutputParser | None,
        new_call_id: Callable[[], str],
        reasoning: bool = True,
        parallel: bool = True,
    ) -> None:
        self._parser = parser
        self._new_call_id = new_call_id
        self._reasoning = reasoning
        self._parallel = parallel
        self._left_out = False
        self.called = 0

    def read(self, text: str, ended: bool) -> ReplyDelta:
        if self._parser is None:
            return ReplyDelta(content=text)
        said = ReplyDelta()
        for part in self._parser.feed(text) + (self._parser.finish() if ended else []):
            self._add(part, said)
        return said

    def _add(self, part: Part, said: ReplyDelta) -> None:
        match part:
            case Content(text):
                said.content += text
            case Reasoning(text):
                said.reasoning += text if self._reasoning else ""
            case Call(name, arguments, id):
                self._left_out = self.called > 0 and not self._parallel
                if not self._left_out:
                    said.calls.append(CallDelta(self.called, id or self._new_call_id(), name, arguments))
                    self.called += 1
            case ArgumentsDelta(text) if not self._left_out:
                self._add_arguments(text, said)

    def _add_arguments(self, text: str, said: ReplyDelta) -> None:
        if not said.calls:
            said.calls.append(CallDelta(self.called - 1))
        said.calls[-1].arguments += text


def deltas_of(said: ReplyDelta) -> list[dict[str, Any]]:
    """Deltas of a stream, one per event. Reasoning has both field names in use by clients. A call is its name first,
    followed by pieces of its arguments."""
    deltas: list[dict[str, Any]] = []
    if said.content or said.reasoning or not said:
        text = {"content": said.content} if said.content else {}
        deltas.append(text | _reasoning(said))
    for call in said.calls:
        if call.name is not None:
            deltas.append({"tool_calls": [{"index": call.index} | _call(call, "")]})
        if call.arguments:
            more = {"index": call.index, "function": {"arguments": call.arguments}}
            deltas.append({"tool_calls": [more]})
    return deltas


def message_of(said: ReplyDelta) -> dict[str, Any]:
    content = said.content if said.content or not said else None
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    message |= _reasoning(said)
    if said.calls:
        message["tool_calls"] = [_call(call, call.arguments) for call in said.calls]
    return message


def _reasoning(said: ReplyDelta) -> dict[str, Any]:
    thought = said.reasoning
    return {"reasoning": thought, "reasoning_content": thought} if thought else {}


def _call(call: CallDelta, arguments: str) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}}
