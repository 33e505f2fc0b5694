"""Supervised fine-tuning: the model is trained on the assistant's tokens, in the same context as in serving."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rondo.base.errors import InvalidRequest
from rondo.data.batching.datasets import InMemory
from rondo.data.batching.packing import Document
from rondo.data.input.records import Record
from rondo.text.conversation.messages import adapt_messages
from rondo.text.tokenizer import Tokenizer
from rondo.train.config import TrainConfig
from rondo.train.loop import Batches
from rondo.train.recipes.batches import loader


def examples(tokenizer: Tokenizer, records: Sequence[Record], max_length: int) -> list[Document]:
    found = [document for record in records for document in _documents(tokenizer, record)]
    for index, document in enumerate(found):
        if len(document.tokens) > max_length:
            raise InvalidRequest(
                f"example {index + 1} has {len(document.tokens)} tokens, more than max_length={max_length}: "
                "raise it or shorten the example",
                param="max_length",
            )
    return found


def batches(documents: Sequence[Document], config: TrainConfig) -> Batches:
    return loader([InMemory(documents)], [1.0], config)


def _documents(tokenizer: Tokenizer, record: Record) -> list[Document]:
    if "messages" in record:
        return conversation(tokenizer, record["messages"], record.get("tools"))
    end = list(tokenizer.eos_ids[:1])
    if "text" in record:
        ids = tokenizer.encode(record["text"]) + end
        return [Document(ids, [1.0] * len(ids))]
    prompt, answer = (
        tokenizer.encode(record["prompt"]),
        tokenizer.encode(record["completion"], add_special=False) + end,
    )
    return [Document(prompt + answer, [0.0] * len(prompt) + [1.0] * len(answer))]


def conversation(
    tokenizer: Tokenizer, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] | None = None
) -> list[Document]:
    """Documents whose weights are 1 on the assistant's tokens, up to its end-of-turn token.

    The result is one document if the template renders a longer conversation as a continuation of a shorter one. With
    templates that change earlier turns (for example, by dropping their reasoning), each such turn has a separate
    document.
    """
    done: list[Document] = []
    text, tokens, weights = "", list[int](), list[float]()
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        before, said = turn(tokenizer, messages[:index], message, tools)
        if not before.startswith(text):
            done.append(Document(tokens, weights))
            text, tokens, weights = "", [], []
        context = tokenizer.encode(before[len(text) :], add_special=False)
        answer = tokenizer.encode(said, add_special=False)
        learned = through_end(answer, tokenizer.eos_ids)
        text, tokens = before + said, tokens + context + answer
        weights = weights + [0.0] * len(context) + [1.0] * learned + [0.0] * (len(answer) - learned)
    return [*done, Document(tokens, weights)]


def turn(
    tokenizer: Tokenizer,
    messages: Sequence[dict[str, Any]],
    answer: dict[str, Any],
    tools: Sequence[dict[str, Any]] | None = None,
) -> tuple[str, str]:
    """Rendered context before the model's answer, and the rendered answer, according to the chat template."""
    template = (tokenizer.tool_template if tools else tokenizer.chat_template) or ""
    told = adapt_messages(
        [*messages, answer], template
    )  # as in serving: training and inference have equal inputs
    before = tokenizer.render(told[:-1], tools, add_generation_prompt=True)
    after = tokenizer.render(told, tools, add_generation_prompt=False)
    if not after.startswith(before):
        raise InvalidRequest(
            "the chat template does not render an assistant message as a continuation of its generation prompt, "
            "so there is no telling which tokens to learn",
            param="chat_template",
        )
    return before, after[len(before) :]


def through_end(answer: Sequence[int], eos_ids: Sequence[int]) -> int:
    """Number of the answer's tokens that the model must generate: a template may add a newline after its end."""
    ends = [index for index, token in enumerate(answer) if token in set(eos_ids)]
    return ends[-1] + 1 if ends else len(answer)
