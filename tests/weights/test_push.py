"""A push from a learner to an engine behind HTTP: segments in shared memory, verified, switched between two steps."""

import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
import torch

import rondo
from rondo.base.errors import ConfigError, Conflict, Unavailable
from rondo.base.units import human_bytes
from rondo.cli.service.weights import run as weights_command
from rondo.engine.config import EngineConfig
from rondo.models import load, new, save
from rondo.models.files.mapping import to_hf
from rondo.server.config import ServerConfig
from rondo.weights.config import WeightsConfig
from rondo.weights.directory import Directory, Published, newest_version
from rondo.weights.plan.layouts import RankLayout
from rondo.weights.plan.simulate import plan_copy
from rondo.weights.publisher import Publisher
from rondo.weights.service import HostReplica
from rondo.weights.shards import Shard
from rondo.weights.transports.segment import read_segment
from rondo.weights.transports.trainer_group import gloo_group, send
from server.running import begun, start
from support.engines import Pace
from support.ports import free_port
from support.waiting import wait_until

SETTINGS = WeightsConfig(bucket_bytes=20_000)
PROMPT = [70, 71, 72, 73, 74]


@pytest.fixture(scope="module")
def operated(model_folder):
    config = ServerConfig(port=0, served_model_name="tiny", api_key="user", admin_key="operator")
    yield from start(model_folder, EngineConfig(max_num_seqs=8, block_size=4), config)


@pytest.fixture
def client(operated):
    with rondo.Client(operated.url, api_key="user", admin_key="operator") as client:
        yield client


@pytest.fixture
def publisher(model_folder):
    config = json.loads((model_folder / "config.json").read_text())
    made = Publisher("tiny", config, SETTINGS)
    yield made
    made.close()
    # A segment stays as long as an engine uses it.
    assert len(list(made.folder.glob("*/model.safetensors"))) <= 1


def learner(model_folder, seed):
    return new(json.loads((model_folder / "config.json").read_text()), seed=seed)


def shards(model):
    return lambda: (Shard(name, tensor) for name, tensor in to_hf(model))


def answer(client):
    options = {"max_tokens": 8, "temperature": 0, "ignore_eos": True, "return_token_ids": True, "logprobs": 3}
    choice = client.complete(PROMPT, **options)["choices"][0]
    return choice["token_ids"], choice["logprobs"]["token_logprobs"]


def test_a_push_equals_a_fresh_load_bit_for_bit(client, operated, publisher, model_folder, tmp_path):
    first = client.weight_info()["weight_version"]
    for step in range(1, 4):
        model = learner(model_folder, step)
        publisher.register(shards(model))
        report = publisher.push(first + step, {"engine": client})
        assert not report.failed
        assert report.written == report.nbytes == sum(t.nbytes for _, t in to_hf(model))
        save(model, tmp_path / str(step))
        fresh = dict(load(tmp_path / str(step)).named_parameters())
        for name, tensor in operated.engine.core.model.named_parameters():
            assert torch.equal(tensor, fresh[name]), name
        assert client.weight_info()["weight_version"] == first + step
    pushed = answer(client)
    client.push_weights(tmp_path / "3", first + 4)
    assert answer(client) == pushed


def test_running_requests_are_kept_recomputed_or_aborted(client, operated, publisher, model_folder):
    publisher.register(shards(learner(model_folder, 7)))
    version = client.weight_info()["weight_version"]
    for requests, versions in (("retain", 2), ("recompute", 2), ("abort", 1)):
        publisher.settings = SETTINGS.model_copy(update={"requests": requests})
        answers = []
        runner = operated.engine.core.runner
        fast, runner.run = runner.run, Pace(runner.run)
        try:
            asked = threading.Thread(target=lambda answers=answers: answers.append(long_answer(client)))
            asked.start()
            begun(operated)
            version += 1
            assert not publisher.push(version, {"engine": client}).failed
        finally:
            runner.run = fast
        asked.join()
        [choice] = answers
        assert len(set(choice["weight_versions"])) == versions, requests
        assert choice["finish_reason"] == ("abort" if requests == "abort" else "length")


def test_the_command_pushes_a_folder_and_shows_the_versions(client, operated, model_folder, capsys):
    before = client.weight_info()["weight_version"]
    assert weights_command(["push", str(model_folder), "--to", operated.url, "--admin-key", "operator"]) == 0
    printed = capsys.readouterr().out
    assert f"version {before + 1}: " in printed
    assert re.search(r"predicted .* measured ", printed)
    assert weights_command(["status", "--engines", operated.url, "--admin-key", "operator"]) == 0
    assert capsys.readouterr().out.split()[-2:] == [str(before + 1), "serving"]


def test_the_command_prints_the_planned_bytes_of_every_link_and_writes_as_many(
    client, operated, publisher, model_folder, capsys
):
    command = ["push", str(model_folder), "--to", operated.url, "--admin-key", "operator", "--engine", "tp=2"]
    assert weights_command(command) == 0
    printed = capsys.readouterr().out
    publisher.register(shards(learner(model_folder, 1)))
    whole, halves = (plan_copy(publisher.shapes, RankLayout(), RankLayout(tp=size)) for size in (1, 2))
    report = publisher.push(1)
    assert sum(each.nbytes for each in whole) == report.written == report.nbytes
    assert (
        f"planned {human_bytes(report.written)}, written {human_bytes(report.written)}; predicted " in printed
    )
    for rank in range(2):
        size = human_bytes(sum(each.nbytes for each in halves if each.receiver == rank))
        assert re.search(rf"{operated.url} rank {rank} +{size}\n", printed)


