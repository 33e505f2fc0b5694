"""Models in which some layers see everything and others no further back than a window: in each group of layers only
those blocks stay that it sees, and nothing changes but the memory."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from engine.conftest import TINY
from rondo.base.errors import ConfigError
from rondo.client.types import GenerateRequest, SamplingParams
from rondo.engine.config import EngineConfig
from rondo.engine.core import EngineCore
from rondo.engine.entrypoints.llm import LLM
from rondo.engine.entrypoints.load import load_core
from rondo.engine.kv.blocks import GONE, BlockPool, Table
from rondo.engine.kv.cache import block_bytes, choose_num_blocks
from rondo.engine.kv.groups import GroupedPool
from rondo.engine.kv.window import Window
from rondo.models import Decoder, new, save
from rondo.ops.dispatch import use_reference
from rondo.ops.native.build.build import library
from support.alone import greedy, random_prompts

NEW = 16
GREEDY = SamplingParams(temperature=0.0, max_tokens=NEW, ignore_eos=True, detokenize=False)
POISON = 96
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
SHAPES = {
    "gemma2": {
        "model_type": "gemma2",
        "architectures": ["Gemma2ForCausalLM"],
        "query_pre_attn_scalar": 8,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": 6,
    },
    "gemma3": {
        "model_type": "gemma3_text",
        "architectures": ["Gemma3ForCausalLM"],
        "query_pre_attn_scalar": 8,
        "rope_local_base_freq": 10000.0,
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": 7,
    },
    "gpt-oss": {
        "model_type": "gpt_oss",
        "architectures": ["GptOssForCausalLM"],
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "sliding_window": 9,
        "tie_word_embeddings": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    },
    "qwen2": {
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "use_sliding_window": True,
        "sliding_window": 7,
    },
}
SWAP = {"swap_bytes": 1 << 20, "swap_bytes_per_second": 1e18}
WAYS = {
    "alone": {"max_num_seqs": 1, "max_model_len": 88, "num_blocks": 22},
    "roomy": {},
    "in pieces": {"max_step_tokens": 5},
    "tight": {"max_model_len": 88, "num_blocks": 24},
    "tight everywhere": {"max_model_len": 88, "kv_cache_bytes": 40_000},
    "no prefixes": {"max_model_len": 88, "num_blocks": 24, "prefix_cache": False},
    "small blocks": {"block_size": 1, "max_model_len": 88, "num_blocks": 96},
    "large blocks": {"block_size": 16, "max_model_len": 88, "num_blocks": 7},
    "speculated": {
        "speculation": "ngram",
        "speculation_adaptive": False,
        "max_model_len": 88,
        "num_blocks": 24,
    },
    "swapped": {"max_model_len": 88, "num_blocks": 24, **SWAP},
}


def made(name: str) -> Decoder:
    shape = TINY | {"num_hidden_layers": 3, "layer_types": MIXED, "tie_word_embeddings": True} | SHAPES[name]
    model = new(shape, seed=0).eval()
    if name.startswith("gemma"):
        # So that the next token is not just the last one again.
        model.embed.weight.data.mul_(0.05)
    return model


def widths_of(model: Decoder, *windows: int | None) -> Decoder:
    for layer, window in zip(model.layers, windows, strict=True):
        layer.attention.spec = replace(layer.attention.spec, window=window)
    return model


@pytest.fixture(scope="module")
def models():
    made_here = {name: made(name) for name in SHAPES}
    return made_here | {"three widths": widths_of(made("gemma3"), 5, None, 11)}


@pytest.fixture(scope="module")
def ids():
    return [*random_prompts(4), *([7 + i % 31 for i in range(n)] for n in (70, 45))]


@pytest.fixture(scope="module")
def expected(models, ids):
    return {name: [greedy(model, prompt, NEW) for prompt in ids] for name, model in models.items()}


def llm_of(model: Decoder, **config) -> LLM:
    return LLM(model, config=EngineConfig(**{"block_size": 4, "max_num_seqs": 8, **config}))


def check_empty(core: EngineCore) -> None:
    core.pool.check()
    assert core.pool.used == 0
    if core.scheduler.swap is not None:
        assert core.scheduler.swap.usage == 0


@pytest.mark.parametrize("name", SHAPES)
def test_alone_is_what_transformers_says(name, models, ids, expected, tmp_path):
    """So the windows themselves are the peer's; all else here is compared with `alone`."""
    transformers = pytest.importorskip("transformers")
    save(models[name], tmp_path / "model")
    peer = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", dtype=torch.float32, attn_implementation="eager"
    )
    for prompt, want in zip(ids, expected[name], strict=True):
        row = peer.generate(
            torch.tensor([prompt]), do_sample=False, max_new_tokens=NEW, eos_token_id=None, pad_token_id=0
        )
        assert row[0, len(prompt) :].tolist() == want


