"""Messages over a pair of pipes: four bytes of length, then JSON."""

import json
import os
import struct
from typing import Any

MOST_BYTES = 8 << 20
"""Maximum bytes of one message. A peer that sends more, or malformed JSON, is treated as ended."""


class PeerLost(BaseException):
    """The other process has ended or sends malformed messages.

    Not an `Exception`, so that the end of a program is not one of its exceptions.
    """


class MessagePipe:
    def __init__(self, reads: int, writes: int) -> None:
        self._reads, self._writes = reads, writes

    def send(self, message: Any) -> None:
        data = json.dumps(message).encode()
        if len(data) > MOST_BYTES:
            raise ValueError(
                f"a value takes {len(data)} bytes; {MOST_BYTES} are the most that can be passed on"
            )
        data = struct.pack("=I", len(data)) + data
        while data:
            try:
                data = data[os.write(self._writes, data) :]
            except OSError:
                raise PeerLost("the program has ended") from None

    def receive(self) -> Any:
        [length] = struct.unpack("=I", self._read(4))
        if length > MOST_BYTES:
            self._reads = -1  # message boundaries are lost
            raise PeerLost(f"the program sent a message of {length} bytes")
        try:
            return json.loads(self._read(length))
        except (ValueError, RecursionError):
            raise PeerLost("the program sent an unreadable message") from None

    def _read(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            try:
                part = os.read(self._reads, count - len(data))
            except OSError:
                part = b""
            if not part:
                raise PeerLost("the program has ended")
            data += part
        return bytes(data)
