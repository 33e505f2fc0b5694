"""Weights of registered models on a real S3 server: upload with a manifest, the bounded and checksummed local cache."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from rondo.base.errors import InvalidRequest, NotFound, StorageError
from rondo.base.storage import remote
from rondo.control.jobs.registry.book import ModelRegistry
from rondo.control.jobs.registry.facts import files_of
from rondo.control.jobs.registry.rows import NewModel, RegisteredModel
from rondo.control.store.store import Store
from rondo.gateway.training.registry.located import RemoteWeights, located
from rondo.gateway.training.registry.remote import MANIFEST, files_at, upload
from support.ceph import S3, ceph
from support.home import own_home

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with ceph(tmp_path_factory.mktemp("ceph")) as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment().items():
            patch.setenv(name, value)
        patch.setenv("RONDO_HOME", str(own_home(tmp_path_factory.mktemp("home"))))
        remote._store.cache_clear()
        remote.store_of("s3://weights")[0].mkdir("weights")
        yield server
        remote._store.cache_clear()


def uploaded(folder: Path, name: str, size: int) -> RegisteredModel:
    """An adapter in the bucket, registered."""
    (folder / name).mkdir()
    (folder / name / "adapter_config.json").write_text(
        '{"peft_type": "LORA", "base_model_name_or_path": "toy"}'
    )
    (folder / name / "adapter_model.safetensors").write_bytes(name.encode() * size)
    upload(folder / name, f"s3://weights/{name}")
    kind, files, digest, base = files_at(f"s3://weights/{name}")
    assert (kind, files, base) == ("lora", files_of(folder / name), "toy")
    store = Store(folder / f"{name}.db")
    try:
        new = NewModel(name, digest, kind, f"s3://weights/{name}", base=base, files=files)
        return ModelRegistry(store).add(new, "me").result()
    finally:
        store.close()


def test_weights_are_fetched_once_within_the_bound(s3: S3, tmp_path: Path) -> None:
    first, second = uploaded(tmp_path, "first", 1000), uploaded(tmp_path, "second", 1000)
    weights = RemoteWeights(9000)
    place = located(first, weights)
    assert (place["base"], place["source"]) == ("toy", "")
    folder = Path(place["adapter"])
    assert files_of(folder) == first.files
    cached = {path.resolve(): path.stat().st_mtime_ns for path in folder.iterdir()}
    assert located(first, weights) == place
    assert {path.resolve() for path in folder.iterdir()} == cached.keys()
    located(second, weights)
    assert not (folder / "adapter_model.safetensors").exists(), "the least recently used file made room"
    located(first, weights)
    assert files_of(folder) == first.files
    with pytest.raises(InvalidRequest, match="weights_cache_bytes"):
        located(second, RemoteWeights(100))


def test_damaged_and_foreign_weights_are_refused(s3: S3, tmp_path: Path) -> None:
    row = uploaded(tmp_path, "third", 10)
    store = remote.store_of("s3://weights")[0]
    store.pipe_file("weights/third/adapter_model.safetensors", b"damag" * 10)
    with pytest.raises(StorageError, match="does not match"):
        located(row, RemoteWeights(10**9))
    store.pipe_file(f"weights/third/{MANIFEST}", json.dumps({"../escaped": [1, "0" * 64]}).encode())
    with pytest.raises(InvalidRequest, match="outside of its folder"):
        files_at("s3://weights/third")
    store.rm(f"weights/third/{MANIFEST}")
    assert files_at("s3://weights/third")[1]["adapter_model.safetensors"][0] == 50
    with pytest.raises(NotFound):
        files_at("s3://weights/none")
