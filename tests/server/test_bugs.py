"""Whatever goes wrong inside, a client sees OpenAI's shape and no traceback."""

import asyncio
import logging
import threading

import httpx
import pytest

from rondo.base.errors import Unavailable
from rondo.cli.commands.serve import serve
from rondo.cli.options.tree import RondoConfig
from rondo.engine.config import EngineConfig
from rondo.server.config import ServerConfig
from rondo.server.load import load_app
from rondo.web.run import bind, run_server, url_of

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
    from rondo.web.access import Access

    async def broken(scope, receive, send):
        raise KeyError("secret")

    async def main():
        transport = httpx.ASGITransport(Access(broken))
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            return await client.get("/")

    answer = asyncio.run(main())
    assert (answer.status_code, answer.json()) == (500, BUG)
    assert "KeyError: 'secret'" in caplog.text


def test_events_hold_no_separators_that_clients_split_at():
    from rondo.web.http import event_of

    assert event_of({"text": "a\u2028b\u0085c\u2029"}).isascii()


def test_a_server_whose_engine_failed_answers_why_and_ends(model_folder, monkeypatch):
    """What started it can start it again."""
    listener = bind("127.0.0.1", 0)
    url = url_of(listener)
    listener.close()
    loaded = load_app(model_folder, EngineConfig(), ServerConfig(port=0))
    engine = loaded[1]
    lost = Unavailable("rank 1 is gone.", code="engine_failed")

    def breaks(plan):
        raise lost

    monkeypatch.setattr(engine.core.runner, "run", breaks)
    monkeypatch.setattr("rondo.server.load.load_app", lambda *arguments: loaded)
    tree = RondoConfig(server=ServerConfig(port=int(url.rpartition(":")[2])))
    answers = []

    def ask():
        answers.append(httpx.post(url + "/v1/completions", json=BODY | {"model": model_folder.name}))

    def when_ready(server, listener, on_start):
        run_server(server, listener, threading.Thread(target=ask).start)

    monkeypatch.setattr("rondo.web.run.run_server", when_ready)
    with pytest.raises(Unavailable, match="rank 1 is gone"):
        serve(model_folder, tree)
    assert answers[0].status_code == 503
    assert answers[0].json()["error"]["message"] == "rank 1 is gone."
