"""Conversion of requests to token ids. Long texts are rendered and tokenized outside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

from rondo.base.errors import InvalidRequest
from rondo.client.protocol.openai import ChatRequest
from rondo.client.protocol.refusals import blaming
from rondo.client.protocol.tools import ToolDefinition
from rondo.engine.schedule.intake import check_prompt, context_exceeded
from rondo.server.workers.memory import return_memory
from rondo.server.workers.templates import Templates
from rondo.text.bound import longest_text
from rondo.text.conversation.messages import adapt_messages
from rondo.text.conversation.variables import template_variables
from rondo.text.tokenizer import Tokenizer

T = TypeVar("T")

SHORT = 4096
"""Number of characters below which tokenization is faster than a thread switch."""


PIECE = 1 << 18
"""Characters tokenized at a time: each token temporarily takes hundreds of bytes."""
CHARACTERS_PER_TOKEN = 16

ENDING = 64
"""Number of final tokens of a prompt that determine the start of its answer."""


class ChatPrompt(NamedTuple):
    ids: list[int]
    ending: str
    """Text right before the answer; the whole last message if the answer continues it."""
    continued: bool


@dataclass(frozen=True)
class Prompts:
    tokenizer: Tokenizer
    max_model_len: int
    vocab: int
    """The model's, which may have more token ids than the tokenizer."""
    templates: Templates | None = field(default=None, kw_only=True)
    """The limits of chat templates; None where the template is trusted."""

    def check(self, prompts: Sequence[Sequence[int]], field: str, answer: int = 1, common: int = 0) -> None:
        """Validates prompts before any of them starts: raises the engine's errors with the field and the number of the
        prompt. `answer` is the number of tokens to reserve for the answer; `common` is the number of shared, already
        validated tokens of all prompts."""
        for at, ids in enumerate(prompts):
            name = f"{field} {at}" if len(prompts) > 1 else "the prompt"
            check_prompt(ids, self.max_model_len, self.vocab, answer, name, field, common)

    async def of_texts(
        self, texts: Sequence[str], add_special: bool = True, bounded: bool = True
    ) -> list[list[int]]:
        """`bounded` rejects a text that cannot fit into the context, without tokenizing it."""
        if not texts:
            return []
        size = sum(map(len, texts))
        try:
            return await beside(size, lambda: self._encode(texts, add_special, bounded))
        finally:
            if size > PIECE:
                await asyncio.to_thread(return_memory)

    async def of_chat(
        self, body: ChatRequest, tools: Sequence[ToolDefinition], size: int, add_special: bool = False
    ) -> ChatPrompt:
        """`size` is the approximate length of the text. The template writes special tokens itself, so the tokenizer
        adds none."""
        template = (self.tokenizer.tool_template if tools else self.tokenizer.chat_template) or ""
        messages = adapt_messages([message.for_template() for message in body.messages], template)
        variables = variables_of(body, template)
        continued = body.continue_final_message

        rendering = self.tokenizer.rendering(
            messages,
            [tool.for_template() for tool in tools] or None,
            add_generation_prompt=body.begins_answer,
            continue_final_message=continued,
            **variables,
        )

        def encode(text: str) -> ChatPrompt:
            ending = str(messages[-1].get("content") or "") if continued else text[-ENDING:]
            (ids,) = self._encode([text], add_special, bounded=body.truncate_prompt_tokens is None)
            return ChatPrompt(ids, ending, continued)

        def work() -> ChatPrompt | None:
            templates = self.templates
            text = rendering() if templates is None else templates.render_here(rendering, size <= SHORT)
            return None if text is None else encode(text)

        with blaming("messages"):
            prompt = await beside(size, work)
            if prompt is None and self.templates is not None:
                text = await self.templates.render_apart(rendering)
                prompt = await beside(len(text), lambda: encode(text))
        assert prompt is not None
        return prompt

    def _encode(self, texts: Sequence[str], add_special: bool, bounded: bool = True) -> list[list[int]]:
        for text in texts:
            if bounded:
                self._check_length(text)
                self._check_density(text)
            elif len(text) > self.most_characters:
                raise InvalidRequest(
                    f"the text has {len(text)} characters: at most {self.most_characters} are tokenized. Shorten it.",
                    param="prompt",
                )
        return [ids for some in _pieces(texts) for ids in self.tokenizer.encode_batch(some, add_special)]

    @property
    def most_characters(self) -> int:
        """Characters of a text that may have more tokens than the context, to be counted or cut."""
        return max(PIECE, CHARACTERS_PER_TOKEN * self.max_model_len)

    def _check_density(self, text: str) -> None:
        """Counts tokens piece by piece where there could be many more than fit: the tokenizer needs hundreds of bytes
        for each. A cut changes few tokens, and twice as many as fit are allowed."""
        size = len(text) if text.isascii() else 4 * len(text)
        if size <= max(PIECE, CHARACTERS_PER_TOKEN // 2 * self.max_model_len):
            return
        counted = 0
        for at in range(0, len(text), SHORT):
            counted += len(self.tokenizer.encode(text[at : at + SHORT], add_special=False))
            if counted > 2 * self.max_model_len:
                raise context_exceeded(self.max_model_len, counted, "prompt", "prompt")

    def _check_length(self, text: str) -> None:
        if len(text) > max(SHORT, self.max_model_len) and self._longest and len(text) > self._longest:
            raise context_exceeded(self.max_model_len, len(text), "prompt", "prompt", most=False)

    @cached_property
    def _longest(self) -> int | None:
        return longest_text(self.tokenizer, self.max_model_len)


def variables_of(body: ChatRequest, template: str) -> dict[str, Any]:
    """Variables of the chat template that a request sets."""
    variables = dict(template_variables(body.chat_template_kwargs))
    if body.reasoning_effort is not None:
        variables["reasoning_effort"] = _effort(body.reasoning_effort, template)
    return variables


def _effort(effort: str, template: str) -> str:
    if "reasoning_effort" not in template:
        raise InvalidRequest(
            "reasoning_effort is not supported: this model's chat template knows nothing of it.",
            param="reasoning_effort",
            code="unsupported_parameter",
        )
    return effort


def _pieces(texts: Sequence[str]) -> Iterator[list[str]]:
    """The texts in groups of about `PIECE` characters."""
    group: list[str] = []
    size = 0
    for text in texts:
        group.append(text)
        size += len(text)
        if size >= PIECE:
            yield group
            group, size = [], 0
    if group:
        yield group


async def beside(size: int, work: Callable[[], T]) -> T:
    """Beside the event loop, if `size` characters or tokens are worth waking a thread for."""
    return work() if size <= SHORT else await asyncio.to_thread(work)
