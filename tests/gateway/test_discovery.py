"""Engines behind a Kubernetes service, against an API server of the test with the published shapes, and DNS names."""

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from gateway.stub import RunningGateway, Stub, gateway_of, served
from rondo.base.errors import ConfigError
from rondo.gateway.sources.discovery import DnsName, read_source
from rondo.gateway.sources.kubernetes import ServiceName, urls_of
from rondo.web.config import ListenConfig
from rondo.web.run import bind, make_server, url_of
from support.waiting import wait_until

PATH = "/apis/discovery.k8s.io/v1/namespaces/serving/endpointslices"
EXPIRED = {
    "kind": "Status",
    "apiVersion": "v1",
    "metadata": {},
    "status": "Failure",
    "message": "too old resource version: 1 (9)",
    "reason": "Expired",
    "code": 410,
}
FORBIDDEN = EXPIRED | {
    "message": 'endpointslices.discovery.k8s.io is forbidden: User "system:serviceaccount:serving:default" cannot list',
    "reason": "Forbidden",
    "code": 403,
}


def slice_of(name: str, *addresses: str, ready: bool | None = True, **more: Any) -> dict[str, Any]:
    """An EndpointSlice as the API publishes it. Addresses are HOST:PORT of engines of the test."""
    port = int(addresses[0].rpartition(":")[2]) if addresses else 8001
    endpoints = [
        {
            "addresses": [address.rpartition(":")[0]],
            "conditions": {"ready": ready, "serving": ready, "terminating": not ready},
            "nodeName": "node-1",
            "targetRef": {"kind": "Pod", "namespace": "serving", "name": f"engine-{number}", "uid": "0"},
        }
        for number, address in enumerate(addresses)
    ]
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": name,
            "namespace": "serving",
            "labels": {"kubernetes.io/service-name": "engines"},
            "resourceVersion": "1",
        },
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": [{"name": "http", "protocol": "TCP", "port": port}],
    } | more


