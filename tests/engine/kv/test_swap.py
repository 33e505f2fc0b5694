"""Preemption that moves blocks to host memory and back, instead of computing them again."""

import copy
import math
from itertools import product

import pytest
import torch

from rondo.base.errors import ConfigError
from rondo.client.types import GenerateRequest, SamplingParams
from rondo.engine.config import EngineConfig
from rondo.engine.core import EngineCore
from rondo.engine.entrypoints.llm import LLM
from rondo.engine.kv import host as host_memory
from rondo.engine.kv.cache import KVCache
from rondo.engine.kv.host import HostCache, attention_prices
from rondo.engine.kv.swap import Cost
from rondo.engine.metrics.counters import EngineMetrics
from rondo.engine.schedule.plan import StepPlan
from rondo.models import new
from rondo.ops import AttentionSpec
from support.alone import greedy, random_prompts

TIGHT = {"block_size": 4, "num_blocks": 16, "max_model_len": 64, "max_num_seqs": 16}
ALWAYS = {"swap_bytes": 1 << 22, "swap_bytes_per_second": 1e18, "recompute_tokens_per_second": 1e-6}
NEVER = {"swap_bytes": 1 << 22, "swap_bytes_per_second": 1e-6, "recompute_tokens_per_second": 1e18}
GREEDY = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True, detokenize=False)


def core_of(model, **config) -> EngineCore:
    return EngineCore(model, EngineConfig(**{**TIGHT, **config}))


def check_empty(core: EngineCore) -> None:
    core.pool.check()
    assert core.pool.used == 0
    if core.scheduler.swap is not None:
        core.scheduler.swap.hosts[0].check()
        assert core.scheduler.swap.num_requests == 0


def test_the_work_of_attention_grows_with_what_is_seen():
    cost = Cost(1.0, 100.0, ((None, 0.5), (3, 0.25)))
    for start, stop in product(range(7), range(7)):
        if start <= stop:
            want = sum(1 + 0.5 * (at + 1) + 0.25 * min(at + 1, 3) for at in range(start, stop))
            assert cost.work(start, stop) == pytest.approx(want)
            assert cost.compute_seconds(start, stop) == pytest.approx(want / 100)


def test_the_cheaper_way_is_taken():
    cost = Cost(bytes_per_second=1e4, tokens_per_second=100, latency=0.1)
    assert cost.move_seconds(0) == 0
    assert cost.move_seconds(1000) == pytest.approx(0.2)
    assert not cost.swap_pays(1000, 1000, 0, 40)
    assert cost.swap_pays(1000, 1000, 0, 41)
    assert not cost.swap_pays(1000, 1000, 20, 41)
    assert cost.swap_pays(0, 1000, 20, 41)


def test_prices_are_the_share_of_attention_in_a_token(tiny):
    """One token's products: 2 a parameter; one look: 2 a number of the key and of the value, in each head."""
    parameters = sum(p.numel() for p in tiny.layers.parameters())
    assert attention_prices(tiny) == ((None, 2 * 4 * (8 + 8) / parameters),)
    experts = {
        **tiny.config.hf,
        "model_type": "qwen3_moe",
        "architectures": ["Qwen3MoeForCausalLM"],
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "norm_topk_prob": True,
    }
    model = new(experts, seed=0)
    counts = {name: p.numel() for name, p in model.layers.named_parameters()}
    active = sum(count * (0.25 if "experts" in name else 1) for name, count in counts.items())
    assert attention_prices(model) == ((None, pytest.approx(2 * 4 * 16 / active)),)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8, torch.float8_e4m3fn], ids=str)
def test_blocks_come_back_bit_by_bit(dtype, monkeypatch):
    specs = [AttentionSpec(0, 4, 2, 8, 8, 0.3), AttentionSpec(1, 2, 1, 6, 3, 0.3)]
    cache = KVCache(specs, [12], 4, dtype, torch.device("cpu"))
    monkeypatch.setattr(host_memory, "BATCH_BYTES", 3 * sum(t[0].nbytes for t in cache.tensors))
    host = HostCache(cache, 0, 9)
    generator = torch.Generator().manual_seed(0)
    for tensor in cache.tensors:
        raw = tensor.view(torch.uint8)
        raw.copy_(torch.randint(0, 256, raw.shape, generator=generator, dtype=torch.uint8))
    before = [tensor.clone() for tensor in cache.tensors]
    there = [5, 6, 7, 2, 1, 0, 8]
    gone = [3, 11, 0, 7, 8, 1, 5]
    back = [2, 9, 1, 4, 10, 6, 0]
    host.store(list(zip(there, gone, strict=True)))
    for tensor in cache.tensors:
        tensor.view(torch.uint8).fill_(255)
    host.load(list(zip(back, there, strict=True)))
    for tensor, old in zip(cache.tensors, before, strict=True):
        assert torch.equal(tensor[back].view(torch.uint8), old[gone].view(torch.uint8))
        assert (tensor[[3, 5, 7, 8, 11]].view(torch.uint8) == 255).all()


