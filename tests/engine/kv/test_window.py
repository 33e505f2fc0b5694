"""Models that see no further back than a window: blocks that have passed it go, and nothing changes but the memory."""

from contextlib import nullcontext

import pytest
import torch

from rondo.base.errors import ConfigError
from rondo.client.types import GenerateRequest, SamplingParams
from rondo.engine.config import EngineConfig
from rondo.engine.core import EngineCore
from rondo.engine.entrypoints.llm import LLM
from rondo.engine.kv.blocks import GONE, BlockPool
from rondo.engine.kv.groups import GroupedPool
from rondo.engine.kv.window import Window, group_layers
from rondo.models import new, save
from rondo.ops import AttentionSpec
from rondo.ops.dispatch import use_reference
from support.alone import greedy, random_prompts

WINDOW = 7
GREEDY = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, detokenize=False)
POISON = 96


@pytest.fixture(scope="module")
def windowed(tiny):
    shape = {
        "model_type": "mistral",
        "architectures": ["MistralForCausalLM"],
        "sliding_window": WINDOW,
        "tie_word_embeddings": False,
        "num_hidden_layers": 3,
    }
    return new({**tiny.config.hf, **shape}, seed=0).eval()


def llm_of(model, **config) -> LLM:
    return LLM(model, config=EngineConfig(**{"block_size": 4, "max_num_seqs": 8, **config}))


@pytest.fixture(scope="module")
def expected(windowed):
    ids = [*random_prompts(6), *([7 + i % 31 for i in range(n)] for n in (120, 77))]
    return ids, [greedy(windowed, prompt, 40) for prompt in ids]


def test_alone_is_what_transformers_says(windowed, expected, tmp_path):
    """So the window itself is the peer's; all else here is compared with `alone`."""
    transformers = pytest.importorskip("transformers")
    save(windowed, tmp_path / "model")
    peer = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model", dtype=torch.float32)
    for prompt, want in zip(*expected, strict=True):
        row = peer.generate(
            torch.tensor([prompt]), do_sample=False, max_new_tokens=40, eos_token_id=None, pad_token_id=0
        )
        assert row[0, len(prompt) :].tolist() == want


ROOMY, IN_PIECES = {}, {"num_blocks": 12, "max_step_tokens": 5}
SWAPPED = {"num_blocks": 8, "swap_bytes": 1 << 20, "swap_bytes_per_second": 1e18}
OTHERS = [
    {"num_blocks": 3, "max_num_seqs": 1},
    {"num_blocks": 8, "prefix_cache": False},
    {"block_size": 1, "num_blocks": 20},
    {"block_size": 16, "num_blocks": 5},
    {"num_blocks": 8, "speculation": "ngram", "speculation_adaptive": False},
]


@pytest.mark.parametrize(
    ("config", "native"),
    [
        *((config, True) for config in (ROOMY, IN_PIECES, SWAPPED, *OTHERS)),
        *((config, False) for config in (ROOMY, IN_PIECES, SWAPPED)),
    ],
    ids=str,
)
def test_a_pool_smaller_than_the_context_serves_it(windowed, expected, config, native):
    ids, want = expected
    llm = llm_of(windowed, **config)
    if "num_blocks" in config:
        size = config.get("block_size", 4)
        assert config["num_blocks"] * size < max(map(len, ids))
    with nullcontext() if native else use_reference():
        for _ in range(2):
            assert [output.outputs[0].token_ids for output in llm.generate(ids, GREEDY)] == want
    counters = llm.core.scheduler.counters
    if config.get("num_blocks") == 8:
        assert counters.preemptions > 0
        assert (counters.swaps > 0) == ("swap_bytes" in config)
    if not config:
        assert counters.prefix_hits > 0
    llm.core.pool.check()
    assert llm.core.pool.used == 0


@pytest.mark.parametrize("config", [{}, {"num_blocks": 24, "max_step_tokens": 9}], ids=str)
def test_samples_that_part_share_what_is_left(windowed, config):
    params = SamplingParams(temperature=0.3, max_tokens=30, seed=5, n=4, detokenize=False)
    ids = [[7 + i % 31 for i in range(50)], [9] * 21]
    plain = EngineCore(windowed, EngineConfig(max_num_seqs=8, prefix_cache=False, block_size=256))
    want = [plain.add(GenerateRequest(str(i), prompt, params)) for i, prompt in enumerate(ids)]
    while plain.has_work:
        plain.step()
    llm = llm_of(windowed, **config)
    for output, samples, prompt in zip(llm.generate(ids, params), want, ids, strict=True):
        assert [s.token_ids for s in output.outputs] == [s.tokens[len(prompt) :] for s in samples]
    llm.core.pool.check()
    assert llm.core.pool.used == 0


