"""Upstream of the gateway benchmarks: an OpenAI server without a model, cheap enough to be no limit.

Each chat request is answered after `--latency` seconds with the number in its prompt. A stream sends `max_tokens`
chunks, one each `--pace` seconds; a chunk contains the prompt's number, its own, and the time at which it was sent.
"""

import argparse
import heapq
import json
import re
import select
import socket
import time
from collections.abc import Iterator

NUMBER = re.compile(rb"number (\d+)")
LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
STREAM = re.compile(rb'"stream": *true')
COUNT = re.compile(rb'"max_(?:completion_)?tokens": *(\d+)')
COUNTED = re.compile(rb'"include_usage": *true')
USAGE = b'"usage":{"prompt_tokens":9,"completion_tokens":4,"total_tokens":13}'
ANSWER = (
    b'{"id":"chatcmpl-%d","object":"chat.completion","created":1700000000,"model":"m","choices":[{"index":0,"message":'
    b'{"role":"assistant","content":"number %d"},"finish_reason":"stop"}],' + USAGE + b"}"
)
EVENT = (
    b'data: {"id":"chatcmpl-%d","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[{'
    b'"index":0,"delta":{"content":"<%d %d %d>"},"finish_reason":null}]}\n\n'
)
COUNTS = b'data: {"id":"chatcmpl-%d","object":"chat.completion.chunk","created":1700000000,"model":"m","choices":[],'
END = b"data: [DONE]\n\n"
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
SMALL = {
    b"/v1/models": {
        "object": "list",
        "data": [{"id": "m", "object": "model", "created": 1, "owned_by": "x"}],
    },
    b"/load": {"running": 0, "waiting": 0},
    b"/health": {},
    b"/ready": {},
}


def response(body: bytes, status: bytes = b"200 OK") -> bytes:
    head = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % (status, len(body)) + body


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def requests(buffer: bytearray) -> Iterator[tuple[bytes, bytes]]:
    """Complete requests, removed from the buffer: request line and body."""
    while (end := buffer.find(b"\r\n\r\n")) >= 0:
        head = bytes(buffer[:end])
        length = LENGTH.search(head)
        if length is None and b"chunked" in head.lower():
            whole = buffer.find(b"\r\n0\r\n\r\n", end) + 7
            if whole < 7:
                return
        else:
            whole = end + 4 + (int(length[1]) if length else 0)
        if len(buffer) < whole:
            return
        body = bytes(buffer[end + 4 : whole])
        del buffer[:whole]
        yield head[: head.index(b"\r\n")], body


class Stub:
    def __init__(self, latency: float, pace: float) -> None:
        self.latency, self.pace = latency, pace
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
        self.listener.setblocking(False)
        self.poll = select.epoll()
        self.poll.register(self.listener.fileno(), select.EPOLLIN)
        self.connections: dict[int, tuple[socket.socket, bytearray]] = {}
        self.due: list[tuple[float, int, Iterator[bytes]]] = []

    def run(self) -> None:
        while True:
            wait = max(0.0, self.due[0][0] - time.perf_counter()) if self.due else -1
            for handle, _ in self.poll.poll(wait):
                if handle == self.listener.fileno():
                    self.accept()
                else:
                    self.read(handle)
            now = time.perf_counter()
            while self.due and self.due[0][0] <= now:
                due, handle, parts = heapq.heappop(self.due)
                part = next(parts, None)
                if part is not None and self.send(handle, part):
                    heapq.heappush(self.due, (due + self.pace, handle, parts))

    def accept(self) -> None:
        try:
            while True:
                connection, _ = self.listener.accept()
                connection.setblocking(False)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.connections[connection.fileno()] = connection, bytearray()
                self.poll.register(connection.fileno(), select.EPOLLIN)
        except BlockingIOError:
            pass

    def read(self, handle: int) -> None:
        connection, buffer = self.connections[handle]
        try:
            data = connection.recv(1 << 16)
        except OSError:
            data = b""
        if not data:
            self.close(handle)
            return
        buffer += data
        for line, body in requests(buffer):
            path = line.split(b" ")[1].partition(b"?")[0]
            if path == b"/v1/chat/completions":
                found = NUMBER.search(body)
                number = int(found[1]) if found else 0
                streams = STREAM.search(body) is not None
                due = time.perf_counter() + self.latency + streams * self.pace * (number * 0.618 % 1)
                parts = self.stream(body, number) if streams else self.answer(number)
                heapq.heappush(self.due, (due, handle, self.while_open(parts, handle, connection)))
            elif path in SMALL:
                self.send(handle, response(json.dumps(SMALL[path]).encode()))
            else:
                self.send(handle, response(b"{}", b"404 Not Found"))

    def while_open(self, parts: Iterator[bytes], handle: int, connection: socket.socket) -> Iterator[bytes]:
        """Ends with the connection, whose number the system may give to another one."""
        for part in parts:
            found = self.connections.get(handle)
            if found is None or found[0] is not connection:
                return
            yield part

    def answer(self, number: int) -> Iterator[bytes]:
        yield response(ANSWER % (number, number))

    def stream(self, body: bytes, number: int) -> Iterator[bytes]:
        count = COUNT.search(body)
        head = STREAM_HEAD
        for index in range(int(count[1]) if count else 16):
            yield head + chunk(EVENT % (number, number, index, int(time.perf_counter() * 1e6)))
            head = b""
        if COUNTED.search(body):
            yield chunk(COUNTS % number + USAGE + b"}\n\n")
        yield chunk(END) + b"0\r\n\r\n"

    def send(self, handle: int, data: bytes) -> bool:
        """Answers are small: a full buffer means that the client has stopped reading."""
        if handle not in self.connections:
            return False
        try:
            if self.connections[handle][0].send(data) == len(data):
                return True
        except OSError:
            pass
        self.close(handle)
        return False

    def close(self, handle: int) -> None:
        connection, _ = self.connections.pop(handle)
        connection.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--latency", type=float, default=0.02)
    parser.add_argument("--pace", type=float, default=0.1)
    options = parser.parse_args()
    stub = Stub(options.latency, options.pace)
    print(f"http://127.0.0.1:{stub.listener.getsockname()[1]}", flush=True)
    stub.run()


if __name__ == "__main__":
    main()
