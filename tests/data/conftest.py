from pathlib import Path

import pytest

from rondo.text.bpe import train_bpe


@pytest.fixture(scope="package")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    train_bpe(["the cat sat on the mat, and the dog lay by the door"] * 3, 300).save(folder)
    return folder


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RONDO_HOME", str(tmp_path / "home"))
    return tmp_path / "home"
