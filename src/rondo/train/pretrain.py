"""Pretraining: every token of every document, cut where a step's budget ends and carried on in the next."""

from __future__ import annotations

from collections.abc import Sequence

from rondo.data.packing import Document, Row, pack
from rondo.data.sampler import Position, take_tokens
from rondo.data.sources import Record
from rondo.text.tokenizer import Tokenizer
from rondo.train.config import TrainConfig
from rondo.train.loop import Batches


def documents(tokenizer: Tokenizer, records: Sequence[Record]) -> list[list[int]]:
    """One list of token ids a record, closed by the end-of-text token where the tokenizer has one."""
    texts = [_text(tokenizer, record) for record in records]
    end = list(tokenizer.eos_ids[:1])
    return [ids + end if ids[-1:] != end else ids for ids in tokenizer.encode_batch(texts)]


def batches(tokens: Sequence[Sequence[int]], config: TrainConfig) -> Batches:
    lengths = [len(ids) for ids in tokens]

    def batch(position: Position) -> tuple[list[Row], Position]:
        pieces, position = take_tokens(
            lengths, config.seed, position, config.tokens_per_step, config.max_length
        )
        cut = [tokens[piece.document][piece.begin : piece.end] for piece in pieces]
        return pack([Document(ids, [1.0] * len(ids)) for ids in cut], config.tokens_per_microbatch), position

    return batch


def _text(tokenizer: Tokenizer, record: Record) -> str:
    if "messages" in record:
        return tokenizer.render(record["messages"], record.get("tools"), add_generation_prompt=False)
    return str(record["text"]) if "text" in record else f"{record['prompt']}{record['completion']}"
