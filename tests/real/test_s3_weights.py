"""Versions of the weights on a real S3 server: written by the command, read by an engine that serves; and faults."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import rondo
from rondo.base.errors import ModelError, NotFound, RondoError, StorageError
from rondo.base.storage import remote
from rondo.cli.service.weights import run as weights_command
from rondo.engine.config import EngineConfig
from rondo.models import new, save_into
from rondo.rl.config import RlConfig
from rondo.rl.loop import Loop
from rondo.rl.remote.config import FarConfig
from rondo.server.config import ServerConfig
from rondo.weights.transports.landing import Landing
from rondo.weights.transports.objects import fetch_objects, versions_in
from server.running import start
from support.ceph import S3, ceph
from support.far import Lengths
from support.served import ADMIN_KEY, write_model
from support.tiny import tiny_model, tiny_tokenizer

pytestmark = pytest.mark.real

URL = "s3://weights/policy"


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with ceph(tmp_path_factory.mktemp("ceph")) as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environment().items():
            patch.setenv(name, value)
        remote._store.cache_clear()
        remote.store_of("s3://weights")[0].mkdir("weights")
        yield server
        remote._store.cache_clear()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Models that differ in their weights, in the order of their versions."""
    first = write_model(tmp_path_factory.mktemp("models") / "1")
    made = [first]
    for seed in (2, 3):
        folder = write_model(first.parent / str(seed))
        (folder / "model.safetensors").unlink()
        save_into(new(json.loads((folder / "config.json").read_text()), seed=seed), folder)
        made.append(folder)
    return made


def push(folder: Path, version: int) -> None:
    assert weights_command(["push", str(folder), "--to", URL, "--version", str(version)]) == 0


def answer(client: rondo.Client) -> object:
    options = {"max_tokens": 8, "temperature": 0, "ignore_eos": True, "return_token_ids": True, "logprobs": 3}
    choice = client.complete([70, 71, 72], **options)["choices"][0]
    return choice["token_ids"], choice["logprobs"]["token_logprobs"]


def test_an_engine_takes_each_version_from_the_bucket(s3: S3, folders: list[Path]) -> None:
    config = ServerConfig(port=0, served_model_name="tiny", api_key="user", admin_key="operator")
    engine = EngineConfig(max_num_seqs=4, block_size=4)
    for server in start(folders[0], engine, config):
        with rondo.Client(server.url, api_key="user", admin_key="operator") as client:
            version = client.weight_info()["weight_version"]
            for folder in folders[1:]:
                version += 1
                push(folder, version)
                client.push_weights({"source": URL}, version)
                assert client.weight_info()["weight_version"] == version
                found = answer(client)
                for fresh in start(folder, engine, config):
                    with rondo.Client(fresh.url, api_key="user", admin_key="operator") as other:
                        assert found == answer(other)


def test_an_rl_run_pushes_through_the_bucket_and_removes_its_versions(
    s3: S3, folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RONDO_ADMIN_KEY", ADMIN_KEY)
    url, store = "s3://weights/rl", remote.store_of(URL)[0]
    for server in start(folders[0], config=ServerConfig(port=0, admin_key=ADMIN_KEY)):
        config = RlConfig(
            prompts_per_step=2,
            samples_per_prompt=4,
            steps=2,
            max_tokens=8,
            tokens_per_microbatch=512,
            engine=FarConfig(url=(server.url,), transport=url),
        )
        with Loop(tiny_model(), tiny_tokenizer(), Lengths(), config) as loop:
            for _ in range(2):
                assert loop.step()["logprob_diff_max"] < 1e-4
                assert server.engine.weight_version == loop.version
                assert [int(name.rpartition("/")[2]) for name in store.ls("weights/rl", detail=False)] == [
                    loop.version
                ]
        assert versions_in(url) == []


def test_a_version_without_a_manifest_and_a_damaged_one_are_refused(
    s3: S3, folders: list[Path], tmp_path: Path
) -> None:
    store = remote.store_of(URL)[0]
    push(folders[0], 101)
    push(folders[1], 102)
    store.rm("weights/policy/102/manifest.json")
    landing = Landing(str(tmp_path))
    assert versions_in(URL)[-1] == 101
    held = fetch_objects(landing, URL, None)
    assert held.version == 101
    before = (held.folder / "model.safetensors").read_bytes()
    with pytest.raises(NotFound, match="no complete version 102"):
        fetch_objects(landing, URL, 102)
    push(folders[1], 103)
    data = bytearray(store.cat_file("weights/policy/103/model.safetensors"))
    data[-1] ^= 1
    store.pipe_file("weights/policy/103/model.safetensors", bytes(data))
    with pytest.raises(ModelError, match="another checksum"):
        fetch_objects(landing, URL, 103)
    assert (held.folder / "model.safetensors").read_bytes() == before
    landing.close()


def test_a_wrong_key_a_missing_bucket_and_a_server_that_is_gone_are_named(
    s3: S3, folders: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises((NotFound, StorageError), match="nowhere"):
        weights_command(["push", str(folders[0]), "--to", "s3://nowhere/policy"])
    for name, value, said in (
        ("AWS_SECRET_ACCESS_KEY", "wrong", "Check the credentials"),
        ("AWS_ENDPOINT_URL", "http://127.0.0.1:9", URL),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            remote._store.cache_clear()
            with pytest.raises(RondoError, match=said):
                push(folders[0], 104)
    remote._store.cache_clear()
    assert 104 not in versions_in(URL)