@pytest.mark.parametrize(
    ("name", "native", "way"),
    [
        *((name, True, way) for name in ("qwen2", "three widths") for way in WAYS),
        *((name, True, way) for name in SHAPES if name != "qwen2" for way in ("tight", "swapped")),
        ("gemma2", True, "speculated"),
        ("gemma3", True, "in pieces"),
        ("gpt-oss", True, "roomy"),
        *(("three widths", False, way) for way in ("roomy", "tight everywhere", "swapped")),
    ],
)
def test_every_way_says_what_the_model_says_alone(name, native, way, models, ids, expected):
    llm = llm_of(models[name], **WAYS[way])
    pool, counters = llm.core.pool, llm.core.scheduler.counters
    assert len(pool.groups) == (3 if name == "three widths" else 2)
    assert (llm.core.runner.compiled is not None) == (name == "qwen2" and library("layers") is not None)
    with nullcontext() if native else use_reference():
        for _ in range(2):
            assert [output.outputs[0].token_ids for output in llm.generate(ids, GREEDY)] == expected[name]
    if "tight" in way or way == "swapped":
        assert counters.preemptions > 0
    if way == "tight everywhere":
        assert all(group.num_blocks * 4 < 88 for group in pool.groups[1:])
    assert (counters.swaps > 0) == (way == "swapped")
    if way == "roomy":
        assert counters.prefix_hits > 0
    if way == "speculated":
        assert llm.core.speculation.counters.drafts > 0
    check_empty(llm.core)


@pytest.mark.parametrize(
    "config", [{}, {"num_blocks": 30, "max_model_len": 88, "max_step_tokens": 9, **SWAP}], ids=str
)
@pytest.mark.parametrize("name", ["gemma2", "three widths"])
def test_samples_that_part_share_what_is_left(name, models, config):
    params = SamplingParams(temperature=0.3, max_tokens=30, seed=5, n=4, detokenize=False)
    ids = [[7 + i % 31 for i in range(50)], [9] * 21, list(range(5, 42))]
    plain = llm_of(models[name], prefix_cache=False, block_size=256)
    llm = llm_of(models[name], **config)
    for got, want in zip(llm.generate(ids, params), plain.generate(ids, params), strict=True):
        assert [s.token_ids for s in got.outputs] == [s.token_ids for s in want.outputs]
    assert not config or llm.core.scheduler.counters.swaps > 0
    check_empty(llm.core)


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8"])
def test_small_types_keep_their_scales_with_their_blocks(models, ids, kv_dtype):
    want = llm_of(models["gemma3"], kv_dtype=kv_dtype, prefix_cache=False, block_size=256).generate(
        ids, GREEDY
    )
    llm = llm_of(models["gemma3"], kv_dtype=kv_dtype, **WAYS["swapped"])
    for got, each in zip(llm.generate(ids, GREEDY), want, strict=True):
        assert got.outputs[0].token_ids == each.outputs[0].token_ids
    assert llm.core.scheduler.counters.swaps > 0


@pytest.mark.parametrize("name", ["gemma3", "mistral"])
@pytest.mark.parametrize("way", ["roomy", "tight"])
def test_a_draft_keeps_its_blocks_and_the_windows_pass(name, way, tmp_path, ids):
    """Even where no layer of the model sees everything: the draft's are the first group then."""
    model = made("gemma3")
    if name == "mistral":
        widths_of(model, 5, 5, 5)
    save(new(TINY, seed=0).eval(), tmp_path / "draft")
    draft = {"speculation": "draft", "draft_model": str(tmp_path / "draft"), "speculation_adaptive": False}
    llm = llm_of(model, **WAYS[way], **draft)
    assert [group.window is None for group in llm.core.pool.groups] == [True, False]
    want = [greedy(model, prompt, NEW) for prompt in ids]
    for _ in range(2):
        assert [output.outputs[0].token_ids for output in llm.generate(ids, GREEDY)] == want
    assert llm.core.speculation.counters.drafts > 0
    check_empty(llm.core)