@dataclass
class Api:
    """An API server with one service. `refusal` answers everything with a status object."""

    slices: dict[str, dict[str, Any]] = field(default_factory=dict)
    events: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    version: int = 1
    oldest: int = 0
    refusal: dict[str, Any] | None = None
    pages: int = 1
    lists: int = 0
    watches: list[str] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)
    cut: int = 0
    """Number of watches that have been ended."""
    url: str = ""

    def change(self, kind: str, name: str, found: dict[str, Any]) -> None:
        self.version += 1
        found["metadata"]["resourceVersion"] = str(self.version)
        if kind == "DELETED":
            self.slices.pop(name)
        else:
            self.slices[name] = found
        self.events.append((self.version, {"type": kind, "object": found}))

    def expire(self) -> None:
        """Forgets all events, and ends the watches."""
        self.oldest = self.version = self.version + 10
        self.cut += 1

    async def answer(self, request: Request) -> Response:
        self.tokens.add(request.headers.get("authorization", ""))
        assert request.query_params["labelSelector"] == "kubernetes.io/service-name=engines"
        if self.refusal is not None:
            return JSONResponse(self.refusal, self.refusal["code"])
        if request.query_params.get("watch"):
            assert request.query_params["allowWatchBookmarks"] == "true"
            version = int(request.query_params["resourceVersion"])
            self.watches.append(str(version))
            return StreamingResponse(self._watch(version), media_type="application/json")
        self.lists += 1
        items, start = list(self.slices.values()), int(request.query_params.get("continue", 0))
        size = max(1, -(-len(items) // self.pages))
        rest = {} if start + size >= len(items) else {"continue": str(start + size)}
        metadata = {"resourceVersion": str(self.version), **rest}
        body = {
            "kind": "EndpointSliceList",
            "apiVersion": "discovery.k8s.io/v1",
            "metadata": metadata,
            "items": items[start : start + size],
        }
        return JSONResponse(body)

    async def _watch(self, version: int) -> AsyncIterator[bytes]:
        cut = self.cut
        if version < self.oldest:
            yield json.dumps({"type": "ERROR", "object": EXPIRED}).encode() + b"\n"
            return
        bookmark = {"kind": "EndpointSlice", "metadata": {"resourceVersion": str(version)}}
        yield json.dumps({"type": "BOOKMARK", "object": bookmark}).encode() + b"\n"
        while self.cut == cut:
            for number, event in list(self.events):
                if number > version:
                    version = number
                    line = json.dumps(event).encode() + b"\n"
                    yield line[:20]  # events arrive in pieces
                    yield line[20:]
            await asyncio.sleep(0.01)


@contextmanager
def serving(api: Api) -> Iterator[Api]:
    listener = bind("127.0.0.1", 0)
    server = make_server(Starlette(routes=[Route(PATH, api.answer)]), ListenConfig(port=0))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True)
    thread.start()
    api.url = url_of(listener)
    try:
        yield api
    finally:
        api.cut += 1
        server.should_exit = True
        thread.join(60)
        listener.close()


@pytest.fixture
def api() -> Iterator[Api]:
    with serving(Api()) as running:
        yield running


@pytest.fixture
def stubs() -> Iterator[list[Stub]]:
    with served(Stub()) as first, served(Stub()) as second:
        yield [first, second]


def address(stub: Stub) -> str:
    return stub.url.removeprefix("http://")


@contextmanager
def discovering(api: Api, folder: Path) -> Iterator[RunningGateway]:
    (folder / "token").write_text("first-token\n")
    settings: dict[str, Any] = {"kubernetes_api": api.url, "kubernetes_account": str(folder)}
    with gateway_of([], folder, discovery=["kubernetes://serving/engines"], **settings) as running:
        yield running


def engines(gateway: RunningGateway) -> set[str]:
    return {engine.id for engine in gateway.gateway.fleet.engines.values() if engine.state == "ready"}


def test_engines_follow_the_slices_of_a_service(api: Api, stubs: list[Stub], tmp_path: Path) -> None:
    first, second = map(address, stubs)
    api.slices["a"] = slice_of("a", first)
    with discovering(api, tmp_path) as gateway:
        wait_until(lambda: engines(gateway) == {first})
        api.change("ADDED", "b", slice_of("b", second))
        wait_until(lambda: engines(gateway) == {first, second})
        api.change("MODIFIED", "a", slice_of("a", first, ready=False))
        wait_until(lambda: engines(gateway) == {second})
        api.change("DELETED", "b", slice_of("b", second))
        wait_until(lambda: engines(gateway) == set())
        assert api.lists == 1
        assert api.tokens == {"Bearer first-token"}


def test_an_expired_watch_lists_again(api: Api, stubs: list[Stub], tmp_path: Path) -> None:
    first, second = map(address, stubs)
    api.slices["a"] = slice_of("a", first)
    with discovering(api, tmp_path) as gateway:
        wait_until(lambda: engines(gateway) == {first})
        (tmp_path / "token").write_text("second-token")
        api.slices = {"b": slice_of("b", second)}  # changes of which no event is left
        api.expire()
        wait_until(lambda: engines(gateway) == {second})
        assert api.lists == 2
        assert "Bearer second-token" in api.tokens


def test_an_ended_watch_goes_on_from_its_version(api: Api, stubs: list[Stub], tmp_path: Path) -> None:
    first, second = map(address, stubs)
    api.slices["a"] = slice_of("a", first)
    with discovering(api, tmp_path) as gateway:
        api.change("ADDED", "b", slice_of("b", second))
        wait_until(lambda: engines(gateway) == {first, second})
        api.cut += 1
        api.change("DELETED", "a", slice_of("a", first))
        wait_until(lambda: engines(gateway) == {second})
        assert api.lists == 1
        assert len(api.watches) >= 2


def test_a_forbidden_list_names_the_remedy_and_keeps_engines(
    api: Api, stubs: list[Stub], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = address(stubs[0])
    api.slices["a"] = slice_of("a", first)
    with discovering(api, tmp_path) as gateway:
        wait_until(lambda: engines(gateway) == {first})
        api.refusal = FORBIDDEN
        api.expire()
        wait_until(lambda: "answered 403" in caplog.text)
        assert "Allow the pod's service account to list and watch endpointslices" in caplog.text
        assert engines(gateway) == {first}
        api.refusal = None
        api.slices = {}
        wait_until(lambda: engines(gateway) == set())


def test_long_lists_are_read_in_pages(api: Api, stubs: list[Stub], tmp_path: Path) -> None:
    first, second = map(address, stubs)
    api.slices = {"a": slice_of("a", first), "b": slice_of("b", second)}
    api.pages = 2
    with discovering(api, tmp_path) as gateway:
        wait_until(lambda: engines(gateway) == {first, second})
        assert api.lists == 2


def test_outside_of_a_cluster_the_setting_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with gateway_of([], tmp_path, discovery=["kubernetes://serving/engines"]):
        wait_until(lambda: "set gateway.kubernetes_api" in caplog.text)


def test_a_dns_name_is_followed(stubs: list[Stub], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, _, port = address(stubs[0]).rpartition(":")
    found: list[str] = ["127.0.0.1"]
    original = socket.getaddrinfo

    def resolve(host: Any, wanted: Any, *more: Any, **named: Any) -> Any:
        if host != "engines.test":
            return original(host, wanted, *more, **named)
        if not found:
            raise socket.gaierror(socket.EAI_AGAIN, "temporary failure in name resolution")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, wanted)) for each in found]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    settings: dict[str, Any] = {"discovery": [f"dns://engines.test:{port}"], "discovery_seconds": 0.05}
    with gateway_of([], tmp_path, **settings) as gateway:
        fleet = gateway.gateway.fleet
        wait_until(lambda: engines(gateway) == {f"127.0.0.1:{port}"})
        found.append("127.0.0.2")
        wait_until(lambda: set(fleet.engines) == {f"127.0.0.1:{port}", f"127.0.0.2:{port}"})
        found.clear()
        wait_until(lambda: engines(gateway) == {f"127.0.0.1:{port}"})
        found.append("127.0.0.1")
        wait_until(lambda: set(fleet.engines) == {f"127.0.0.1:{port}"})


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("kubernetes://serving/engines", ServiceName("serving", "engines", None)),
        ("kubernetes://serving/engines:8001", ServiceName("serving", "engines", "8001")),
        ("kubernetes://serving/engines:http", ServiceName("serving", "engines", "http")),
        ("dns://engines.serving.svc:8001", DnsName("engines.serving.svc", 8001)),
    ],
)
def test_sources(text: str, found: object) -> None:
    assert read_source(text) == found


