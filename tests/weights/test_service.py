"""`rondo weights serve` in this process: copies for other hosts over HTTP, and engines that are brought up to date."""

import asyncio
import http.client
import json
import multiprocessing
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import uvicorn
from fsspec.implementations.local import LocalFileSystem
from hypothesis import given
from hypothesis import strategies as st

from rondo.base.errors import ModelError, NotFound, RondoError, StorageError, Unavailable
from rondo.models import new, save
from rondo.models.files.headers import SINGLE
from rondo.models.files.mapping import to_hf
from rondo.web.run import bind, url_of
from rondo.weights.config import WeightsConfig
from rondo.weights.directory import Directory
from rondo.weights.manifest import layout_in
from rondo.weights.publisher import Publisher
from rondo.weights.service import HostReplica, application, serve
from rondo.weights.shards import Shard
from rondo.weights.transports import deltas
from rondo.weights.transports import serving as serving_routes
from rondo.weights.transports.http import RemoteOwner, fetch_http
from rondo.weights.transports.landing import Landing
from rondo.weights.transports.objects import fetch_objects, put, versions_in
from rondo.weights.transports.segment import read_segment
from rondo.weights.transports.serving import VersionServer
from rondo.weights.transports.source import WeightSource
from support.ports import free_port
from support.waiting import wait_until

KEY = "secret"


@pytest.fixture
def learner(model_folder, tmp_path):
    settings = WeightsConfig(folder=str(tmp_path), bucket_bytes=5000)
    config = json.loads((model_folder / "config.json").read_text())
    made = Publisher("m", config, settings, Directory(), owner="learner")
    made.model_of = lambda seed: new(config, seed=seed)
    yield made
    made.close()


def push(learner, version):
    model = learner.model_of(version)
    learner.register(lambda: [Shard(name, tensor) for name, tensor in to_hf(model)])
    learner.push(version)
    return model


@pytest.fixture
def serving(learner, monkeypatch):
    monkeypatch.setenv("RONDO_WEIGHTS_KEY", KEY)
    listener = bind("127.0.0.1", 0)
    replica = HostReplica("m", learner.directory, "replica", url_of(listener))
    server = uvicorn.Server(uvicorn.Config(application(replica, KEY), log_config=None, lifespan="off"))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
    thread.start()
    wait_until(lambda: server.started, 60)
    yield replica
    server.should_exit = True
    thread.join()
    replica.close()


def data_of(folder: Path) -> bytes:
    return (folder / SINGLE).read_bytes()


def test_another_host_fetches_the_version(serving, learner, tmp_path):
    push(learner, 1)
    serving.follow(0)
    assert {each.owner for each in learner.directory.lookup("m", 1)} == {"learner", "replica"}
    [copy] = [each for each in learner.directory.lookup("m", 1) if each.owner == "replica"]
    landing = Landing(str(tmp_path))
    held = fetch_http(landing, copy.source, 1)
    assert data_of(held.folder) == data_of(serving.held.folder)
    assert held.nbytes == layout_in(held.folder).nbytes
    # Engines of that host read it as a segment.
    read_segment(held.folder, 1, True, 5).release()
    held.release()
    landing.close()


def test_a_wrong_key_version_or_byte_is_refused(serving, learner, monkeypatch, tmp_path):
    push(learner, 1)
    serving.follow(0)
    url = f"{serving.url}/v1/weights/m"
    with pytest.raises(NotFound, match="has no version 9"):
        RemoteOwner(url, 9).describe()
    landing = Landing(str(tmp_path))
    with (serving.held.folder / SINGLE).open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x7f")
    with pytest.raises(ModelError, match="another checksum"):
        fetch_http(landing, url, 1)
    monkeypatch.setenv("RONDO_WEIGHTS_KEY", "other")
    with pytest.raises(Unavailable, match="401"):
        RemoteOwner(url, 1).describe()
    landing.close()


def test_the_copy_outlives_the_learner_and_follows_the_next_one(serving, learner, tmp_path):
    push(learner, 1)
    serving.follow(0)
    before = data_of(serving.held.folder)
    push(learner, 2)
    serving.follow(0)
    assert serving.held.version == 2
    assert data_of(serving.held.folder) != before
    learner.close()
    assert [each.owner for each in learner.directory.lookup("m")] == ["replica"]
    assert serving.held.folder.is_dir(), "its segment stays while a process uses it"


