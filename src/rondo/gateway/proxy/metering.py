"""Token counts in responses: in a JSON body, or in the last events of a stream."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

USAGE = b'"usage"'
EVENT = b"data:"
ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
"""Ends of an event: servers use each of the three line ends that the format allows."""
END = re.compile(b"|".join(ENDS))
LARGEST_EVENT = 1 << 20
"""A longer part of a stream without the end of an event is passed on at once."""
LARGEST_METERED = 16 << 20
"""A larger JSON response is passed on, and its estimate is not corrected."""


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    input_tokens: int | None = None
    completion_tokens: int | None = None
    output_tokens: int | None = None


class _Response(msgspec.Struct):
    usage: _Usage | None = None


class _Answer(msgspec.Struct):
    usage: _Usage | None = None
    response: _Response | None = None
    """In the last event of a stream of `/v1/responses`."""
    choices: msgspec.Raw = msgspec.Raw(b"")


_decoder = msgspec.json.Decoder(_Answer)


class TokenMeter:
    """Reads the token counts of one response as it passes. `strip`: the event with the counts was not requested by the
    client and is removed."""

    def __init__(self, stream: bool, strip: bool) -> None:
        self.stream, self.strip = stream, strip
        self.input_tokens: int | None = None
        self.output_tokens: int | None = None
        self.events = 0
        """Events of a stream so far, from which the tokens of a response without counts are estimated."""
        self._held = bytearray()
        self._parts: list[bytes] = []
        self._size = 0

    @property
    def tokens(self) -> int | None:
        if self.input_tokens is None and self.output_tokens is None:
            return None
        return (self.input_tokens or 0) + (self.output_tokens or 0)

    def feed(self, chunk: bytes) -> bytes:
        """The part of the response that can be sent now."""
        if not self.stream:
            self._size += len(chunk)
            if self._size <= LARGEST_METERED:
                self._parts.append(chunk)
            return chunk
        if not self._held and chunk.endswith(b"\n\n") and USAGE not in chunk:
            self.events += chunk.count(EVENT)
            return chunk
        begin = max(0, len(self._held) - 3)
        self._held += chunk
        end = last_end(self._held, begin)
        if not end and len(self._held) <= LARGEST_EVENT:
            return b""
        end = end or len(self._held)
        whole = bytes(self._held[:end])
        del self._held[:end]
        self.events += whole.count(EVENT)
        return b"".join(self._without_counts(whole)) if USAGE in whole else whole

    def finish(self) -> bytes:
        """The rest, at the end of the response."""
        held, self._held = bytes(self._held), bytearray()
        if not self.stream:
            self._read(b"".join(self._parts))
        return held

    def _without_counts(self, events: bytes) -> Iterator[bytes]:
        begin = 0
        for end in END.finditer(events):
            event, begin = events[begin : end.end()], end.end()
            counted = USAGE in event and self._read(event[event.find(b"{") :])
            if not (counted and self.strip):
                yield event
        yield events[begin:]

    def _read(self, text: bytes) -> bool:
        """Whether the text is an event of token counts alone."""
        try:
            answer = _decoder.decode(text)
        except (msgspec.DecodeError, RecursionError):
            return False
        usage = answer.usage or (answer.response.usage if answer.response else None)
        if usage is None:
            return False
        given, made = usage.prompt_tokens, usage.completion_tokens
        self.input_tokens = usage.input_tokens if given is None else given
        self.output_tokens = usage.output_tokens if made is None else made
        return bytes(answer.choices) == b"[]"


def last_end(data: bytearray, begin: int) -> int:
    """Position after the last event; 0 if none ends behind `begin`."""
    found = ((data.rfind(end, begin), len(end)) for end in ENDS)
    return max((at + size for at, size in found if at >= 0), default=0)
