"""The text or bytes of each token id, cached by id."""

from collections.abc import Callable, Set

from rondo.text.decoding import Decoding

TokenText = Callable[[int], str | None]


class ByteTable(dict[int, bytes]):
    """id -> bytes. Skipped ids and ids outside the vocabulary (models pad theirs) map to nothing."""

    def __init__(self, token_text: TokenText, decoding: Decoding, skip: Set[int]) -> None:
        self._token_text = token_text
        self._decoding = decoding
        self._skip = skip

    def __missing__(self, token: int) -> bytes:
        text = None if token in self._skip else self._token_text(token)
        self[token] = b"" if text is None else self._decoding.token_bytes(text)
        return self[token]


class PieceTable:
    """id -> text or single byte, or None for an id without text; the first token of a text may differ."""

    def __init__(self, token_text: TokenText, decoding: Decoding, skip: Set[int]) -> None:
        self._token_text = token_text
        self._decoding = decoding
        self._skip = skip
        self._cache: dict[int, str | int | None] = {}

    def get(self, token: int, first: bool) -> str | int | None:
        if first:
            return self._make(token, first=True)
        if token not in self._cache:
            self._cache[token] = self._make(token, first=False)
        return self._cache[token]

    def _make(self, token: int, first: bool) -> str | int | None:
        text = None if token in self._skip else self._token_text(token)
        return None if text is None else self._decoding.piece(text, first)
