"""Weights, adapters and sleep of an engine over vLLM, on one that is played."""

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from engine.vllm.played import PARAMS, Played, make, run
from rondo.base.errors import (
    ConfigError,
    Conflict,
    InvalidRequest,
    NotFound,
    Overloaded,
    RondoError,
    Unavailable,
)
from rondo.engine.config import EngineConfig
from rondo.engine.vllm.backend import OutputDelta
from rondo.models import parse, read_config
from support.engines import collect


def test_weights_take_over_between_pause_and_resume_and_prefixes_part(engine, folders):
    backend = Played(OutputDelta(0, [5], finish_reason="length"))
    new = str(folders / "1")

    async def work():
        await collect(engine, "a", PARAMS)
        await engine.update_weights(Path(new), 4)
        await engine.reset_prefix_cache()
        return await collect(engine, "b", PARAMS)

    assert run(engine, backend, work).versions == [4]
    verbs = [("pause", "keep"), ("transfer", new, 4), ("resume",), ("reset_prefix_cache",)]
    assert backend.done == verbs
    assert len({asked.salt for asked in backend.asked}) == 2


@pytest.mark.parametrize("paused", [False, True])
def test_after_a_transfer_that_fails_the_old_weights_serve(engine, folders, paused):
    old, new = str(folders / "0"), str(folders / "1")

    async def work():
        backend = engine.backend
        if paused:
            await engine.pause("keep")
        backend.refuses.append(("transfer", new, 1))
        with pytest.raises(InvalidRequest, match=r"no\."):
            await engine.update_weights(Path(new), 1)
        assert ("transfer", old, 0) in backend.done
        assert (("resume",) in backend.done) is not paused
        assert (engine.weight_version, engine.weight_state().whole) == (0, True)
        backend.refuses.append(("transfer", old, 0))
        with pytest.raises(InvalidRequest, match=r"no\."):
            await engine.update_weights(Path(new), 1)
        assert not engine.weight_state().whole
        with pytest.raises(Unavailable, match="no whole version"):
            await collect(engine, "a", PARAMS)
        backend.refuses.clear()
        await engine.update_weights(Path(new), 1)
        return await collect(engine, "b", PARAMS)

    assert run(engine, Played(OutputDelta(0, [5], finish_reason="length")), work).versions == [1]


def test_an_update_lasts_as_long_as_its_transfer_when_the_caller_is_cancelled(engine, folders):
    begun, go = asyncio.Event(), asyncio.Event()

    class Slow(Played):
        async def transfer(self, path, version):
            begun.set()
            await go.wait()

    async def work():
        update = asyncio.ensure_future(engine.update_weights(folders / "1", 1))
        await begun.wait()
        update.cancel()
        with pytest.raises(asyncio.CancelledError):
            await update
        assert engine.weight_state().updating
        with pytest.raises(Conflict, match="already in progress"):
            await engine.update_weights(folders / "1", 2)
        go.set()
        while engine.weight_state().updating:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert (engine.weight_version, engine.weight_state().whole) == (1, True)

    run(engine, Slow(), work)


def test_a_folder_that_cannot_do_never_reaches_vllm(engine, folders, tmp_path):
    shutil.copytree(folders / "1", tmp_path / "other")
    config = json.loads((tmp_path / "other" / "config.json").read_text())
    (tmp_path / "other" / "config.json").write_text(json.dumps(config | {"rope_theta": 5.0}))
    backend = Played()
    for path, version, says in (
        ("nowhere", 1, "not a folder"),
        ("other", 1, "another model"),
        ("other", 0, "not newer"),
    ):
        with pytest.raises(RondoError, match=says):
            run(
                engine,
                backend,
                lambda path=path, version=version: engine.update_weights(tmp_path / path, version),
            )
    assert backend.done == []


def test_on_a_cpu_it_does_not_sleep(engine):
    with pytest.raises(ConfigError, match="GPU") as refused:
        run(engine, Played(), engine.sleep)
    assert refused.value.param == "device"
    run(engine, Played(), engine.wake)


def test_sleep_where_there_is_a_gpu(folders):
    """A second level drops the weights: they are read again at waking."""
    model = parse(read_config(folders / "0"))
    engine = make(EngineConfig(device="cuda"), model, folders / "0")
    backend = Played()

    async def work():
        await engine.sleep(2)
        assert (engine.is_sleeping, engine.ready, engine.weight_state().whole) == (True, False, False)
        with pytest.raises(Conflict, match="asleep"):
            await engine.update_weights(folders / "1", 1)
        await engine.wake(["weights"])
        assert (engine.is_sleeping, engine.weight_state().whole) == (True, True)
        await engine.wake()
        assert (engine.is_sleeping, engine.ready) == (False, True)

    run(engine, backend, work)
    sleeps = [
        ("sleep", 2, "keep"),
        ("wake", ["weights"]),
        ("transfer", str(folders / "0"), 0),
        ("wake", ["kv_cache"]),
    ]
    assert backend.done == sleeps


def test_adapters_have_versions(engine, tmp_path):
    lora = tmp_path / "lora"
    lora.mkdir()
    (lora / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    other = tmp_path / "other"
    other.mkdir()
    (other / "adapter_config.json").write_text('{"peft_type": "TOKENFORMER"}')
    backend = Played(OutputDelta(0, [5], finish_reason="length"))

    async def work():
        await engine.load_adapter("a", str(lora))
        with pytest.raises(InvalidRequest, match="already been loaded"):
            await engine.load_adapter("a", str(lora))
        with pytest.raises(Overloaded, match="max_loaded_adapters"):
            await engine.load_adapter("b", str(lora))
        with pytest.raises(InvalidRequest, match="LoRA"):
            await engine.load_adapter("a", str(other), replace=True)
        await collect(engine, "1", PARAMS, adapter="a")
        await engine.load_adapter("a", str(lora), replace=True)
        await collect(engine, "2", PARAMS, adapter="a")
        await collect(engine, "3", PARAMS)
        assert engine.adapters() == ["a"]
        await engine.unload_adapter("a")
        for ask in (lambda: collect(engine, "4", PARAMS, adapter="a"), lambda: engine.unload_adapter("a")):
            with pytest.raises(NotFound, match="'a'"):
                await ask()

    run(engine, backend, work)
    names = [asked.adapter and asked.adapter.inner_name for asked in backend.asked]
    assert names == ["a@1", "a@2", None]
    assert len({asked.salt for asked in backend.asked}) == 3
    assert [(verb, adapter.inner_name) for verb, adapter in backend.done] == [
        *[
            ("load_adapter", "a@1"),
            ("load_adapter", "a@2"),
            ("unload_adapter", "a@1"),
            ("unload_adapter", "a@2"),
        ],
    ]
