"""Elements of a JSON array in a file, one at a time: memory holds one element, however large the file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, BinaryIO

from rondo.base.errors import InvalidRequest

READ = 1 << 20
SPACE = " \t\r\n"


def array_elements(file: BinaryIO, largest: int) -> Iterator[Any]:
    """`largest` is the maximum number of characters of an element."""
    return _Elements(file, largest).read()


class _Elements:
    def __init__(self, file: BinaryIO, largest: int) -> None:
        self._text = iter(lambda: file.read(READ), b"")
        self._largest = largest
        self._held = ""
        self._rest = b""
        """The begin of a character of several bytes."""
        self._ended = False
        self._decoder = json.JSONDecoder()

    def read(self) -> Iterator[Any]:
        if self._next() != "[":
            raise self._wrong("it does not begin with [")
        self._held = self._held[1:]
        if self._next() == "]":
            return self._check_end()
        while True:
            yield self._element()
            mark = self._next()
            self._held = self._held[1:]
            if mark == "]":
                return self._finish()
            if mark != ",":
                raise self._wrong("elements are separated by commas")

    def _check_end(self) -> None:
        self._held = self._held[1:]
        self._finish()

    def _finish(self) -> None:
        if self._next():
            raise self._wrong("something follows the array")

    def _element(self) -> Any:
        self._next()
        need = 0
        while True:
            if len(self._held) >= need or self._ended:
                try:
                    value, end = self._decoder.raw_decode(self._held)
                except (ValueError, RecursionError) as error:
                    if self._ended:
                        raise self._wrong(str(error)) from None
                else:
                    # A number may continue beyond the end of what has been read.
                    if end < len(self._held) or self._ended:
                        self._held = self._held[end:]
                        return value
                need = 2 * len(self._held)
            if len(self._held) > self._largest:
                raise self._wrong(f"an element is larger than {self._largest:,} characters")
            self._more()

    def _next(self) -> str:
        """The next character that is not white space; empty at the end of the file."""
        while True:
            self._held = self._held.lstrip(SPACE)
            if self._held or self._ended:
                return self._held[:1]
            self._more()

    def _more(self) -> None:
        data = next(self._text, None)
        if data is None:
            self._ended = True
            if self._rest:
                raise self._wrong("it is not UTF-8")
            return
        data = self._rest + data
        try:
            text, self._rest = data.decode(), b""
        except UnicodeDecodeError as error:
            if len(data) - error.start > 3:
                raise self._wrong("it is not UTF-8") from None
            text, self._rest = data[: error.start].decode(), data[error.start :]
        self._held += text

    def _wrong(self, reason: str) -> InvalidRequest:
        return InvalidRequest(f"the file is not a JSON array: {reason}.", param="file", code="invalid_json")
