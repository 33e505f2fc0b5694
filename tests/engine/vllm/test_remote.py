"""A vLLM of ours that ends when it should not: who asks is told, it comes back as it was, and nothing stays behind."""

import asyncio
import subprocess
import sys
import tempfile
import threading
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from engine.vllm.fakes import make_fake
from rondo.base.errors import ConfigError, RondoError, Unavailable
from rondo.client.types import GenerateRequest, SamplingParams
from rondo.engine.config import EngineConfig, VllmConfig
from rondo.engine.vllm.backend import VllmAdapter
from rondo.engine.vllm.child.process import VllmProcess
from rondo.engine.vllm.child.restarts import Restarts
from rondo.engine.vllm.folder import RunFolder
from rondo.engine.vllm.load import load_vllm
from rondo.engine.vllm.options import environment
from rondo.engine.vllm.remote import Remote
from rondo.engine.vllm.versions import check_version
from rondo.models import save
from support import waiting
from support.engines import collect
from support.processes import alive, wait_until_gone
from support.tiny import tiny_model
from support.waiting import wait_until as until

PARAMS = SamplingParams(max_tokens=3, temperature=0, detokenize=False)
LONG = PARAMS.with_(max_tokens=4000)


@pytest.fixture(autouse=True)
def home(monkeypatch):
    """Its path is short: a socket's address has to fit."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("RONDO_HOME", folder)
        yield Path(folder)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    for name in ("0", "1"):
        save(tiny_model(seed=int(name), max_position_embeddings=8192), folder / name)
    return folder


@contextmanager
def remote(fake, restarts=3, failures=None):
    process = VllmProcess(fake.python, partial(environment, EngineConfig()), 60)
    try:
        backend = Remote(process, [], "old", 0, [], restarts, ([] if failures is None else failures).append)
    except BaseException:
        process.stop()
        raise
    try:
        yield backend
    finally:
        backend.stop()


@contextmanager
def engine(fake, models):
    config = EngineConfig(max_model_len=8000, vllm=VllmConfig(python=fake.python))
    loaded = load_vllm(models / "0", config)
    try:
        yield loaded
    finally:
        loaded.stop()


def run(work):
    return asyncio.run(asyncio.wait_for(work, 100))


async def come_back(engine, fake, start):
    await waiting.until(lambda: fake.paths().count("start") >= start and engine.backend.up, 60)


def test_requests_are_told_and_later_ones_work(tmp_path, models):
    fake = make_fake(tmp_path)

    async def work(engine):
        stream = engine.generate(GenerateRequest("a", [9], LONG))
        await anext(stream)
        fake.kill()
        with pytest.raises(Unavailable, match="in the middle of this request") as lost:
            while True:
                await anext(stream)
        assert lost.value.code == "engine_failed"
        await waiting.until(lambda: not engine.backend.up)
        assert not engine.ready
        with pytest.raises(Unavailable, match="was killed by signal 9, and is being started again"):
            await collect(engine, "b", PARAMS)
        await come_back(engine, fake, 2)
        assert engine.ready
        assert (await collect(engine, "c", PARAMS)).tokens == [[5, 5, 5]]

    with engine(fake, models) as loaded:
        before = fake.pids()
        run(work(loaded))
        assert not any(map(alive, before)), "a worker outlived its server"
        pids = fake.pids()
    wait_until_gone(pids)


def test_it_comes_back_as_it_was(tmp_path):
    """With the weights, the adapters, and still paused."""
    fake = make_fake(tmp_path)

    async def work(backend):
        await backend.load_adapter(VllmAdapter("a", "/a", 1))
        await backend.pause("keep")
        await backend.transfer("new", 3)
        fake.kill()
        until(lambda: fake.paths().count("start") == 2 and backend.up)
        return fake.asked()[-4:]

    with remote(fake) as backend:
        assert run(work(backend)) == [
            ["start", "new"],
            ["/update_weight_version", {"new_version": "3"}],
            ["/v1/load_lora_adapter", {"lora_name": "a@1", "lora_path": "/a"}],
            ["/pause?mode=keep&clear_cache=false", {}],
        ]


def test_asleep_it_comes_back_asleep(tmp_path):
    fake = make_fake(tmp_path)

    async def work(backend):
        await backend.sleep(2, "abort")
        await backend.wake(["weights"])
        fake.kill()
        until(lambda: fake.paths().count("start") == 2 and backend.up)
        assert fake.paths()[-2:] == ["/sleep?level=1&mode=keep", "/wake_up?tags=weights"]
        await backend.wake(None)
        fake.kill()
        until(lambda: fake.paths().count("start") == 3 and backend.up)
        assert fake.paths()[-1] == "/update_weight_version"

    with remote(fake) as backend:
        run(work(backend))


def test_killed_in_a_weight_update_the_old_weights_serve(tmp_path, models):
    fake = make_fake(tmp_path)

    async def work(engine):
        fake.does("hangs")
        update = asyncio.create_task(engine.update_weights(models / "1", 1))
        await asyncio.to_thread(fake.wait_for, "/update_weights")
        fake.kill()
        with pytest.raises(Unavailable) as lost:
            await update
        assert lost.value.code == "engine_failed"
        fake.does("hangs", on=False)
        await come_back(engine, fake, 2)
        assert fake.asked()[-2:] == [
            ["start", str(models / "0")],
            ["/update_weight_version", {"new_version": "0"}],
        ]
        assert (engine.weight_version, engine.weight_state().whole, engine.ready) == (0, True, True)
        await engine.update_weights(models / "1", 1)
        assert (await collect(engine, "a", PARAMS)).versions == [1, 1, 1]

    with engine(fake, models) as loaded:
        run(work(loaded))


def test_killed_again_while_it_starts(tmp_path):
    fake, failures = make_fake(tmp_path), []
    with remote(fake, restarts=2, failures=failures) as backend:
        fake.does("slow")
        fake.kill()
        fake.wait_for("start", 2)
        fake.kill()
        fake.does("slow", on=False)
        until(lambda: fake.paths().count("start") == 3 and backend.up)
        assert not failures
        fake.kill()
        until(lambda: failures)
    assert len(failures) == 1
    assert (failures[0].code, failures[0].message) == (
        "engine_failed",
        "vLLM was killed by signal 9, for the last time (engine.vllm.restarts).",
    )


def test_one_that_will_not_start_again(tmp_path):
    fake, failures = make_fake(tmp_path), []
    with remote(fake, restarts=1, failures=failures) as backend:
        fake.does("broken")
        fake.kill()
        until(lambda: failures)
        assert not backend.up
    assert "could not be started again: ended with exit code 1: ValueError: no memory" in failures[0].message


def test_stopped_while_it_starts_again(tmp_path):
    fake, failures = make_fake(tmp_path), []
    with remote(fake, failures=failures):
        fake.does("slow")
        fake.kill()
        fake.wait_for("start", 2)
    assert not failures
    wait_until_gone(fake.pids())


def test_killed_in_its_first_start(tmp_path, home):
    fake = make_fake(tmp_path)
    fake.does("slow")
    killer = threading.Thread(target=lambda: (fake.wait_for("start"), fake.kill()))
    killer.start()
    with pytest.raises(ConfigError, match="vLLM was killed by signal 9"), remote(fake):
        pass
    killer.join()
    wait_until_gone(fake.pids())
    assert not list((home / "run").iterdir())


def test_starts_come_after_longer_and_longer():
    restarts = Restarts(7)
    assert [restarts.next(now) for now in range(8)] == [0, 1, 2, 4, 8, 16, 30, None]
    assert restarts.next(700) == 0
    assert Restarts(0).next(0) is None


OWNER = """
import sys, time
from functools import partial
import threading
from rondo.engine.config import EngineConfig
from rondo.engine.vllm.options import environment
from rondo.engine.vllm.child.process import VllmProcess
VllmProcess(sys.argv[1], partial(environment, EngineConfig()), 60).start(["--model", "x"], threading.Event())
print("ready", flush=True)
time.sleep(300)
"""


@pytest.mark.parametrize("starting", [False, True])
def test_nothing_of_it_is_left_where_its_owner_is_killed(tmp_path, home, starting):
    """Neither a process nor a folder, even before vLLM has been imported."""
    fake = make_fake(tmp_path)
    if starting:
        fake.does("slow")
    owner = subprocess.Popen([sys.executable, "-c", OWNER, fake.python], stdout=subprocess.PIPE)
    try:
        if starting:
            fake.wait_for("start")
        else:
            assert owner.stdout.readline() == b"ready\n"
        assert len(list((home / "run").iterdir())) == 1
    finally:
        owner.kill()
        owner.wait()
    wait_until_gone(fake.pids())
    until(lambda: not list((home / "run").iterdir()), 20)


def test_a_folder_that_was_left_goes_with_the_next_start(home):
    leave = "import os\nfrom rondo.engine.vllm.folder import RunFolder\nRunFolder()\nos._exit(9)"
    subprocess.run([sys.executable, "-c", leave], check=False)
    [left] = (home / "run").iterdir()
    assert (left / "plugins" / "rondo_vllm_plugin.py").exists()
    first = RunFolder()
    second = RunFolder()
    assert set((home / "run").iterdir()) == {first.path, second.path}
    assert first.path.stat().st_mode & 0o77 == 0
    first.remove()
    second.remove()
    assert not list((home / "run").iterdir())


def test_a_long_home_does_not_make_the_socket_unusable(tmp_path, monkeypatch):
    monkeypatch.setenv("RONDO_HOME", str(tmp_path / ("x" * 200)))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = RunFolder()
    assert len(str(folder.path / "socket")) < 107
    folder.remove()


def test_versions(tmp_path, caplog):
    check_version("0.32.7+cpu")
    assert not caplog.records
    for version in ("0.33.0", "1.0", "0.1.dev7+g1234", "unknown"):
        caplog.clear()
        check_version(version)
        assert "tested with (0.32)" in caplog.text
    fake = make_fake(tmp_path, "0.31.4")
    with pytest.raises(ConfigError, match=r"vLLM 0.31.4, and Rondo works with 0.32") as refused, remote(fake):
        pass
    assert refused.value.param == "vllm.python"


def test_vllms_own_figures_are_among_ours(tmp_path, models):
    with engine(make_fake(tmp_path), models) as loaded:
        run(collect(loaded, "a", PARAMS))
        found = {metric.name: metric.samples for metric in loaded.metrics.collect()}
        assert found["rondo:kv_cache_usage_perc"][0].value == 0.25
        assert found["rondo:num_preemptions"][0].value == 3
        assert found["rondo:num_requests_running"][0].value == 7
        assert found["rondo:generation_tokens"][0].value == 3, "what clients saw"
        assert found["rondo:num_preemptions"][0].labels == {"engine": "0", "model_name": ""}
        assert not [name for name in found if "created" in name or not name.startswith("rondo:")]
        loaded.backend.up = False
        found = {metric.name: metric.samples for metric in loaded.metrics.collect()}
        assert found["rondo:num_requests_running"][0].value == 0
        assert "rondo:kv_cache_usage_perc" not in found


def test_adapters_from_the_start(tmp_path, models):
    fake = make_fake(tmp_path)
    lora = tmp_path / "lora"
    lora.mkdir()
    (lora / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    config = EngineConfig(vllm=VllmConfig(python=fake.python, adapters=True))
    loaded = load_vllm(models / "0", config, adapters={"a": str(lora)})
    try:
        assert loaded.adapters() == ["a"]
        assert ["/v1/load_lora_adapter", {"lora_name": "a@1", "lora_path": str(lora)}] in fake.asked()
    finally:
        loaded.stop()
    with pytest.raises(RondoError, match=r"vllm\.adapters=true"):
        load_vllm(models / "0", EngineConfig(), adapters={"a": str(lora)})


def test_the_fake_is_found(tmp_path):
    """It is the program that real vLLMs run too: a wrong name is no process at all."""
    fake = make_fake(tmp_path)
    with remote(fake) as backend:
        assert backend.up
        assert (
            Path(f"/proc/{backend.process.pid}/cmdline").read_bytes().split(b"\0")[2] == b"rondo_vllm_parent"
        )
