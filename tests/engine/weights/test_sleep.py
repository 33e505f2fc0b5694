"""An engine that sleeps gives memory back and loses nothing."""

import asyncio
import shutil
import sys
from pathlib import Path

import pytest
import torch

from rondo.base.errors import Conflict, InvalidRequest, ModelError, Unavailable
from rondo.engine.config import EngineConfig
from rondo.engine.core import EngineCore
from rondo.engine.entrypoints.llm import LLM
from rondo.models import load, save
from rondo.train.learner.memory import keep_freed_memory
from support.engines import PARAMS, at_work, collect
from support.waiting import run, until

CONFIG = EngineConfig(max_num_seqs=4, block_size=4)


@pytest.fixture
def folder(tiny, tmp_path) -> Path:
    save(tiny, tmp_path / "tiny")
    return tmp_path / "tiny"


@pytest.fixture
def core(folder) -> EngineCore:
    return EngineCore(load(folder), CONFIG, reload=lambda: load(folder))


@pytest.mark.parametrize("level", [1, 2])
def test_requests_in_flight_go_on_after_sleep_with_the_same_tokens(engine, pace, tiny, level):
    """Six requests of two samples: some run, some ride on another, some wait."""

    async def main():
        params = [PARAMS.with_(seed=i, n=2, temperature=0.5) for i in range(6)]
        tasks = [asyncio.create_task(collect(engine, f"r{i}", p)) for i, p in enumerate(params)]
        await until(lambda: engine.metrics.generated_tokens > 20)
        await engine.sleep(level)
        assert (engine.is_sleeping, engine.ready) == (True, False)
        assert (engine.core.pool.used, engine.core.scheduler.num_running) == (0, 0)
        engine.core.pool.check()
        generated = engine.metrics.generated_tokens
        late = asyncio.create_task(collect(engine, "late"))
        await asyncio.sleep(0.02)
        assert engine.metrics.generated_tokens == generated
        await engine.wake()
        pace.hurry()
        assert (engine.is_sleeping, engine.ready) == (False, True)
        got = [(await task).tokens for task in tasks]
        want = LLM(tiny, config=CONFIG).generate([[5, 6, 7]] * 6, params)
        assert got == [[sample.token_ids for sample in output.outputs] for output in want]
        assert len((await late).tokens[0]) == 60
        engine.core.pool.check()

    run(main())


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/statm, which only Linux has")
def test_the_kv_cache_is_given_back_to_the_system(tiny):
    def resident():
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    keep_freed_memory()  # as a learner in the same process does
    core = EngineCore(tiny, EngineConfig(max_num_seqs=4, block_size=16, num_blocks=32768))
    size = sum(tensor.nbytes for tensor in core.runner.cache.tensors)
    assert size == 128 << 20
    for tensor in core.runner.cache.tensors:
        tensor.fill_(1)
    del tensor
    full = resident()
    core.sleep(1)
    assert full - resident() > 0.95 * size
    core.wake()
    assert full - resident() > 0.8 * size
    assert not core.runner.cache.tensors[0].any()


def test_level_1_keeps_the_weights_of_a_cpu_and_level_2_none(core):
    parameters = dict(core.model.named_parameters())
    before = {name: p.detach().clone() for name, p in parameters.items()}
    core.sleep(1)
    assert all(torch.equal(p, before[name]) for name, p in parameters.items())
    core.sleep(2)
    assert {p.numel() for p in parameters.values()} == {0}
    core.sleep(1)  # what is gone stays gone
    assert core.sleeper.level == 2
    core.wake()
    assert all(torch.equal(p, before[name]) for name, p in core.model.named_parameters())
    assert all(p is parameters[name] for name, p in core.model.named_parameters())
    assert core.sleeper.level == 0


def test_parts_wake_one_by_one_and_weights_may_be_pushed_in_between(engine, pace):
    async def main():
        task = asyncio.create_task(collect(engine, "a"))
        await until(at_work(engine.core))
        await engine.sleep(1)
        with pytest.raises(Conflict, match="wake 'weights'"):
            await engine.start_weight_update()
        await engine.wake(["weights"])
        assert engine.is_sleeping
        await engine.start_weight_update()
        with pytest.raises(Conflict, match="finish or abort"):
            await engine.sleep(2)
        await engine.finish_weight_update(3)
        assert not engine.core.runner.cache.layers
        await asyncio.sleep(0.01)
        assert not task.done()
        pace.hurry()
        await engine.wake(["kv_cache"])
        versions = (await task).versions
        assert versions == sorted(versions)
        assert set(versions) == {0, 3}
        await engine.wake()

    run(main())


