"""From what a client sends to token ids. Long texts are rendered and tokenized beside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

from rondo.base.errors import InvalidRequest
from rondo.client.blame import blaming
from rondo.client.openai import ChatRequest
from rondo.client.tools import Tool
from rondo.engine.intake import check_prompt, context_exceeded
from rondo.text.bound import longest_text
from rondo.text.messages import adapt_messages
from rondo.text.tokenizer import Tokenizer
from rondo.text.variables import template_variables

T = TypeVar("T")

SHORT = 4096
"""A text of so many characters is tokenized faster than a thread is woken."""


ENDING = 64
"""So much of a prompt tells what its answer begins with."""


class ChatPrompt(NamedTuple):
    ids: list[int]
    ending: str
    """What stands right before the answer; the whole of a last message that the answer continues."""
    continued: bool


@dataclass(frozen=True)
class Prompts:
    tokenizer: Tokenizer
    max_model_len: int
    vocab: int
    """The model's, which may have more token ids than the tokenizer."""

    def check(self, prompts: Sequence[Sequence[int]], field: str, answer: int = 1, common: int = 0) -> None:
        """Before the first of them is begun: what the engine would refuse, with the field and the number of the one
        that is meant. `answer` is how many tokens must be left for it; `common` are those that each has beside its own,
        and that have been looked at."""
        for at, ids in enumerate(prompts):
            name = f"{field} {at}" if len(prompts) > 1 else "the prompt"
            check_prompt(ids, self.max_model_len, self.vocab, answer, name, field, common)

    async def of_texts(
        self, texts: Sequence[str], add_special: bool = True, bounded: bool = True
    ) -> list[list[int]]:
        """`bounded` refuses what cannot fit into the context without looking at it."""
        if not texts:
            return []
        return await beside(sum(map(len, texts)), lambda: self._encode(texts, add_special, bounded))

    async def of_chat(
        self, body: ChatRequest, tools: Sequence[Tool], size: int, add_special: bool = False
    ) -> ChatPrompt:
        """`size` is about how much text this is. The template writes special tokens itself, so that the tokenizer adds
        none."""
        template = (self.tokenizer.tool_template if tools else self.tokenizer.chat_template) or ""
        messages = adapt_messages([message.for_template() for message in body.messages], template)
        variables = variables_of(body, template)
        continued = body.continue_final_message

        def work() -> ChatPrompt:
            text = self.tokenizer.render(
                messages,
                [tool.for_template() for tool in tools] or None,
                add_generation_prompt=body.begins_answer,
                continue_final_message=continued,
                **variables,
            )
            ending = str(messages[-1].get("content") or "") if continued else text[-ENDING:]
            (ids,) = self._encode([text], add_special, bounded=body.truncate_prompt_tokens is None)
            return ChatPrompt(ids, ending, continued)

        with blaming("messages"):
            return await beside(size, work)

    def _encode(self, texts: Sequence[str], add_special: bool, bounded: bool = True) -> list[list[int]]:
        for text in texts if bounded else ():
            self._check_length(text)
        return self.tokenizer.encode_batch(texts, add_special)

    def _check_length(self, text: str) -> None:
        if len(text) > max(SHORT, self.max_model_len) and self._longest and len(text) > self._longest:
            raise context_exceeded(self.max_model_len, len(text), "prompt", "prompt", most=False)

    @cached_property
    def _longest(self) -> int | None:
        return longest_text(self.tokenizer, self.max_model_len)


def variables_of(body: ChatRequest, template: str) -> dict[str, Any]:
    """What a request sets of the chat template's own."""
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


async def beside(size: int, work: Callable[[], T]) -> T:
    """Beside the event loop, if `size` characters or tokens are worth waking a thread for."""
    return work() if size <= SHORT else await asyncio.to_thread(work)
