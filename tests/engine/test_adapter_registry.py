"""Names, folders, versions and the bounded number of loaded adapters; what goes wrong with one harms no other."""

import asyncio
import copy
import gc
import shutil
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from rondo.base.errors import (
    ConfigError,
    InvalidRequest,
    ModelError,
    NotFound,
    Overloaded,
    RondoError,
    Unavailable,
)
from rondo.client.types import GenerateRequest, SamplingParams
from rondo.engine.async_engine import AsyncEngine
from rondo.engine.config import EngineConfig
from rondo.engine.core import EngineCore
from rondo.engine.llm import LLM
from rondo.models import Decoder
from rondo.models.adapters import LoraSpec, attach_lora, detach, save_lora, trainable

GREEDY = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True, detokenize=False)
LONG = GREEDY.with_(max_tokens=60)
NAMES = ["a", "b", "c", "d"]


def write(model: Decoder, folder: Path, seed: int = 0, **spec: Any) -> Path:
    attach_lora(model, LoraSpec(**{"r": 4, "targets": ("q_proj", "down_proj")} | spec))
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in trainable(model):
            parameter.normal_(0.0, 0.3, generator=draw)
    shutil.rmtree(folder, ignore_errors=True)
    save_lora(model, folder)
    detach(model)
    return folder


@pytest.fixture
def folder(tiny: Decoder, tmp_path: Path) -> Path:
    for seed, name in enumerate(NAMES):
        write(tiny, tmp_path / name, seed)
    return tmp_path


def core(tiny: Decoder, folder: Path, **settings: Any) -> EngineCore:
    settings = {"adapters_dir": str(folder), "max_num_seqs": 4, "block_size": 4} | settings
    return EngineCore(tiny, EngineConfig(**settings))


def ask(name: str, adapter: str | None, params: SamplingParams = GREEDY) -> GenerateRequest:
    return GenerateRequest(name, (5, 6, 7), params, adapter=adapter)


def finish(engine: EngineCore) -> None:
    while engine.has_work:
        engine.step()
    assert all(adapter.holders == 0 for adapter in engine.adapters._loaded)
    engine.pool.check()


def loaded(engine: EngineCore) -> list[str]:
    return [adapter.name for adapter in engine.adapters._loaded]


def test_least_recently_used_goes_first(tiny: Decoder, folder: Path) -> None:
    llm = LLM(tiny, config=EngineConfig(adapters_dir=str(folder), max_loaded_adapters=2))
    for name in ("a", "b", "a", "c"):
        llm.generate([[5, 6, 7]], GREEDY, adapter=name)
    assert loaded(llm.core) == ["a", "c"]
    assert llm.core.adapters.totals.loads == 3
    assert llm.core.adapters.totals.evictions == 1
    one = 2 * 2 * (4 * (32 + 32) + 4 * (64 + 32)) * 4 // 2
    assert llm.core.adapters.nbytes == 2 * one


def test_one_in_use_stays(tiny: Decoder, folder: Path) -> None:
    engine = core(tiny, folder, max_loaded_adapters=2)
    for name in ("a", "b"):
        engine.add(ask(name, name))
    with pytest.raises(Overloaded, match="max_loaded_adapters"):
        engine.add(ask("c", "c"))
    assert loaded(engine) == ["a", "b"]
    engine.abort("a")
    engine.add(ask("c", "c"))
    assert loaded(engine) == ["b", "c"]
    finish(engine)


def test_more_adapters_than_room_take_turns(tiny: Decoder, folder: Path) -> None:
    want = LLM(tiny, config=EngineConfig(adapters_dir=str(folder))).generate(
        [[5, 6, 7]] * 8, GREEDY, adapter=NAMES * 2
    )
    llm = LLM(tiny, config=EngineConfig(adapters_dir=str(folder), max_loaded_adapters=1))
    got = llm.generate([[5, 6, 7]] * 8, GREEDY, adapter=NAMES * 2)
    assert [o.outputs[0].token_ids for o in got] == [o.outputs[0].token_ids for o in want]


def test_other_content_is_another_version(tiny: Decoder, folder: Path) -> None:
    """Requests in progress end with the version they came with."""
    engine = core(tiny, folder)
    [first] = engine.add(ask("first", "a", LONG))
    engine.step()
    engine.load_adapter("a", str(folder / "a"), replace=True)
    assert first.adapter is engine.adapters.held("a")
    engine.adapters.release(first.adapter)
    engine.load_adapter("a", str(folder / "b"), replace=True)
    [second] = engine.add(ask("second", "a", LONG))
    assert (first.adapter.version, second.adapter.version) == (1, 2)
    assert first.adapter_key != second.adapter_key
    finish(engine)
    assert loaded(engine) == ["a"]
    want = LLM(tiny, config=EngineConfig(adapters_dir=str(folder))).generate(
        [[5, 6, 7]] * 2, LONG, adapter=["a", "b"]
    )
    assert [first.tokens[3:], second.tokens[3:]] == [o.outputs[0].token_ids for o in want]
    with pytest.raises(InvalidRequest, match="load_inplace"):
        engine.load_adapter("a", str(folder / "b"))


