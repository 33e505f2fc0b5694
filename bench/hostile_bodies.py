"""What a hostile request body costs the other clients: token gap of a stream, delay of /health, and memory afterwards.

A server in a process of its own streams one answer at a token every 10 ms. Meanwhile a second client sends one body of
64 MB, or of the largest size that the server accepts, of each kind to each route. For each body the table lists the
status of the answer, the longest gap between two tokens of the stream, the slowest answer of `/health`, and how much
the memory of the server and its child processes has grown half a second after the answer. The client of the stream
shares two cores with the server here, so gaps contain its own delays: the first row has no hostile body at all.
"""

import argparse
import contextlib
import json
import os
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from common import arguments, say
from server_cost import TINY, served
from small_model import write_small_model

CONTEXT = 8192
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


def _filled(head: str, unit: str, tail: str, size: int) -> bytes:
    """`head`, as many of `unit` as fit (the last without its comma), and `tail`."""
    count = (size - len(head) - len(tail)) // len(unit)
    return (head + (unit * count).removesuffix(",") + tail).encode()


def _messages(size: int) -> bytes:
    return _filled('{"model":"model","messages":[', '{"role":"user","content":"a"},', "]}", size)


def _ids(field: str) -> Callable[[int], bytes]:
    return lambda size: _filled(f'{{"model":"model","{field}":[', "77,", "]}", size)


def _text(field: str) -> Callable[[int], bytes]:
    return lambda size: _filled(f'{{"model":"model","{field}":"', "a b ", '"}', size)


def _many(field: str, more: str = "") -> Callable[[int], bytes]:
    return lambda size: _filled(f'{{"model":"model",{more}"{field}":[', '"a",', "]}", size)


def _nested(size: int) -> bytes:
    return b'{"model":"model","prompt":' + b"[" * (size - 40) + b"]}"


def _objects(size: int) -> bytes:
    head = '{"model":"model","messages":[{"role":"user","content":"a"}],"chat_template_kwargs":{"a":['
    return _filled(head, '{"b":[{}]},', "]}}", size)


def _numbers(size: int) -> bytes:
    return _filled('{"model":"model","prompt":[', "9" * 4000 + ",", "]}", size)


def _escapes(size: int) -> bytes:
    return _filled('{"model":"model","prompt":"', "\\u00e9", '"}', size)


BODIES: dict[str, tuple[str, Callable[[int], bytes]]] = {
    "token ids": (COMPLETIONS, _ids("prompt")),
    "short messages": (CHAT, _messages),
    "one long text": (COMPLETIONS, _text("prompt")),
    "nested arrays": (COMPLETIONS, _nested),
    "many prompts": (COMPLETIONS, _many("prompt")),
    "numbers of 4,000 digits": (COMPLETIONS, _numbers),
    "escaped characters": (COMPLETIONS, _escapes),
    "nested objects": (CHAT, _objects),
    "input items": ("/v1/responses", lambda size: _messages(size).replace(b'"messages"', b'"input"', 1)),
    "text to tokenize": ("/tokenize", _text("prompt")),
    "tokens to detokenize": ("/detokenize", _ids("tokens")),
    "token ids to embed": ("/v1/embeddings", _ids("input")),
    "texts to embed": ("/v1/embeddings", _many("input")),
    "texts to score": ("/score", _many("text_2", '"text_1":"a",')),
    "documents to rerank": ("/rerank", _many("documents", '"query":"a",')),
}
FIVE = tuple(BODIES)[:5]


