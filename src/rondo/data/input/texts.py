"""The tokens of a record for pretraining, where every token has a loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rondo.text.tokenizer import Tokenizer


def text_of(tokenizer: Tokenizer, record: dict[str, Any]) -> str:
    if "messages" in record:
        return tokenizer.render(record["messages"], record.get("tools"), add_generation_prompt=False)
    return str(record["text"]) if "text" in record else f"{record['prompt']}{record['completion']}"


def closed(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
    """The tokens with exactly one end-of-text token at the end, if the tokenizer has one."""
    end = list(tokenizer.eos_ids[:1])
    return [*ids, *end] if list(ids[-1:]) != end else list(ids)
