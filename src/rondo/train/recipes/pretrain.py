"""Pretraining: every token of every document once per epoch. A document longer than `max_length` is split into
pieces.
"""

from __future__ import annotations

from collections.abc import Sequence

from rondo.data.batching.datasets import InMemory
from rondo.data.batching.packing import Document
from rondo.data.input.records import Record
from rondo.data.input.texts import closed, text_of
from rondo.text.tokenizer import Tokenizer


def documents(tokenizer: Tokenizer, records: Sequence[Record]) -> list[list[int]]:
    """One list of token ids per record, closed by the end-of-text token if the tokenizer has one."""
    texts = [text_of(tokenizer, record) for record in records]
    return [closed(tokenizer, ids) for ids in tokenizer.encode_batch(texts)]


def dataset(tokens: Sequence[Sequence[int]]) -> InMemory:
    return InMemory(Document(ids, [1.0] * len(ids)) for ids in tokens)
