"""How many of an answer's tokens are reasoning, counted as they come."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rondo.base.errors import RondoError
from rondo.text.parsing import Parser
from rondo.text.tokenizer import Tokenizer


class ThoughtCount:
    """Follows one sample, token by token, with a parser of its own: the answer's is fed texts that join tokens. The
    markers around reasoning do not count, but for the beginning of one that is several tokens."""

    def __init__(self, parser: Parser | None, tokenizer: Tokenizer, markers: Collection[int]) -> None:
        self._parser = parser
        self._tokenizer = tokenizer
        self._markers = markers
        self.tokens = 0

    def add(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            if self._parser is None:
                return
            if token in self._tokenizer.special_ids and token not in self._markers:
                continue
            before = self._parser.reasons
            self._parser.feed(self._text(token))
            self.tokens += before and self._parser.reasons
            if not self._parser.may_reason:
                self._parser = None

    def _text(self, token: int) -> str:
        """Of a part of a character it is a sign that is no part of a marker."""
        try:
            return self._tokenizer.token_bytes(token).decode("utf-8", "replace")
        except RondoError:
            return ""  # A model may have more rows in its embedding than the tokenizer has tokens.
