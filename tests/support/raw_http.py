"""HTTP as bytes: requests that no client library sends, and engines that answer with any bytes."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from support.waiting import scaled

MODELS = b'{"data":[{"id":"m","object":"model"}]}'


def connect(url: str) -> socket.socket:
    address = urlsplit(url)
    return socket.create_connection((address.hostname, address.port), timeout=scaled(60))


def request(
    body: bytes = b'{"model":"m"}',
    *more: bytes,
    method: bytes = b"POST",
    path: bytes = b"/v1/completions",
    host: bytes = b"localhost",
    length: int | None = None,
) -> bytes:
    """`more` are header lines."""
    lines = [b"%s %s HTTP/1.1" % (method, path), b"Host: " + host, b"Content-Type: application/json", *more]
    if not any(line.lower().startswith(b"transfer-encoding") for line in more):
        lines.append(b"Content-Length: %d" % (len(body) if length is None else length))
    return b"\r\n".join([*lines, b"", b""]) + body


def read_all(connection: socket.socket) -> bytes:
    """All bytes until the end of the connection, also one that is reset."""
    parts = []
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


def exchange(url: str, sent: bytes) -> tuple[int, bytes]:
    """Status and body of the response to bytes, after which the client half-closes; status 0 without a response."""
    with closing(connect(url)) as connection:
        with contextlib.suppress(OSError):  # the server may have answered and closed the connection
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
        return parsed(read_all(connection))


def parsed(answer: bytes) -> tuple[int, bytes]:
    while answer.startswith(b"HTTP/1.1 100"):
        answer = answer.partition(b"\r\n\r\n")[2]
    head, _, body = answer.partition(b"\r\n\r\n")
    return (int(head.split(b" ", 2)[1]) if head else 0), body


def response(
    body: bytes = b"{}", *more: bytes, status: bytes = b"200 OK", length: int | None = None
) -> bytes:
    size = len(body) if length is None else length
    lines = [b"HTTP/1.1 " + status, b"Content-Type: application/json", b"Content-Length: %d" % size, *more]
    return b"\r\n".join([*lines, b"", b""]) + body


@dataclass
class RawEngine:
    """An engine whose health checks succeed, and whose answers to POST are bytes: `answer` writes them."""

    url: str
    answer: Callable[[socket.socket], None]
    posts: int = 0
    gets: dict[bytes, bytes] = field(default_factory=dict)
    """Responses to other paths than `/v1/models`."""


@contextmanager
def raw_engine(answer: bytes | Callable[[socket.socket], None] = b"") -> Iterator[RawEngine]:
    """After the answer the engine closes the connection."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    write = (lambda connection: connection.sendall(answer)) if isinstance(answer, bytes) else answer
    engine = RawEngine(f"http://127.0.0.1:{listener.getsockname()[1]}", write)
    open_connections: list[socket.socket] = []

    def serve(connection: socket.socket) -> None:
        with closing(connection), contextlib.suppress(OSError):
            while head := _read_request(connection):
                path = head.split(b" ", 2)[1]
                if head.startswith(b"POST"):
                    engine.posts += 1
                    engine.answer(connection)
                    return
                found = response(MODELS) if path == b"/v1/models" else response(status=b"404 Not Found")
                if path in (b"/ready", b"/health"):
                    found = response()
                connection.sendall(engine.gets.get(path, found))

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            open_connections.append(connection)
            threading.Thread(target=serve, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield engine
    finally:
        listener.close()
        for connection in open_connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def _read_request(connection: socket.socket) -> bytes:
    """The head of the next request; its body is read and dropped."""
    data = b""
    while b"\r\n\r\n" not in data:
        part = connection.recv(65536)
        if not part:
            return b""
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    for line in head.split(b"\r\n"):
        if line.lower().startswith(b"content-length:"):
            left = int(line.partition(b":")[2]) - len(body)
            while left > 0:
                left -= len(connection.recv(65536))
    return head
