from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from rondo.server.config import ServerConfig
from rondo.text.tokenizer import Tokenizer
from server.families import HERMES
from server.playback import Playback
from server.running import Running, make_model, start


@pytest.fixture(autouse=True)
def noticed_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that hung up is noticed by a probe, which tests do not wait seconds for."""
    monkeypatch.setattr("rondo.web.sockets.half_closed.PROBE_SECONDS", 0.05)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory) -> Path:
    return make_model(tmp_path_factory.mktemp("served") / "tiny")


@pytest.fixture(scope="module")
def running(model_folder) -> Iterator[Running]:
    yield from start(model_folder, config=ServerConfig(port=0, served_model_name="tiny"))


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[tuple[Path, Running]]:
    """(its folder, a server of it), of a model that writes calls as Hermes does."""
    folder = make_model(tmp_path_factory.mktemp("hermes") / "tiny", HERMES, context=2048)
    for running in start(folder, config=ServerConfig(port=0, served_model_name="tiny")):
        yield folder, running


@pytest.fixture
def hermes(served, monkeypatch) -> Playback:
    """What the model of `served` says."""
    player = Playback(Tokenizer.load(served[0]))
    monkeypatch.setattr(served[1].engine, "generate", player.generate)
    return player


@pytest.fixture
def talk(served) -> openai.OpenAI:
    return openai.OpenAI(base_url=served[1].url + "/v1", api_key="none", max_retries=0)
