"""Connections to engines: few are opened at a time, a failure ends the wait of those behind it, idle ones are used
again, and a body is held within bounds."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from gateway.stub import Stub, served
from rondo.gateway.config import GatewayConfig
from rondo.gateway.proxy import pool, upstream
from rondo.gateway.proxy.connection import MOST_HELD, EngineFailure, HungUp
from rondo.gateway.proxy.pool import EngineConnections

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of connections to an engine that are opened at the same time; all fail."""
    counts: list[int] = []
    under_way = 0

    async def create(*_: Any, **options: Any) -> Any:
        nonlocal under_way
        under_way += 1
        counts.append(under_way)
        await asyncio.sleep(0.01)
        under_way -= 1
        raise OSError("down")

    monkeypatch.setattr(pool, "OPENING", 3)
    monkeypatch.setattr(asyncio.BaseEventLoop, "create_connection", create)
    return counts


def test_a_failure_ends_the_wait_of_the_others_and_later_requests_try_again(opened: list[int]) -> None:
    async def run() -> list[Any]:
        engines, found = EngineConnections(5, 5), []
        for _ in range(2):
            posts = [engines.post("http://down:1", "/", [], b"") for _ in range(20)]
            found += await asyncio.gather(*posts, return_exceptions=True)
        await engines.close()
        return found

    assert all(isinstance(each, EngineFailure) for each in asyncio.run(run()))
    assert len(opened) == 6
    assert max(opened) == 3


def test_checks_do_not_wait_for_the_connections_of_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(self: EngineConnections, engine: object) -> Any:
        await asyncio.sleep(3600)

    monkeypatch.setattr(EngineConnections, "_open", hang)

    async def run(url: str) -> Any:
        engines = upstream.Upstream(GatewayConfig(stall_seconds=60))
        post = asyncio.create_task(engines.post(url, "/v1/completions", b"{}", [], "r"))
        await asyncio.sleep(0.01)
        load = await engines.get_json(url + "/load")
        post.cancel()
        await asyncio.gather(post, return_exceptions=True)
        await engines.close()
        return load

    with served(Stub()) as stub:
        assert asyncio.run(run(stub.url))["running"] == 0


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(6000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("the condition was not met")


def with_engine(answer: Answer, work: Callable[[EngineConnections, str], Awaitable[None]]) -> int:
    """Number of connections that the engine accepted during `work`."""
    accepted = 0

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal accepted
        accepted += 1
        try:
            await answer(reader, writer)
        finally:
            writer.close()

    async def run() -> None:
        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        engines = EngineConnections(60, 60)
        await work(engines, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        await engines.close()
        server.close()

    asyncio.run(run())
    return accepted


async def answer_each(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.readline():
        await reader.readuntil(b"\r\n\r\n")
        writer.write(WHOLE)


async def body_of(engines: EngineConnections, url: str) -> bytes:
    response = await engines.post(url, "/v1/completions", [], b"")
    parts, last = [], False
    while not last:
        part, last = await response.read()
        parts.append(part)
    response.close()
    return b"".join(parts)


def test_idle_connections_are_used_again() -> None:
    async def work(engines: EngineConnections, url: str) -> None:
        for _ in range(5):
            assert await asyncio.gather(*(body_of(engines, url) for _ in range(3))) == [b"{}"] * 3

    assert with_engine(answer_each, work) == 3


def test_a_connection_closed_as_a_request_is_sent_on_it_is_told_from_a_failure() -> None:
    async def answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(WHOLE)
        await reader.readline()

    async def work(engines: EngineConnections, url: str) -> None:
        assert await body_of(engines, url) == b"{}"
        with pytest.raises(HungUp):
            await body_of(engines, url)

    assert with_engine(answer_once, work) == 1


def test_bytes_after_a_response_end_the_connection() -> None:
    async def answer_twice(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(WHOLE)
        await writer.drain()
        writer.write(WHOLE)
        await reader.read()

    async def work(engines: EngineConnections, url: str) -> None:
        for _ in range(3):
            with suppress(EngineFailure):  # if both came in one packet
                assert await body_of(engines, url) == b"{}"
            await until(lambda: not any(each.usable for each in engines._connections))

    assert with_engine(answer_twice, work) == 3


def test_an_engine_is_not_read_faster_than_the_client_reads() -> None:
    written, ended = 0, asyncio.Event()

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while written < 64 << 20:
            writer.write(bytes(1 << 20))
            await writer.drain()
            written += 1 << 20
        ended.set()

    async def work(engines: EngineConnections, url: str) -> None:
        response = await engines.post(url, "/", [], b"")
        (connection,) = engines._connections
        await until(lambda: connection.paused)
        assert connection._held <= MOST_HELD + (256 << 10)
        connection.since -= 3600
        engines._tick()
        assert connection.usable  # the client is slow, not the engine
        assert not ended.is_set()
        size, last = 0, False
        while not last:
            part, last = await response.read()
            size += len(part)
        assert size == 64 << 20

    assert with_engine(flood, work) == 1