def test_moves_follow_each_other_so_that_none_reads_what_another_has_written(tiny):
    runner = core_of(tiny, **ALWAYS).runner
    (first, *_), (host,) = runner.cache.tensors, runner.hosts
    for tensor in runner.cache.tensors:
        for block in range(4):
            tensor[block] = block
    host.store([(1, 3)])
    for tensor in runner.cache.tensors:
        tensor[3] = 9
    plan = StepPlan(
        [], [], [], [], copies=[[(1, 0)]], swap_out=[[(0, 1), (2, 3)]], swap_in=[[(0, 1), (3, 1)]]
    )
    runner._move_blocks(plan)
    assert [float(first[block].mean()) for block in range(4)] == [3, 0, 2, 3]
    assert [float(row.view(torch.float32).mean()) for row in host.rows[:3]] == [0, 3, 9]


@pytest.fixture(scope="module")
def expected(tiny) -> tuple[list[list[int]], list[list[int]]]:
    ids = random_prompts(10)
    return ids, [greedy(tiny, prompt, 20) for prompt in ids]


@pytest.mark.parametrize(
    "config",
    [
        ALWAYS,
        {**ALWAYS, "prefix_cache": False},
        {**ALWAYS, "max_step_tokens": 7},
        {**ALWAYS, "max_step_tokens": 3},
        {**ALWAYS, "swap_bytes": 1 << 13},
        {**ALWAYS, "block_size": 1, "num_blocks": 64},
        {**ALWAYS, "speculation": "ngram", "speculation_adaptive": False},
        NEVER,
    ],
    ids=str,
)
def test_answers_are_those_of_the_model_alone(tiny, expected, config):
    ids, want = expected
    llm = LLM(tiny, config=EngineConfig(**{**TIGHT, **config}))
    for _ in range(2):
        assert [output.outputs[0].token_ids for output in llm.generate(ids, GREEDY)] == want
    counters, swap = llm.core.scheduler.counters, llm.core.scheduler.swap
    assert counters.preemptions > 0
    if config is NEVER:
        assert counters.swaps == swap.blocks_out == swap.blocks_in == 0
    else:
        assert counters.swaps > 0
        assert swap.blocks_out > 0
        assert swap.blocks_in > 0
    if config["swap_bytes"] == 1 << 13:
        assert counters.swaps < counters.preemptions, "the host's blocks were never used up"
    check_empty(llm.core)


@pytest.mark.parametrize("config", [{}, {"prefix_cache": False}, {"max_step_tokens": 9}], ids=str)
def test_samples_of_one_prompt_swap_together_and_part_after(tiny, config):
    params = SamplingParams(temperature=0.3, max_tokens=24, seed=5, n=5, logprobs=0, detokenize=False)
    ids = random_prompts(4, seed=4)
    roomy = LLM(tiny, config=EngineConfig(block_size=4, max_num_seqs=32, num_blocks=1024))
    llm = LLM(tiny, config=EngineConfig(**{**TIGHT, "max_num_seqs": 32, **ALWAYS, **config}))
    rode = []
    keep = llm.core.scheduler.swap.ride
    llm.core.scheduler.swap.ride = lambda rider, leader: (rode.append(rider), keep(rider, leader))
    for got, want in zip(llm.generate(ids, params), roomy.generate(ids, params), strict=True):
        assert [s.token_ids for s in got.outputs] == [s.token_ids for s in want.outputs]
    assert roomy.core.scheduler.counters.preemptions == 0
    assert llm.core.scheduler.counters.swaps > 0
    assert rode
    check_empty(llm.core)


def two(core: EngineCore, new_tokens: int = 24):
    """One that stays, and one that gives way."""
    (first,) = core.add(
        GenerateRequest("first", [5, 6, 7, 8, 9, 10, 11], GREEDY.with_(max_tokens=new_tokens))
    )
    (second,) = core.add(
        GenerateRequest("second", [20, 21, 22, 23, 24], GREEDY.with_(max_tokens=new_tokens, logprobs=0))
    )
    return first, second


def until_swapped(core: EngineCore, request) -> int:
    for _ in range(100):
        core.step()
        if request.host:
            return request.generated
    raise AssertionError("nobody was preempted")


def finish(core: EngineCore) -> None:
    while core.has_work:
        core.step()


def push(core: EngineCore, weights: dict[str, torch.Tensor], version: int) -> None:
    core.start_weight_update()
    core.model.load_state_dict(weights)
    core.finish_weight_update(version)


