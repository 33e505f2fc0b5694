"""Counter of an answer's reasoning tokens during generation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rondo.base.errors import RondoError
from rondo.text.parsing import OutputParser
from rondo.text.tokenizer import Tokenizer


class ReadTexts(dict[int, str | None]):
    """Text of each token for a parser of reasoning, looked up once for all answers. None: no text, as for special
    tokens other than markers."""

    def __init__(self, tokenizer: Tokenizer, markers: Iterable[int]) -> None:
        super().__init__()
        self._tokenizer = tokenizer
        self._left_out = set(tokenizer.special_ids).difference(markers)

    def __missing__(self, token: int) -> str | None:
        text = self[token] = None if token in self._left_out else self._text(token)
        return text

    def _text(self, token: int) -> str:
        """Of a part of a character it is a sign that is no part of a marker."""
        try:
            return self._tokenizer.token_bytes(token).decode("utf-8", "replace")
        except RondoError:
            return ""  # A model may have more rows in its embedding than the tokenizer has tokens.


class ThoughtCount:
    """Counts the reasoning tokens of one sample with a separate parser: the answer's own parser receives texts of
    several tokens. Only text that may end the reasoning is parsed. Markers do not count, except for the beginning of a
    marker of several tokens."""

    def __init__(self, parser: OutputParser | None, texts: ReadTexts) -> None:
        self._parser = parser
        self._texts = texts
        self.tokens = 0

    def add(self, tokens: Sequence[int]) -> None:
        parser = self._parser
        for token in tokens:
            if parser is None:
                break
            text = self._texts[token]
            if text is None:
                continue
            if parser.reasons_through(text):
                self.tokens += 1
                continue
            before = parser.reasons
            parser.feed(text)
            self.tokens += before and parser.reasons
            if not parser.may_reason:
                parser = None
        self._parser = parser
