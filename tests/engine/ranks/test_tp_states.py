"""What an engine can be doing, on two processes as on one: swapped, asleep, held, speculating, over a smaller cache."""

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from engine.conftest import TINY
from engine.ranks.test_tp import prompts
from rondo.client.types import GenerateRequest, SamplingParams
from rondo.engine.config import EngineConfig
from rondo.engine.core import EngineCore
from rondo.engine.entrypoints.load import load_core
from rondo.models import load, new, save
from support.adapters import write_lora

TOLERANCE = {"auto": 5e-5, "int8": 0.02, "fp8": 0.05}
"""By the type of the KV cache, about a tenth of the type's own error here. Halves are added in another order, and
rounding that tips a number to the type's next step moves it by the whole step. These adapters are strong, which makes
larger logits than the base's."""

TIGHT = EngineConfig(
    max_num_seqs=8,
    block_size=4,
    max_step_tokens=24,
    num_blocks=32,
    max_model_len=120,
    max_loaded_adapters=2,
    speculation_adaptive=False,
)
ALWAYS = {"swap_bytes": 1 << 22, "swap_bytes_per_second": 1e18, "recompute_tokens_per_second": 1e-6}
"""Whoever gives way is swapped."""
SETTINGS: dict[str, dict[str, Any]] = {
    "swap": {**ALWAYS, "speculation": "ngram"},
    "int8": {"kv_dtype": "int8", "swap_bytes": 1 << 22, "speculation": "draft"},
    "fp8": {"kv_dtype": "fp8", **ALWAYS, "speculation": "ngram"},
}
PARAMS = SamplingParams(max_tokens=24, temperature=0.7, ignore_eos=True, logprobs=0, detokenize=False)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("states")
    save(new(TINY | {"vocab_size": 101, "num_key_value_heads": 2}, seed=0), folder / "base")
    for seed, name in enumerate("ab"):
        write_lora(load(folder / "base"), folder / "adapters" / name, seed)
    return folder


@pytest.fixture(scope="module", params=["swap", "int8", pytest.param("fp8", marks=pytest.mark.long)])
def cores(folder: Path, request: pytest.FixtureRequest) -> Any:
    """(on one rank, on two)."""
    settings = SETTINGS[request.param] | {
        "draft_model": str(folder / "base"),
        "adapters_dir": str(folder / "adapters"),
    }
    config = TIGHT.model_copy(update=settings)
    one = load_core(folder / "base", config)
    two = load_core(folder / "base", config.model_copy(update={"tensor_parallel": 2}))
    yield one, two
    two.close()


def finish(core: EngineCore) -> None:
    while core.has_work:
        core.step()


def check_empty(core: EngineCore) -> None:
    core.pool.check()
    assert core.pool.used == 0
    assert core.scheduler.swap is None or core.scheduler.swap.usage == 0
    assert all(adapter.holders == 0 for adapter in core.adapters._loaded)


def check_alike(cores: tuple[EngineCore, EngineCore], samples: list[list[Any]]) -> None:
    for one, two in zip(*samples, strict=True):
        assert two.tokens == one.tokens, one.name
        assert two.finish_reason == one.finish_reason
        assert two.logprobs == pytest.approx(one.logprobs, abs=TOLERANCE[cores[0].config.kv_dtype])
    if cores[0].config.swap_bytes_per_second is not None:
        # Else each engine measures what swapping is worth, and decides for itself.
        assert [two.first_cached for two in samples[1]] == [one.first_cached for one in samples[0]]
        assert cores[1].scheduler.counters == cores[0].scheduler.counters
    for core in cores:
        check_empty(core)


