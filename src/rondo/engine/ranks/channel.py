"""Pickled messages over a socket, between a process and its child process."""

from __future__ import annotations

import pickle
import socket
import threading
from typing import Any

LENGTH = 8


class Channel:
    def __init__(self, own: socket.socket) -> None:
        self._socket = own
        self._sending = threading.Lock()

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: object, seconds: float | None = None) -> None:
        """Raises `TimeoutError` if the peer does not receive the message in time, and another `OSError` if the peer is
        gone."""
        data = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        with self._sending:
            self._socket.settimeout(seconds)
            self._socket.sendall(len(data).to_bytes(LENGTH, "little") + data)

    def receive(self) -> Any:
        """Waits for the next message; raises `EOFError` if the peer is gone."""
        return pickle.loads(self._exactly(int.from_bytes(self._exactly(LENGTH), "little")))

    def close(self) -> None:
        self._socket.close()

    def _exactly(self, size: int) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        while view:
            count = self._socket.recv_into(view)
            if count == 0:
                raise EOFError
            view = view[count:]
        return data