class Server:
    def __init__(self, url: str, pid: int) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        self.address = (parts.hostname, parts.port)
        self.pid = pid

    def send(self, path: str, body: bytes, seconds: float = 300) -> tuple[int, bytes]:
        """(the status, or 0 where the connection broke first; the answer)."""
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
        with socket.create_connection(self.address, timeout=seconds) as connection:
            with contextlib.suppress(ConnectionError):
                connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode())
                connection.sendall(body)
            answer = b""
            with contextlib.suppress(ConnectionError):
                while part := connection.recv(1 << 16):
                    answer += part
        return (int(answer[9:12]) if answer[:5] == b"HTTP/" else 0), answer

    def health(self) -> float:
        start = time.perf_counter()
        with socket.create_connection(self.address, timeout=300) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            while connection.recv(4096):
                pass
        return time.perf_counter() - start

    def memory(self) -> float:
        """MiB of the process and of its child processes."""
        pids, found = [self.pid], [self.pid]
        while pids:
            pids = [child for pid in pids for child in _children(pid)]
            found += pids
        return sum(map(_resident, found))

    def gaps(self, work: Callable[[], None]) -> tuple[float, float]:
        """(the longest gap of a stream, the slowest /health), seconds, while `work` is done and shortly afterwards."""
        times: list[float] = []
        delays: list[float] = []
        ended = threading.Event()

        def read() -> None:
            body = {"model": "model", "prompt": [77] * 8, "max_tokens": CONTEXT - 16, "stream": True}
            body |= {"ignore_eos": True, "seed": 0, "return_token_ids": True}
            data = json.dumps(body).encode()
            head = f"POST {COMPLETIONS} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            with socket.create_connection(self.address, timeout=300) as connection:
                connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
                while not ended.is_set() and connection.recv(1 << 16):
                    times.append(time.perf_counter())

        def probe() -> None:
            while not ended.wait(0.05):
                delays.append(self.health())

        threads = [threading.Thread(target=one) for one in (read, probe)]
        for thread in threads:
            thread.start()
        try:
            while len(times) < 30:
                time.sleep(0.01)
            begun = time.perf_counter()
            work()
            time.sleep(0.5)
        finally:
            ended.set()
            for thread in threads:
                thread.join()
        stops = [at for at in times if at >= begun]
        return max(b - a for a, b in zip([begun, *stops], stops, strict=False)), max(delays)


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        tasks = [Path(f"/proc/{pid}/task/{task}/children") for task in os.listdir(f"/proc/{pid}/task")]
        return [int(child) for task in tasks for child in task.read_text().split()]
    return []


def _resident(pid: int) -> float:
    with contextlib.suppress(OSError, IndexError):
        return float(Path(f"/proc/{pid}/status").read_text().split("RssAnon:")[1].split()[0]) / 1024
    return 0.0


def rows(
    server: Server, size: int, names: list[str]
) -> Iterator[tuple[str, int, float, float, float, float]]:
    """Of each body: name, status, seconds until the answer, longest gap, slowest /health, MiB of growth."""
    server.gaps(lambda: time.sleep(0.5))
    gap, health = server.gaps(lambda: time.sleep(2))
    yield "no hostile body", 200, 2.0, gap, health, 0.0
    for name in names:
        path, make = BODIES[name]
        body = make(size)
        before, status, seconds = server.memory(), 0, 0.0

        def work(path: str = path, body: bytes = body) -> None:
            nonlocal status, seconds
            start = time.perf_counter()
            status, _ = server.send(path, body)
            seconds = time.perf_counter() - start

        gap, health = server.gaps(work)
        yield name, status, seconds, gap, health, server.memory() - before


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--mb", type=float, default=64, help="size of each body")
    parser.add_argument("--kinds", default="all", help="five, all, or names with commas between them")
    parser.add_argument("--limit-mb", type=float, help="what server.max_body_bytes is raised to")
    own, rest = parser.parse_known_args()
    options = arguments(__doc__.splitlines()[0], rest)
    names = {"five": list(FIVE), "all": list(BODIES)}.get(own.kinds) or own.kinds.split(",")
    size = int((1 if options.quick else own.mb) * 1e6)
    found = []
    with tempfile.TemporaryDirectory() as root:
        folder = write_small_model(Path(root) / "small", **TINY, max_position_embeddings=CONTEXT)
        raised = [f"--max-body-bytes={int(own.limit_mb * 1e6)}"] if own.limit_mb else []
        with served(folder, "--pace=0.01", *raised) as (url, process):
            say(f"serving at {url}")
            print(f"{'body of %g MB' % (size / 1e6):28}status  answer s  token gap s  health s  memory MiB")
            for name, status, seconds, gap, health, grown in rows(Server(url, process.pid), size, names):
                print(f"{name:28}{status:6}{seconds:10.2f}{gap:13.3f}{health:10.3f}{grown:12.0f}", flush=True)
                found.append({"body": name, "status": status, "gap_s": gap, "health_s": health, "mib": grown})
    if options.json:
        print(json.dumps({"name": "hostile_bodies", "bytes": size, "rows": found}))


if __name__ == "__main__":
    main()
