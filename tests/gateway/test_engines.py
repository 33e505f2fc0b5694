"""Registrations and drains by API: they are in the store, outlast a gateway, and reach other gateways of the store."""

import asyncio
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa

from gateway.stub import RunningGateway, Stub, gateway_of, served
from rondo.base.errors import Unavailable
from rondo.control.store.pending import failed
from rondo.control.store.store import Store
from rondo.control.tables import engines
from support.waiting import wait_until


@pytest.fixture(scope="module")
def stubs() -> Iterator[list[Stub]]:
    with served(Stub()) as first, served(Stub()) as second:
        yield [first, second]


def id_of(stub: Stub) -> str:
    return stub.url.removeprefix("http://")


def states(gateway: RunningGateway) -> dict[str, str]:
    rows = httpx.get(gateway.url + "/v1/engines", timeout=60).json()["data"]
    return {row["id"]: row["state"] for row in rows}


def register(gateway: RunningGateway, stub: Stub) -> httpx.Response:
    return httpx.post(gateway.url + "/v1/engines", json={"url": stub.url}, timeout=60)


def remove(gateway: RunningGateway, stub: Stub) -> httpx.Response:
    return httpx.delete(f"{gateway.url}/v1/engines/{id_of(stub)}", timeout=60)


def set_draining(gateway: RunningGateway, stub: Stub, verb: str) -> str:
    answer = httpx.post(f"{gateway.url}/v1/engines/{id_of(stub)}/{verb}", timeout=60)
    assert answer.status_code == 200, answer.text
    return str(answer.json()["state"])


def answering(gateway: RunningGateway) -> set[str]:
    body = {"model": "m", "prompt": "x"}
    answers = [httpx.post(gateway.url + "/v1/completions", json=body, timeout=60) for _ in range(4)]
    return {answer.json()["from"] for answer in answers if answer.status_code == 200}


def stored(store: Store) -> list[tuple[str, str | None, bool]]:
    wanted = sa.select(engines.c.id, engines.c.url, engines.c.draining)
    return [tuple(row) for row in store.read(lambda db: db.execute(wanted).all()).result()]


def test_registrations_and_drains_outlast_a_gateway(stubs: list[Stub], tmp_path: Path) -> None:
    first, second = stubs
    with gateway_of([first.url], tmp_path) as gateway:
        assert register(gateway, second).status_code == 201
        wait_until(lambda: states(gateway)[id_of(second)] == "ready")
        assert set_draining(gateway, first, "drain") == "draining"
    with gateway_of([first.url], tmp_path) as gateway:
        assert states(gateway) == {id_of(first): "draining", id_of(second): "ready"}
        assert answering(gateway) == {second.url}
        assert register(gateway, second).status_code == 409
        set_draining(gateway, second, "drain")
        assert set_draining(gateway, first, "resume") == "ready"
    with gateway_of([first.url], tmp_path) as gateway:
        assert states(gateway) == {id_of(first): "ready", id_of(second): "draining"}
        assert answering(gateway) == {first.url}
        assert remove(gateway, second).status_code == 200
        assert stored(gateway.store) == []
    with gateway_of([first.url], tmp_path) as gateway:
        assert states(gateway) == {id_of(first): "ready"}


def test_a_removed_engine_is_registered_again_without_its_drain(stubs: list[Stub], tmp_path: Path) -> None:
    """The removal of a configured engine ends with the gateway, and does not end its drain."""
    first, second = stubs
    with gateway_of([first.url], tmp_path) as gateway:
        for stub in stubs:
            register(gateway, stub)
            set_draining(gateway, stub, "drain")
            assert remove(gateway, stub).status_code == 200
            assert remove(gateway, stub).status_code == 404
        assert register(gateway, second).status_code == 201
        wait_until(lambda: states(gateway) == {id_of(second): "ready"})
    with gateway_of([first.url], tmp_path) as gateway:
        assert states(gateway) == {id_of(first): "draining", id_of(second): "ready"}


