"""A model's output as an assistant message of the conversation."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rondo.text.parsing import ArgumentsDelta, Call, Content, OutputParser, Reasoning


@dataclass
class ParsedCall:
    name: str
    arguments: str = ""
    id: str = ""

    @property
    def object(self) -> dict[str, Any] | None:
        """The arguments as an object; None if the model's output is not a JSON object."""
        try:
            value = json.loads(self.arguments or "{}")
        except (ValueError, RecursionError):
            return None
        return value if isinstance(value, dict) else None


@dataclass
class ParsedAnswer:
    content: str = ""
    reasoning: str = ""
    calls: list[ParsedCall] = field(default_factory=list)

    @property
    def words(self) -> list[str]:
        """The texts that a template without omissions renders again."""
        return [self.content, self.reasoning, *(call.name for call in self.calls)]

    @property
    def message(self) -> dict[str, Any]:
        """The message in OpenAI's format. Arguments other than an object become an empty object, which every template
        can render."""
        content = None if self.calls and not self.content else self.content
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.calls:
            message["tool_calls"] = [_shown(call) for call in self.calls]
        return message


def read_answer(text: str, parser: OutputParser | None, new_id: Callable[[], str]) -> ParsedAnswer:
    """Parses a model's output. Without a parser all of it is content."""
    if parser is None:
        return ParsedAnswer(text)
    said = ParsedAnswer()
    for part in [*parser.feed(text), *parser.finish()]:
        match part:
            case Content(more):
                said.content += more
            case Reasoning(more):
                said.reasoning += more
            case Call(name, arguments, id):
                said.calls.append(ParsedCall(name, arguments, id or new_id()))
            case ArgumentsDelta(more):
                said.calls[-1].arguments += more
    return said


def _shown(call: ParsedCall) -> dict[str, Any]:
    arguments = call.arguments if call.object is not None else "{}"
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": arguments or "{}"},
    }