def test_dropped_weights_that_no_checkpoint_holds_must_be_pushed(engine, pace, tiny):
    """After an update the checkpoint is out of date; it is not gone back to."""

    async def main():
        await engine.start_weight_update()
        await engine.finish_weight_update(1)
        task = asyncio.create_task(collect(engine, "a"))
        await until(at_work(engine.core))
        await engine.sleep(2)
        pace.hurry()
        await engine.wake()
        assert (engine.is_sleeping, engine.ready) == (False, False)
        await engine.start_weight_update()
        await engine.abort_weight_update()
        await asyncio.sleep(0.01)
        assert not engine.ready
        assert not task.done()
        await engine.start_weight_update()
        with torch.no_grad():
            for mine, whole in zip(engine.core.model.parameters(), tiny.parameters(), strict=True):
                mine.copy_(whole)
        await engine.finish_weight_update(2)
        assert engine.ready
        (tokens,), versions, _ = await task
        assert set(versions) == {1, 2}
        assert tokens == LLM(tiny).generate([[5, 6, 7]], PARAMS)[0].outputs[0].token_ids

    run(main())


def test_a_push_that_fails_half_way_stops_all_until_a_whole_version_is_there(engine, pace, tiny):
    async def main():
        tasks = [asyncio.create_task(collect(engine, str(i), PARAMS.with_(seed=i))) for i in range(6)]
        await until(at_work(engine.core))
        await engine.start_weight_update()
        whole = [p.detach().clone() for p in engine.core.model.parameters()]
        with torch.no_grad():
            next(engine.core.model.parameters()).zero_()
        await engine.abort_weight_update()
        generated = engine.metrics.generated_tokens
        await engine.pause("keep")
        await engine.resume()
        await engine.sleep(1)
        await engine.wake()
        await asyncio.sleep(0.02)
        assert (engine.ready, engine.metrics.generated_tokens) == (False, generated)
        await engine.start_weight_update()
        with torch.no_grad():
            for mine, value in zip(engine.core.model.parameters(), whole, strict=True):
                mine.copy_(value)
        pace.hurry()
        await engine.finish_weight_update(1)
        got = [(await task).tokens[0] for task in tasks]
        want = LLM(tiny, config=CONFIG).generate([[5, 6, 7]] * 6, [PARAMS.with_(seed=i) for i in range(6)])
        assert got == [output.outputs[0].token_ids for output in want]

    run(main())


def test_a_torn_engine_may_go_back_to_its_checkpoint(core):
    core.start_weight_update()
    with torch.no_grad():
        next(core.model.parameters()).zero_()
    core.abort_weight_update()
    assert not core.whole
    core.sleep(2)
    core.wake()
    assert core.whole
    assert all(p.any() for p in core.model.parameters())


@pytest.mark.parametrize("mode", ["wait", "abort"])
def test_sleep_ends_what_runs_as_its_mode_says(engine, pace, mode):
    async def main():
        task = asyncio.create_task(collect(engine, "a"))
        await until(at_work(engine.core))
        if mode == "wait":
            pace.hurry()
        await engine.sleep(1, mode)
        assert engine.is_sleeping
        assert not engine.is_paused
        assert (await task).reason == ("length" if mode == "wait" else "abort")
        later = asyncio.create_task(collect(engine, "b"))
        await asyncio.sleep(0.01)
        pace.hurry()
        await engine.wake()
        assert (await later).reason == "length"

    run(main())


