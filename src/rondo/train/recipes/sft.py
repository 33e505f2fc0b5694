"""Supervised fine-tuning: the model is trained on the assistant's tokens, in the same context as in serving."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from rondo.base.errors import InvalidRequest
from rondo.data.batching.datasets import InMemory
from rondo.data.batching.packing import Document
from rondo.data.input.records import Record, is_learned
from rondo.text.conversation.messages import adapt_messages
from rondo.text.tokenizer import Tokenizer
from rondo.train.config import OverLong, TrainConfig
from rondo.train.recipes.batches import loader

if TYPE_CHECKING:
    from rondo.train.loop import Batches

Place = Callable[[int], str]
"""Returns the place of a record in its file, for errors."""


@dataclass
class SftExamples:
    """Tokenized examples, and the counts of those above the maximum length."""

    documents: list[Document] = field(default_factory=list)
    skipped: int = 0
    truncated: int = 0
    longest: int = 0
    """Tokens of the longest example, before it was cut."""


def examples(tokenizer: Tokenizer, records: Sequence[Record], max_length: int) -> list[Document]:
    return tokenize(tokenizer, records, max_length).documents


def tokenize(
    tokenizer: Tokenizer,
    records: Sequence[Record],
    max_length: int,
    over_long: OverLong = "stop",
    place: Place | None = None,
) -> SftExamples:
    """Tokenizes records. `over_long` selects the reaction to an example of more than `max_length` tokens."""
    found = SftExamples()
    too_long: list[tuple[int, int]] = []
    for index, record in enumerate(records):
        for document in record_documents(tokenizer, record):
            size = len(document.tokens)
            found.longest = max(found.longest, size)
            if size > max_length:
                too_long.append((size, index))
                if over_long == "stop":
                    continue
                document = cut(document, max_length)
                if over_long == "skip" or not any(document.weights[1:]):
                    found.skipped += 1
                    continue
                found.truncated += 1
            found.documents.append(document)
    if too_long and over_long == "stop":
        raise _too_long(too_long, len(records), max_length, place or (lambda index: f"record {index + 1}"))
    if found.skipped and not found.documents:
        raise InvalidRequest(
            f"every example has more than train.max_length={max_length} tokens and was skipped: raise it, up to "
            f"{found.longest:,} for the longest",
            param="train.max_length",
        )
    return found


def cut(document: Document, max_length: int) -> Document:
    return replace(document, tokens=document.tokens[:max_length], weights=document.weights[:max_length])


def _too_long(found: Sequence[tuple[int, int]], count: int, max_length: int, place: Place) -> InvalidRequest:
    size, index = max(found, key=lambda each: (each[0], -each[1]))
    records = len({index for _, index in found})
    return InvalidRequest(
        f"{records:,} of {count:,} records have more than train.max_length={max_length} tokens; the longest has "
        f"{size:,}: {place(index)}. Set train.max_length={size} (with train.tokens_per_microbatch of at least as "
        "many), or train.over_long=skip or truncate",
        param="train.max_length",
    )


def batches(documents: Sequence[Document], config: TrainConfig) -> Batches:
    return loader([InMemory(documents)], [1.0], config)


def record_documents(tokenizer: Tokenizer, record: Record) -> list[Document]:
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
        if not is_learned(message):
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