def test_two_ranks_give_the_tokens_of_one(models, ids, expected, tmp_path):
    save(models["gemma3"], tmp_path / "model")
    config = EngineConfig(
        block_size=4, max_num_seqs=8, tensor_parallel=2, recompute_tokens_per_second=1.0, **WAYS["swapped"]
    )
    core = load_core(tmp_path / "model", config)
    try:
        samples = [core.add(GenerateRequest(str(i), prompt, GREEDY))[0] for i, prompt in enumerate(ids)]
        while core.has_work:
            core.step()
        assert [sample.tokens[sample.prompt_length :] for sample in samples] == expected["gemma3"]
        assert core.scheduler.counters.swaps > 0
        check_empty(core)
    finally:
        core.close()


@pytest.mark.parametrize("level", [1, 2])
def test_it_sleeps_and_wakes_in_the_middle(models, ids, expected, tmp_path, level):
    save(models["gemma3"], tmp_path / "model")
    core = load_core(tmp_path / "model", EngineConfig(block_size=4, max_num_seqs=8))
    samples = [core.add(GenerateRequest(str(i), prompt, GREEDY))[0] for i, prompt in enumerate(ids)]
    for _ in range(9):
        core.step()
    core.sleep(level)
    assert not core.runner.cache.tensors
    core.wake()
    while core.has_work:
        core.step()
    assert [sample.tokens[sample.prompt_length :] for sample in samples] == expected["gemma3"]
    check_empty(core)


def test_what_is_held_under_a_window_is_bounded_by_it(models):
    core = llm_of(models["three widths"], max_step_tokens=32).core
    (request,) = core.add(
        GenerateRequest("a", [7 + i % 31 for i in range(100)], GREEDY.with_(max_tokens=100))
    )
    most = [0, 0, 0]
    while core.has_work:
        core.step()
        most = [max(was, group.used) for was, group in zip(most, core.pool.groups, strict=True)]
        for table in request.tables:
            assert table.blocks[: table.passed] == [GONE] * table.passed
    assert len(request.tokens) == 200
    bounds = [group.window.most_blocks for group in core.pool.groups[1:]]
    assert most == [50, *bounds] == [50, 4, 2]


def test_in_the_same_memory_more_requests_fit_at_once(models):
    """For eight of 120 tokens, if every layer kept its blocks, it would be enough for four."""
    model = models["gemma3"]
    room = 4 * 30 * block_bytes(model.attention_specs(), 4, model.dtype)
    core = llm_of(model, kv_cache_bytes=room, max_model_len=120, max_step_tokens=16).core
    for i in range(8):
        core.add(
            GenerateRequest(str(i), [5 + (3 * i + j) % 90 for j in range(90)], GREEDY.with_(max_tokens=30))
        )
    most = 0
    while core.has_work:
        core.step()
        most = max(most, core.scheduler.num_running)
    assert sum(tensor.nbytes for tensor in core.runner.cache.tensors) <= room
    assert most > 4


