"""Examples as the model reads them, rendered by the chat template, with the parts that have a loss. Free of torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice

from rondo.data.batching.packing import Document
from rondo.data.input.records import PAIR, Record
from rondo.text.tokenizer import Tokenizer
from rondo.train.config import Kind, TrainConfig
from rondo.train.recipes import answers, pretrain, sft
from rondo.train.recipes.data import TrainingSource

CHARACTERS = 16
"""Characters of a long text that are tokenized for each token shown."""


@dataclass(frozen=True)
class PreviewSegment:
    text: str
    learned: bool


@dataclass(frozen=True)
class PreviewExample:
    title: str
    """Place of the record, and its tokens."""
    segments: tuple[PreviewSegment, ...]


def preview(
    kind: Kind, sources: Sequence[TrainingSource], tokenizer: Tokenizer, config: TrainConfig, count: int = 3
) -> list[PreviewExample]:
    """The first `count` examples of the sources' records, from each source in turn. Prepared shards have none."""
    each = [_examples(kind, source, tokenizer, config) for source in sources if source.index is None]
    return list(islice(_in_turn(each), count))


def _in_turn(each: Sequence[Iterator[PreviewExample]]) -> Iterator[PreviewExample]:
    left = list(each)
    while left:
        for examples in list(left):
            if (found := next(examples, None)) is None:
                left.remove(examples)
            else:
                yield found


def _examples(
    kind: Kind, source: TrainingSource, tokenizer: Tokenizer, config: TrainConfig
) -> Iterator[PreviewExample]:
    documents = _documents_of(kind, tokenizer, config)
    for index, record in enumerate(source.records):
        for label, document in documents(record):
            yield _example(f"{source.place(index)}{label}", document, tokenizer)


def _documents_of(
    kind: Kind, tokenizer: Tokenizer, config: TrainConfig
) -> Callable[[Record], list[tuple[str, Document]]]:
    longest = config.max_length

    def pretraining(record: Record) -> list[tuple[str, Document]]:
        if "text" in record:
            record = {"text": record["text"][: CHARACTERS * longest]}
        (tokens,) = pretrain.documents(tokenizer, [record])
        return [("", Document(tokens[:longest], [1.0] * min(len(tokens), longest)))]

    def supervised(record: Record) -> list[tuple[str, Document]]:
        found = sft.record_documents(tokenizer, record)
        if config.over_long == "skip":
            found = [document for document in found if len(document.tokens) <= longest]
        kept = [each for each in (sft.cut(each, longest) for each in found) if any(each.weights[1:])]
        return [(f", part {at}" if at > 1 else "", document) for at, document in enumerate(kept, 1)]

    def judged(record: Record) -> list[tuple[str, Document]]:
        return [
            (f", {label}", _answered(tokenizer, record, record[name])) for name, label in _answers(record)
        ]

    return pretraining if kind == "pretrain" else supervised if kind == "sft" else judged


def _answers(record: Record) -> list[tuple[str, str]]:
    if "label" in record:
        return [("completion", "desirable answer" if record["label"] else "undesirable answer")]
    return [(name, f"{name} answer") for name in PAIR]


def _answered(tokenizer: Tokenizer, record: Record, answer: object) -> Document:
    prompt, own = answers.tokens_of(tokenizer, record, answer)
    return Document([*prompt, *own], [0.0] * len(prompt) + [1.0] * len(own))


def _example(place: str, document: Document, tokenizer: Tokenizer) -> PreviewExample:
    learned = sum(map(bool, document.weights))
    title = f"{place}: {len(document.tokens):,} tokens, {learned:,} with loss"
    return PreviewExample(title, tuple(_segments(document, tokenizer)))


def _segments(document: Document, tokenizer: Tokenizer) -> Iterator[PreviewSegment]:
    """Texts of successive tokens with and without loss. The tokens before a text decide on its first space."""
    begin = 0
    for learned, run in groupby(map(bool, document.weights)):
        end = begin + len(list(run))
        detokenizer = tokenizer.detokenizer(
            skip_special=False, after=document.tokens[max(begin - 16, 0) : begin]
        )
        text = detokenizer.push(document.tokens[begin:end]) + detokenizer.flush()
        yield PreviewSegment(text, learned)
        begin = end
