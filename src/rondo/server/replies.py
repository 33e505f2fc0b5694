"""An answer taken apart: what a chat message has beside its text."""

from __future__ import annotations

import secrets
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rondo.base.errors import InvalidRequest
from rondo.base.ids import new_id
from rondo.client.openai import ChatRequest
from rondo.client.tools import Tool
from rondo.text.parsing import Call, Content, Dialect, Parser, Part, Reasoning
from rondo.text.tokenizer import Tokenizer

SHORT_ID = string.ascii_letters + string.digits
SHORT_ID_LENGTH = 9
"""Mistral's templates take no other ids than these."""


def short_call_id() -> str:
    return "".join(secrets.choice(SHORT_ID) for _ in range(SHORT_ID_LENGTH))


def call_id() -> str:
    return new_id("call")


@dataclass(frozen=True)
class Replies:
    """How the served model's answers are read."""

    dialect: Dialect
    tokenizer: Tokenizer
    auto_tool_choice: bool = True

    def check(self, body: ChatRequest) -> list[Tool]:
        """The tools that the model may call, if all that is asked of them can be done."""
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

    def shown(self, tools: list[Tool]) -> list[Tool]:
        """`tools`, if the chat template shows any."""
        if tools and "tools" not in self.template:
            raise InvalidRequest(
                "tools are not supported: this model's chat template does not show them to it.",
                param="tools",
                code="unsupported_parameter",
            )
        return tools

    def reading(self, tools: Sequence[Tool]) -> Dialect:
        return self.dialect if tools else self.dialect.without_calls()

    def kept_tokens(self, dialect: Dialect) -> tuple[int, ...]:
        """The special tokens that its parser must see."""
        ids = (self.special_id(marker) for marker in dialect.markers)
        return tuple(id for id in ids if id is not None)

    def special_id(self, text: str) -> int | None:
        """The id of a special token; None for what is written as text."""
        id = self.tokenizer.token_id(text)
        return id if id in self.tokenizer.special_ids else None

    @property
    def template(self) -> str:
        return self.tokenizer.tool_template or ""

    @property
    def new_call_id(self) -> Callable[[], str]:
        return short_call_id if self.dialect.calls == "mistral" else call_id


@dataclass
class Said:
    """What is new in an answer."""

    content: str = ""
    reasoning: str = ""
    calls: list[tuple[int, str, Call]] = field(default_factory=list)
    """The number of each among the answer's calls, its id, and the call."""

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning or self.calls)


class Reply:
    """Reads one sample's answer."""

    def __init__(
        self,
        parser: Parser | None,
        new_call_id: Callable[[], str],
        reasoning: bool = True,
        parallel: bool = True,
    ) -> None:
        self._parser = parser
        self._new_call_id = new_call_id
        self._reasoning = reasoning
        self._most_calls = None if parallel else 1
        self.called = 0

    def read(self, text: str, ended: bool) -> Said:
        if self._parser is None:
            return Said(content=text)
        said = Said()
        for part in self._parser.feed(text) + (self._parser.finish() if ended else []):
            self._add(part, said)
        return said

    def _add(self, part: Part, said: Said) -> None:
        match part:
            case Content(text):
                said.content += text
            case Reasoning(text):
                said.reasoning += text if self._reasoning else ""
            case Call() if self.called != self._most_calls:
                said.calls.append((self.called, part.id or self._new_call_id(), part))
                self.called += 1


def delta_of(said: Said) -> dict[str, Any]:
    """What a stream's event says of it. Reasoning goes by both names that clients look for."""
    delta: dict[str, Any] = {}
    if said.content:
        delta["content"] = said.content
    if said.reasoning:
        delta |= {"reasoning": said.reasoning, "reasoning_content": said.reasoning}
    if said.calls:
        delta["tool_calls"] = [{"index": index} | _call(id, call) for index, id, call in said.calls]
    return delta


def message_of(said: Said) -> dict[str, Any]:
    content = said.content if said.content or not said else None
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if said.reasoning:
        message |= {"reasoning": said.reasoning, "reasoning_content": said.reasoning}
    if said.calls:
        message["tool_calls"] = [_call(id, call) for _, id, call in said.calls]
    return message


def _call(id: str, call: Call) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
