"""Names, folders, versions and the bounded number of loaded adapters; what goes wrong with one harms no other."""

import copy
import gc
import shutil
import weakref
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from rondo.base.errors import (
    ConfigError,
    InvalidRequest,
    ModelError,
    NotFound,
    Overloaded,
    RondoError,
)
from rondo.client.types import GenerateRequest, SamplingParams
from rondo.engine.config import EngineConfig
from rondo.engine.core import EngineCore
from rondo.engine.entrypoints.llm import LLM
from rondo.models import Decoder
from rondo.ops.dispatch import use_reference
from support.adapters import GREEDY, NAMES, core_with, truncate, write_lora, write_loras

LONG = GREEDY.with_(max_tokens=60)


@pytest.fixture
def folder(tiny: Decoder, tmp_path: Path) -> Path:
    return write_loras(tiny, tmp_path)


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
    engine = core_with(tiny, folder, max_loaded_adapters=2)
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
    engine = core_with(tiny, folder)
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
    engine = core_with(tiny, folder, max_num_seqs=1)
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
    engine = core_with(tiny, folder)
    [request] = engine.add(ask("r", "a"))
    engine.step()
    engine.scheduler.preempt_all()
    assert engine.unload_adapter("a") == []
    finish(engine)
    assert request.finish_reason == "length"


def nan(folder: Path) -> None:
    file = folder / "adapter_model.safetensors"
    tensors = load_file(file)
    next(iter(tensors.values())).view(-1)[3] = float("nan")
    save_file(tensors, file)


def test_faults_are_one_requests_own(tiny: Decoder, folder: Path) -> None:
    write_lora(tiny, folder / "high", r=65)
    for name, spoil in {"half": truncate, "nan": nan}.items():
        spoil(shutil.copytree(folder / "a", folder / name))
    other = shutil.copytree(folder / "a", folder / "other base")
    tensors = {
        k: v.repeat(1, 2) if "lora_A" in k else v
        for k, v in load_file(other / "adapter_model.safetensors").items()
    }
    save_file(tensors, other / "adapter_model.safetensors")
    engine = core_with(tiny, folder)
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
        assert not engine.has_request(name)
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
        core_with(tiny, tmp_path / "nowhere")


def test_sleeping_gives_idle_adapters_back(tiny: Decoder, folder: Path) -> None:
    engine = core_with(tiny, folder)
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


def test_a_name_that_no_file_can_have_is_no_adapter(tiny: Decoder, folder: Path) -> None:
    assert "x" * 300 not in core_with(tiny, folder).adapters


@pytest.mark.parametrize("layers", [nullcontext, use_reference], ids=["compiled", "reference"])
def test_an_adapter_that_is_gone_leaves_the_memory(tiny: Decoder, folder: Path, layers: Any) -> None:
    with layers():
        llm = LLM(tiny, config=EngineConfig(adapters_dir=str(folder)))
        llm.generate([[5, 6, 7]], GREEDY, adapter="a")
        held = llm.core.adapters.held("a")
        assert held is not None
        gone = weakref.ref(held.served)
        llm.core.adapters.release(held)
        del held
        llm.unload_adapter("a")
        llm.generate([[5, 6, 7]], GREEDY)
    gc.collect()
    assert gone() is None
