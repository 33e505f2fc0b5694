"""Segments in shared memory: verification, and every failure of a writer or a reader."""

import multiprocessing
import os
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from rondo.base.errors import Conflict, ModelError, StorageError, Unavailable
from rondo.weights.checksum import PIECE_BYTES, bucket_checksum, copied
from rondo.weights.config import WeightsConfig
from rondo.weights.directory import Directory, Published
from rondo.weights.plan.boxes import ByteRun
from rondo.weights.publisher import Publisher
from rondo.weights.shards import Shard
from rondo.weights.transports.segment import claim, read_segment
from rondo.weights.transports.source import WeightSource, fetch
from support.waiting import wait_until

SETTINGS = WeightsConfig(bucket_bytes=1024)


class Engine:
    """A receiver without a model."""

    def __init__(self, fails: bool = False) -> None:
        self.fails, self.version, self.held = fails, 0, None

    def start_weight_update(self):
        if self.fails:
            raise Unavailable("it is gone")

    def update_weights(self, update_info):
        self.next = fetch(WeightSource.parse(update_info["source"]), update_info["version"], seconds=30)

    def finish_weight_update(self, weight_version=None, requests="retain"):
        if self.held is not None:
            self.held.release()
        self.held, self.version = self.next, weight_version

    def abort_weight_update(self):
        pass


@pytest.fixture
def tensors():
    return {"a": torch.randn(40, 30), "b": torch.randn(7).bfloat16(), "c": torch.randn(())}


@pytest.fixture
def publisher(tensors, tmp_path):
    made = Publisher("m", {}, SETTINGS.model_copy(update={"folder": str(tmp_path)}), Directory())
    made.register(lambda: [Shard(name, tensor) for name, tensor in tensors.items()])
    yield made
    made.close()


def test_a_version_is_read_back_and_described(publisher, tensors):
    engine = Engine()
    report = publisher.push(1, {"e": engine})
    assert not report.failed
    assert engine.version == 1
    assert report.nbytes == report.written == 40 * 30 * 4 + 14 + 4
    found = load_file(engine.held.folder / "model.safetensors")
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
    [published] = publisher.directory.lookup("m")
    assert (published.version, published.source) == (1, f"shm:{engine.held.folder}")


def test_a_rank_has_several_shards_of_one_tensor(publisher):
    """As for the stacked projections of Phi."""
    whole, parts = torch.randn(90, 30), [(0, 50), (50, 70), (70, 90)]
    publisher.register(lambda: [Shard("w", whole[a:b].clone(), tuple(whole.shape), (a, 0)) for a, b in parts])
    publisher.push(1)
    held = fetch(WeightSource.parse(publisher.source), 1, seconds=30)
    assert torch.equal(load_file(held.folder / "model.safetensors")["w"], whole)
    held.release()


def test_two_segments_are_used_in_turn(publisher):
    engine = Engine()
    folders = []
    for version in range(1, 5):
        publisher.push(version, {"e": engine})
        folders.append(engine.held.folder.name)
    assert folders == ["0", "1", "0", "1"]
    with pytest.raises(Conflict, match="not newer than 4"):
        publisher.push(4, {"e": engine})


def test_a_late_engine_keeps_its_version_whole(publisher, tensors, monkeypatch):
    """An engine that misses versions reads its segment as it was."""
    monkeypatch.setattr("rondo.weights.publisher.RELEASE_SECONDS", 0.0)
    late, other = Engine(), Engine()
    publisher.push(1, {"late": late, "other": other})
    before = (late.held.folder / "model.safetensors").read_bytes()
    late.fails = True
    for version in (2, 3, 4):
        tensors["a"] += 1
        report = publisher.push(version, {"late": late, "other": other})
        assert list(report.failed) == ["late"]
        assert other.version == version
    assert (late.held.folder / "model.safetensors").read_bytes() == before


def test_a_corrupted_bucket_is_refused(publisher):
    publisher.push(1)
    folder = WeightSource.parse(publisher.source).folder
    with (folder / "model.safetensors").open("r+b") as file:
        file.seek(-3, os.SEEK_END)
        file.write(b"\xff")
    with pytest.raises(ModelError, match="has another checksum"):
        read_segment(folder, 1, True, 5)
    read_segment(folder, 1, False, 5).release()
    with pytest.raises(Conflict, match="holds version 1 of the weights, not 2"):
        read_segment(folder, 2, True, 5)


def test_a_writer_that_fails_wakes_its_readers(publisher, tensors):
    engine = Engine()
    publisher.push(1, {"e": engine})

    def broken():
        yield Shard("a", tensors["a"])
        raise RuntimeError("out of memory")

    publisher._shards = broken
    with pytest.raises(RuntimeError, match="out of memory"):
        publisher.push(2, {"e": engine})
    assert engine.version == 1
    publisher._shards = lambda: [Shard(name, tensor) for name, tensor in tensors.items()]
    assert not publisher.push(2, {"e": engine}).failed


