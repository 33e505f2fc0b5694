"""Bodies of OpenAI's Responses API, and the conversion of its requests to chat requests.

The server is stateless: references to a stored response are refused, and `store` may not be true. Fields that clients
send by default and that have no effect here (`user`, `prompt_cache_key`, `include` of encrypted reasoning: the
reasoning itself is in the answer) are accepted.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, ClassVar, Literal

from pydantic import Field

from rondo.base.errors import InvalidRequest
from rondo.client.protocol.openai import ChatRequest, Hints, Verbosity
from rondo.client.protocol.refusals import checked, renaming
from rondo.client.protocol.response_input import messages_of
from rondo.client.protocol.tools import FunctionName
from rondo.client.protocol.wire import CacheSalt, Many, WireModel

NOT_STORED = "This server keeps no responses. Send the whole conversation as input."
ENCRYPTED = "reasoning.encrypted_content"
LOGPROBS = "message.output_text.logprobs"


class FunctionTool(WireModel):
    type: Literal["function"]
    name: str = Field(min_length=1)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def for_chat(self) -> dict[str, Any]:
        return {"type": "function", "function": self.model_dump(exclude_unset=True, exclude={"type"})}


class NamedFunction(FunctionName):
    type: Literal["function"]

    def for_chat(self) -> dict[str, Any]:
        return {"type": "function", "function": {"name": self.name}}


class AllowedFunctions(WireModel):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Many[NamedFunction] = Field(min_length=1)

    def for_chat(self) -> dict[str, Any]:
        tools = [tool.for_chat() for tool in self.tools]
        return {"type": self.type, "allowed_tools": {"mode": self.mode, "tools": tools}}


class TextFormat(WireModel):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = Field(None, max_length=64)
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None

    def for_chat(self) -> dict[str, Any]:
        given = self.model_dump(by_alias=True, exclude_none=True, exclude={"type"})
        needs = {"name", "schema"} if self.type == "json_schema" else set()
        if not needs <= given.keys() or (given and not needs):
            raise InvalidRequest(
                f"text.format of type {self.type!r} takes {' and '.join(sorted(needs)) or 'nothing else'}; got "
                f"{', '.join(sorted(given)) or 'nothing'}.",
                param="text",
                code="invalid_value",
            )
        return {"type": self.type} | ({"json_schema": given} if given else {})


class TextOptions(WireModel):
    format: TextFormat | None = None
    verbosity: Verbosity | None = None


class ReasoningOptions(WireModel):
    effort: str | None = None
    summary: Literal["auto"] | None = None
    generate_summary: Literal["auto"] | None = None


class ResponseStreamOptions(WireModel):
    include_obfuscation: Literal[False] = False


Choice = Literal["none", "auto", "required"] | NamedFunction | AllowedFunctions


class ResponsesRequest(Hints):
    without_effect = Hints.without_effect - {"metadata", "user"}
    """Metadata and user are part of the answer."""
    shapes: ClassVar[dict[str, str]] = {
        "input": "must be a text or a list of items",
        "tools": 'must be a list of {"type": "function", "name", "description", "parameters"}',
        "tool_choice": 'must be "none", "auto", "required", {"type": "function", "name"} '
        'or {"type": "allowed_tools", "mode", "tools"}',
        "include": f"may hold {LOGPROBS} and {ENCRYPTED}",
        "background": "is not supported, except as false",
        "truncation": 'is supported as "disabled" alone',
        "store": f"is not supported, except as false. {NOT_STORED}",
    }

    model: str
    input: str | Many[dict[str, Any]]
    instructions: str | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    include: Many[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]] | None = None
    tools: Many[FunctionTool] | None = None
    tool_choice: Choice | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    background: Literal[False] | None = None
    truncation: Literal["disabled"] | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    user: str | None = None

    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: str | Many[str] | None = None
    repetition_penalty: float | None = None
    priority: int = 0
    cache_salt: CacheSalt | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def ignored(self) -> list[str]:
        verbose = self.text is not None and self.text.verbosity is not None
        return sorted([*super().ignored(), *(["text.verbosity"] if verbose else [])])

    @property
    def wants_logprobs(self) -> bool:
        return LOGPROBS in (self.include or ())

    def to_chat(self) -> ChatRequest:
        """The equivalent chat request."""
        self._check()
        choice = self.tool_choice
        format = self.text.format if self.text is not None else None
        given = {name: getattr(self, name) for name in _SAME} | {
            "messages": messages_of(self.input, self.instructions),
            "max_completion_tokens": self.max_output_tokens,
            "tools": [tool.for_chat() for tool in self.tools] if self.tools is not None else None,
            "tool_choice": choice if isinstance(choice, str | None) else choice.for_chat(),
            "reasoning_effort": self.reasoning.effort if self.reasoning is not None else None,
            "response_format": None if format is None else format.for_chat(),
            "logprobs": self.wants_logprobs or None,
            "top_logprobs": self.top_logprobs if self.wants_logprobs else None,
        }
        with under_its_names():
            return checked(ChatRequest, {name: value for name, value in given.items() if value is not None})

    def _check(self) -> None:
        for name in ("previous_response_id", "conversation"):
            if getattr(self, name) is not None:
                raise InvalidRequest(f"{name} is not supported. {NOT_STORED}", param=name)
        if self.top_logprobs and not self.wants_logprobs:
            raise InvalidRequest(f"top_logprobs needs include: [{LOGPROBS!r}].", param="top_logprobs")
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest("stream_options needs stream: true.", param="stream_options")


class InputTokensRequest(WireModel):
    """The fields of a Responses request that form the prompt, or change it."""

    shapes = ResponsesRequest.shapes

    model: str | None = None
    input: str | Many[dict[str, Any]]
    instructions: str | None = None
    tools: Many[FunctionTool] | None = None
    tool_choice: Choice | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    truncation: Literal["disabled"] | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def to_chat(self, model: str) -> ChatRequest:
        given = {name: getattr(self, name) for name in type(self).model_fields} | {
            "model": self.model or model
        }
        return ResponsesRequest.model_construct(**given).to_chat()


_SAME = (
    *("model", "temperature", "top_p", "top_k", "min_p", "seed", "stop", "repetition_penalty"),
    *("priority", "cache_salt", "parallel_tool_calls", "chat_template_kwargs"),
)
_NAMES: dict[str | None, str] = {
    "messages": "input",
    "prompt": "input",
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "response_format": "text",
    "reasoning_effort": "reasoning",
    "logprobs": "include",
}


def under_its_names() -> AbstractContextManager[None]:
    """Renames the fields in errors of a chat request to the names of this API."""
    return renaming(_NAMES)
