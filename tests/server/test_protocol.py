"""Bytes in and out: answers in one packet, framing that is bounded, and who hangs up in the middle."""

import asyncio
import json
import socket
from contextlib import closing, suppress
from urllib.parse import urlsplit

import pytest
from starlette.requests import ClientDisconnect

from rondo.web.http import unless_gone
from rondo.web.sockets.protocol import MOST_HEAD
from support.waiting import run

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


def ask(url, sent):
    """The first packet of the answer."""
    address = urlsplit(url)
    with closing(socket.create_connection((address.hostname, address.port), timeout=20)) as connection:
        connection.sendall(sent)
        return connection.recv(65536)


def test_head_and_body_of_an_answer_are_one_packet(running):
    for _ in range(5):
        answer = ask(running.url, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert answer.endswith(b'\r\n\r\n{"status":"ok"}')


def test_a_body_may_come_byte_by_byte(running):
    body = json.dumps({"model": "tiny", "prompt": "abc", "max_tokens": 1}).encode() + b" " * (MOST_HEAD // 4)
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    answer = ask(running.url, HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("rest", [b"X-A: b\r\n", b"a" * 8], ids=["many", "long"])
def test_a_head_that_does_not_end_is_refused(running, rest):
    sent = b"GET /health HTTP/1.1\r\nHost: x\r\nX-A: " + rest * (MOST_HEAD // 2)
    with suppress(ConnectionResetError, BrokenPipeError):  # it may hang up before it has read all of it
        assert ask(running.url, sent).startswith(b"HTTP/1.1 400 ")


class Work:
    """Lasts until it is cancelled, and says so."""

    def __init__(self):
        self.begun = asyncio.Event()
        self.cancelled = False

    async def __call__(self):
        self.begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.cancelled = True
            raise


def test_work_for_a_client_that_hangs_up_is_cancelled_and_its_task_goes_on():
    async def main():
        work = Work()

        async def receive():
            await work.begun.wait()
            return {"type": "http.disconnect"}

        with pytest.raises(ClientDisconnect):
            await unless_gone(receive, work())
        assert work.cancelled
        assert asyncio.current_task().cancelling() == 0
        await asyncio.sleep(0)

    run(main())


def test_who_cancels_the_asker_is_heard():
    async def main():
        work = Work()
        task = asyncio.create_task(unless_gone(asyncio.Event().wait, work()))
        await work.begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert work.cancelled

    run(main())
