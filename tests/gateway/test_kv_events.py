"""Prefix affinity from the events of real engines."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.stub import RunningGateway, Stub, gateway_of, served
from rondo.engine.config import EngineConfig
from rondo.server.config import ServerConfig
from server.running import Running, make_model, start
from support.waiting import wait_until

ROUTER = {"piece": 64, "longest": 64}
QUERY = "/v1/kv_events?piece=64&longest=64"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("served") / "tiny")


@contextmanager
def engine_of(folder: Path, blocks: int = 40, **settings: Any) -> Iterator[Running]:
    engine = EngineConfig(max_num_seqs=2, block_size=16, num_blocks=blocks)
    yield from start(folder, engine, ServerConfig(port=0, served_model_name="m", **settings))


def ask(url: str, text: str, **fields: Any) -> dict[str, Any]:
    body = {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 1} | fields
    answer = httpx.post(url + "/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def long(letter: str) -> str:
    return " ".join(letter * 4 for _ in range(60))


def engines(gateway: RunningGateway) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = httpx.get(gateway.url + "/v1/engines", timeout=60).json()["data"]
    return found


def test_an_engine_reports_what_it_stores_and_drops(folder: Path) -> None:
    with engine_of(folder) as engine:
        first = httpx.get(engine.url + QUERY, timeout=60).json()
        assert (first["whole"], first["stored"]) == (True, [])
        ask(engine.url, long("a"))
        place = f"&epoch={first['epoch']}&after={first['last']}&wait=20"
        second = httpx.get(engine.url + QUERY + place, timeout=60).json()
        assert not second["whole"]
        assert len(second["stored"]) >= 3
        for letter in "bcdefgh":
            ask(engine.url, long(letter))
        third = httpx.get(
            engine.url + QUERY + f"&epoch={first['epoch']}&after={second['last']}", timeout=60
        ).json()
        assert set(second["stored"]) <= set(third["dropped"])
        assert ask(engine.url, long("a"))["usage"]["prompt_tokens_details"]["cached_tokens"] < 32
        other = httpx.get(engine.url + "/v1/kv_events?piece=128", timeout=60)
        assert (other.status_code, other.json()["error"]["code"]) == (409, "other_pieces")
        wrong = httpx.get(engine.url + "/v1/kv_events?piece=x", timeout=60)
        assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, "piece")


def test_the_router_follows_real_caches(folder: Path, tmp_path: Path) -> None:
    with ExitStack() as stack:
        both = [stack.enter_context(engine_of(folder)) for _ in range(2)]
        urls = [each.url for each in both]
        gateway = stack.enter_context(gateway_of(urls, tmp_path, router=ROUTER))
        wait_until(lambda: all(each["kv_events"] for each in engines(gateway)))
        ask(gateway.url, long("a"))
        wait_until(lambda: sum(each["prefixes"] > 0 for each in engines(gateway)) == 1)
        for _ in range(3):
            usage = ask(gateway.url, long("a"))["usage"]
            assert usage["prompt_tokens_details"]["cached_tokens"] > 100
        (has,) = (each["url"] for each in engines(gateway) if each["prefixes"])
        for letter in "bcdefgh":  # sent past the gateway, which learns of the evictions all the same
            ask(has, long(letter))
        router = gateway.gateway.fleet.router
        wait_until(lambda: known(gateway, "a", has) == 0)
        wait_until(lambda: known(gateway, "h", has) > 100)
        assert not router.instances[1 - urls.index(has)].failures
        metrics = httpx.get(gateway.url + "/metrics", timeout=60).text
        assert 'rondo:gateway_kv_events_total{change="dropped"}' in metrics


def known(gateway: RunningGateway, letter: str, url: str) -> int:
    """Bytes of a prompt that the router assumes in the engine's cache."""
    from rondo.gateway.proxy.fields import read_fields

    text = long(letter)
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 1})
    compact = json.dumps(json.loads(body), separators=(",", ":"), ensure_ascii=False)
    router = gateway.gateway.fleet.router
    bit = next(each.bit for each in router.instances if each.url == url)
    pieces = read_fields(compact.encode(), **ROUTER).pieces
    return router.prefixes.lengths(pieces, bit).get(bit, 0) * ROUTER["piece"]


def test_an_emptied_cache_and_a_restart_are_noticed(folder: Path, tmp_path: Path) -> None:
    with (
        engine_of(folder, admin_key="secret") as engine,
        gateway_of([engine.url], tmp_path, router=ROUTER) as gateway,
    ):
        wait_until(lambda: engines(gateway)[0]["kv_events"])
        ask(gateway.url, long("a"))
        wait_until(lambda: known(gateway, "a", engine.url) > 0)
        httpx.post(engine.url + "/reset_prefix_cache", headers={"x-admin-key": "secret"}, timeout=60)
        wait_until(lambda: known(gateway, "a", engine.url) == 0)
        ask(gateway.url, long("b"))
        wait_until(lambda: known(gateway, "b", engine.url) > 0)


def test_other_engines_keep_their_history(tmp_path: Path) -> None:
    with (
        served(Stub()) as one,
        served(Stub()) as two,
        gateway_of([one.url, two.url], tmp_path, router=ROUTER) as gateway,
    ):
        httpx.post(
            gateway.url + "/v1/chat/completions",
            json={"model": "m", "messages": [{"role": "user", "content": long("a")}]},
            timeout=60,
        )
        wait_until(lambda: any(each["prefixes"] for each in engines(gateway)))
        assert not any(each["kv_events"] for each in engines(gateway))


def test_several_api_keys_hide_each_others_prefixes(folder: Path) -> None:
    with engine_of(folder, api_key=["one", "two"]) as engine:
        refused = httpx.get(engine.url + QUERY, headers={"authorization": "Bearer one"}, timeout=60)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "several_api_keys")
    with engine_of(folder, api_key="one") as engine:
        assert httpx.get(engine.url + QUERY, timeout=60).status_code == 401
        assert (
            httpx.get(engine.url + QUERY, headers={"authorization": "Bearer one"}, timeout=60).status_code
            == 200
        )