@pytest.mark.parametrize(
    "text",
    [
        *("engines", "kubernetes://serving", "kubernetes://serving/a/b", "kubernetes://SERVING/x"),
        *("kubernetes://serving/engines:a_b", "dns://engines", "dns://engines:x", "dns://:80", "http://x:80"),
        "kubernetes://a/b?labelSelector=x",
    ],
)
def test_other_texts_are_refused_with_the_forms(text: str) -> None:
    with pytest.raises(ConfigError, match="kubernetes://NAMESPACE/SERVICE"):
        read_source(text)


def test_endpoints_of_slices() -> None:
    first = slice_of("a", "10.0.0.1:8001", "10.0.0.2:8001")
    metrics = {"name": "metrics", "protocol": "TCP", "port": 9000}
    udp = {"name": "udp", "protocol": "UDP", "port": 53}
    first["ports"] = [udp, *first["ports"], metrics]
    second = slice_of("b", "fd00::1:8001", addressType="IPv6")
    second["endpoints"][0]["addresses"] = ["fd00::1"]
    second["endpoints"][0].pop("conditions")
    empty = slice_of("c", endpoints=None, ports=None)
    slices = {"a": first, "b": second, "c": empty}
    assert urls_of(slices, None) == {"http://10.0.0.1:8001", "http://10.0.0.2:8001", "http://[fd00::1]:8001"}
    assert urls_of(slices, "metrics") == {"http://10.0.0.1:9000", "http://10.0.0.2:9000"}
    assert urls_of({"a": first}, "7000") == {"http://10.0.0.1:7000", "http://10.0.0.2:7000"}