def test_unloading_lets_what_has_begun_finish(tiny: Decoder, folder: Path) -> None:
    engine = core(tiny, folder, max_num_seqs=1)
    [running] = engine.add(ask("running", "a"))
    engine.step()
    [waiting] = engine.add(ask("waiting", "a"))
    [other] = engine.add(ask("other", "b"))
    assert engine.unload_adapter("a") == [waiting]
    assert isinstance(waiting.error, NotFound)
    assert waiting.finish_reason == "abort"
    with pytest.raises(NotFound, match="the adapter 'a' does not exist"):
        engine.add(ask("late", "a"))
    finish(engine)
    assert (running.finish_reason, other.finish_reason) == ("length", "length")
    assert loaded(engine) == ["b"]
    assert engine.adapters.names() == ["b", "c", "d"]
    engine.load_adapter("a", str(folder / "a"))
    engine.add(ask("again", "a"))
    finish(engine)


def test_a_preempted_request_has_begun(tiny: Decoder, folder: Path) -> None:
    engine = core(tiny, folder)
    [request] = engine.add(ask("r", "a"))
    engine.step()
    engine.scheduler.preempt_all()
    assert engine.unload_adapter("a") == []
    finish(engine)
    assert request.finish_reason == "length"


def half(folder: Path) -> None:
    file = folder / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:-9])


def nan(folder: Path) -> None:
    file = folder / "adapter_model.safetensors"
    tensors = load_file(file)
    next(iter(tensors.values())).view(-1)[3] = float("nan")
    save_file(tensors, file)


def test_faults_are_one_requests_own(tiny: Decoder, folder: Path) -> None:
    write(tiny, folder / "high", r=65)
    for name, spoil in {"half": half, "nan": nan}.items():
        spoil(shutil.copytree(folder / "a", folder / name))
    other = shutil.copytree(folder / "a", folder / "other base")
    tensors = {
        k: v.repeat(1, 2) if "lora_A" in k else v
        for k, v in load_file(other / "adapter_model.safetensors").items()
    }
    save_file(tensors, other / "adapter_model.safetensors")
    engine = core(tiny, folder)
    [good] = engine.add(ask("good", "a"))
    engine.step()
    faults: dict[str, tuple[type[RondoError], str]] = {
        "nobody": (NotFound, "does not exist here"),
        "../a": (NotFound, "does not exist here"),
        "high": (ModelError, "its rank is 65, but at most 64"),
        "half": (ModelError, "truncated"),
        "nan": (ModelError, "not all finite"),
        "other base": (ModelError, "of the wrong shape"),
    }
    for name, (kind, message) in faults.items():
        with pytest.raises(kind, match=message):
            engine.add(ask(name, name))
        assert not engine.knows(name)
    finish(engine)
    assert good.finish_reason == "length"
    assert loaded(engine) == ["a"]


def test_an_adapter_for_experts_is_refused(folder: Path, tmp_path: Path) -> None:
    from rondo.models import load
    from support.families import reference

    reference("qwen3-moe").save_pretrained(tmp_path / "base")
    engine = EngineCore(load(tmp_path / "base"), EngineConfig())
    config = '{"peft_type": "LORA", "r": 4, "target_modules": "all-linear"}'
    (folder / "a" / "adapter_config.json").write_text(config)
    with pytest.raises(ModelError, match="LoRA over the experts of a mixture is not supported"):
        engine.load_adapter("a", str(folder / "a"))


