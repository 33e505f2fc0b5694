"""What a model learns from a record when it learns every token of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rondo.text.tokenizer import Tokenizer


def text_of(tokenizer: Tokenizer, record: dict[str, Any]) -> str:
    if "messages" in record:
        return tokenizer.render(record["messages"], record.get("tools"), add_generation_prompt=False)
    return str(record["text"]) if "text" in record else f"{record['prompt']}{record['completion']}"


def closed(tokenizer: Tokenizer, ids: Sequence[int]) -> list[int]:
    """With the end-of-text token at its end, once, where the tokenizer has one."""
    end = list(tokenizer.eos_ids[:1])
    return [*ids, *end] if list(ids[-1:]) != end else list(ids)
