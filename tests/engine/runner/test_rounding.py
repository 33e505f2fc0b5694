"""What is said of an answer given twice: the same bits where a step is compiled, rounding at most elsewhere."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from rondo.client.types import GenerateRequest, SamplingParams
from rondo.engine.config import EngineConfig
from rondo.engine.core import EngineCore
from rondo.models import Decoder
from rondo.ops import linear
from rondo.ops.dispatch import use_reference
from rondo.ops.native.build.build import library
from support.adapters import write_loras
from support.alone import random_prompts

PARAMS = SamplingParams(max_tokens=20, temperature=0.8, ignore_eos=True, logprobs=0, detokenize=False)
PROMPTS = random_prompts(8, seed=3)
ADAPTERS = [None, "a", None, "b", None, "a", "c", None]
ROUNDING = 1e-4
WAYS: dict[str, dict[str, Any]] = {
    "together": {},
    "guessing": {"speculation": "ngram", "ngram_min": 1, "speculation_adaptive": False},
    "in pieces": {"max_step_tokens": 7},
    "computed again": {"num_blocks": 24},
    "swapped": {
        "num_blocks": 24,
        "swap_bytes": 1 << 22,
        "swap_bytes_per_second": 1e18,
        "recompute_tokens_per_second": 1e-6,
    },
    "guessing, swapped, in pieces": {
        "speculation": "ngram",
        "ngram_min": 1,
        "speculation_adaptive": False,
        "max_step_tokens": 7,
        "num_blocks": 24,
        "swap_bytes": 1 << 22,
        "swap_bytes_per_second": 1e18,
        "recompute_tokens_per_second": 1e-6,
    },
}


@pytest.fixture(scope="module")
def folder(tiny: Decoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_loras(tiny, tmp_path_factory.mktemp("adapters"))


def core_of(model: Decoder, folder: Path, **settings: Any) -> EngineCore:
    config = {
        "block_size": 4,
        "max_model_len": 96,
        "max_num_seqs": 12,
        "adapters_dir": str(folder),
    } | settings
    return EngineCore(model, EngineConfig(**config))


def answers(core: EngineCore) -> list[tuple[list[int], list[float]]]:
    samples = [
        core.add(GenerateRequest(str(i), prompt, PARAMS.with_(seed=i), adapter=adapter))[0]
        for i, (prompt, adapter) in enumerate(zip(PROMPTS, ADAPTERS, strict=True))
    ]
    while core.has_work:
        core.step()
    return [(sample.tokens[sample.prompt_length :], sample.logprobs) for sample in samples]


@pytest.mark.skipif(library("layers") is None, reason="without a C compiler no step is compiled")
@pytest.mark.parametrize("kept", ["auto", "int8"])
def test_a_compiled_step_gives_the_same_bits_in_every_way(tiny: Decoder, folder: Path, kept: str) -> None:
    """Alone, in any company, guessed for, cut, preempted, brought back: LoRA too."""
    alone = core_of(tiny, folder, max_num_seqs=1, prefix_cache=False, kv_dtype=kept)
    assert alone.runner.compiled is not None
    want = answers(alone)
    for way, settings in WAYS.items():
        core = core_of(tiny, folder, kv_dtype=kept, **settings)
        assert answers(core) == want, way
        counters = core.scheduler.counters
        assert (counters.preemptions > 0) == ("num_blocks" in settings), way
        assert (counters.swaps > 0) == ("swap_bytes" in settings), way
        assert core.speculation is None or core.speculation.counters.accepted > 0, way


@pytest.mark.parametrize("native", [True, False], ids=["compiled", "torch"])
def test_operation_by_operation_it_is_the_same_but_for_rounding(
    tiny: Decoder, folder: Path, native: bool
) -> None:
    with use_reference():
        want = answers(core_of(tiny, folder, max_num_seqs=1, prefix_cache=False))
    with nullcontext() if native else use_reference():
        for settings in WAYS.values():
            got = answers(core_of(tiny, folder, **settings))
            for (tokens, logprobs), (other, theirs) in zip(got, want, strict=True):
                until = next(
                    (i for i, pair in enumerate(zip(tokens, other)) if pair[0] != pair[1]), len(tokens)
                )
                assert logprobs[:until] == pytest.approx(theirs[:until], abs=ROUNDING)


def test_a_librarys_product_rounds_by_the_number_of_rows() -> None:
    """No more than rounds: this is all that tells a row among others from the row alone."""
    generator = torch.Generator().manual_seed(0)
    weight, rows = (torch.randn(n, 576, generator=generator) for n in (256, 64))
    alone = linear.reference(rows[:1], weight)[0]
    for count in (2, 5, 33, 64):
        assert (linear.reference(rows[:count], weight)[0] - alone).abs().max() < 2e-6 * alone.abs().max()