def test_the_folder_of_adapters_must_be_there(tiny: Decoder, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a folder"):
        core(tiny, tmp_path / "nowhere")


def test_sleeping_gives_idle_adapters_back(tiny: Decoder, folder: Path) -> None:
    engine = core(tiny, folder)
    engine.add(ask("idle", "a"))
    finish(engine)
    [used] = engine.add(ask("used", "b", LONG))
    engine.step()
    engine.sleep(1)
    assert loaded(engine) == ["b"]
    engine.load_adapter("asleep", str(folder / "c"))
    engine.wake()
    finish(engine)
    assert used.finish_reason == "length"


def test_adapters_are_checked_against_a_model_without_weights(tiny: Decoder, folder: Path) -> None:
    engine = EngineCore(copy.deepcopy(tiny), EngineConfig())
    engine.sleep(2)
    engine.load_adapter("a", str(folder / "a"))
    assert loaded(engine) == ["a"]


# With the engine's thread.


async def collect(engine: AsyncEngine, request: GenerateRequest) -> list[int]:
    tokens: list[int] = []
    async for chunk in engine.generate(request):
        tokens += chunk.token_ids
    return tokens


async def known(engine: AsyncEngine, name: str) -> None:
    for _ in range(5000):
        if engine.core.knows(name):
            return
        await asyncio.sleep(0.001)
    raise AssertionError(f"{name} never came")


@pytest.fixture
def engine(tiny: Decoder, folder: Path) -> Any:
    engine = AsyncEngine(core(tiny, folder, max_loaded_adapters=1))
    yield engine
    engine.stop()


def run(coroutine: Any) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, 30))


def test_requests_wait_for_room(engine: AsyncEngine, tiny: Decoder, folder: Path) -> None:
    want = LLM(tiny, config=EngineConfig(adapters_dir=str(folder))).generate(
        [[5, 6, 7]] * 8, GREEDY, adapter=NAMES * 2
    )

    async def main() -> list[list[int]]:
        asked = [ask(f"r{i}", name) for i, name in enumerate(NAMES * 2)]
        return await asyncio.gather(*(collect(engine, request) for request in asked))

    assert run(main()) == [output.outputs[0].token_ids for output in want]
    assert engine.core.adapters.num_loaded == 1


def test_who_leaves_while_waiting_holds_nothing(engine: AsyncEngine) -> None:
    async def main() -> None:
        await engine.pause()
        first = asyncio.create_task(collect(engine, ask("first", "a")))
        await known(engine, "first")
        waiting = [asyncio.create_task(collect(engine, ask(f"w{i}", "b"))) for i in range(3)]
        await asyncio.sleep(0.05)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await engine.resume()
        await first
        assert len(await collect(engine, ask("last", "c"))) == GREEDY.max_tokens
        assert all(adapter.holders == 0 for adapter in engine.core.adapters._loaded)

    run(main())


def test_unloaded_while_waiting(engine: AsyncEngine) -> None:
    """In the queue, and before it; whoever waits for another adapter is not touched."""

    async def main() -> None:
        await engine.pause()
        queued = asyncio.create_task(collect(engine, ask("queued", "a")))
        await known(engine, "queued")
        before = asyncio.create_task(collect(engine, ask("before", "b")))
        other = asyncio.create_task(collect(engine, ask("other", "c")))
        await asyncio.sleep(0.05)
        await engine.unload_adapter("b")
        await engine.unload_adapter("a")
        for task in (queued, before):
            with pytest.raises(NotFound, match="was unloaded while the request waited"):
                await task
        await engine.resume()
        assert len(await other) == GREEDY.max_tokens

    run(main())


def test_stopping_ends_who_waits(engine: AsyncEngine) -> None:
    async def main() -> None:
        await engine.pause()
        tasks = [asyncio.create_task(collect(engine, ask(name, name))) for name in ("a", "b")]
        await known(engine, "a")
        await asyncio.to_thread(engine.stop)
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(result, RondoError) for result in results)
        with pytest.raises(Unavailable):
            await engine.load_adapter("x", "anywhere")

    run(main())


def test_faults_beside_the_steps(engine: AsyncEngine, folder: Path) -> None:
    half(folder / "b")

    async def main() -> None:
        results = await asyncio.gather(
            *(collect(engine, ask(name, name)) for name in ("a", "b", "nobody")), return_exceptions=True
        )
        assert len(results[0]) == GREEDY.max_tokens
        assert isinstance(results[1], ModelError)
        assert isinstance(results[2], NotFound)
        with pytest.raises(ModelError, match="truncated"):
            await engine.load_adapter("x", str(folder / "b"))
        assert not engine.has_adapter("x")

    run(main())


def test_a_name_that_no_file_can_have_is_no_adapter(tiny: Decoder, folder: Path) -> None:
    assert "x" * 300 not in core(tiny, folder).adapters


def test_an_adapter_that_is_gone_leaves_the_memory(tiny: Decoder, folder: Path) -> None:
    llm = LLM(tiny, config=EngineConfig(adapters_dir=str(folder)))
    llm.generate([[5, 6, 7]], GREEDY, adapter="a")
    assert llm.core.runner.mixer is not None
    (served,) = {one for group in llm.core.runner.mixer._kept for one in group}
    gone = weakref.ref(served)
    del served
    llm.unload_adapter("a")
    llm.generate([[5, 6, 7]], GREEDY)
    gc.collect()
    assert gone() is None
