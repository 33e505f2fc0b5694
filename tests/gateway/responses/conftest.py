"""One engine and one gateway for the tests of stored responses."""

from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from gateway.responses.engine import Engine
from gateway.stub import RunningGateway, client_of, gateway_of, served


@pytest.fixture(scope="package")
def engine() -> Iterator[Engine]:
    with served(Engine()) as running:
        assert isinstance(running, Engine)
        yield running


@pytest.fixture(scope="package")
def gateway(tmp_path_factory: pytest.TempPathFactory, engine: Engine) -> Iterator[RunningGateway]:
    folder: Path = tmp_path_factory.mktemp("responses")
    with gateway_of([engine.url], folder, keys="required") as running:
        yield running


@pytest.fixture
def client(gateway: RunningGateway) -> Iterator[openai.OpenAI]:
    with client_of(gateway) as made:
        yield made
