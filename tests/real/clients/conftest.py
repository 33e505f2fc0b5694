"""One `rondo serve` process, of a model with random weights, for all clients."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from real.clients.plain import KEY
from server.families import CHATML, HERMES
from server.running import make_model
from support.served import Served


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose chat template has tools; its calls and its JSON are valid because they are constrained."""
    return make_model(tmp_path_factory.mktemp("clients") / "tiny", HERMES, CHATML, context=16384)


@pytest.fixture(scope="session")
def served(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    flags = ("--server.served_model_name=tiny", f"--api-key={KEY}", "--reasoning-parser=none")
    server = Served(folder, tmp_path_factory.mktemp("served"), *flags)
    try:
        yield server.start().wait()
    finally:
        server.kill()


@pytest.fixture(scope="session")
def short(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The same model with a context of 256 tokens."""
    flags = ("--server.served_model_name=tiny", f"--api-key={KEY}", "--max-model-len=256")
    server = Served(folder, tmp_path_factory.mktemp("short"), *flags)
    try:
        yield server.start().wait()
    finally:
        server.kill()
