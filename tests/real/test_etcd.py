"""The suite of directories with a real etcd; its death, its restart and a lost quorum."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from rondo.base.errors import Unavailable
from rondo.cli.service.weights import run as weights_command
from rondo.rl.config import RlConfig
from rondo.rl.loop import Loop
from rondo.rl.remote.config import FarConfig
from rondo.server.config import ServerConfig
from rondo.weights.config import WeightsConfig
from rondo.weights.directory import Published
from rondo.weights.directory.etcd import EtcdDirectory
from rondo.weights.publisher import Publisher
from rondo.weights.shards import Shard
from server.running import start
from support.directories import DirectorySuite, Make
from support.far import Lengths
from support.ports import free_port
from support.served import ADMIN_KEY, write_model
from support.tiny import tiny_model, tiny_tokenizer
from support.waiting import wait_until

pytestmark = pytest.mark.real


class Etcd:
    """A cluster of `size` members on loopback."""

    def __init__(self, folder: Path, size: int = 1) -> None:
        self.folder = folder
        self.clients = [free_port() for _ in range(size)]
        self.peers = [free_port() for _ in range(size)]
        self.processes: list[subprocess.Popen[bytes] | None] = [None] * size
        for number in range(size):
            self.start(number)

    def start(self, number: int) -> None:
        peer, client = (f"http://127.0.0.1:{each[number]}" for each in (self.peers, self.clients))
        cluster = ",".join(f"m{i}=http://127.0.0.1:{port}" for i, port in enumerate(self.peers))
        command = ["etcd", "--name", f"m{number}", "--data-dir", str(self.folder / f"m{number}")]
        command += [
            "--listen-peer-urls",
            peer,
            "--initial-advertise-peer-urls",
            peer,
            "--listen-client-urls",
            client,
        ]
        command += ["--advertise-client-urls", client, "--initial-cluster", cluster, "--unsafe-no-fsync"]
        with (self.folder / f"m{number}.log").open("ab") as log:
            self.processes[number] = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self, number: int) -> None:
        process = self.processes[number]
        if process is not None:
            process.send_signal(signal.SIGKILL)
            process.wait()
            self.processes[number] = None

    def close(self) -> None:
        for number in range(len(self.processes)):
            self.kill(number)

    @property
    def endpoints(self) -> list[str]:
        return [f"127.0.0.1:{port}" for port in self.clients]

    def directory(self, lease: float = 30, patience: float = 60) -> EtcdDirectory:
        return EtcdDirectory(self.endpoints, lease, patience, prefix=f"/test/{os.urandom(6).hex()}")


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    if shutil.which("etcd") is None:
        pytest.skip("etcd is missing: bash tests/real/setup.sh")
    made = Etcd(tmp_path_factory.mktemp("etcd"))
    yield made
    made.close()


@pytest.fixture
def make(etcd: Etcd) -> Iterator[Make]:
    prefix, opened = f"/test/{os.urandom(6).hex()}", list[EtcdDirectory]()

    def client(lease: float) -> EtcdDirectory:
        opened.append(EtcdDirectory(etcd.endpoints, lease, 60, prefix))
        return opened[-1]

    yield client
    for each in opened:
        each.close()


class TestEtcd(DirectorySuite):
    pass


def test_entries_survive_a_restart_of_etcd(etcd: Etcd) -> None:
    directory = etcd.directory()
    token = directory.claim("m", "w")
    directory.publish(Published("m", 1, "w", "a"), token=token)
    etcd.kill(0)
    etcd.start(0)
    assert [each.version for each in directory.lookup("m")] == [1]
    directory.renew("w")
    directory.publish(Published("m", 2, "w", "b"), token=token)
    directory.close()


def test_a_lost_quorum_refuses_and_its_return_goes_on(tmp_path: Path) -> None:
    cluster = Etcd(tmp_path, 3)
    try:
        directory = cluster.directory()
        token = directory.claim("m", "w")
        directory.publish(Published("m", 1, "w", "a"), token=token)
        cluster.kill(0)
        assert directory.lookup("m"), "two of three members are a quorum"
        cluster.kill(1)
        directory._patience_s = 3
        with pytest.raises(Unavailable, match="restore its quorum"):
            directory.publish(Published("m", 2, "w", "b"), token=token)
        directory._patience_s = 60
        cluster.start(0)
        wait_until(lambda: bool(directory.lookup("m")), 60)
        directory.publish(Published("m", 2, "w", "b"), token=token)
        directory.close()
    finally:
        cluster.close()


def test_a_receiver_reads_a_limited_number_of_holders(etcd: Etcd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rondo.weights.directory.etcd.MOST_HOLDERS", 3)
    directory = etcd.directory()
    for number in range(5):
        directory.publish(Published("m", 1, f"host-{number}", "a", source=f"http://host-{number}"))
    assert [each.owner for each in directory.lookup("m")] == ["host-4", "host-3", "host-2"]
    directory.close()


def test_a_push_by_the_command_is_held_by_a_replica(
    etcd: Etcd, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url, name = f"etcd://{etcd.endpoints[0]}", f"m-{os.urandom(6).hex()}"
    command = ["push", str(write_model(tmp_path / "tiny")), "--name", name, "--directory", url]
    with pytest.raises(Unavailable, match="no replica took version 1"):
        weights_command([*command, "--holder-seconds", "0"])
    serve = [sys.executable, "-m", "rondo.cli", "weights", "serve", name, "--key", "k", "--port", "0"]
    process = subprocess.Popen([*serve, "--directory", url])
    directory = EtcdDirectory(etcd.endpoints)
    try:
        for version in (1, 2):
            assert weights_command([*command, "--holder-seconds", "240"]) == 0
            assert f"version {version} is held by " in capsys.readouterr().out
            [holder] = directory.lookup(name)
            assert (holder.version, holder.source[:7]) == (version, "http://")
    finally:
        process.terminate()
        process.wait(60)
        directory.close()


def test_a_killed_checkpoint_engine_vanishes_and_its_restart_fetches_again(
    etcd: Etcd, tmp_path: Path
) -> None:
    directory, name = EtcdDirectory(etcd.endpoints), f"m-{os.urandom(6).hex()}"
    publisher = Publisher(name, {}, WeightsConfig(folder=str(tmp_path)), directory)
    publisher.register(lambda: [Shard("a", torch.ones(9))])
    publisher.push(1)
    command = [
        sys.executable,
        "-m",
        "rondo.cli",
        "weights",
        "serve",
        name,
        "--key",
        "k",
        "--lease-seconds",
        "2",
    ]
    command += ["--directory", f"etcd://{etcd.endpoints[0]}", "--port", "0"]

    def holders() -> int:
        return len(directory.lookup(name))

    for _ in range(2):
        process = subprocess.Popen(command)
        wait_until(lambda: holders() == 2, 240)
        process.kill()
        process.wait()
        wait_until(lambda: holders() == 1, 60)
    publisher.close()
    directory.close()


def test_an_engine_of_another_process_follows_an_rl_run(
    etcd: Etcd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`rondo weights serve` switches the second engine, which the run does not know."""
    monkeypatch.setenv("RONDO_ADMIN_KEY", ADMIN_KEY)
    model, name = write_model(tmp_path / "tiny"), f"m-{os.urandom(6).hex()}"
    directory = f"etcd://{etcd.endpoints[0]}"
    servers = [start(model, config=ServerConfig(port=0, admin_key=ADMIN_KEY)) for _ in range(2)]
    own, other = map(next, servers)
    command = [sys.executable, "-m", "rondo.cli", "weights", "serve", name, "--key", "k", "--port", "0"]
    process = subprocess.Popen([*command, "--directory", directory, "--engines", other.url])
    try:
        config = RlConfig(
            model=name,
            prompts_per_step=2,
            samples_per_prompt=4,
            steps=3,
            max_tokens=8,
            tokens_per_microbatch=512,
            engine=FarConfig(url=(own.url,), directory=directory),
        )
        with Loop(tiny_model(), tiny_tokenizer(), Lengths(), config) as loop:
            for _ in range(2):
                loop.step()
                wait_until(lambda: other.engine.weight_version == loop.version, 120)
            theirs = dict(other.engine.core.model.named_parameters())
            for parameter, tensor in loop.learner.model.named_parameters():
                assert torch.equal(theirs[parameter], tensor), parameter
    finally:
        process.kill()
        process.wait()
        for server in servers:
            next(server, None)