def test_a_learner_killed_during_a_push_is_noticed(tmp_path, tensors):
    settings = SETTINGS.model_copy(update={"folder": str(tmp_path)})

    def learn():
        publisher = Publisher("m", {}, settings)
        publisher.register(lambda: [Shard(name, tensor) for name, tensor in tensors.items()])

        def endless():
            yield Shard("a", tensors["a"])
            time.sleep(600)

        publisher._shards = endless
        publisher.push(1)

    process = multiprocessing.get_context("fork").Process(target=learn)
    process.start()
    wait_until(lambda: any(_written(path) for path in tmp_path.glob("*/*/progress")), 60)
    [folder] = [path.parent for path in tmp_path.glob("*/*/progress")]
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read_segment, folder, 1, True, 60)
        process.kill()
        process.join()
        with pytest.raises(Unavailable, match="ended before bucket"):
            reading.result()
    # The next process of this host removes what no engine uses.
    os.close(claim(tmp_path / "rondo-weights-next"))
    assert not folder.parent.exists()


def _written(progress):
    """Whether the first bucket is complete."""
    return np.fromfile(progress, np.uint64)[:1].tolist() == [1]


def test_a_writer_that_lost_its_claim_during_a_push_switches_no_engine(tensors, tmp_path):
    now = 0.0
    directory = Directory(lease_s=10, clock=lambda: now)
    settings = SETTINGS.model_copy(update={"folder": str(tmp_path)})
    publisher = Publisher("m", {}, settings, directory)
    publisher.register(lambda: [Shard(name, tensor) for name, tensor in tensors.items()])
    engine = Engine()
    publisher.push(1, {"e": engine})
    now = 100.0
    publisher.push(2, {"e": engine})
    assert engine.version == 2, "a lease that lapsed is repaired"

    class Late(Engine):
        def update_weights(self, update_info):
            nonlocal now
            super().update_weights(update_info)
            now = 200.0
            directory.claim("m", "other")

    late = Late()
    with pytest.raises(Conflict, match="has the writer other already"):
        publisher.push(3, {"late": late})
    assert late.version == 0
    with pytest.raises(Conflict, match="has the writer other already"):
        publisher.push(4, {"e": engine})
    assert engine.version == 2
    publisher.close()


@pytest.mark.parametrize("owner", [None, "learner"])
def test_two_learners_of_one_model_never_alternate(owner, tensors, tmp_path):
    now = 0.0
    directory = Directory(lease_s=10, clock=lambda: now)
    settings = SETTINGS.model_copy(update={"folder": str(tmp_path)})

    def made():
        publisher = Publisher("m", {}, settings, directory, owner=owner)
        publisher.register(lambda: [Shard(name, tensor) for name, tensor in tensors.items()])
        return publisher

    first, engine = made(), Engine()
    first.push(1, {"e": engine})
    if owner is None:
        with pytest.raises(Conflict, match=f"has the writer {first.owner} already"):
            made()
    now = 100.0  # the lease of the first one has expired
    second = made()
    for version in (2, 3):
        with pytest.raises(Conflict, match=f"has the writer {second.owner} already"):
            first.push(version, {"e": engine})
        second.push(version)
        assert [each.owner for each in directory.lookup("m")] == [second.owner]
        assert {each.version for each in directory.lookup("m")} == {version}
    assert engine.version == 1
    second.close()
    made().close()  # without waiting for a lease
    first.close()


@pytest.mark.parametrize("version", [4, 5])
def test_a_version_that_is_not_newer_switches_no_engine(version, publisher):
    engine = Engine()
    publisher.directory.publish(Published("m", 5, "host", "checksum"), publisher._token)
    with pytest.raises(
        Conflict, match=rf"version {version} of m is not newer than version 5.*push version 6"
    ):
        publisher.push(version, {"e": engine})
    assert engine.version == 0
    assert not list(publisher.folder.glob("*/progress")), "nothing was written"
    publisher.push(6, {"e": engine})
    assert engine.version == 6


def test_a_full_memory_file_system_is_an_error_before_anything_is_written(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    publisher = Publisher("m", {}, SETTINGS.model_copy(update={"folder": str(tmp_path)}))
    with pytest.raises(StorageError, match="No space left to write"):
        publisher.register(lambda: [Shard("a", torch.zeros(9))])
    publisher.close()


@pytest.mark.parametrize("size", [0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES + 17])
def test_a_copy_in_pieces_has_the_bytes_and_the_checksum_of_the_bucket(size):
    source = np.random.default_rng(0).integers(0, 256, size, np.uint8)
    data, run = np.zeros(size + 20, np.uint8), ByteRun(13, size)
    assert copied(data, run, source.ctypes.data) == bucket_checksum(data, [run])
    assert np.array_equal(data[13 : 13 + size], source)
    assert not data[:13].any()
    assert not data[13 + size :].any()