def test_preempted_requests_come_back_as_on_one_rank(cores: tuple[EngineCore, EngineCore]) -> None:
    samples: list[list[Any]] = []
    for core in cores:
        core.reset_prefix_cache()
        asked = [
            GenerateRequest(f"r{i}", tuple(prompt), PARAMS.with_(seed=i, n=1 + i % 3))
            for i, prompt in enumerate(prompts(8))
        ]
        samples.append([sample for request in asked for sample in core.add(request)])
        finish(core)
        counters = core.scheduler.counters
        assert counters.preemptions > 0
        assert counters.swaps > 0 or core.config.kv_dtype == "int8"
        assert core.speculation.counters.accepted > 0
    check_alike(cores, samples)
    if cores[0].config.swap_bytes_per_second is not None:
        assert cores[1].speculation.counters == cores[0].speculation.counters
        swaps = [core.scheduler.swap for core in cores]
        assert swaps[0].blocks_out == swaps[1].blocks_out > 0
        assert swaps[0].blocks_in == swaps[1].blocks_in > 0


def walk(core: EngineCore, seed: int) -> tuple[list[Any], Counter[str]]:
    """Everything that may be done to an engine from outside, in any order, and what it was doing when it was done."""
    rng = random.Random(seed)
    samples: list[Any] = []
    seen: Counter[str] = Counter()
    for at in range(140):
        if rng.random() < 0.35 and at < 110:
            tokens = tuple(rng.randrange(3, 9) for _ in range(rng.randrange(1, 40)))
            adapter = rng.choice([None, None, "a", "b"])
            params = PARAMS.with_(
                seed=rng.randrange(100), n=rng.choice([1, 1, 3]), max_tokens=rng.randrange(1, 40)
            )
            if core.scheduler.num_waiting < 12:
                samples += core.add(GenerateRequest(f"{seed}-{at}", tokens, params, adapter=adapter))
        left = [sample for sample in samples if sample.finish_reason is None]
        if left and rng.random() < 0.3:
            sample = rng.choice(left)
            seen[f"abort {doing(core, sample)}"] += 1
            core.abort(sample.id, rng.choice([None, sample.index]))
        what = rng.random()
        if what < 0.04 and not core.sleeper.asleep:
            level = rng.choice([1, 2])
            seen[f"sleep {level}"] += 1
            core.sleep(level)
        elif core.sleeper.asleep and what < 0.3:
            core.wake(rng.choice([None, ["weights"], ["kv_cache"]]))
        elif what < 0.36:
            seen["reset"] += 1
            core.reset_prefix_cache()
        elif what < 0.4:
            seen["hold"] += 1
            (core.release if core.scheduler.holding else core.hold)()
        if core.whole:
            core.step()
    core.wake()
    core.release()
    finish(core)
    return samples, seen


def doing(core: EngineCore, sample: Any) -> str:
    if core.sleeper.asleep:
        return "asleep"
    if sample.state == "waiting":
        if sample.host:
            return "swapped"
        if sample.preemptions:
            return "preempted"
        return "held" if core.scheduler.holding else "waiting"
    if sample.leader is not None:
        return "riding"
    if sample.followers:
        return "leading"
    return "decoding" if sample.generated else "prefilling"


SEEDS = (0, 3, 4)
"""Of walks in which everything happens that the test asks for."""
ABORTED = {"waiting", "prefilling", "decoding", "riding", "leading", "swapped", "held", "asleep"}


def test_whatever_is_done_from_outside_is_done_on_both(cores: tuple[EngineCore, EngineCore]) -> None:
    """Hot aborts in every state among it."""
    seen: Counter[str] = Counter()
    for seed in SEEDS if cores[0].config.speculation == "ngram" else SEEDS[:1]:
        walks = [walk(core, seed) for core in cores]
        check_alike(cores, [samples for samples, _ in walks])
        seen += walks[0][1]
        if cores[0].config.swap_bytes_per_second is not None:
            assert walks[0][1] == walks[1][1]
    if cores[0].config.swap_bytes_per_second is not None:
        assert {f"abort {state}" for state in ABORTED} <= set(seen)
    assert {"sleep 1", "sleep 2", "reset", "hold"} <= set(seen)
