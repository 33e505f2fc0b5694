"""Versions from `rondo rl` to engines: followed segments, other transports, the directory, running requests."""

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import rondo
from rondo.base.errors import ConfigError, Conflict, ModelError, StorageError, Unavailable
from rondo.engine.config import EngineConfig
from rondo.models.files.mapping import to_hf
from rondo.rl import jobs
from rondo.rl.config import RlConfig
from rondo.rl.loop import Loop
from rondo.rl.remote.config import FarConfig
from rondo.rl.remote.push import PolicyPublisher, RemotePush
from rondo.rl.remote.servers import RondoServer
from rondo.rl.rollout.async_collector import AsyncCollector
from rondo.rl.rollout.types import RlStep
from rondo.server.config import ServerConfig
from rondo.weights.config import WeightsConfig
from rondo.weights.directory import Directory, Published
from rondo.weights.service import HostReplica
from rondo.weights.transports import segment, source
from rondo.weights.transports.objects import versions_in
from server.running import Running, begun, start
from support.engines import Pace
from support.far import Lengths, fleet_of
from support.home import own_home
from support.served import ADMIN_KEY, write_model
from support.tiny import tiny_model, tiny_tokenizer

NAME = "policy"
"""Name of a policy without a folder, in a directory."""
WEIGHTS = WeightsConfig(bucket_bytes=4096)
CONFIG = RlConfig(
    prompts_per_step=2,
    samples_per_prompt=4,
    steps=4,
    lr=1e-2,
    max_tokens=8,
    tokens_per_microbatch=512,
    deterministic=True,
)


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("ground") / "tiny")


@pytest.fixture(scope="module")
def operated(ground: Path) -> Iterator[Running]:
    engine = EngineConfig(max_num_seqs=8, block_size=4, deterministic=True)
    yield from start(ground, engine, ServerConfig(port=0, admin_key=ADMIN_KEY))


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RONDO_ADMIN_KEY", ADMIN_KEY)


@pytest.fixture
def begin(operated: Running, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Loop]]:
    loops, ended = list[Loop](), list[Loop]()
    close = Loop.close

    def closed(loop: Loop) -> None:
        ended.append(loop)
        close(loop)

    monkeypatch.setattr(Loop, "close", closed)

    def make(
        weights: WeightsConfig = WEIGHTS, mode: str = "sync", max_staleness: int = 1, **engine: Any
    ) -> Loop:
        far = FarConfig(url=(operated.url,), wait=30, weights=weights, **engine)
        changes = {"engine": far, "mode": mode, "max_staleness": max_staleness}
        loop = Loop(tiny_model(), tiny_tokenizer(), Lengths(), CONFIG.model_copy(update=changes))
        loops.append(loop)
        return loop

    yield make
    for loop in loops:
        if loop not in ended:
            loop.close()


def publisher_of(loop: Loop) -> PolicyPublisher:
    assert isinstance(loop.collector, AsyncCollector)
    assert isinstance(loop.collector.pushes, RemotePush)
    assert loop.collector.pushes._publisher is not None
    return loop.collector.pushes._publisher


def version_of(operated: Running) -> int:
    return operated.engine.weight_version


def check_pushed(loop: Loop, operated: Running) -> None:
    """The engine has the learner's version and weights."""
    assert version_of(operated) == loop.version
    theirs = dict(operated.engine.core.model.named_parameters())
    for name, tensor in loop.learner.model.named_parameters():
        assert torch.equal(tensor, theirs[name]), name


def shared_directory(monkeypatch: pytest.MonkeyPatch, lease_s: float = 60) -> Directory:
    """A directory in place of a cluster's."""
    cluster = Directory(lease_s)
    monkeypatch.setattr(
        "rondo.rl.remote.push.open_directory", lambda url, lease_s: Directory(lease_s, shared=cluster)
    )
    return cluster


def refused(*_: object, **__: object) -> Any:
    raise ModelError("cannot read this.", param="source")


def cut(*_: object, **__: object) -> Any:
    raise Unavailable("the connection was cut.", code="link_lost")


def no_room(*_: object) -> Any:
    raise StorageError("No space left to write this.")