def test_after_a_push_it_goes_on_over_its_old_keys_and_publishes_nothing(tiny):
    other = new(tiny.config.hf, seed=1).state_dict()
    small = {"num_blocks": 8, "max_model_len": 32}
    core = core_of(copy.deepcopy(tiny), **small, **ALWAYS)
    _, swapped = two(core)
    at = until_swapped(core, swapped)
    push(core, other, 1)
    finish(core)
    assert swapped.weight_versions == [0] * at + [1] * (24 - at)

    alone = core_of(copy.deepcopy(tiny))
    (plain,) = alone.add(
        GenerateRequest("second", [20, 21, 22, 23, 24], GREEDY.with_(max_tokens=24, logprobs=0))
    )
    while plain.generated < at:
        alone.step()
    push(alone, other, 1)
    finish(alone)
    assert swapped.tokens == plain.tokens
    assert swapped.logprobs == pytest.approx(plain.logprobs, abs=1e-5)

    again = core_of(copy.deepcopy(tiny), **small)
    _, recomputed = two(again)
    while not recomputed.preemptions:
        again.step()
    push(again, other, 1)
    finish(again)
    assert recomputed.tokens != swapped.tokens, "the old keys make no difference: this test shows nothing"

    (later,) = core.add(GenerateRequest("later", swapped.tokens[:25], GREEDY.with_(max_tokens=1)))
    finish(core)
    assert later.first_cached == 0
    check_empty(core)


def test_a_swapped_request_publishes_what_it_brought_back_when_nothing_was_pushed(tiny):
    core = core_of(tiny, num_blocks=8, max_model_len=32, **ALWAYS)
    _, swapped = two(core)
    until_swapped(core, swapped)
    finish(core)
    (later,) = core.add(GenerateRequest("later", swapped.tokens[:13], GREEDY.with_(max_tokens=1)))
    finish(core)
    assert later.first_cached == 12


def test_what_the_prefix_cache_still_has_does_not_move(tiny):
    core = core_of(tiny, num_blocks=8, max_model_len=32, **ALWAYS)
    first, swapped = two(core)
    until_swapped(core, swapped)
    core.abort("first")
    there = len(swapped.host[0].blocks)
    finish(core)
    assert 0 < core.scheduler.swap.blocks_in < there
    assert swapped.tokens[5:] == greedy(tiny, [20, 21, 22, 23, 24], 24)
    assert first.finish_reason == "abort"
    check_empty(core)


def test_an_abort_while_swapped_gives_the_host_blocks_back(tiny):
    core = core_of(tiny, num_blocks=8, max_model_len=32, **ALWAYS)
    first, swapped = two(core)
    until_swapped(core, swapped)
    assert core.scheduler.swap.hosts[0].used == len(swapped.host[0].blocks) > 0
    core.abort("second")
    assert core.scheduler.swap.hosts[0].used == 0
    finish(core)
    assert first.tokens[7:] == greedy(tiny, [5, 6, 7, 8, 9, 10, 11], 24)
    check_empty(core)


def test_the_engine_sleeps_and_the_swapped_keep_what_they_have(tiny):
    core = core_of(tiny, num_blocks=8, max_model_len=32, **ALWAYS)
    first, swapped = two(core)
    until_swapped(core, swapped)
    before = core.scheduler.counters.swaps
    core.sleep()
    assert swapped.host
    assert not first.host
    core.wake()
    finish(core)
    assert core.scheduler.counters.swaps >= before
    assert first.tokens[7:] == greedy(tiny, [5, 6, 7, 8, 9, 10, 11], 24)
    assert swapped.tokens[5:] == greedy(tiny, [20, 21, 22, 23, 24], 24)
    check_empty(core)


def test_rates_that_are_not_configured_are_measured(tiny):
    swap = core_of(tiny, swap_bytes=1 << 20).scheduler.swap
    cost = swap.cost
    assert swap.hosts[0].block_bytes == 2 * 2 * 4 * 2 * 8 * 4
    for value in (cost.bytes_per_second, cost.tokens_per_second):
        assert 0 < value < math.inf
    assert 0 <= cost.latency < 1


def test_nothing_is_measured_without_need(tiny, monkeypatch):
    for name in ("measure_moves", "measure_compute"):
        monkeypatch.setattr(host_memory, name, lambda *_: pytest.fail("it is not asked for"))
    assert core_of(tiny).scheduler.swap is None
    rates = {"swap_bytes_per_second": 1e9, "recompute_tokens_per_second": 1e3}
    assert core_of(tiny, swap_bytes=1 << 20, **rates).scheduler.swap is not None


def test_metrics_tell_the_two_ways_apart(tiny):
    core = core_of(tiny, num_blocks=8, max_model_len=32, **ALWAYS)
    metrics = EngineMetrics(core)

    def value(name: str) -> float:
        return next(m.samples[0].value for m in metrics.collect() if m.name == f"rondo:{name}")

    _, swapped = two(core)
    until_swapped(core, swapped)
    assert value("num_requests_swapped") == 1
    assert value("cpu_cache_usage_perc") > 0
    finish(core)
    assert value("num_requests_swapped") == value("cpu_cache_usage_perc") == 0
    assert value("num_preemptions_by_swap") == value("num_preemptions") > 0
    assert value("num_preemptions_by_recompute") == 0
    assert value("num_blocks_swapped_out") > 0
    assert value("num_blocks_swapped_in") > 0


@pytest.mark.parametrize(("size", "what"), [(100, "one KV block takes 1024"), (1 << 60, "Lower it")])
def test_a_host_pool_that_cannot_be_is_refused(tiny, size, what):
    with pytest.raises(ConfigError, match=what) as caught:
        core_of(tiny, swap_bytes=size)
    assert caught.value.param == "swap_bytes"