def test_the_status_of_an_engine_that_does_not_answer_is_an_error(operated, capsys):
    gone = f"http://127.0.0.1:{free_port()}"
    assert weights_command(["status", "--engines", f"{operated.url},{gone}", "--admin-key", "operator"]) == 1
    assert "Connection refused" in capsys.readouterr().out


@pytest.fixture
def cluster(monkeypatch):
    """A directory that every command of this process opens."""
    shared = Directory()
    monkeypatch.setattr("rondo.weights.directory.open_directory", lambda *_: Directory(shared=shared))
    return Directory(shared=shared)


def test_a_push_to_a_directory_ends_when_replicas_hold_the_version(cluster, model_folder, capsys):
    command = ["push", str(model_folder), "--directory", "etcd://one", "--name", "m"]
    replica = HostReplica("m", cluster, "replica", "http://replica")
    for version in (1, 2):
        with ThreadPoolExecutor(1) as pool:
            pushed = pool.submit(weights_command, command)
            wait_until(lambda version=version: newest_version(cluster, "m") == version, 60)
            assert not pushed.done()
            replica.follow(0)
            assert pushed.result(60) == 0
        assert f"version {version} is held by replica" in capsys.readouterr().out
        assert [(each.owner, each.version) for each in cluster.lookup("m")] == [("replica", version)]
        read_segment(replica.held.folder, version, True, 5).release()
    replica.close()


def test_a_push_to_a_directory_without_replicas_is_an_error_with_its_remedy(cluster, model_folder, capsys):
    command = ["push", str(model_folder), "--directory", "etcd://one", "--name", "m", "--holder-seconds", "0"]
    with pytest.raises(Unavailable, match=r"no replica took version 1 of m.*start `rondo weights serve m"):
        weights_command(command)
    assert newest_version(cluster, "m") == -1
    with pytest.raises(ConfigError, match="Set --to, or --directory etcd"):
        weights_command(command[:2])


def test_a_push_is_newer_than_the_directory_and_the_engines(cluster, client, operated, model_folder, capsys):
    cluster.publish(Published("m", 1 << 40, "replica", "checksum", source="http://replica"))
    command = ["push", str(model_folder), "--to", operated.url, "--admin-key", "operator", "--name", "m"]
    command += ["--directory", "etcd://one", "--holder-seconds", "0"]
    before = client.weight_info()["weight_version"]
    with pytest.raises(Conflict, match="not newer than"):
        weights_command([*command, "--version", str(before + 1)])
    assert client.weight_info()["weight_version"] == before
    assert weights_command(command) == 0
    assert client.weight_info()["weight_version"] == (1 << 40) + 1
    shown = capsys.readouterr().out
    assert "no replica of m holds version" in shown, "the engine has it: no error"
    assert f"replica still holds version {1 << 40}" in shown


def test_the_command_writes_a_version_to_a_store_that_an_engine_reads(client, model_folder, tmp_path, capsys):
    version = client.weight_info()["weight_version"] + 1
    for number in (version, version + 1):
        more = ["--version", str(number)] if number == version else []
        assert weights_command(["push", str(model_folder), "--to", f"store:{tmp_path}/store", *more]) == 0
        assert f"version {number} is in store:" in capsys.readouterr().out
    client.push_weights({"source": f"store:{tmp_path}/store"}, version + 1)
    assert client.weight_info()["weight_version"] == version + 1


def test_a_replica_switches_its_engines(client, operated, publisher, model_folder):
    version = client.weight_info()["weight_version"] + 1
    publisher.register(shards(learner(model_folder, 11)))
    publisher.push(version)
    urls = [operated.url, f"http://127.0.0.1:{free_port()}"]
    replica = HostReplica("tiny", publisher.directory, "replica", engines=urls, admin_key="operator")
    replica.follow(0)
    assert client.weight_info()["weight_version"] == version
    assert replica.versions == {operated.url: version}
    assert list(replica.failures) == urls[1:]
    replica.close()


def test_a_trainer_drives_vllms_verbs(operated, model_folder):
    """Over gloo: the key is in the address, the names are announced, and the tensors are broadcast."""
    url = operated.url.replace("http://", "http://trl:operator@")
    with httpx.Client(base_url=url, timeout=60) as trainer:
        assert trainer.get("/server_info", params={"config_format": "json"}).json()["vllm_config"]
        size = trainer.get("/get_world_size").json()["world_size"] + 1
        port, model = free_port(), learner(model_folder, 9)
        info = {"master_address": "127.0.0.1", "master_port": port, "rank_offset": 1, "world_size": size}
        info |= {"packed": True, "packed_buffer_size_bytes": 9000}
        with ThreadPoolExecutor(1) as pool:
            joined = pool.submit(trainer.post, "/init_weight_transfer_engine", json={"init_info": info})
            group = gloo_group("127.0.0.1", port, 0, size, 60)
            assert joined.result().is_success
            tensors = list(to_hf(model))
            announced = {
                "names": [name for name, _ in tensors],
                "dtype_names": [str(tensor.dtype).removeprefix("torch.") for _, tensor in tensors],
                "shapes": [list(tensor.shape) for _, tensor in tensors],
            }
            assert trainer.post("/start_weight_update", json={}).is_success
            update = pool.submit(trainer.post, "/update_weights", json={"update_info": announced})
            send(iter(tensors), group, 9000)
            assert update.result().is_success, update.result().text
            assert trainer.post("/finish_weight_update", json={}).is_success
    served = dict(to_hf(operated.engine.core.model))
    assert all(torch.equal(served[name], tensor) for name, tensor in tensors)


def long_answer(client):
    options = {"max_tokens": 100, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    return client.complete(PROMPT, **options)["choices"][0]