def test_what_a_request_holds_is_bounded_by_the_window(windowed):
    core = llm_of(windowed, max_step_tokens=32).core
    (request,) = core.add(
        GenerateRequest("a", [7 + i % 31 for i in range(100)], GREEDY.with_(max_tokens=100))
    )
    most = 0
    while core.has_work:
        core.step()
        most = max(most, core.pool.used)
        for table in request.tables:
            assert table.blocks[: table.passed] == [GONE] * table.passed
    assert len(request.tokens) == 200
    assert most <= core.pool.groups[0].window.most_blocks == 3


def test_a_hit_needs_only_the_blocks_that_are_seen(windowed):
    """The beginning is evicted, the end still there: the next turn of a conversation starts from it."""
    llm = llm_of(windowed, num_blocks=12, max_num_seqs=1)
    prompt = [7 + i % 31 for i in range(100)]
    (first,) = llm.generate([prompt], GREEDY)
    turn = prompt + first.outputs[0].token_ids + [50, 51, 52]
    (second,) = llm.generate([turn], GREEDY)
    assert second.cached_tokens == 136
    assert second.outputs[0].token_ids == greedy(windowed, turn, 40)
    (other,) = llm.generate([[8, *turn[1:]]], GREEDY)
    assert other.cached_tokens == 0
    assert other.outputs[0].token_ids == greedy(windowed, [8, *turn[1:]], 40)


def test_the_longest_hit_ends_before_a_block_that_is_missing():
    pool = BlockPool(8, 2, window=Window(3, 2))
    grouped, tokens, keys = GroupedPool([pool]), list(range(16)), []
    root = grouped.root(0)
    grouped.extend_keys(keys, root, tokens)
    blocks = pool.allocate(8)
    for i in (0, 1, 3, 4, 6):
        parent = keys[i - 1] if i else root
        assert pool.publish(blocks[i], keys[i], parent, tokens[2 * i : 2 * i + 2])
    assert pool.match(keys, root, tokens, 8) == [GONE] * 6 + blocks[6:7]
    assert pool.match(keys, root, tokens, 6) == [GONE] * 4 + blocks[4:5]
    assert pool.match(keys, root, tokens, 3) == [GONE, blocks[1]]
    assert pool.match(keys, root, tokens, 0) == []
    wider = BlockPool(8, 2, window=Window(6, 2))
    assert wider.match(keys, root, tokens, 8) == []


@pytest.mark.parametrize("size", [1, 2, 3, 4, 16])
@pytest.mark.parametrize("tokens", [2, 3, 4, 5, 16, 17])
def test_no_token_misses_a_block_and_none_is_kept_too_long(tokens, size):
    window = Window(tokens, size)
    held = []
    for at in range(100):
        oldest = max(0, at - tokens + 1)
        assert window.passed(at) == oldest // size
        held.append(at // size - window.passed(at) + 1)
    assert max(held) == window.most_blocks


def test_layers_are_grouped_by_what_they_see():
    narrow, wide, full = (AttentionSpec(0, 4, 2, 8, 8, 0.3, window=w) for w in (3, 9, None))
    one = group_layers([narrow, narrow], 4)
    assert (one.windows, one.of) == ((Window(3, 4),), (0, 0))
    assert group_layers([full], 4).windows == (None,)
    mixed = group_layers([narrow, full, wide, full], 4)
    assert (mixed.windows, mixed.of) == ((None, Window(9, 4), Window(3, 4)), (2, 0, 1, 0))
    assert mixed.split("abcd") == [["b", "d"], ["c"], ["a"]]
    assert group_layers([narrow], 4, keeps_all=True).windows == (None, Window(3, 4))
    tiny = AttentionSpec(0, 4, 2, 8, 8, 0.3, window=1)
    assert group_layers([tiny], 4).windows == (Window(2, 4),)


def test_a_pool_smaller_than_the_window_is_refused(windowed):
    with pytest.raises(ConfigError, match="sees 7 of them") as caught:
        llm_of(windowed, num_blocks=2)
    assert caught.value.param == "max_model_len"


@pytest.mark.parametrize("native", [True, False], ids=["compiled", "torch"])
def test_blocks_that_pass_with_numbers_that_are_not_finite_harm_nobody(windowed, native):
    """They go to others before anybody knows: the prompt that computed them has no logits yet."""
    model = new(windowed.config.hf, seed=0).eval()
    with torch.no_grad():
        model.embed.weight[POISON] = torch.nan
    good = GREEDY.with_(logit_bias={POISON: -100.0})
    want = llm_of(model).generate([[5, 6, 7]], good)[0].outputs[0].token_ids
    with nullcontext() if native else use_reference():
        core = llm_of(model, num_blocks=12, max_step_tokens=9, prefix_cache=False).core
        (fine,) = core.add(GenerateRequest("good", [5, 6, 7], good))
        (seen,) = core.add(GenerateRequest("seen", [POISON] * 50 + [8] * 5, good))
        (unseen,) = core.add(GenerateRequest("unseen", [POISON] * 30 + [8] * 60, good))
        while core.has_work:
            core.step()
    assert seen.error is not None
    assert unseen.error is None
    assert fine.tokens[3:] == want
