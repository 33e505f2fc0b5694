"""Shutdown of a gateway: bounded, with a reply to each request under way."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from gateway.stub import RunningGateway, Stub, gateway_of, served
from rondo.gateway.app import Gateway
from rondo.gateway.config import GatewayConfig
from support.raw_http import connect, read_all
from support.stores import new_store
from support.waiting import wait_until


@pytest.fixture
def running(tmp_path: Path) -> Iterator[RunningGateway]:
    with served(Stub()) as stub, gateway_of([stub.url], tmp_path) as gateway:
        yield gateway


def drain(gateway: RunningGateway, seconds: float = 30) -> threading.Thread:
    future = asyncio.run_coroutine_threadsafe(gateway.gateway.drain(seconds), gateway.loop)
    thread = threading.Thread(target=future.result)
    thread.start()
    return thread


def test_probes_of_readiness_fail_while_the_gateway_shuts_down(running: RunningGateway) -> None:
    def status(path: str) -> int:
        return httpx.get(running.url + path).status_code

    paths = ("/ready", "/v1/health/ready", "/v1/health", "/health", "/v1/health/live")
    assert [status(path) for path in paths] == [200] * 5
    drain(running).join(60)
    assert [status(path) for path in paths] == [503, 503, 503, 200, 200]
    report = httpx.get(running.url + "/v1/health").json()
    assert report["components"]["gateway"]["status"] == "shutting_down"


def test_event_streams_end_when_the_gateway_shuts_down(running: RunningGateway) -> None:
    with httpx.stream("GET", running.url + "/v1/engines/events", timeout=60) as response:
        parts = response.iter_text()
        first = next(parts)
        assert "event: engines\n" in first
        assert "event: queue\n" in first
        drain(running).join(60)
        assert all(part.startswith("event: engines") for part in parts)  # and then it ends


def test_an_upload_under_way_is_finished_before_the_gateway_ends(running: RunningGateway) -> None:
    boundary = b"xyz"
    form = b'--xyz\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n--xyz\r\n'
    form += b'Content-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n{}\n\r\n--xyz--\r\n'
    head = b"POST /v1/files HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    head += b"Content-Type: multipart/form-data; boundary=%s\r\nContent-Length: %d\r\n\r\n" % (
        boundary,
        len(form),
    )
    with closing(connect(running.url)) as connection:
        connection.sendall(head + form[:80])
        wait_until(lambda: running.gateway.own._active)
        drained = drain(running)
        drained.join(0.5)
        assert drained.is_alive()
        connection.sendall(form[80:])
        assert read_all(connection).startswith(b"HTTP/1.1 200")
        drained.join(60)
        assert not drained.is_alive()


def test_an_upload_that_does_not_end_is_waited_for_in_bounds(running: RunningGateway) -> None:
    with closing(connect(running.url)) as connection:
        connection.sendall(b"POST /v1/keys HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{")
        wait_until(lambda: running.gateway.own._active)
        drained = drain(running, 0.1)
        drained.join(60)
        assert not drained.is_alive()


@pytest.mark.parametrize(
    "path", ["/health", "/ready", "/v1/health", "/v1/health/live", "/v1/health/keepalive"]
)
def test_probes_allow_head(running: RunningGateway, path: str) -> None:
    response = httpx.head(running.url + path)
    assert (response.status_code, response.content) == (200, b"")


def test_a_part_that_does_not_close_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("rondo.gateway.app.CLOSE_SECONDS", 0.05)

    async def use() -> bool:
        store = new_store(tmp_path / "rondo.db")
        gateway = Gateway(GatewayConfig(port=0), store)
        hung = asyncio.Event()
        monkeypatch.setattr(gateway.evals, "close", hung.wait)
        end = gateway.evals._task
        async with asyncio.timeout(30):
            await gateway.close()
        closed = gateway.upstream._checks.closed
        hung.set()
        end.cancel()
        store.close()
        return closed

    assert asyncio.run(use())
    assert [record.part for record in caplog.records if "did not close" in record.message] == ["EvalRunner"]
