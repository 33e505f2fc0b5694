"""Models by name from a hub on loopback: what is downloaded, resumed, verified and found again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rondo.hub.cache import hub_cache
from rondo.hub.models import cached_model, ensure_model
from rondo.hub.names import HubName
from support.hub import FakeHub, fake_hub

__all__ = ["fake_hub"]

WEIGHTS = bytes(range(256)) * 40
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "tokenizer.json": b"{}" * 600,
    "chat_template.jinja": b"{{ messages }}",
    "README.md": b"# A model",
    "model.safetensors": WEIGHTS,
    "pytorch_model.bin": WEIGHTS + b"b",
    "model-Q4.gguf": WEIGHTS + b"g",
    "original/consolidated.safetensors": WEIGHTS + b"o",
    "consolidated.safetensors": WEIGHTS + b"c",
    "onnx/model.onnx": b"onnx",
    ".gitattributes": b"lfs",
    "picture.png": b"png",
}
NAME = HubName("model", "org/model")


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)


def names_in(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}


def partials() -> list[Path]:
    return list(hub_cache().rglob("*.incomplete"))


def test_a_pull_contains_one_copy_of_the_weights(fake_hub: FakeHub) -> None:
    commit = fake_hub.repo("org/model", FILES).branches["main"]
    folder = ensure_model(NAME)
    assert folder == hub_cache() / "models--org--model" / "snapshots" / commit
    assert names_in(folder) == {
        "config.json", "tokenizer.json", "chat_template.jinja", "README.md", "model.safetensors"
    }  # fmt: skip
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS


def test_the_cache_is_used_without_requests(fake_hub: FakeHub) -> None:
    fake_hub.repo("org/model", FILES)
    folder = ensure_model(NAME)
    fake_hub.requests.clear()
    assert ensure_model(NAME) == folder
    assert fake_hub.requests == []


def test_transformers_and_rondo_share_the_cache(fake_hub: FakeHub) -> None:
    from huggingface_hub import scan_cache_dir, try_to_load_from_cache

    fake_hub.repo("org/model", FILES)
    folder = ensure_model(NAME)
    found = try_to_load_from_cache("org/model", "config.json", cache_dir=hub_cache())
    assert found == str(folder / "config.json")
    scanned = scan_cache_dir(hub_cache())
    assert not scanned.warnings
    assert [each.repo_id for each in scanned.repos] == ["org/model"]


def test_sharded_weights(fake_hub: FakeHub) -> None:
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    shards = {"model-1.safetensors": WEIGHTS, "model-2.safetensors": WEIGHTS[::-1]}
    files = {name: data for name, data in FILES.items() if name != "model.safetensors"} | shards
    fake_hub.repo("org/model", {**files, "model.safetensors.index.json": json.dumps(index).encode()})
    folder = ensure_model(NAME)
    assert names_in(folder) >= {*shards, "model.safetensors.index.json"}
    assert cached_model(NAME) == folder
    (folder / "model-2.safetensors").unlink()
    assert cached_model(NAME) is None
    assert names_in(ensure_model(NAME)) >= set(shards)


def test_a_cut_connection_resumes_by_range(fake_hub: FakeHub) -> None:
    fake_hub.repo("org/model", FILES)
    fake_hub.cuts["model.safetensors"] = [4000, 3000]  # bytes of each response
    folder = ensure_model(NAME)
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert fake_hub.ranges("/model.safetensors")[1::2] == [None, "bytes=4000-", "bytes=7000-"]
