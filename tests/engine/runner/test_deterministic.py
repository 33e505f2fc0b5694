"""A request's tokens and log-probabilities, bit for bit: alone, in any batch, cut, after a prefix hit, preempted,
swapped, guessed for, on any number of threads, and as the learner computes them again on the same weights."""

import gc
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any
from weakref import WeakSet

import numpy as np
import pytest
import torch

from rondo import models, ops
from rondo.base.errors import ConfigError
from rondo.client.types import GenerateRequest, SamplingParams
from rondo.data.batching.packing import Document, Tree, pack
from rondo.engine.config import EngineConfig
from rondo.engine.core import EngineCore
from rondo.engine.runner.deterministic import check_settings
from rondo.models import Decoder
from rondo.models.adapters import TokenformerSpec, attach_tokenformer, detach, save_tokenformer
from rondo.ops.dispatch import use_reference
from rondo.ops.native.build.build import compiler
from rondo.ops.native.gemm.linear import linear_native
from rondo.train.config import OptimConfig
from rondo.train.learner.learner import Learner
from rondo.train.learner.shared_prefix import shares_prefixes
from support.alone import random_prompts
from support.families import CONFIGS
from support.threads import threads

pytestmark = pytest.mark.skipif(
    not compiler(), reason="no C compiler here: install gcc to test what it promises"
)

TYPES = [torch.float32, torch.bfloat16]
COMMON = ["qwen3", "mistral"]
WINDOWS_ALONE = ["mistral"]
"""Whose requests never grow beyond their windows, and so are never preempted."""
OTHERS = ["gpt-oss", "gemma2", "qwen3-moe", "deepseek-v3"]
SAMPLED = SamplingParams(max_tokens=12, temperature=0.8, ignore_eos=True, logprobs=0, detokenize=False)
GREEDY = SAMPLED.with_(temperature=0.0)
LONG = [3 + 7 * i % 90 for i in range(290)]
PROMPTS = [*random_prompts(6, seed=3), LONG, [*LONG[:280], 5, 6, 7]]
SWAP = {"swap_bytes": 1 << 24, "swap_bytes_per_second": 1e18, "recompute_tokens_per_second": 1e-6}
WAYS: dict[str, dict[str, Any]] = {
    "together": {},
    "in pieces": {"max_step_tokens": 23},
    "computed again": {"num_blocks": 121, "prefix_cache": False},
    "swapped": {"num_blocks": 121, "prefix_cache": False} | SWAP,
    "guessed for": {"speculation": "ngram", "ngram_min": 1, "speculation_adaptive": False},
}
Answer = tuple[list[int], list[float]]


@cache
def model_of(name: str, dtype: torch.dtype) -> Decoder:
    """Every tensor of it random."""
    config = CONFIGS[name]().to_dict() | {"max_position_embeddings": 512}
    model = models.new(config, seed=0)
    generator = torch.Generator().manual_seed(7)
    for key, parameter in model.named_parameters():
        parameter = parameter.detach()
        parameter.normal_(0, 0.15, generator=generator)
        if "norm" in key and not name.startswith("gemma"):
            parameter += 1
    return model.to(dtype)


CORES: WeakSet[EngineCore] = WeakSet()


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """What they ask of the whole process ends with the test."""
    yield
    for core in list(CORES):
        core.close()


def core_of(model: Decoder, **settings: Any) -> EngineCore:
    config = {"block_size": 4, "max_model_len": 320, "max_num_seqs": 12, "deterministic": True} | settings
    core = EngineCore(model, EngineConfig(**config))
    CORES.add(core)
    return core


def answers(core: EngineCore, adapters: Sequence[str | None] = (None,)) -> list[Answer]:
    """Every other one sampled, the rest greedy; each with the next of `adapters`, in turn."""
    samples = [
        core.add(
            GenerateRequest(
                str(i),
                prompt,
                (SAMPLED if i % 2 else GREEDY).with_(seed=i),
                adapter=adapters[i % len(adapters)],
            )
        )[0]
        for i, prompt in enumerate(PROMPTS)
    ]
    while core.has_work:
        core.step()
    return [(sample.tokens[sample.prompt_length :], sample.logprobs) for sample in samples]


def scored(model: Decoder, found: list[Answer], shared: bool) -> list[list[float]]:
    """What the learner makes of the answers, several in a row: each after its prompt, or beside another answer that has
    the same copy of it."""
    learner = Learner(model, OptimConfig())
    back: list[list[float]] = [[] for _ in found]
    for half, temperature in ((0, 1.0), (1, 0.8)):
        items: list[Document | Tree] = []
        for i in range(half, len(found), 2):
            prompt, answer = PROMPTS[i], found[i][0]
            if shared:
                other = [answer[0], *answer[:0:-1]]
                items.append(Tree(prompt, [marked(answer, i), marked(other, -1)]))
            else:
                items.append(marked([*prompt, *answer], i, len(prompt)))
        rows = pack(items, 800)
        assert max(len(row.cu_seqlens) for row in rows) > 2
        for row, logprobs in zip(rows, learner.logprobs(rows, temperature), strict=True):
            for i in range(half, len(found), 2):
                back[i] += logprobs[np.flatnonzero(row.columns["which"] == i)].tolist()
    return back