def test_a_store_has_a_folder_of_each_version(learner, tmp_path):
    model = push(learner, 1)
    url = f"memory://weights-{tmp_path.name}"
    put(learner._segments[learner._turn].folder, url)
    landing = Landing(str(tmp_path))
    held = fetch_objects(landing, url, None)
    assert held.version == 1
    save(model, tmp_path / "fresh")
    from safetensors.torch import load_file

    found, fresh = load_file(held.folder / SINGLE), load_file(tmp_path / "fresh" / SINGLE)
    assert all(torch.equal(found[name], fresh[name]) for name in fresh)
    with pytest.raises(NotFound, match="no complete version 7"):
        fetch_objects(landing, url, 7)
    landing.close()


def test_a_link_that_is_cut_or_a_full_host_leaves_the_version_in_use(serving, learner, monkeypatch, tmp_path):
    push(learner, 1)
    serving.follow(0)
    landing, url = Landing(str(tmp_path)), f"{serving.url}/v1/weights/m"
    used = fetch_http(landing, url, 1)
    before = data_of(used.folder)
    push(learner, 2)
    serving.follow(0)

    def cut(data, runs):
        yield b"a"
        raise ConnectionResetError

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as fault:
        fault.setattr(os, "posix_fallocate", full)
        with pytest.raises(StorageError, match="No space left"):
            fetch_http(landing, url, 2)
    with monkeypatch.context() as fault:
        fault.setattr(serving_routes, "_chunks", cut)
        with pytest.raises(Unavailable, match="The weights in use are unchanged") as caught:
            fetch_http(landing, url, 2)
    assert caught.value.code == "link_lost"

    def incomplete(*_):
        raise http.client.IncompleteRead(b"a")

    with monkeypatch.context() as fault:
        fault.setattr(http.client.HTTPResponse, "read", incomplete)
        with pytest.raises(Unavailable, match="The weights in use are unchanged"):
            RemoteOwner(url, 2).describe()
    assert data_of(used.folder) == before
    assert data_of(fetch_http(landing, url, 2).folder) == data_of(serving.held.folder)
    landing.close()


def test_a_reader_that_is_slower_than_the_pushes_completes(serving, learner, monkeypatch, tmp_path):
    monkeypatch.setattr("rondo.weights.publisher.RELEASE_SECONDS", 0.0)
    push(learner, 1)
    serving.follow(0)
    before, chunks = data_of(serving.held.folder), serving_routes._chunks
    begun, resumed = threading.Event(), threading.Event()

    def slow(data, runs):
        begun.set()
        resumed.wait(60)
        yield from chunks(data, runs)

    monkeypatch.setattr(serving_routes, "_chunks", slow)
    landing = Landing(str(tmp_path))
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(fetch_http, landing, f"{serving.url}/v1/weights/m", None)
        assert begun.wait(60)
        for version in range(2, 6):
            push(learner, version)
            serving.follow(0)
        resumed.set()
        held = reading.result(60)
    assert (held.version, serving.held.version) == (1, 5)
    assert data_of(held.folder) == before
    assert len(list(learner.folder.glob("*/model.safetensors"))) == 3
    with pytest.raises(NotFound, match="has no version 1"):
        RemoteOwner(f"{serving.url}/v1/weights/m", 1).describe()
    landing.close()


def test_a_version_whose_publication_fails_is_published_later(serving, learner, monkeypatch):
    def owners(version):
        try:
            return sorted(each.owner for each in learner.directory.lookup("m", version))
        except NotFound:
            return []

    def refused(*_):
        raise Unavailable("there is no quorum")

    push(learner, 1)
    with monkeypatch.context() as fault:
        fault.setattr(Directory, "publish", refused)
        with pytest.raises(Unavailable, match="no quorum"):
            serving.follow(0)
        with pytest.raises(Unavailable, match="no quorum"):
            push(learner, 2)
    assert owners(1) == ["learner"]
    serving.follow(0)
    assert owners(1) == ["learner", "replica"]
    push(learner, 3)
    serving.follow(0)
    assert (owners(1), owners(2), owners(3)) == ([], [], ["learner", "replica"])


def test_a_host_with_the_version_before_reads_changed_elements_only(serving, learner, tmp_path):
    model = learner.model_of(1)
    learner.register(lambda: [Shard(name, tensor) for name, tensor in to_hf(model)])
    serving.deltas = True
    landing, url = Landing(str(tmp_path)), f"{serving.url}/v1/weights/m"
    used, moved = None, []
    for version in range(1, 4):
        learner.push(version)
        serving.follow(0)
        # The second version is based on another one than the receiver's; the receiver reads it whole.
        base = None if used is None or version == 2 else used.folder
        used = fetch_http(landing, url, version, base=base)
        moved.append(used.nbytes)
        assert data_of(used.folder) == data_of(serving.held.folder)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.view(-1)[:: 50 if parameter.dim() > 1 else 1] += 1
    assert moved[1] == moved[0] == layout_in(used.folder).nbytes
    assert moved[2] < 0.3 * moved[0], "tensors of one dimension are sent whole"
    landing.close()


