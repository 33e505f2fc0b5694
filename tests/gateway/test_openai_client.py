"""The `openai` client, sync and async, against the gateway: classes of errors, retries, time-outs and headers."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from gateway.stub import RunningGateway, Stub, gateway_of, served
from rondo.control.config import RouterConfig
from rondo.control.key import Rights
from rondo.control.store.clock import microseconds
from support.waiting import run, scaled, wait_until

MESSAGES: list[Any] = [{"role": "user", "content": "hi"}]


@pytest.fixture
def stub() -> Iterator[Stub]:
    with served(Stub()) as running:
        yield running


@pytest.fixture
def gateway(stub: Stub, tmp_path: Path) -> Iterator[RunningGateway]:
    settings = {"keys": "required", "router": RouterConfig(failures=10**6), "max_body_bytes": 10_000}
    with gateway_of([stub.url], tmp_path, **settings) as running:
        yield running


def client(gateway: RunningGateway, rights: Rights | None = None, **options: Any) -> openai.OpenAI:
    text = gateway.gateway.keys.make("user", rights or Rights()).result()[1]
    return openai.OpenAI(
        **{"base_url": gateway.url + "/v1", "api_key": text, "max_retries": 0, "timeout": scaled(30)}
        | options
    )


def chat(one: openai.OpenAI, **more: Any) -> Any:
    return one.chat.completions.create(**{"model": "m", "messages": MESSAGES} | more)


WRONG: dict[str, tuple[Callable[[RunningGateway], object], type[openai.APIStatusError], str | None]] = {
    "wrong key": (
        lambda gateway: chat(client(gateway, api_key="rk-wrong")),
        openai.AuthenticationError,
        "invalid_api_key",
    ),
    "expired key": (
        lambda gateway: chat(client(gateway, Rights(expires=microseconds() - 1))),
        openai.AuthenticationError,
        "expired_api_key",
    ),
    "other scope": (
        lambda gateway: chat(client(gateway, Rights(scopes=("files",)))),
        openai.PermissionDeniedError,
        "scope_missing",
    ),
    "other model": (
        lambda gateway: chat(client(gateway, Rights(models=("n",)))),
        openai.PermissionDeniedError,
        "model_not_allowed",
    ),
    "unknown model": (
        lambda gateway: chat(client(gateway), model="gpt-9"),
        openai.NotFoundError,
        "model_not_found",
    ),
    "unknown model by name": (
        lambda gateway: client(gateway).models.retrieve("gpt-9"),
        openai.NotFoundError,
        "model_not_found",
    ),
    "no model": (lambda gateway: chat(client(gateway), model=""), openai.BadRequestError, "missing_model"),
    "large body": (
        lambda gateway: chat(client(gateway), messages=[{"role": "user", "content": "x" * 20_000}]),
        openai.APIStatusError,
        "body_too_large",
    ),
    "unknown route": (
        lambda gateway: client(gateway).images.generate(prompt="a"),
        openai.NotFoundError,
        None,
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_errors_have_their_classes(gateway: RunningGateway, name: str) -> None:
    call, kind, code = WRONG[name]
    with pytest.raises(kind) as caught:
        call(gateway)
    assert caught.value.code == code
    assert caught.value.request_id == caught.value.response.headers["x-request-id"]
    assert caught.value.body is not None


def test_a_rate_limit_says_when_to_try_again(gateway: RunningGateway) -> None:
    one = client(gateway, Rights(requests_per_minute=1))
    first = one.chat.completions.with_raw_response.create(model="m", messages=MESSAGES)
    assert first.headers["x-ratelimit-limit-requests"] == "1"
    assert first.headers["x-ratelimit-remaining-requests"] == "0"
    with pytest.raises(openai.RateLimitError) as caught:
        chat(one)
    assert caught.value.code == "requests_per_minute"
    assert 0 < float(caught.value.response.headers["retry-after"]) <= 60


def test_an_engines_error_keeps_its_class(gateway: RunningGateway, stub: Stub) -> None:
    stub.mode = "error"
    with pytest.raises(openai.BadRequestError, match="no such field"):
        chat(client(gateway))
    stub.mode = "die"
    with pytest.raises(openai.InternalServerError) as caught:
        chat(client(gateway))
    assert caught.value.code == "engine_unavailable"


def test_the_client_tries_again_until_the_engine_answers(gateway: RunningGateway, stub: Stub) -> None:
    stub.mode = "refuse"

    def recover() -> None:
        wait_until(lambda: len(stub.requests) >= 2)
        stub.mode = "ok"

    thread = threading.Thread(target=recover)
    thread.start()
    assert chat(client(gateway, max_retries=10)).choices
    thread.join()
    counts = [int(each["headers"]["x-stainless-retry-count"]) for each in stub.requests]
    assert counts == list(range(len(counts)))
    assert len(counts) >= 3


def test_a_timed_out_request_is_an_error_and_stops_the_engine(gateway: RunningGateway, stub: Stub) -> None:
    stub.mode = "stall"
    with pytest.raises(openai.APITimeoutError):
        chat(client(gateway, timeout=0.5))
    wait_until(lambda: gateway.gateway.forward.active == 0)
    stub.released.set()
    stub.mode = "ok"
    assert chat(client(gateway)).choices


def test_headers_of_the_client_reach_the_engine(gateway: RunningGateway, stub: Stub) -> None:
    headers = {"Idempotency-Key": "once", "X-Request-Id": "mine", "OpenAI-Organization": "org"}
    answer = client(gateway).chat.completions.with_raw_response.create(
        model="m", messages=MESSAGES, extra_headers=headers, extra_body={"top_k": 5}
    )
    assert answer.headers["x-request-id"] == "mine"
    seen = stub.requests[-1]
    assert {name: seen["headers"][name.lower()] for name in headers} == headers
    assert seen["headers"]["user-agent"].startswith("OpenAI/Python")
    assert seen["body"] == {"model": "m", "messages": MESSAGES, "top_k": 5}
    assert "authorization" not in seen["headers"]


def test_a_stream_that_breaks_off_is_an_error_with_its_reason(gateway: RunningGateway, stub: Stub) -> None:
    stub.mode = "cut"
    with pytest.raises(openai.APIError, match="send the request again") as caught:
        list(chat(client(gateway), stream=True))
    assert caught.value.code == "engine_failed"


def test_a_stream_that_the_client_closes_stops_the_engine(gateway: RunningGateway, stub: Stub) -> None:
    stub.mode = "endless"
    stream = chat(client(gateway), stream=True)
    next(iter(stream))
    stream.close()
    assert stub.gone.wait(scaled(60))


def test_many_requests_and_streams_at_once_over_few_connections(gateway: RunningGateway, stub: Stub) -> None:
    text = gateway.gateway.keys.make("user").result()[1]

    async def streamed(one: openai.AsyncOpenAI) -> int:
        stream = await one.chat.completions.create(model="m", messages=MESSAGES, stream=True)
        return len([chunk async for chunk in stream])

    async def plain(one: openai.AsyncOpenAI, number: int) -> str | None:
        raw = await one.completions.with_raw_response.create(
            model="m", prompt=f"{number}", extra_headers={"X-Request-Id": f"n{number}"}
        )
        return raw.headers["x-request-id"]

    async def main() -> None:
        connections = httpx.Limits(max_connections=5, max_keepalive_connections=5)
        http = httpx.AsyncClient(limits=connections, timeout=scaled(60))
        async with openai.AsyncOpenAI(
            base_url=gateway.url + "/v1", api_key=text, max_retries=0, http_client=http
        ) as one:
            ids = await asyncio.gather(*(plain(one, number) for number in range(40)))
            assert ids == [f"n{number}" for number in range(40)]
            assert await asyncio.gather(*(streamed(one) for _ in range(40))) == [2] * 40

    run(main())
