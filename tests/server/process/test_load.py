"""What can be refused of a server's settings before its model is loaded, or while it is."""

import sys
from pathlib import Path

import httpx
import pytest

from rondo.base.errors import MissingExtra, RondoError
from rondo.engine.config import EngineConfig
from rondo.server.config import ServerConfig
from rondo.server.load import load_app
from server.running import start


@pytest.mark.parametrize(
    ("server", "engine", "param", "says"),
    [
        ({"adapters": {"tiny": "/"}}, {}, "server.adapters", "'tiny' is the name of the model itself"),
        (
            {"served_model_name": ["a", "b"], "adapters": {"b": "/"}},
            {},
            "server.adapters",
            "'b' is the name of the model itself",
        ),
        ({"adapters": {"x": "~nobody-here/x"}}, {}, "server.adapters.x", "no user '~nobody-here'"),
        ({"chat_template": "~nobody-here/x"}, {}, "server.chat_template", "no user '~nobody-here'"),
        ({"chat_template": "x" * 300}, {}, "server.chat_template", "longer than the file system allows"),
        ({"otlp_traces_endpoint": "grpc://x"}, {}, "otlp_traces_endpoint", "not a URL for OTLP"),
        ({}, {"device": "foo"}, "device", "device 'foo' is not one that torch can use here"),
        ({}, {"device": "meta"}, "device", "device 'meta' is not one"),
        ({}, {"device": "vulkan"}, "device", "device 'vulkan' is not one"),
        ({}, {"device": "cuda:99"}, "device", "device 'cuda:99' is not one"),
    ],
)
def test_what_cannot_be_served(model_folder: Path, server, engine, param: str, says: str) -> None:
    with pytest.raises(RondoError) as caught:
        load_app(model_folder, EngineConfig(**engine), ServerConfig(**server))
    assert (caught.value.param, caught.value.exit_code) == (param, 2)
    assert says in caught.value.message


def test_a_missing_extra_is_told_before_the_model_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(MissingExtra, match="rondo-lab\\[otel\\]"):
        load_app("/nowhere", EngineConfig(), ServerConfig(otlp_traces_endpoint="http://x"))


def test_a_template_that_is_no_text(model_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "template").write_bytes(b"\xff{{ messages }}")
    with pytest.raises(RondoError, match="cannot be read: it is not UTF-8"):
        load_app(model_folder, EngineConfig(), ServerConfig(chat_template=str(tmp_path / "template")))


def test_clients_do_not_learn_where_the_model_lies(model_folder: Path) -> None:
    config = ServerConfig(
        port=0, served_model_name="tiny", chat_template="{{ raise_exception('no such talk') }}"
    )
    for running in start(model_folder, config=config):
        body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}]}
        answer = httpx.post(running.url + "/v1/chat/completions", json=body)
        assert (
            answer.json()["error"]["message"]
            == "the chat template of tiny refused the messages: no such talk"
        )