def full(*_: object) -> Any:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_an_engine_verifies_buckets_while_later_ones_are_written(
    begin: Callable[..., Loop], operated: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = begin()
    last = len(publisher_of(loop).buckets) - 1
    assert last > 1
    verified = threading.Event()
    wait, write = segment._await_bucket, segment.WeightSegment.write

    def awaited(words: Any, number: int, *rest: Any) -> None:
        if number > 0:
            verified.set()
        wait(words, number, *rest)

    def written(self: segment.WeightSegment, name: str, tensor: Any, number: int, *rest: Any) -> None:
        if number == last:
            assert verified.wait(60), "no bucket is verified before the last one is written"
        write(self, name, tensor, number, *rest)

    monkeypatch.setattr(segment, "_await_bucket", awaited)
    monkeypatch.setattr(segment.WeightSegment, "write", written)
    monkeypatch.setattr(RondoServer, "push", refused)  # of versions that are complete
    loop.step()
    check_pushed(loop, operated)


@pytest.mark.parametrize("transport", ["shm", "http"])
def test_no_engine_switches_after_another_learner_has_claimed_the_model(
    begin: Callable[..., Loop], operated: Running, monkeypatch: pytest.MonkeyPatch, transport: str
) -> None:
    cluster = shared_directory(monkeypatch)
    loop = begin(transport=transport, directory="etcd://somewhere:2379")
    version, fetch = version_of(operated), RondoServer.fetch

    async def fetched(server: RondoServer, *given: Any) -> None:
        await fetch(server, *given)
        cluster._state.writers.clear()
        cluster.claim(NAME, "another learner")

    monkeypatch.setattr(RondoServer, "fetch", fetched)
    with pytest.raises(Conflict, match="has the writer another learner"):
        loop.push()
    assert version_of(operated) == version
    with rondo.Client(operated.url, admin_key=ADMIN_KEY) as client:
        assert not client.weight_info()["updating"]


def test_a_directory_lists_each_version_for_other_hosts(
    begin: Callable[..., Loop], operated: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = shared_directory(monkeypatch)
    newest = version_of(operated) + 100
    cluster.publish(Published(NAME, newest, "earlier", "checksum"))
    loop = begin(directory="etcd://somewhere:2379")
    assert loop.version == newest + 1
    replica = HostReplica(NAME, cluster, "replica")
    for _ in range(2):
        loop.step()
        replica.follow(0)
        assert replica.held is not None
        assert replica.held.version == loop.version
        weights = load_file(replica.held.folder / "model.safetensors")
        assert all(torch.equal(weights[name], tensor) for name, tensor in to_hf(loop.learner.model))
    with pytest.raises(Conflict, match="has the writer"):
        cluster.claim(NAME, "another learner")
    assert {holder.owner for holder in cluster.lookup(NAME)} > {"replica"}
    replica.close()


def test_a_run_waits_for_the_claim_of_a_killed_one(
    begin: Callable[..., Loop], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = shared_directory(monkeypatch, lease_s=2)
    cluster.claim(NAME, "killed")
    loop = begin(directory="etcd://somewhere:2379")
    assert [holder.version for holder in cluster.lookup(NAME)] == [loop.version]
    with pytest.raises(Conflict, match="has the writer"):
        begin(WEIGHTS.model_copy(update={"lease_seconds": 0.2}), directory="etcd://somewhere:2379")


@pytest.mark.parametrize("kind", ["folder", "memory"])
def test_a_store_has_the_newest_version_while_the_run_lasts(
    begin: Callable[..., Loop], operated: Running, tmp_path: Path, kind: str
) -> None:
    url = f"store:{tmp_path}/store" if kind == "folder" else "store:memory://bucket/policy"
    loop = begin(transport=url)
    assert [engine.transport for engine in fleet_of(loop).engines] == ["store"]
    for _ in range(2):
        assert loop.step()["logprob_diff_max"] == 0
        check_pushed(loop, operated)
        assert versions_in(url) == [loop.version]
    loop.close()
    assert versions_in(url) == []
    assert not list(tmp_path.glob("store/*"))


def test_each_job_has_its_own_folder_in_a_store(
    ground: Path, operated: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RONDO_HOME", str(own_home(tmp_path / "home")))
    engine = FarConfig(url=(operated.url,), transport="s3://bucket/policy/")
    plan = jobs.plan(CONFIG.model_copy(update={"model": str(ground), "engine": engine}))
    assert jobs._with_folder(plan.config, plan.job).engine.store == f"s3://bucket/policy/{plan.job.short}"


def test_a_corrupted_bucket_is_transferred_again(
    begin: Callable[..., Loop], operated: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, read, reads = begin(), segment.read_segment, list[int]()
    complete, place = segment.WeightSegment.complete, publisher_of(loop).buckets[0].runs[0].offset

    def flipped(self: segment.WeightSegment, number: int, *rest: Any) -> None:
        if number == 0:
            self.data[place] ^= 0xFF
        complete(self, number, *rest)

    def healed(folder: Path, version: int, *rest: Any) -> segment.Held:
        reads.append(version)
        if len(reads) == 3:
            data = np.memmap(folder / "model.safetensors", np.uint8, "r+")
            data[place] ^= 0xFF
            data.flush()
        return read(folder, version, *rest)

    monkeypatch.setattr(segment.WeightSegment, "complete", flipped)
    monkeypatch.setattr(source, "read_segment", healed)
    loop.step()
    assert reads == [loop.version] * 3, "while it is written, when it is complete, and again"
    check_pushed(loop, operated)
    assert [engine.transport for engine in fleet_of(loop).engines] == ["shm"]


@pytest.mark.parametrize("used", ["http", "folder"])
def test_transports_are_tried_in_turn(
    begin: Callable[..., Loop], operated: Running, monkeypatch: pytest.MonkeyPatch, used: str
) -> None:
    monkeypatch.setattr(source, "read_segment", refused)
    if used == "folder":
        monkeypatch.setattr(source, "fetch_http", cut)
    loop = begin()
    assert [engine.transport for engine in fleet_of(loop).engines] == [used]
    loop.step()
    check_pushed(loop, operated)


def test_a_configured_transport_has_no_other(
    begin: Callable[..., Loop], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "read_segment", refused)
    with pytest.raises(ConfigError, match=r"shm: .*choose another rl.engine.transport"):
        begin(transport="shm")


def test_full_shared_memory_is_replaced_by_folders(
    begin: Callable[..., Loop], operated: Running, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    loop = begin()
    with monkeypatch.context() as patch:
        patch.setattr(PolicyPublisher, "push", no_room)
        loop.step()
    check_pushed(loop, operated)
    loop.step()
    check_pushed(loop, operated)
    loop.close()
    monkeypatch.setattr(os, "posix_fallocate", full)
    loop = begin(folder=str(tmp_path / "weights"))
    assert [engine.transport for engine in fleet_of(loop).engines] == ["folder"]
    loop.step()
    check_pushed(loop, operated)
    for settings in ({"transport": "shm"}, {"directory": "etcd://somewhere:2379"}):
        shared_directory(monkeypatch)
        with pytest.raises(StorageError, match="No space left"):
            begin(**settings)


def test_running_requests_are_kept_recomputed_or_aborted(
    begin: Callable[..., Loop], operated: Running
) -> None:
    """Requests of another client of the engine."""
    for requests, versions in (("retain", 2), ("recompute", 2), ("abort", 1)):
        loop = begin(WEIGHTS.model_copy(update={"requests": requests}))
        answers = list[dict[str, Any]]()
        runner = operated.engine.core.runner
        fast, runner.run = runner.run, Pace(runner.run)
        try:
            asked = threading.Thread(target=lambda answers=answers: answers.append(long_answer(operated.url)))
            asked.start()
            begun(operated)
            loop.push()
        finally:
            runner.run = fast
        asked.join()
        (answer,) = answers
        assert len(set(answer["weight_versions"])) == versions, requests
        assert answer["finish_reason"] == ("abort" if requests == "abort" else "length")
        loop.close()


def long_answer(url: str) -> dict[str, Any]:
    with rondo.Client(url) as client:
        options = {"max_tokens": 60, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
        found: dict[str, Any] = client.complete([70, 71, 72], **options)["choices"][0]
        return found


def test_answers_that_a_push_aborts_are_sampled_again(
    begin: Callable[..., Loop], operated: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine computes no step from the first update of the weights to its switch."""
    loop = begin(WEIGHTS.model_copy(update={"requests": "abort"}), mode="async", max_staleness=2)
    told, held, released = list[RlStep](), threading.Event(), threading.Event()
    loop.observers.append(told.append)
    learn, switch, runner = loop.learning.learn, RondoServer.switch, operated.engine.core.runner
    paced = Pace(runner.run)

    def run(step: Any) -> Any:
        if held.is_set():
            released.wait(60)
        return paced(step)

    def learned(*given: Any) -> Any:
        held.set()
        return learn(*given)

    async def switched(server: RondoServer, *given: Any) -> None:
        released.set()
        await switch(server, *given)

    monkeypatch.setattr(runner, "run", run)
    monkeypatch.setattr(loop.learning, "learn", learned)
    monkeypatch.setattr(RondoServer, "switch", switched)
    assert sum(loop.step()["engine/asked_again"] for _ in range(3)) > 0
    samples = [sample for step in told for group in step.groups for sample in group.samples]
    assert len(samples) == 3 * 8
    assert all(sample.finish_reason != "abort" for sample in samples)
    assert all(len(set(sample.versions)) == 1 for sample in samples)
