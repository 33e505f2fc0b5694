"""Streaming of `multipart/form-data`: fields are collected within a bound, and one file is passed on in pieces."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header
from starlette.requests import ClientDisconnect, Request

from rondo.base.errors import InvalidRequest
from rondo.web.errors import BodyTimeout, BodyTooLarge, UnsupportedMedia
from rondo.web.http import SLOWEST_BODY

LARGEST_FIELD = 64 << 10
MOST_PARTS = 64
PIECE = 1 << 20
"""Bytes of the file to collect before they are passed on."""


class UploadForm:
    """The fields of a form, and the name of its file."""

    def __init__(self, file_field: str, limit: int) -> None:
        self.fields: dict[str, str] = {}
        self.filename: str | None = None
        """None until the file begins."""
        self.size = 0
        self.ended = False
        self._file_field, self._limit = file_field, limit
        self._name = ""
        self._header, self._value = b"", b""
        self._disposition = b""
        self._text = bytearray()
        self._parts = 0
        self.pieces = bytearray()

    def callbacks(self) -> Any:
        return {
            "on_part_begin": self._begin,
            "on_header_field": self._on_header_field,
            "on_header_value": self._on_header_value,
            "on_header_end": self._on_header_end,
            "on_headers_finished": self._on_headers,
            "on_part_data": self._on_data,
            "on_part_end": self._on_part_end,
            "on_end": self._on_end,
        }

    def _begin(self) -> None:
        self._parts += 1
        if self._parts > MOST_PARTS:
            raise InvalidRequest(f"The form has more than {MOST_PARTS} fields.")
        self._header = self._value = self._disposition = b""
        self._text.clear()

    def _on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _on_header_end(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = self._value
        elif self._header.lower() == b"content-encoding":
            raise UnsupportedMedia(
                "A part with a Content-Encoding is not decoded: send the file as it is.",
                code="unsupported_encoding",
            )
        self._header = self._value = b""

    def _on_headers(self) -> None:
        _, options = parse_options_header(self._disposition)
        self._name = options.get(b"name", b"").decode(errors="replace")
        if self._name != self._file_field:
            return
        if self.filename is not None:
            raise InvalidRequest(f"The form has more than one {self._name!r}.", param=self._name)
        self.filename = options.get(b"filename", b"").decode(errors="replace")

    def _on_data(self, data: bytes, start: int, end: int) -> None:
        if self._name == self._file_field:
            self.size += end - start
            if self.size > self._limit:
                raise BodyTooLarge(
                    f"The file is larger than {self._limit:,} bytes: an admin can raise files.file_bytes or the "
                    "owner's quota (files.owner_bytes).",
                    param=self._file_field,
                    code="file_too_large",
                )
            self.pieces += data[start:end]
            return
        self._text += data[start:end]
        if len(self._text) > LARGEST_FIELD:
            raise InvalidRequest(
                f"The field {self._name!r} has more than {LARGEST_FIELD} bytes.", param=self._name
            )

    def _on_part_end(self) -> None:
        if self._name == self._file_field:
            return
        if not self._name or self._name in self.fields:
            raise InvalidRequest(
                f"The form has the field {self._name!r} twice." if self._name else "A field has no name."
            )
        self.fields[self._name] = self._text.decode(errors="replace")

    def _on_end(self) -> None:
        self.ended = True


async def receive_form(
    request: Request,
    file_field: str,
    limit: int,
    idle_seconds: float,
    write: Callable[[bytes], Awaitable[None]],
) -> UploadForm:
    """Passes the content of the form's file to `write` while it arrives. Memory is bounded whatever the file's size."""
    form = UploadForm(file_field, limit)
    boundary = _boundary(request)
    try:
        parser = MultipartParser(boundary, form.callbacks())
        await _feed(request, parser, form, idle_seconds, write)
    except FormParserError as error:
        raise InvalidRequest(
            f"The body is not a valid multipart form: {error}.", code="invalid_form"
        ) from error
    if not form.ended:
        raise InvalidRequest("The body ends within the form.", code="invalid_form")
    if form.filename is None:
        raise InvalidRequest(f"The form has no file {file_field!r}.", param=file_field)
    if form.pieces:
        await write(bytes(form.pieces))
    return form


async def _feed(
    request: Request,
    parser: MultipartParser,
    form: UploadForm,
    idle_seconds: float,
    write: Callable[[bytes], Awaitable[None]],
) -> None:
    now = asyncio.get_running_loop().time
    read, waited, more = 0, 0.0, True
    while more:
        before = now()
        try:
            async with asyncio.timeout(idle_seconds):
                message = await request.receive()
        except TimeoutError:
            raise _late(idle_seconds) from None
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        waited += now() - before
        data, more = message.get("body", b""), message.get("more_body", False)
        read += len(data)
        if waited > idle_seconds + read / SLOWEST_BODY:
            raise _late(idle_seconds)
        parser.write(data)
        if len(form.pieces) >= PIECE:
            piece = bytes(form.pieces)
            form.pieces.clear()
            await write(piece)
    parser.finalize()


def _late(idle_seconds: float) -> BodyTimeout:
    return BodyTimeout(
        f"nothing more of the form came for {idle_seconds:g} s (gateway.body_seconds), or it came more slowly than "
        f"{SLOWEST_BODY} bytes a second.",
        code="body_timeout",
    )


def _boundary(request: Request) -> bytes:
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise UnsupportedMedia(
            "A body with a Content-Encoding is not decoded: send the form as it is.",
            code="unsupported_encoding",
        )
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data" or not 0 < len(boundary) <= 200:
        raise UnsupportedMedia(
            "The body must be a form with a file, sent as 'Content-Type: multipart/form-data' with a boundary.",
            code="unsupported_media_type",
        )
    return boundary
