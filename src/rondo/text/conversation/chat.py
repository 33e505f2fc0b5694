"""Rendering of chat templates, with the same output as transformers' `apply_chat_template`.

Templates are from downloaded folders, so they run in Jinja's sandbox and cannot change their arguments.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser

from rondo.base.errors import InvalidRequest, ModelError
from rondo.text import metered
from rondo.text.metered import MeteredEnvironment

Message = Mapping[str, Any]
Span = tuple[int, int]

# transformers' own marker. If the template trimmed its trailing space, the rest is trimmed too.
_CONTINUE_TAG = "CONTINUE_FINAL_MESSAGE_TAG "


@dataclass
class _Recorder:
    """The text rendered so far, and the spans of it inside `generation` blocks."""

    blocks: list[str] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)


_recorder: ContextVar[_Recorder | None] = ContextVar("chat_template_recorder", default=None)


class _Generation(Extension):
    """`{% generation %}...{% endgeneration %}` marks text of the assistant."""

    tags = {"generation"}  # noqa: RUF012 (Jinja declares it so)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_record"), [], [], body).set_lineno(line)

    def _record(self, caller: Callable[[], str]) -> str:
        text = caller()
        recorder = _recorder.get()
        if recorder is not None:
            start = sum(map(len, recorder.blocks))
            recorder.spans.append((start, start + len(text)))
        return text


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML, which is not in a model's training data.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _environment() -> MeteredEnvironment:
    environment = MeteredEnvironment(
        trim_blocks=True, lstrip_blocks=True, optimized=False, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


@lru_cache(maxsize=128)
def _compile(template: str) -> jinja2.Template:
    return _environment().from_string(template)


@lru_cache(maxsize=128)
def is_bounded(template: str) -> bool:
    """Whether `metered` bounds the work of the template."""
    return metered.is_bounded(template, _environment())


def compile_template(template: str, where: str = "the chat template") -> jinja2.Template:
    """A compiled template, from a cache. `where` is its origin in errors."""
    try:
        return _compile(template)
    except jinja2.TemplateSyntaxError as error:
        raise ModelError(
            f"{where} has a syntax error at line {error.lineno}: {error.message}. Correct the template there."
        ) from error


def render(
    template: str,
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    documents: Sequence[Mapping[str, Any]] | None = None,
    add_generation_prompt: bool = False,
    continue_final_message: bool | str = False,
    variables: Mapping[str, Any] | None = None,
    where: str = "the chat template",
) -> str:
    """The prompt as text. `continue_final_message` (True, or a field's name) leaves the last message open."""
    compiled = compile_template(template, where)
    _check(messages, documents)
    if continue_final_message and add_generation_prompt:
        raise InvalidRequest(
            "continue_final_message and add_generation_prompt exclude each other: continue the last message, "
            "or begin a new one.",
            param="continue_final_message",
        )
    final = ""
    if continue_final_message:
        name = continue_final_message if isinstance(continue_final_message, str) else "content"
        if name not in template:
            raise InvalidRequest(f"{where} does not use the field {name!r}.", param="continue_final_message")
        messages, final = _leave_open(messages, name)
    with _template_errors(where):
        text = compiled.render(
            **(variables or {}),
            messages=messages,
            tools=tools,
            documents=documents,
            add_generation_prompt=add_generation_prompt,
        )
    return _cut_at_tag(text, final, where) if continue_final_message else text


def render_spans(
    template: str,
    messages: Sequence[Message],
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    documents: Sequence[Mapping[str, Any]] | None = None,
    variables: Mapping[str, Any] | None = None,
    where: str = "the chat template",
) -> tuple[str, list[Span]]:
    """The conversation as text, and the character ranges of its `generation` blocks."""
    compiled = compile_template(template, where)
    _check(messages, documents)
    recorder = _Recorder()
    token = _recorder.set(recorder)
    try:
        with _template_errors(where):
            for block in compiled.generate(
                **(variables or {}),
                messages=messages,
                tools=tools,
                documents=documents,
                add_generation_prompt=False,
            ):
                recorder.blocks.append(block)
    finally:
        _recorder.reset(token)
    return "".join(recorder.blocks), recorder.spans


def _check(messages: Sequence[Message], documents: Sequence[Mapping[str, Any]] | None) -> None:
    if not messages:
        raise InvalidRequest("messages is empty: give at least one message.", param="messages")
    if documents is not None and not all(isinstance(document, Mapping) for document in documents):
        raise InvalidRequest(
            "documents must be a list of objects with 'title' and 'text'.", param="documents"
        )


@contextmanager
def _template_errors(where: str) -> Iterator[None]:
    try:
        yield
    except SecurityError as error:
        raise ModelError(f"{where} does what the sandbox forbids: {error}. Use another one.") from error
    except jinja2.TemplateError as error:
        reason = error.message or error
        raise InvalidRequest(f"{where} refused the messages: {reason}", param="messages") from error
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        # Python errors inside a template: it does not support the shape of a message.
        raise InvalidRequest(f"{where} could not render the messages: {error}", param="messages") from error


def _leave_open(messages: Sequence[Message], name: str) -> tuple[list[Message], str]:
    """A copy of the messages with a tag at the end of the last one, and that message's text."""
    last = dict(deepcopy(messages[-1]))
    content = last.get(name)
    if isinstance(content, str):
        last[name] = content + _CONTINUE_TAG
        return [*messages[:-1], last], content
    for part in reversed(content if isinstance(content, (list, tuple)) else []):
        if "text" in part:
            text = str(part["text"])
            part["text"] = text + _CONTINUE_TAG
            return [*messages[:-1], last], text
    raise InvalidRequest(
        f"continue_final_message is set, but the last message has no text in {name!r} to continue.",
        param="messages",
    )


def _cut_at_tag(text: str, final: str, where: str) -> str:
    tag = _CONTINUE_TAG.strip()
    if tag not in text or final.strip() not in text:
        raise InvalidRequest(
            f"{where} drops or rewrites the final message, so it cannot be continued. "
            "Send it with add_generation_prompt instead.",
            param="continue_final_message",
        )
    at = text.rindex(tag)
    if text[at : at + len(_CONTINUE_TAG)] == _CONTINUE_TAG:
        return text[:at]
    return text[:at].rstrip()
