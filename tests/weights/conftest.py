import pytest

from support.served import write_model


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    """A tiny model with its tokenizer."""
    return write_model(tmp_path_factory.mktemp("served") / "tiny")