@given(st.sampled_from([1, 2, 4, 8]), st.lists(st.tuples(st.integers(0, 255), st.booleans()), max_size=400))
def test_a_delta_is_the_new_version_bit_for_bit_or_larger_than_it(size, pairs):
    pairs = pairs[: len(pairs) // size * size]
    old = np.array([byte for byte, _ in pairs], np.uint8)
    new = np.array([byte ^ changed for byte, changed in pairs], np.uint8)
    delta = deltas.encode(old, new, size)
    changed = int((old.view(f"u{size}") != new.view(f"u{size}")).sum())
    if delta is None:
        assert 8 + changed * (4 + size) >= len(new)
    else:
        assert len(delta) < len(new)
        deltas.apply(delta, old)
        assert (old == new).all()
        with pytest.raises(ValueError, match="malformed"):
            deltas.apply(delta[:-1], old)


def test_a_version_comes_from_a_holder_that_answers(serving, learner):
    push(learner, 1)
    serving.follow(0)
    [copy] = [each for each in learner.directory.lookup("m", 1) if each.owner == "replica"]
    directory = Directory()
    for number in range(4):
        gone = f"http://127.0.0.1:{free_port()}/v1/weights/m"
        directory.publish(replace(copy, owner=f"gone-{number}", source=gone))
    other = HostReplica("m", directory, "other")
    with pytest.raises(Unavailable, match="Connection refused"):
        other.follow(0)
    directory.publish(copy)
    other.follow(0)
    assert data_of(other.held.folder) == data_of(serving.held.folder)
    assert len(directory.lookup("m", 1)) == 6
    other.close()


def test_a_checkpoint_engine_that_is_killed_during_a_fetch_is_replaced_by_another_holder(
    learner, monkeypatch, tmp_path
):
    monkeypatch.setenv("RONDO_WEIGHTS_KEY", KEY)
    monkeypatch.setattr("rondo.weights.service.random.shuffle", lambda holders: None)
    push(learner, 1)
    port, begun = free_port(), tmp_path / "begun"

    def stuck(data, runs):
        begun.touch()
        yield b"a"
        time.sleep(600)

    def run():
        serving_routes._chunks = stuck
        serve(HostReplica("m", learner.directory, "first"), KEY, "127.0.0.1", port)

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    url = f"http://127.0.0.1:{port}/v1/weights/m"

    def offers():
        with suppress(RondoError):
            return RemoteOwner(url, 1).describe() is not None

    try:
        wait_until(offers, 60)
        second = VersionServer("m", "127.0.0.1")
        second.offer(WeightSource.parse(learner.source).folder, 1)
        [entry] = learner.directory.lookup("m")
        directory = Directory()
        for owner, source in (("first", url), ("second", second.source)):
            directory.publish(replace(entry, owner=owner, source=source))
        receiver = HostReplica("m", directory, "receiver")
        with ThreadPoolExecutor(1) as pool:
            following = pool.submit(receiver.follow, 0)
            wait_until(begun.exists, 60)
            assert not following.done()
            process.kill()
            following.result(60)
        assert receiver.held.version == 1
        assert data_of(receiver.held.folder) == data_of(WeightSource.parse(learner.source).folder)
        receiver.close()
        second.close()
    finally:
        process.kill()
        process.join()


def test_a_store_without_room_has_no_incomplete_version(learner, monkeypatch, tmp_path):
    push(learner, 1)
    url = f"store:{tmp_path}/store"
    put(learner.folder / "0", url)

    def full(self, source, target, **options):
        raise OSError(28, "No space left on device")

    def refused(*_):
        raise PermissionError(13, "Permission denied")

    push(learner, 2)
    with monkeypatch.context() as fault:
        fault.setattr(LocalFileSystem, "put_file", full)
        with pytest.raises(StorageError, match="No space left"):
            put(learner.folder / "1", url)
    with monkeypatch.context() as fault:
        fault.setattr(LocalFileSystem, "put_file", refused)
        with pytest.raises(
            StorageError, match=r"cannot write the weights to store:.*Permission denied"
        ) as caught:
            put(learner.folder / "1", url)
    assert caught.value.code == "cannot_write"
    assert versions_in(url) == [1]
    landing = Landing(str(tmp_path))
    assert fetch_objects(landing, url, None).version == 1
    landing.close()
