from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rondo.server.config import ServerConfig
from server.running import Running, make_model, start


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory) -> Path:
    torch.set_num_threads(1)
    return make_model(tmp_path_factory.mktemp("served") / "tiny")


@pytest.fixture(scope="module")
def running(model_folder) -> Iterator[Running]:
    yield from start(model_folder, config=ServerConfig(port=0, served_model_name="tiny"))
