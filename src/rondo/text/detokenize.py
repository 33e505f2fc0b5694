"""Incremental detokenization: only whole characters are emitted, and the total equals decoding all tokens at once."""

import codecs
from collections.abc import Callable, Iterable
from typing import Protocol

from rondo.text.decoding import Decoding


class Detokenizer(Protocol):
    def push(self, ids: Iterable[int]) -> str:
        """Adds the next tokens; returns the text that is final."""

    def flush(self) -> str:
        """The remaining text at the end; an unfinished character becomes U+FFFD."""


class ByteDetokenizer:
    """Detokenizer for byte-level vocabularies: the text is the bytes of all tokens, decoded as UTF-8."""

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._pending = b""

    def push(self, ids: Iterable[int]) -> str:
        data = self._pending + b"".join(map(self._token_bytes, ids))
        text, used = codecs.utf_8_decode(data, "replace", False)
        self._pending = data[used:]
        return text

    def flush(self) -> str:
        rest, self._pending = self._pending, b""
        return rest.decode("utf-8", "replace")


class PieceDetokenizer:
    """Detokenizer for SentencePiece-like vocabularies: tokens are pieces of text, or single bytes.

    A run of byte tokens is decoded as a whole (valid UTF-8, or one U+FFFD a byte), so its text is emitted at its end.
    """

    def __init__(self, piece: Callable[[int, bool], str | int | None], decoding: Decoding) -> None:
        self._piece = piece
        self._decoding = decoding
        self._strip_char, self._strip_left = decoding.strip
        self._started = False
        self._run = bytearray()
        self._run_is_first = False

    def push(self, ids: Iterable[int]) -> str:
        out: list[str] = []
        for token in ids:
            piece = self._piece(token, not self._started)
            if piece is None:
                continue
            if isinstance(piece, int):
                if not self._run:
                    self._run_is_first = not self._started
                self._run.append(piece)
            else:
                if self._run:
                    out.append(self._end_run())
                out.append(piece)
            self._started = True
        return self._strip("".join(out))

    def flush(self) -> str:
        return self._strip(self._end_run()) if self._run else ""

    def _end_run(self) -> str:
        run = bytes(self._run)
        self._run.clear()
        try:
            texts = [run.decode()]
        except UnicodeDecodeError:
            texts = ["\ufffd"] * len(run)
        return "".join(
            self._decoding.finish(text, first=self._run_is_first and i == 0) for i, text in enumerate(texts)
        )

    def _strip(self, text: str) -> str:
        if not self._strip_left or not text:
            return text
        kept = text
        while kept and self._strip_left and kept[0] == self._strip_char:
            kept = kept[1:]
            self._strip_left -= 1
        if kept:
            self._strip_left = 0
        return kept
