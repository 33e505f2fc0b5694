"""Whatever goes wrong inside, a client sees OpenAI's shape and no traceback."""

import asyncio
import logging

import httpx
import pytest

BUG = {
    "error": {
        "message": "internal error; the server's log has the details.",
        "type": "internal_error",
        "param": None,
        "code": None,
    }
}
BODY = {"model": "tiny", "prompt": "abc", "max_tokens": 4}


@pytest.mark.parametrize("prompt", ["abc", ["abc", "d"]])
@pytest.mark.parametrize("stream", [False, True])
def test_a_bug_before_the_first_event_is_a_500(running, monkeypatch, caplog, stream, prompt):
    async def broken(request):
        raise KeyError("secret")
        yield

    monkeypatch.setattr(running.engine, "generate", broken)
    with caplog.at_level(logging.ERROR):
        answer = httpx.post(running.url + "/v1/completions", json=BODY | {"prompt": prompt, "stream": stream})
    assert (answer.status_code, answer.json()) == (500, BUG)
    assert "KeyError: 'secret'" in caplog.text
    assert caplog.text.count("Traceback") == 1


@pytest.mark.parametrize("prompt", ["abc", ["abc", "d"]])
def test_a_bug_in_the_middle_of_a_stream_is_an_event(running, monkeypatch, caplog, prompt):
    good = running.engine.generate

    async def breaks(request):
        async for chunk in good(request):
            yield chunk
            raise KeyError("secret")

    monkeypatch.setattr(running.engine, "generate", breaks)
    answer = httpx.post(
        running.url + "/v1/completions",
        json=BODY | {"prompt": prompt, "stream": True, "return_token_ids": True},
    )
    assert answer.status_code == 200
    assert "internal_error" in answer.text.split("\n\n")[-2]
    assert "secret" not in answer.text
    assert "KeyError: 'secret'" in caplog.text


def test_a_bug_outside_the_routes_is_a_500_too(caplog):
    from rondo.server.errors import log_bugs

    async def broken(scope, receive, send):
        raise KeyError("secret")

    async def main():
        transport = httpx.ASGITransport(log_bugs(broken))
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            return await client.get("/")

    answer = asyncio.run(main())
    assert (answer.status_code, answer.json()) == (500, BUG)
    assert "KeyError: 'secret'" in caplog.text


def test_events_hold_no_separators_that_clients_split_at():
    from rondo.server.http import event_of

    assert event_of({"text": "a\u2028b\u0085c\u2029"}).isascii()
