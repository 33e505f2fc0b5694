"""Token counts in responses: in a JSON body, or in the last events of a stream."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

USAGE = b'"usage"'
END = b"\n\n"
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
        self._held = b""
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
        data = self._held + chunk
        end = data.rfind(END) + len(END)
        if end < len(END):
            self._held = data
            return b""
        whole, self._held = data[:end], data[end:]
        return b"".join(self._without_counts(whole)) if USAGE in whole else whole

    def finish(self) -> bytes:
        """The rest, at the end of the response."""
        held, self._held = self._held, b""
        if not self.stream:
            self._read(b"".join(self._parts))
        return held

    def _without_counts(self, events: bytes) -> Iterator[bytes]:
        for event in events.split(END)[:-1]:
            counted = USAGE in event and self._read(event[event.find(b"{") :])
            if not (counted and self.strip):
                yield event + END

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
