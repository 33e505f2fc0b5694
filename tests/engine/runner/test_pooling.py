"""Vectors of prompts: what transformers' hidden states say, however and beside whatever they are computed."""

import asyncio
import random
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from transformers import AutoModel, AutoModelForCausalLM

from engine.conftest import TINY
from rondo.base.errors import InvalidRequest, RondoError
from rondo.client.types import GenerateRequest, Pooling, SamplingParams
from rondo.engine.config import EngineConfig
from rondo.engine.core import EngineCore
from rondo.engine.entrypoints.load import load_core
from rondo.engine.entrypoints.output import SampleReader
from rondo.engine.schedule.request import Request
from rondo.models import Decoder, new, save
from support.adapters import write_lora
from support.engines import threaded
from support.waiting import run, until

PLAIN = SamplingParams(detokenize=False)
CONFIG = {"max_num_seqs": 6, "block_size": 4, "max_model_len": 96, "max_step_tokens": 17}
TOLERANCE = 2e-5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pooling")
    model = new(TINY, seed=0)
    save(model, folder / "tiny")
    write_lora(model, folder / "adapters" / "one")
    return folder


@pytest.fixture(scope="module")
def peer(folder: Path) -> Any:
    return AutoModel.from_pretrained(folder / "tiny", dtype=torch.float32).eval()


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    """Some begin alike; lengths from 1 to the whole context."""
    rng = random.Random(seed)
    stem = [rng.randrange(3, 97) for _ in range(40)]
    lengths = [1, 4, 5, 96, *(rng.randrange(2, 40) for _ in range(count - 4))]
    return [
        (stem[: rng.choice([0, 20, 40])] + [rng.randrange(3, 97) for _ in range(length)])[:length]
        for length in lengths
    ]


@torch.no_grad()
def expected(peer: Any, prompt: list[int], pooling: Pooling) -> list[float]:
    hidden = peer(torch.tensor([prompt])).last_hidden_state[0]
    return (hidden[-1] if pooling == "last" else hidden.mean(0)).tolist()


def ask(core: EngineCore, name: str, prompt: list[int], pooling: Pooling = "last", **more: Any) -> Request:
    [request] = core.add(GenerateRequest(name, prompt, PLAIN, pooling=pooling, **more))
    return request


def finish(core: EngineCore) -> None:
    while core.has_work:
        core.step()
        core.pool.check()
    assert core.pool.used == 0


def vector(request: Request) -> list[float]:
    chunk = SampleReader(request, None).read()
    assert chunk is not None
    assert (chunk.finish_reason, chunk.token_ids) == ("stop", [])
    assert chunk.vector is not None
    return chunk.vector


WAYS = {
    "plain": {},
    "no prefix cache": {"prefix_cache": False},
    "speculation": {"speculation": "ngram"},
    "tight": {"num_blocks": 26},
    "swap": {
        "num_blocks": 26,
        "swap_bytes": 1 << 22,
        "swap_bytes_per_second": 1e18,
        "recompute_tokens_per_second": 1e-6,
    },
}


@pytest.mark.parametrize("pooling", ["last", "mean"])
@pytest.mark.parametrize("way", WAYS)
def test_vectors_are_those_of_transformers_beside_answers(
    tiny: Decoder, peer: Any, way: str, pooling: Pooling
) -> None:
    """In pieces, with prefixes found, and with requests that generate in the same steps and say what they say alone."""
    core = EngineCore(tiny, EngineConfig(**(CONFIG | WAYS[way])))
    answers = PLAIN.with_(max_tokens=20, temperature=0.0, ignore_eos=True)
    given = prompts(10)
    for again in range(2):
        told = [
            core.add(GenerateRequest(f"a{again}-{i}", prompt, answers))[0]
            for i, prompt in enumerate(given[4:8])
        ]
        asked = [ask(core, f"{again}-{i}", prompt, pooling) for i, prompt in enumerate(given)]
        finish(core)
        for request, prompt in zip(asked, given, strict=True):
            torch.testing.assert_close(
                vector(request), expected(peer, prompt, pooling), atol=TOLERANCE, rtol=TOLERANCE
            )
        if way == "tight":
            assert any(request.preemptions for request in asked + told)
        alone = EngineCore(tiny, EngineConfig(**CONFIG))
        for request, prompt in zip(told, given[4:8], strict=True):
            [same] = alone.add(GenerateRequest("alone", prompt, answers))
            finish(alone)
            assert request.tokens == same.tokens


def test_the_last_token_needs_only_what_the_prefix_cache_lacks(tiny: Decoder) -> None:
    core = EngineCore(tiny, EngineConfig(**CONFIG))
    prompt = prompts(4)[3]
    found = []
    for name, pooling in (("a", "last"), ("b", "last"), ("c", "mean")):
        request = ask(core, name, prompt, pooling)  # type: ignore[arg-type]
        finish(core)
        found.append(request.first_cached)
    assert found == [0, 92, 0]


