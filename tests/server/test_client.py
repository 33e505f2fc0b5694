"""Rondo's own client against a real server, and the server's switches."""

import asyncio
import threading
import time

import httpx
import pytest

import rondo
from rondo.base.errors import InvalidRequest, NotFound, Overloaded, RondoError, Unavailable
from rondo.engine.config import EngineConfig
from rondo.server.config import ServerConfig
from server.running import start

JSON = {"Content-Type": "application/json"}


def test_sync_client(running):
    with rondo.Client(running.url) as client:
        assert client.health()
        assert client.models() == ["tiny"]
        answer = client.chat("abc", max_tokens=8, seed=1)
        text = answer["choices"][0]["message"]["content"]
        events = list(client.stream_chat("abc", max_tokens=8, seed=1))
        assert "".join(e["choices"][0]["delta"]["content"] for e in events) == text
        assert client.complete("abc", max_tokens=2)["usage"]["completion_tokens"] <= 2
        assert (
            len(list(client.stream_complete([70, 71], max_tokens=3, ignore_eos=True, return_token_ids=True)))
            > 0
        )
        with pytest.raises(InvalidRequest) as caught:
            client.chat("abc", temperature=-1)
        assert caught.value.param == "temperature"
        with pytest.raises(NotFound):
            list(client.stream_complete("abc", model="other"))


def test_async_client(running):
    async def main():
        async with rondo.AsyncClient(running.url + "/v1") as client:
            assert await client.health()
            whole = await client.complete("abc", max_tokens=6, seed=2)
            events = [event async for event in client.stream_complete("abc", max_tokens=6, seed=2)]
            assert "".join(e["choices"][0]["text"] for e in events) == whole["choices"][0]["text"]
            assert (await client.chat("abc", max_tokens=2))["object"] == "chat.completion"
            assert [e async for e in client.stream_chat("abc", max_tokens=2)]

    asyncio.run(main())


def test_nobody_there():
    with rondo.Client("http://127.0.0.1:9") as client:
        assert not client.health()
        with pytest.raises(Unavailable, match="Is the server running"):
            client.models()


def test_token_ids_and_versions_come_back_where_asked_for(running):
    with rondo.Client(running.url) as client:
        choice = client.complete([70, 71], max_tokens=4, ignore_eos=True, return_token_ids=True)["choices"][0]
        assert len(choice["token_ids"]) == 4
        assert choice["weight_versions"] == [0] * 4


def test_an_api_key_guards_v1_alone(model_folder):
    config = ServerConfig(port=0, api_key="secret")
    for running in start(model_folder, config=config):
        assert httpx.get(running.url + "/health").status_code == 200
        answer = httpx.get(running.url + "/v1/models")
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
        assert (
            httpx.get(running.url + "/v1/models", headers={"Authorization": "Bearer wrong"}).status_code
            == 401
        )
        with rondo.Client(running.url, api_key="secret") as client:
            assert client.models() == [model_folder.name]
            assert client.complete("abc", model=str(model_folder), max_tokens=1)


@pytest.mark.parametrize("route", ["/v1/embeddings", "/tokenize", "/detokenize"])
def test_an_api_key_guards_whatever_asks_the_model(model_folder, route):
    for running in start(model_folder, config=ServerConfig(port=0, api_key="secret")):
        assert httpx.post(running.url + route, json={}).status_code == 401
        assert (
            httpx.post(running.url + route, json={}, headers={"Authorization": "Bearer secret"}).status_code
            == 400
        )


def test_a_full_queue_is_a_429_with_retry_after(model_folder):
    engine = EngineConfig(max_num_seqs=1, max_queued=3, block_size=4)
    for running in start(model_folder, engine):
        asyncio.run(running.engine.pause())
        with rondo.Client(running.url) as client:
            first = threading.Thread(target=client.complete, args=("a",), kwargs={"max_tokens": 2})
            first.start()
            while not running.engine.core.scheduler.num_waiting:
                time.sleep(0.005)
            with pytest.raises(Overloaded):
                client.complete(["a", "b", "c"], max_tokens=2)
            body = {"model": model_folder.name, "prompt": ["a", "b", "c"], "max_tokens": 2, "stream": True}
            answer = httpx.post(running.url + "/v1/completions", json=body)
            assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
            asyncio.run(running.engine.resume())
            first.join()


def test_more_samples_than_can_ever_wait_are_refused_before_the_first(model_folder):
    for running in start(model_folder, EngineConfig(max_num_seqs=1, max_queued=3)):
        with rondo.Client(running.url) as client:
            for options, param in (({"n": 2}, "n"), ({"n": 2, "stream": True}, "n"), ({}, "prompt")):
                with pytest.raises(InvalidRequest, match=r"n = .* at most 3 may wait") as caught:
                    client.complete(["a", "b"] if "n" in options else list("abcd"), max_tokens=2, **options)
                assert caught.value.param == param
            with pytest.raises(InvalidRequest, match="n = 4"):
                client.chat("a", n=4)
        assert running.engine.metrics.finished["abort"] == 0


@pytest.mark.parametrize("allowed", [False, True])
def test_priority_is_for_servers_that_allow_it(model_folder, allowed):
    for running in start(model_folder, config=ServerConfig(port=0, allow_priority=allowed)):
        with rondo.Client(running.url) as client:
            assert client.complete("a", max_tokens=1, priority=0)
            if allowed:
                assert client.complete("a", max_tokens=1, priority=-5)
                continue
            with pytest.raises(InvalidRequest, match="allow_priority") as caught:
                client.complete("a", max_tokens=1, priority=-5)
            assert caught.value.param == "priority"


def test_answers_show_the_served_name_whatever_was_asked_for(model_folder):
    for running in start(model_folder):
        with rondo.Client(running.url) as client:
            path = str(model_folder)
            assert client.complete("abc", model=path, max_tokens=1)["model"] == model_folder.name
            assert {e["model"] for e in client.stream_chat("abc", model=path, max_tokens=1)} == {
                model_folder.name
            }


def test_a_failed_step_is_an_error_for_the_client_and_503_for_health(model_folder):
    for running in start(model_folder):

        def broken(plan):
            raise RuntimeError("out of order")

        running.engine.core.runner.run = broken
        with rondo.Client(running.url) as client:
            with pytest.raises(RondoError, match="engine failed"):
                client.complete("abc")
            assert not client.health()
            assert httpx.get(running.url + "/ready").status_code == 503


def test_a_body_that_is_too_large(model_folder):
    for running in start(model_folder, config=ServerConfig(port=0, max_body_bytes=2048)):
        answer = httpx.post(running.url + "/v1/completions", content=b"x" * 4096, headers=JSON)
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")
