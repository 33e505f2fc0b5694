"""Vocabulary for grammars: the bytes of each token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rondo.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from llguidance import LLTokenizer


@dataclass(frozen=True)
class Vocabulary:
    """`tokens[id]` is the token's contribution to a text, empty for ids of the model that the tokenizer lacks."""

    tokens: list[bytes]
    special: list[int]
    ends: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: Tokenizer, size: int, ends: Sequence[int]) -> Vocabulary:
        """Vocabulary of the model's `size` tokens; `ends` are the tokens that end an answer."""
        known = set(tokenizer.vocabulary.values())
        tokens = [tokenizer.token_bytes(token) if token in known else b"" for token in range(size)]
        special = sorted({token for token in (*tokenizer.special_ids, *ends) if token < size})
        return cls(tokens, special, tuple(ends))

    def compile(self) -> LLTokenizer:
        from llguidance import LLTokenizer

        return LLTokenizer(_Wrapped(self), eos_token=list(self.ends))  # type: ignore[arg-type]


class _Wrapped:
    """Tokenizer interface required by llguidance."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.tokens = vocabulary.tokens
        self.special_token_ids = vocabulary.special
        self.eos_token_id = vocabulary.ends[0]

    def __call__(self, text: str) -> list[int]:
        """Called only for texts that a grammar forces. No grammar does, since the model chooses the tokenization: see
        `OPTIONS` of check.py."""
        raise AssertionError(f"a grammar forces {text!r}")
