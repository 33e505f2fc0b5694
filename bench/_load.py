"""Load generator of the gateway benchmarks, cheap enough to be no limit. It prints one JSON object.

`--requests N`: each of `--concurrency` connections sends one request after the other, and every answer must contain the
number of its request. `--streams`: each connection reads one stream, whose chunks must be its own, in order and
complete.
"""

import argparse
import json
import re
import select
import socket
import time
from array import array
from urllib.parse import urlsplit

BODY = b'{"model":"m","messages":[{"role":"user","content":"number %010d%s"}],"max_tokens":%d,"stream":%s}'
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
CONTENT = re.compile(rb'"content": ?"number (\d+)"')
PART = re.compile(rb"<(\d+) (\d+) (\d+)>")
LAST = b"\r\n0\r\n\r\n"
QUIET_SECONDS = 60.0
"""Longest time without any data."""


class Connection:
    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address)
        self.socket.setblocking(False)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = bytearray()
        self.number = 0
        self.began = 0.0
        self.headed = False
        self.next = 0
        self.rest = b""

    def ask(self, request: bytes, number: int) -> None:
        self.number, self.began = number, time.perf_counter()
        if self.socket.send(request) != len(request):
            raise SystemExit("the server does not read requests")

    def read(self) -> bool:
        """Whether the connection is still open."""
        try:
            data = self.socket.recv(1 << 16)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self.buffer += data
        return bool(data)

    def whole(self) -> bytes | None:
        """The next complete response, removed from the buffer."""
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return None
        head = bytes(self.buffer[: end + 2])
        length = LENGTH.search(head)
        size = end + 4 + int(length[1]) if length else self.buffer.find(LAST, end) + len(LAST)
        if size < len(LAST) or len(self.buffer) < size:
            return None
        answer = bytes(self.buffer[:size])
        del self.buffer[:size]
        return answer

    def body(self) -> bytes:
        """Data of the complete chunks of a stream's body, removed from the buffer."""
        if not self.headed:
            end = self.buffer.find(b"\r\n\r\n")
            if end < 0:
                return b""
            if not CHUNKED.search(self.buffer[: end + 2]):
                raise SystemExit(f"not a stream: {bytes(self.buffer[:500])!r}")
            del self.buffer[: end + 4]
            self.headed = True
        parts = []
        while (line := self.buffer.find(b"\r\n")) >= 0:
            size = int(self.buffer[:line], 16)
            if len(self.buffer) < line + size + 4:
                break
            parts.append(bytes(self.buffer[line + 2 : line + 2 + size]))
            del self.buffer[: line + size + 4]
        return b"".join(parts)


class Load:
    def __init__(self, options: argparse.Namespace) -> None:
        parts = urlsplit(options.url)
        self.address = (str(parts.hostname), int(parts.port or 80))
        self.filler = b"x" * options.prompt
        self.chunks = options.chunks
        key = f"Authorization: Bearer {options.key}\r\n" if options.key else ""
        self.head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n{key}"
        ).encode()
        self.stream = options.streams
        self.poll = select.epoll()
        self.connections: dict[int, Connection] = {}
        self.times = array("d")
        self.errors = 0
        self.first_error = ""
        for _ in range(options.concurrency):
            connection = Connection(self.address)
            self.connections[connection.socket.fileno()] = connection
            self.poll.register(connection.socket.fileno(), select.EPOLLIN)

    def request(self, number: int) -> bytes:
        body = BODY % (number, self.filler, self.chunks, b"true" if self.stream else b"false")
        return b"%sContent-Length: %d\r\n\r\n%s" % (self.head, len(body), body)

    def fail(self, reason: object) -> None:
        self.errors += 1
        self.first_error = self.first_error or str(reason)[:300]

    def run_requests(self, count: int) -> None:
        sent = done = 0
        for connection in self.connections.values():
            sent += 1
            connection.ask(self.request(sent), sent)
        while done < count and self.connections:
            for handle, _ in self.events():
                connection = self.connections[handle]
                is_open = connection.read()
                answer = connection.whole()
                if answer is None:
                    if not is_open:
                        done += 1
                        self.fail("a connection was closed")
                        self.drop(handle)
                    continue
                done += 1
                self.times.append(time.perf_counter() - connection.began)
                found = CONTENT.search(answer)
                if found is None or int(found[1]) != connection.number:
                    self.fail(answer)
                if sent < count:
                    sent += 1
                    connection.ask(self.request(sent), sent)

    def run_streams(self) -> None:
        for number, connection in enumerate(self.connections.values(), 1):
            connection.ask(self.request(number), number)
        while self.connections:
            for handle, _ in self.events():
                connection = self.connections[handle]
                is_open = connection.read()
                now = time.perf_counter() * 1e6
                data = connection.rest + connection.body()
                for number, index, at in PART.findall(data):
                    if int(number) != connection.number or int(index) != connection.next:
                        self.fail(f"stream {connection.number} chunk {connection.next}: {number} {index}")
                    connection.next += 1
                    self.times.append((now - int(at)) / 1e6)
                cut = data.rfind(b"\n\n") + 2
                connection.rest = data[cut:] if cut > 1 else data
                ended = b"data: [DONE]" in data
                if ended or not is_open:
                    if not ended or connection.next != self.chunks:
                        self.fail(f"stream {connection.number} ended after {connection.next} chunks")
                    self.drop(handle)

    def events(self) -> list[tuple[int, int]]:
        found = self.poll.poll(QUIET_SECONDS)
        if not found:
            raise SystemExit(f"no data for {QUIET_SECONDS:g} s")
        return found

    def drop(self, handle: int) -> None:
        self.poll.unregister(handle)
        self.connections.pop(handle).socket.close()


def quantile(values: array, share: float) -> float:
    return values[min(len(values) - 1, int(share * len(values)))] if values else 0.0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--concurrency", type=int, default=1)
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--streams", action="store_true")
    parser.add_argument("--chunks", type=int, default=16)
    parser.add_argument("--prompt", type=int, default=200)
    parser.add_argument("--key", default="")
    options = parser.parse_args()
    load = Load(options)
    begun, cpu = time.perf_counter(), time.process_time()
    if options.streams:
        load.run_streams()
    else:
        load.run_requests(options.requests)
    seconds = time.perf_counter() - begun
    times = array("d", sorted(load.times))
    figures = {
        "count": len(times),
        "seconds": seconds,
        "rate": len(times) / seconds,
        "p50": quantile(times, 0.5),
        "p99": quantile(times, 0.99),
        "longest": quantile(times, 1.0),
        "errors": load.errors,
        "first_error": load.first_error,
        "cpu": time.process_time() - cpu,
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