def test_asleep_and_paused_are_two_things(engine, pace):
    async def main():
        task = asyncio.create_task(collect(engine, "a"))
        await until(at_work(engine.core))
        await engine.sleep()
        await engine.pause("keep")
        await engine.wake()
        await asyncio.sleep(0.01)
        assert not engine.ready
        assert not task.done()
        await engine.sleep()
        await engine.resume()
        assert engine.is_sleeping
        with pytest.raises(Conflict, match="cannot finish"):
            await engine.pause("wait")
        with pytest.raises(Conflict, match="cannot finish"):
            await engine.sleep(1, "wait")
        await engine.pause("abort")
        pace.hurry()
        assert (await task).reason == "abort"
        await engine.resume()
        await engine.wake()
        assert engine.ready
        assert (await collect(engine, "b")).reason == "length"

    run(main())


def test_who_waits_for_requests_that_fall_asleep_is_told(engine, pace):
    async def main():
        task = asyncio.create_task(collect(engine, "a"))
        await until(at_work(engine.core))
        pause = asyncio.create_task(engine.pause("wait"))
        await until(lambda: engine.core.scheduler.holding)
        await engine.sleep()
        with pytest.raises(Conflict, match="fell asleep"):
            await pause
        await engine.wake()
        await until(at_work(engine.core))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(engine.sleep(2, "wait"), 0.05)
        pace.hurry()
        assert (await task).reason == "length"
        assert (await collect(engine, "b")).reason == "length"
        assert engine.ready

    run(main())


def test_a_request_may_be_aborted_and_the_engine_drained_while_asleep(engine):
    async def main():
        tasks = [asyncio.create_task(collect(engine, name)) for name in "ab"]
        await until(at_work(engine.core))
        await engine.sleep(2)
        await engine.abort("a")
        tokens, _, reason = await tasks[0]
        assert (reason, len(tokens[0]) >= 2) == ("abort", True)
        await engine.drain(0.05)
        with pytest.raises(Unavailable):
            await tasks[1]

    run(main())


def test_what_cannot_wake_sleeps_on_and_may_be_tried_again(engine, pace, folder, monkeypatch):
    async def main():
        task = asyncio.create_task(collect(engine, "a"))
        await until(at_work(engine.core))
        await engine.sleep(2)
        pace.hurry()
        with monkeypatch.context() as patch:
            patch.setattr(engine.core.runner.cache, "allocate", _no_memory)
            with pytest.raises(Unavailable, match="not enough free memory"):
                await engine.wake()
        assert engine.core.sleeper.asleep == {"weights", "kv_cache"}
        shutil.move(folder, folder.with_name("away"))
        with pytest.raises(ModelError):
            await engine.wake()
        assert engine.core.sleeper.asleep == {"weights"}
        shutil.move(folder.with_name("away"), folder)
        await engine.wake()
        assert (await task).reason == "length"

    run(main())


def _no_memory():
    raise MemoryError


def test_wrong_levels_and_tags_are_named(core):
    for level in (0, 3):
        with pytest.raises(InvalidRequest, match="level must be 1") as caught:
            core.sleep(level)
        assert caught.value.param == "level"
    core.sleep()
    with pytest.raises(InvalidRequest, match="'weight'") as caught:
        core.wake(["weight"])
    assert caught.value.param == "tags"
    with pytest.raises(Conflict, match="asleep"):
        core.step()


def test_llm_sleeps_too(folder):
    llm = LLM(str(folder), tokenizer=_NoText(), config=CONFIG)
    want = llm.generate([[5, 6, 7]], PARAMS)[0].outputs[0].token_ids
    llm.sleep(2)
    with pytest.raises(Conflict, match="asleep"):
        llm.generate([[5, 6, 7]], PARAMS)
    llm.wake_up()
    assert llm.generate([[5, 6, 7]], PARAMS)[0].outputs[0].token_ids == want


class _NoText:
    eos_ids = (2,)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: weights on a CPU stay where they are")
def test_level_1_moves_the_weights_of_a_gpu_to_pinned_memory(folder):
    core = EngineCore(load(folder, device="cuda"), EngineConfig(device="cuda", num_blocks=4096))
    before = {name: p.detach().clone() for name, p in core.model.named_parameters()}
    taken = torch.cuda.memory_allocated()
    core.sleep(1)
    assert torch.cuda.memory_allocated() < taken
    assert all(p.device.type == "cpu" and p.data.is_pinned() for p in core.model.parameters())
    core.wake()
    assert all(torch.equal(p, before[name]) for name, p in core.model.named_parameters())
