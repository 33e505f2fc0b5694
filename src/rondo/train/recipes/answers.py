"""Tokens of answers with human judgement: two answers to one prompt, or one with a label."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rondo.base.errors import InvalidRequest
from rondo.data.input.records import PAIR, Record
from rondo.text.tokenizer import Tokenizer
from rondo.train.config import Kind, TrainConfig
from rondo.train.recipes.sft import through_end, turn


@dataclass(frozen=True)
class PreferencePair:
    prompt: list[int]
    chosen: list[int]
    rejected: list[int]


@dataclass(frozen=True)
class Judged:
    prompt: list[int]
    answer: list[int]
    good: bool


@dataclass(frozen=True)
class TokenizedAnswers:
    """Tokens of the records of each source: pairs, or for KTO labelled answers."""

    pairs: list[list[PreferencePair]] = field(default_factory=list)
    judged: list[list[Judged]] = field(default_factory=list)

    @classmethod
    def of(
        cls, kind: Kind, config: TrainConfig, tokenizer: Tokenizer, sources: Iterable[Sequence[Record]]
    ) -> TokenizedAnswers:
        if kind == "preference" and config.preference.loss == "kto":
            return cls(judged=[judged(tokenizer, records) for records in sources])
        return cls(pairs=[pairs(tokenizer, records) for records in sources])


def pairs(tokenizer: Tokenizer, records: Sequence[Record]) -> list[PreferencePair]:
    found = []
    for number, record in enumerate(records, 1):
        if not all(name in record for name in PAIR):
            raise InvalidRequest(
                f'record {number} has no "chosen" and "rejected": two answers to choose between are needed',
                param="train.data",
            )
        prompt, chosen = tokens_of(tokenizer, record, record["chosen"])
        found.append(PreferencePair(prompt, chosen, tokens_of(tokenizer, record, record["rejected"])[1]))
    return found


def judged(tokenizer: Tokenizer, records: Sequence[Record]) -> list[Judged]:
    """Labelled answers. A pair counts as two answers, a good one and a bad one."""
    return [one for number, record in enumerate(records, 1) for one in _judged(tokenizer, record, number)]


def _judged(tokenizer: Tokenizer, record: Record, number: int) -> Iterator[Judged]:
    if all(name in record for name in PAIR):
        for name in PAIR:
            yield Judged(*tokens_of(tokenizer, record, record[name]), name == "chosen")
    elif "label" in record:
        yield Judged(*tokens_of(tokenizer, record, record["completion"]), record["label"])
    else:
        raise InvalidRequest(
            f'record {number} has neither a "label" nor "chosen" and "rejected": nobody has judged its answer',
            param="train.data",
        )


def tokens_of(tokenizer: Tokenizer, record: Record, answer: Any) -> tuple[list[int], list[int]]:
    """Tokens of the prompt, and of an answer to it up to the end of the model's turn."""
    if "messages" in record:
        message = answer[0] if isinstance(answer, list) else {"role": "assistant", "content": answer}
        before, said = turn(tokenizer, record["messages"], message, record.get("tools"))
        ids = tokenizer.encode(said, add_special=False)
        return tokenizer.encode(before, add_special=False), ids[: through_end(ids, tokenizer.eos_ids)]
    text = answer[0]["content"] if isinstance(answer, list) else answer
    return tokenizer.encode(record["prompt"]), [
        *tokenizer.encode(text, add_special=False),
        *tokenizer.eos_ids[:1],
    ]
