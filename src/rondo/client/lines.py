"""Lines out of bytes as they come."""

from __future__ import annotations


class LineSplitter:
    """They end at newlines alone: other separators of Unicode's may stand inside a server-sent event."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def push(self, data: bytes) -> list[bytes]:
        """Returns the complete lines."""
        *ended, rest = data.split(b"\n")
        if ended:
            ended[0] = b"".join([*self._parts, ended[0]])
            self._parts = []
        self._parts.append(rest)
        return [line.removesuffix(b"\r") for line in ended]