def test_gateways_of_one_store_share_registrations_and_drains(stubs: list[Stub], tmp_path: Path) -> None:
    first, second = stubs
    with gateway_of([first.url], tmp_path) as one, gateway_of([first.url], tmp_path) as other:
        register(one, second)
        assert register(other, second).status_code == 409, "it is read from the store before it is compared"
        wait_until(lambda: states(other) == {id_of(first): "ready", id_of(second): "ready"})
        set_draining(one, first, "drain")
        wait_until(lambda: states(other)[id_of(first)] == "draining")
        assert answering(other) == {second.url}
        set_draining(other, first, "resume")
        wait_until(lambda: states(one)[id_of(first)] == "ready")
        remove(other, second)
        wait_until(lambda: states(one) == {id_of(first): "ready"})
        register(other, second)
        wait_until(lambda: answering(one) == {first.url, second.url})


def test_the_drain_of_a_discovered_engine_ends_with_it(stubs: list[Stub], tmp_path: Path) -> None:
    """Its address may become that of another engine."""
    first, second = stubs
    with gateway_of([first.url], tmp_path) as gateway:
        fleet = gateway.gateway.fleet

        def report(work: Callable[[], object]) -> None:
            async def called() -> None:
                work()

            asyncio.run_coroutine_threadsafe(called(), gateway.loop).result(60)

        report(lambda: fleet.add(second.url))
        for stub in stubs:
            set_draining(gateway, stub, "drain")
        wait_until(lambda: states(gateway) == {id_of(first): "draining", id_of(second): "draining"})
        assert stored(gateway.store) == [(id_of(first), None, True)]
        report(lambda: fleet.remove(id_of(second)))
        report(lambda: fleet.add(second.url))
        wait_until(lambda: states(gateway) == {id_of(first): "draining", id_of(second): "ready"})
        set_draining(gateway, second, "drain")
        set_draining(gateway, second, "resume")
        assert answering(gateway) == {second.url}
    with gateway_of([second.url], tmp_path) as gateway:
        report = lambda: gateway.gateway.fleet.add(first.url)  # noqa: E731
        gateway.loop.call_soon_threadsafe(report)
        wait_until(lambda: states(gateway).get(id_of(first)) == "ready")


def test_a_change_that_is_not_stored_has_no_effect(
    stubs: list[Stub], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = stubs
    with gateway_of([first.url], tmp_path) as gateway:
        register(gateway, second)
        wait_until(lambda: states(gateway)[id_of(second)] == "ready")
        with monkeypatch.context() as patch:
            patch.setattr(gateway.store, "write", lambda work: failed(Unavailable("The disk is full.")))
            assert httpx.post(f"{gateway.url}/v1/engines/{id_of(first)}/drain", timeout=60).status_code == 503
            assert remove(gateway, second).status_code == 503
        assert states(gateway) == {id_of(first): "ready", id_of(second): "ready"}


def test_while_the_store_does_not_answer_engines_stay(
    stubs: list[Stub], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = stubs
    with gateway_of([first.url], tmp_path) as gateway:
        register(gateway, second)
        wait_until(lambda: states(gateway)[id_of(second)] == "ready")
        with monkeypatch.context() as patch:
            patch.setattr(
                gateway.gateway.registrations.book, "all", lambda hosts: failed(Unavailable("No store."))
            )
            wait_until(lambda: "registered engines are not read" in caplog.text)
            assert answering(gateway) == {first.url, second.url}
        set_draining(gateway, second, "drain")
        assert answering(gateway) == {first.url}


def test_a_loopback_address_is_another_engine_on_each_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second gateway shares the store, as on PostgreSQL. Both addresses refuse connections."""
    with gateway_of([], tmp_path) as gateway:
        for url in ("http://127.0.0.1:9", "http://[::1]:9", "http://localhost:9", "http://192.0.2.7:9"):
            assert httpx.post(gateway.url + "/v1/engines", json={"url": url}, timeout=60).status_code == 201
    monkeypatch.setattr(socket, "gethostname", lambda: "another")
    with gateway_of([], tmp_path) as gateway:
        assert set(states(gateway)) == {"192.0.2.7:9"}