def marked(tokens: list[int], which: int, context: int = 0) -> Document:
    weights = [0.0] * context + [1.0] * (len(tokens) - context)
    return Document(tokens, weights, {"which": [float(which)] * len(tokens)})


def by_every_way(
    model: Decoder, ways: Iterable[str] = WAYS, adapters: Sequence[str | None] = (None,), **others: Any
) -> list[Answer]:
    """What comes alone, and in each of these ways and after a prefix hit too."""
    want = answers(core_of(model, max_num_seqs=1, prefix_cache=False, **others), adapters)
    for i, way in enumerate(ways):
        with threads(1 + i % 2):
            core = core_of(model, **WAYS[way], **others)
            assert answers(core, adapters) == want, way
        counters = core.scheduler.counters
        assert (counters.preemptions > 0) == ("num_blocks" in WAYS[way]), way
        assert (counters.swaps > 0) == ("swap_bytes" in WAYS[way]), way
    core = core_of(model, **others)
    answers(core, adapters)
    before = core.scheduler.counters.prefix_hits
    assert answers(core, adapters) == want, "after a prefix hit"
    assert core.scheduler.counters.prefix_hits > before
    return want


SHORT = [*((name, dtype) for name in COMMON for dtype in TYPES), *zip(OTHERS, [*TYPES, *TYPES], strict=True)]
"""Each kind of the others in one of the types; `make test-long` has them in both."""


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param(name, dtype, marks=() if (name, dtype) in SHORT else pytest.mark.long)
        for name in (*COMMON, *OTHERS)
        for dtype in TYPES
    ],
)
def test_every_way_gives_the_same_bits(name: str, dtype: torch.dtype) -> None:
    model = model_of(name, dtype)
    assert (core_of(model).runner.compiled is not None) == (name in COMMON)
    ways = [way for way in WAYS if not (name in WINDOWS_ALONE and "num_blocks" in WAYS[way])]
    want = by_every_way(model, ways)
    for count, shared in ((1, False), (2, False), (2, shares_prefixes(model.attention_specs()))):
        with threads(count):
            assert scored(model, want, shared) == [logprobs for _, logprobs in want], ("learner", shared)


def refused(**settings: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        core_of(model_of("qwen3", torch.float32), **settings)
    return str(caught.value.param)


def test_what_it_cannot_promise_is_refused_by_name(tmp_path: Path) -> None:
    for settings in (
        {"kv_dtype": "int8"},
        {"kv_dtype": "bfloat16"},
        {"tensor_parallel": 2},
    ):
        assert refused(**settings) == next(iter(settings))
    model = model_of("qwen3", torch.float32)
    core = core_of(model, kv_dtype="float32")
    attach_tokenformer(model, TokenformerSpec())
    save_tokenformer(model, tmp_path)
    detach(model)
    with pytest.raises(
        ConfigError, match=r"is a Tokenformer.* Take LoRA, or leave out deterministic"
    ) as caught:
        core.load_adapter("one", tmp_path)
    assert caught.value.param == "deterministic"
    with use_reference():
        assert refused() == "deterministic"
    with pytest.raises(ConfigError, match="dtype"):
        core_of(model_of("qwen3", torch.float16))
    by_length = model_of("phi4-longrope", torch.float32)
    with pytest.raises(ConfigError, match="max_model_len"):
        core_of(by_length)
    core_of(by_length, max_model_len=min(rope.original_max_positions for rope in by_length.ropes))


def test_others_multiply_as_they_did_once_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where torch's own product in bf16 is the faster one."""
    monkeypatch.setattr("rondo.ops.native.gemm.linear._compiled_is_faster", lambda: False)
    x = torch.ones(1, 16, dtype=torch.bfloat16)

    def compiled() -> bool:
        return ops.linear.version(x, x) is linear_native

    assert not compiled()
    one, other = (core_of(model_of("qwen3", torch.bfloat16)) for _ in range(2))
    assert compiled()
    one.close()
    one.close()
    assert compiled()
    other.close()
    assert not compiled()
    left = core_of(model_of("qwen3", torch.bfloat16))
    assert compiled()
    del left
    gc.collect()
    assert not compiled()


def test_ranks_are_refused_before_they_start() -> None:
    with pytest.raises(ConfigError, match="tensor_parallel"):
        check_settings(EngineConfig(deterministic=True, tensor_parallel=2))