def test_what_one_computed_is_found_by_one_that_generates(tiny: Decoder) -> None:
    core = EngineCore(tiny, EngineConfig(**CONFIG))
    prompt = prompts(4)[3][:41]
    ask(core, "vector", prompt)
    finish(core)
    [request] = core.add(GenerateRequest("answer", prompt, PLAIN))
    finish(core)
    assert request.first_cached == 40


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_an_adapter_changes_its_own_vectors_alone(
    tiny: Decoder, folder: Path, peer: Any, pooling: Pooling, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setenv("RONDO_OPS", "reference")
    base = AutoModelForCausalLM.from_pretrained(folder / "tiny", dtype=torch.float32)
    theirs = peft.PeftModel.from_pretrained(base, folder / "adapters" / "one").eval()
    core = EngineCore(tiny, EngineConfig(**CONFIG, adapters_dir=str(folder / "adapters")))
    given = prompts(8)
    asked = [
        ask(core, str(i), prompt, pooling, adapter=(None, "one")[i % 2]) for i, prompt in enumerate(given)
    ]
    finish(core)
    for i, (request, prompt) in enumerate(zip(asked, given, strict=True)):
        model = theirs.base_model.model.model if i % 2 else peer
        torch.testing.assert_close(vector(request), expected(model, prompt, pooling), atol=1e-4, rtol=1e-4)


def test_two_ranks_say_the_same(folder: Path, peer: Any) -> None:
    core = load_core(folder / "tiny", EngineConfig(**CONFIG, tensor_parallel=2))
    try:
        given: list[tuple[list[int], Pooling]] = [(p, how) for p in prompts(6) for how in ("last", "mean")]
        asked = [ask(core, str(i), *each) for i, each in enumerate(given)]
        finish(core)
        for request, each in zip(asked, given, strict=True):
            torch.testing.assert_close(vector(request), expected(peer, *each), atol=5e-5, rtol=5e-5)
    finally:
        core.close()


def test_what_is_not_finite_is_an_error_and_not_a_vector(tiny: Decoder) -> None:
    model = new({**tiny.config.hf, "tie_word_embeddings": False}, seed=0).eval()
    with torch.no_grad():
        model.embed.weight[96] = torch.nan
    core = EngineCore(model, EngineConfig(**CONFIG))
    bad, good = ask(core, "bad", [5, 96, 6]), ask(core, "good", [5, 6, 7])
    finish(core)
    assert isinstance(bad.error, RondoError)
    assert bad.error.code == "not_finite"
    assert SampleReader(bad, None).read().vector is None  # type: ignore[union-attr]
    assert all(map(torch.isfinite, torch.tensor(vector(good))))


def test_one_that_leaves_gives_back_what_it_had(tiny: Decoder) -> None:
    core = EngineCore(tiny, EngineConfig(**CONFIG))
    request = ask(core, "left", prompts(4)[3], "mean")
    core.step()
    assert request.vector is not None
    core.abort("left")
    assert core.pool.used == 0
    chunk = SampleReader(request, None).read()
    assert chunk is not None
    assert (chunk.finish_reason, chunk.vector) == ("abort", None)


def test_what_is_refused(tiny: Decoder) -> None:
    core = EngineCore(tiny, EngineConfig(**CONFIG))
    with pytest.raises(InvalidRequest, match=r"context length is 96 tokens.*97 tokens"):
        ask(core, "long", [5] * 97)
    with pytest.raises(InvalidRequest, match="one vector"):
        core.add(GenerateRequest("many", [5], PLAIN.with_(n=2), pooling="last"))
    with pytest.raises(InvalidRequest, match="empty"):
        ask(core, "none", [])


def test_beside_an_event_loop(tiny: Decoder, peer: Any) -> None:
    """And through a sleep in its middle, which throws away what was computed."""
    core = EngineCore(tiny, EngineConfig(**CONFIG))
    prompt = prompts(4)[3]

    async def main() -> list[float]:
        with threaded(core) as engine:
            await engine.pause()
            stream = engine.generate(GenerateRequest("one", prompt, PLAIN, pooling="mean"))
            task = asyncio.ensure_future(anext(stream))
            await until(lambda: core.scheduler.num_waiting)
            await engine.resume()
            await engine.sleep()
            await engine.wake()
            chunk = await task
            assert not [left async for left in stream]
            return chunk.vector  # type: ignore[return-value]

    torch.testing.assert_close(run(main()), expected(peer, prompt, "mean"), atol=TOLERANCE, rtol=TOLERANCE)