def test_of_a_swapped_request_only_what_is_seen_moves(models):
    core = llm_of(models["gemma3"], **WAYS["swapped"], recompute_tokens_per_second=1.0).core
    prompts = [[5 + (3 * i + j) % 90 for j in range(44)] for i in range(2)]
    samples = [core.add(GenerateRequest(str(i), prompt, GREEDY))[0] for i, prompt in enumerate(prompts)]
    for _ in range(16):
        if not samples[1].host:
            core.step()
    full, seen = samples[1].host
    assert (full.passed, len(full.blocks)) == (0, -(-samples[1].computed // 4))
    assert len(seen.blocks) <= core.pool.groups[1].window.most_blocks < seen.passed
    while core.has_work:
        core.step()
    check_empty(core)


def test_a_hit_needs_all_blocks_here_and_those_that_are_seen_there(models):
    """The next turn of a conversation starts from it; once the window's have been evicted, nothing of it is found
    until somebody has computed it again."""
    llm = llm_of(models["gemma3"], max_num_seqs=2, max_model_len=200, num_blocks=200, max_step_tokens=16)
    prompt = [7 + i % 31 for i in range(100)]
    (first,) = llm.generate([prompt], GREEDY)
    turn = prompt + first.outputs[0].token_ids + [50, 51, 52]
    want = greedy(models["gemma3"], turn, NEW)
    (second,) = llm.generate([turn], GREEDY)
    assert second.cached_tokens == 112
    assert second.outputs[0].token_ids == want
    full, seen = llm.core.pool.groups
    held = seen.allocate(seen.available)
    seen.release(held)
    for cached in (0, 116):
        (again,) = llm.generate([turn], GREEDY)
        assert again.cached_tokens == cached
        assert again.outputs[0].token_ids == want
    assert full.used == seen.used == 0


def test_the_longest_beginning_is_one_that_all_groups_have():
    groups = [BlockPool(8, 2), BlockPool(8, 2, window=Window(5, 2)), BlockPool(8, 2, window=Window(3, 2))]
    pool = GroupedPool(groups)
    root, tokens, keys = pool.root(0), list(range(16)), []
    pool.extend_keys(keys, root, tokens)
    blocks = list(range(8))
    for group, published in zip(groups, [range(7), (0, 1, 2, 5, 6, 7), (0, 2, 3, 5, 6)], strict=True):
        own = group.allocate(8)
        assert own == blocks
        for i in published:
            parent = keys[i - 1] if i else root
            assert group.publish(i, keys[i], parent, tokens[2 * i : 2 * i + 2])
    assert pool.match(keys, root, tokens, 8) == [
        Table(blocks[:7]),
        Table([GONE] * 5 + [5, 6], 5),
        Table([GONE] * 6 + [6], 6),
    ]
    assert pool.match(keys, root, tokens, 6) == [
        Table(blocks[:3]),
        Table([GONE, 1, 2], 1),
        Table([GONE, GONE, 2], 2),
    ]
    assert pool.match(keys, root, tokens, 2) == [Table([0]), Table([0]), Table([0])]


def test_memory_is_shared_out_by_what_a_full_batch_holds():
    config = EngineConfig(block_size=4, max_num_seqs=10, max_step_tokens=20)
    sizes, windows, cpu = [100, 300, 200], [None, Window(9, 4), Window(3, 4)], torch.device("cpu")

    def chosen(**changes) -> list[int]:
        return choose_num_blocks(config.model_copy(update=changes), sizes, windows, 80, cpu)

    assert chosen() == [2 * 10 * 20, 2 * (10 * 3 + 5), 2 * (10 * 2 + 5)]
    least = 20 * 100 + 3 * 300 + 2 * 200
    assert chosen(kv_cache_bytes=least) == [20, 3, 2]
    some = chosen(kv_cache_bytes=3 * least)
    assert some[0] > 40
    assert 2.8 * least < sum(count * size for count, size in zip(some, sizes, strict=True)) <= 3 * least
    assert chosen(num_blocks=30) == [30, 30, 30]
    assert chosen(num_blocks=60) == [60, 60, 50]
    for changes in ({"kv_cache_bytes": least - 1}, {"num_blocks": 19}):
        with pytest.raises(
            ConfigError, match=r"room for 76 tokens, but one request may have 80\. Lower"
        ) as caught:
            chosen(**changes)
        assert caught.value.param == "max_model_len"


@pytest.mark.parametrize("native", [True, False], ids=["compiled", "torch"])
def test_numbers_that_are_not_finite_harm_nobody(native):
    model = made("gemma3")
    with torch.no_grad():
        model.embed.weight[POISON] = torch.nan
    model.head.out.weight = torch.nn.Parameter(model.head.out.weight.nan_to_num(0.0))
    good = GREEDY.with_(logit_bias={POISON: -100.0})
    want = llm_of(model).generate([[5, 6, 7]], good)[0].outputs[0].token_ids
    with nullcontext() if native else use_reference():
        core = llm_of(model, num_blocks=40, max_model_len=100, max_step_tokens=9, prefix_cache=False).core
        (fine,) = core.add(GenerateRequest("good", [5, 6, 7], good))
        (bad,) = core.add(GenerateRequest("bad", [POISON] * 50 + [8] * 20, good))
        while core.has_work:
            core.step()
        (after,) = core.add(GenerateRequest("after", [5, 6, 7], good))
        while core.has_work:
            core.step()
    assert bad.error is not None
    assert fine.tokens[3:] == after.tokens[3:] == want
