"""The KV cache in other types than the model's: near the model's own numbers, and the same however it is cut."""

import random
from copy import deepcopy

import pytest
import torch

from rondo.client.types import SamplingParams
from rondo.engine.config import EngineConfig
from rondo.engine.entrypoints.llm import LLM
from rondo.engine.kv.cache import KV_DTYPES, KVCache, block_bytes
from rondo.engine.schedule.randomness import derive
from rondo.models import Packed, new
from rondo.ops import token_logprobs

FARTHEST = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2, "int8": 6e-2, "fp8": 2e-1}
"""The largest difference of a log-probability from the model's own, here; about half of it is what was seen."""
SMALL = ["int8", "fp8"]
ALONE = SamplingParams(max_tokens=16, seed=3, logprobs=0, ignore_eos=True, detokenize=False)


@pytest.fixture(scope="module")
def model(tiny):
    shape = {"hidden_size": 128, "head_dim": 64, "initializer_range": 0.08, "num_hidden_layers": 3}
    return new({**tiny.config.hf, **shape}, seed=0).eval()


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = random.Random(0)
    return [[rng.randrange(3, 97) for _ in range(rng.randrange(20, 90))] for _ in range(6)]


def engine(model, **config) -> LLM:
    return LLM(model, config=EngineConfig(**{"block_size": 4, "max_num_seqs": 8, **config}))


def samples(llm: LLM, prompts, params=ALONE):
    return [sample for output in llm.generate(prompts, params) for sample in output.outputs]


def farthest(llm: LLM, prompts) -> float:
    """The largest difference of a log-probability from the model's own."""
    worst, model = 0.0, llm.core.model
    for prompt, sample in zip(prompts, samples(llm, prompts), strict=True):
        tokens = torch.tensor(prompt + sample.token_ids)
        with torch.no_grad():
            logits = model(tokens, torch.arange(len(tokens)), Packed([0, len(tokens)]))[len(prompt) - 1 : -1]
        want = token_logprobs(logits, torch.tensor(sample.token_ids), 1.0)
        worst = max(worst, (torch.tensor(sample.logprobs) - want).abs().max().item())
    return worst


@pytest.mark.parametrize("kv_dtype", FARTHEST)
def test_logprobs_are_near_the_models_own(model, prompts, kv_dtype):
    worst = farthest(engine(model, kv_dtype=kv_dtype), prompts)
    assert worst <= FARTHEST[kv_dtype]
    assert kv_dtype == "float32" or worst > FARTHEST[kv_dtype] / 20


@pytest.mark.parametrize("kv_dtype", ["auto", "float32", "int8"])
def test_a_model_in_a_type_that_no_kernel_has(model, prompts, kv_dtype):
    """Of the model, of the cache or of both: the references take it, pieces of prompts included."""
    wide = deepcopy(model).double()
    worst = farthest(engine(wide, kv_dtype=kv_dtype, max_step_tokens=32), prompts)
    assert worst <= FARTHEST.get(kv_dtype, 1e-5)


@pytest.mark.parametrize("kv_dtype", ["bfloat16", *SMALL])
@pytest.mark.parametrize(
    "config",
    [
        {"max_step_tokens": 7},
        {"max_step_tokens": 1},
        {"max_num_seqs": 2},
        {"block_size": 16},
        {"prefix_cache": False},
        {"num_blocks": 40, "max_model_len": 120},
    ],
    ids=str,
)
def test_it_does_not_matter_how_a_prompt_was_cut_or_found(model, prompts, kv_dtype, config):
    """All attend over what was stored. A number on the edge between two steps of the type may fall either way, which
    is far less than the type's own error."""
    want = samples(engine(model, kv_dtype=kv_dtype), prompts)
    llm = engine(model, kv_dtype=kv_dtype, **config)
    for _ in range(2):
        for got, one in zip(samples(llm, prompts), want, strict=True):
            assert got.token_ids == one.token_ids
            assert got.logprobs == pytest.approx(one.logprobs, abs=FARTHEST[kv_dtype] / 5)
    counters = llm.core.scheduler.counters
    assert counters.preemptions > 0 or "num_blocks" not in config
    assert counters.prefix_hits > 0 or not config.get("prefix_cache", True)
    llm.core.pool.check()


@pytest.mark.parametrize("kv_dtype", SMALL)
def test_samples_that_part_carry_their_scales_along(tiny, kv_dtype):
    prompts = [[5, 6, 7, 8, 9, 10], [11, 12, 13]]
    many = SamplingParams(temperature=0.3, max_tokens=16, seed=5, n=6, logprobs=0, detokenize=False)
    want = [
        samples(engine(tiny, kv_dtype=kv_dtype), [prompt], many.with_(n=1, seed=derive(5, i)))[0].token_ids
        for prompt in prompts
        for i in range(many.n)
    ]
    got = [sample.token_ids for sample in samples(engine(tiny, kv_dtype=kv_dtype), prompts, many)]
    assert got == want
    assert len({tuple(tokens) for tokens in want}) > 2


@pytest.mark.parametrize("kv_dtype", SMALL)
def test_proposals_change_no_token(tiny, kv_dtype):
    """Tokens that are computed side by side see of each other what is stored."""
    prompts = [[5, 6, 7, 8] * 6, [9] * 13]
    greedy = ALONE.with_(temperature=0.0)
    want = [sample.token_ids for sample in samples(engine(tiny, kv_dtype=kv_dtype), prompts, greedy)]
    llm = engine(tiny, kv_dtype=kv_dtype, speculation="ngram", speculation_adaptive=False)
    assert [sample.token_ids for sample in samples(llm, prompts, greedy)] == want
    assert llm.core.speculation.counters.accepted > 0


@pytest.mark.parametrize("kv_dtype", KV_DTYPES)
def test_blocks_move_whole(tiny, kv_dtype):
    specs, dtype = tiny.attention_specs(), KV_DTYPES[kv_dtype]
    cache = KVCache(specs, [6], 4, dtype, torch.device("cpu"))
    for layer in cache.layers:
        for pages in (layer.keys, layer.values):
            pages.write(torch.arange(24), torch.randn(24, 2, 8))
    before = [tensor.clone() for tensor in cache.tensors]
    cache.copy([[(0, 1), (1, 0), (5, 2)]])
    for tensor, old in zip(cache.tensors, before, strict=True):
        assert torch.equal(tensor, old[[1, 0, 2, 3, 4, 2]])
    held = sum(tensor.numel() * tensor.element_size() for tensor in cache.tensors)
    assert held == 6 * block_bytes(specs, 4, dtype)


@pytest.mark.parametrize("kv_dtype", SMALL)
def test_the_same_memory_holds_nearly_twice_the_tokens(model, kv_dtype):
    room = {"kv_cache_bytes": 1 << 20, "max_num_seqs": 256}
    pools = [engine(model, kv_dtype=each, **room).core.pool for each in ("bfloat16", kv_dtype)]
    blocks = [pool.groups[0].num_blocks for pool in pools]
    assert 1.85 < blocks[1] / blocks[0] < 2
