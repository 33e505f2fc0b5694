"""What the engine says must be what the model says: compared with transformers, token by token."""

import random

import pytest
import torch

from rondo.base.errors import Conflict, InvalidRequest, Overloaded
from rondo.client.types import GenerateRequest, SamplingParams
from rondo.engine.config import EngineConfig
from rondo.engine.entrypoints.llm import LLM
from rondo.engine.schedule.randomness import derive
from rondo.models import Packed, save
from rondo.ops import token_logprobs

GREEDY = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True, detokenize=False)


def make(model, eos_ids=None, **config) -> LLM:
    return LLM(model, config=EngineConfig(**{"block_size": 4, "max_num_seqs": 16, **config}), eos_ids=eos_ids)


@pytest.fixture
def engine():
    return make


def prompts(count: int, seed: int = 0, longest: int = 40) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(3, 97) for _ in range(rng.randrange(1, longest))] for _ in range(count)]


def answers(llm: LLM, ids, params=GREEDY) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in llm.generate(ids, params)]


@pytest.fixture(scope="module")
def expected(tiny, tmp_path_factory) -> tuple[list[list[int]], list[list[int]]]:
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("tiny")
    save(tiny, folder / "model")
    peer = transformers.AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.float32)
    ids = prompts(10)
    out = []
    for prompt in ids:
        row = peer.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            do_sample=False,
            max_new_tokens=20,
            eos_token_id=None,
            pad_token_id=0,
        )
        out.append(row[0, len(prompt) :].tolist())
    return ids, out


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"max_step_tokens": 7},
        {"max_step_tokens": 1},
        {"max_num_seqs": 1, "num_blocks": 512},
        {"prefix_cache": False},
        {"block_size": 1},
        {"block_size": 64},
        {"num_blocks": 16, "max_model_len": 64},
    ],
    ids=str,
)
def test_greedy_equals_transformers(tiny, engine, expected, config):
    ids, want = expected
    llm = engine(tiny, **config)
    assert answers(llm, ids) == want
    assert answers(llm, ids) == want
    if config.get("num_blocks") == 16:
        assert llm.core.scheduler.counters.preemptions > 0
    elif config.get("prefix_cache", True) and config.get("block_size") != 64:
        assert llm.core.scheduler.counters.prefix_hits > 0
    llm.core.pool.check()
    assert llm.core.pool.used == 0


def test_samples_do_not_depend_on_neighbours_nor_on_scheduling(tiny, engine):
    ids = prompts(8, seed=1)
    params = [
        SamplingParams(seed=i, max_tokens=12, detokenize=False, top_p=0.9 if i % 2 else 1.0) for i in range(8)
    ]
    together = answers(engine(tiny), ids, params)
    alone = [answers(engine(tiny), [p], [s])[0] for p, s in zip(ids, params, strict=True)]
    tight = answers(engine(tiny, max_step_tokens=5, num_blocks=14, max_model_len=52), ids, params)
    assert together == alone == tight


def test_engine_seed_reproduces_and_differs(tiny, engine):
    params = SamplingParams(max_tokens=20, detokenize=False, ignore_eos=True)
    first = answers(engine(tiny, seed=1), prompts(2), params)
    assert first == answers(engine(tiny, seed=1), prompts(2), params)
    assert first != answers(engine(tiny, seed=2), prompts(2), params)


@pytest.mark.parametrize(("mode", "temperature"), [("scaled", 0.7), ("raw", 0.7), ("scaled", 0.0)])
def test_logprobs_are_the_learners(tiny, engine, mode, temperature):
    params = SamplingParams(
        max_tokens=15,
        temperature=temperature,
        seed=3,
        logprobs=3,
        logprobs_mode=mode,
        top_k=5,
        detokenize=False,
    )
    for output in engine(tiny, max_step_tokens=9).generate(prompts(4, seed=2), params):
        sample = output.outputs[0]
        tokens = torch.tensor(output.prompt_token_ids + sample.token_ids)
        with torch.no_grad():
            logits = tiny(tokens, torch.arange(len(tokens)), Packed([0, len(tokens)]))[
                len(output.prompt_token_ids) - 1 : -1
            ]
        scale = temperature if mode == "scaled" else 1.0
        want = token_logprobs(logits, torch.tensor(sample.token_ids), scale)
        assert torch.allclose(torch.tensor(sample.logprobs), want, atol=2e-5)
        for row, top, chosen, logprob in zip(
            logits, sample.top_logprobs, sample.token_ids, sample.logprobs, strict=True
        ):
            table = (row / (scale or 1.0)).log_softmax(-1).topk(3)
            assert [token for token, _ in top] == table.indices.tolist()
            assert [value for _, value in top] == pytest.approx(table.values.tolist(), abs=2e-5)
            assert dict(top).get(chosen, logprob) == pytest.approx(logprob, abs=2e-5)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"block_size": 1},
        {"max_step_tokens": 5},
        {"max_num_seqs": 3},
        {"num_blocks": 20, "max_model_len": 80},
        {"prefix_cache": False},
    ],
    ids=str,
)
def test_n_samples_are_those_of_separate_requests(tiny, engine, config):
    """Whatever two samples share, and wherever they part: each gives what it gives alone."""
    ids = prompts(4, seed=4)
    params = SamplingParams(temperature=0.3, max_tokens=16, seed=5, n=6, logprobs=0, detokenize=False)
    want = [
        [
            answers(engine(tiny), [prompt], params.with_(n=1, seed=derive(5, index)))[0]
            for index in range(params.n)
        ]
        for prompt in ids
    ]
    assert any(len({tuple(tokens[:4]) for tokens in group}) < len(group) for group in want)
    assert all(len({tuple(tokens) for tokens in group}) > 1 for group in want)
    llm = engine(tiny, **config)
    for output, group in zip(llm.generate(ids, params), want, strict=True):
        assert [sample.token_ids for sample in output.outputs] == group
        assert [sample.index for sample in output.outputs] == list(range(6))
    llm.core.pool.check()
    assert llm.core.pool.used == 0


def test_samples_are_computed_once_until_they_part(tiny, engine):
    core = engine(tiny).core
    samples = core.add(GenerateRequest("a", [5] * 9, GREEDY.with_(n=8, max_tokens=10)))
    rows = []
    prepare = core.runner.prepare
    core.runner.prepare = lambda plan: (rows.append(len(plan.decodes) + len(plan.chunks)), prepare(plan))[1]
    while samples[0].generated < 4:
        core.step()
    assert len(core.scheduler.running) == 1
    assert core.scheduler.num_running == 8
    core.abort("a", 0)
    core.abort("a", 3)
    while core.has_work:
        core.step()
    assert set(rows) == {1}
    assert [len(sample.weight_versions) for sample in samples] == [4, 10, 10, 4, 10, 10, 10, 10]
    assert len({tuple(sample.tokens) for sample in samples if sample.finish_reason == "length"}) == 1
    core.pool.check()
    assert core.pool.used == 0


def test_every_token_says_which_weights_made_it(tiny, engine):
    llm = engine(tiny)
    core = llm.core
    (request,) = core.add(GenerateRequest("a", [5] * 9, GREEDY))
    while request.generated < 5:
        core.step()
    core.start_weight_update()
    before = request.generated
    with pytest.raises(Conflict):
        core.step()
    core.finish_weight_update(3)
    while core.has_work:
        core.step()
    assert request.weight_versions == [0] * before + [3] * (20 - before)
    hits = core.scheduler.counters.prefix_hits
    llm.generate([[5] * 9], GREEDY)
    assert core.scheduler.counters.prefix_hits == hits
    llm.generate([[5] * 9], GREEDY)
    assert core.scheduler.counters.prefix_hits == hits + 8
    core.start_weight_update()
    with pytest.raises(Conflict):
        core.finish_weight_update(3)


def test_stop_tokens_and_lengths(tiny, engine, expected):
    ids, want = expected
    llm = engine(tiny)
    (output,) = llm.generate(
        [ids[0]], SamplingParams(temperature=0, stop_token_ids=[want[0][3]], detokenize=False)
    )
    sample = output.outputs[0]
    assert sample.token_ids == want[0][: want[0].index(want[0][3]) + 1]
    assert (sample.finish_reason, sample.stop_reason) == ("stop", want[0][3])
    (output,) = llm.generate(
        [ids[0]], SamplingParams(temperature=0, max_tokens=None, ignore_eos=True, detokenize=False)
    )
    assert len(output.outputs[0].token_ids) == 256 - len(ids[0])
    assert output.outputs[0].finish_reason == "length"


def test_min_tokens_holds_the_end_back(tiny, engine):
    llm = engine(tiny, eos_ids=range(48))
    free = llm.generate([[5, 6]], SamplingParams(seed=1, max_tokens=30, detokenize=False))[0].outputs[0]
    held = llm.generate([[5, 6]], SamplingParams(seed=1, max_tokens=30, min_tokens=25, detokenize=False))[
        0
    ].outputs[0]
    assert len(free.token_ids) < 25 <= len(held.token_ids)


def test_what_cannot_be_served_is_refused(tiny, engine):
    llm = engine(tiny, max_model_len=32, max_queued=4)
    for prompt, param in (([], "prompt"), ([3] * 32, "prompt"), ([97], "prompt"), ([-1], "prompt")):
        with pytest.raises(InvalidRequest) as caught:
            llm.generate([prompt], GREEDY)
        assert caught.value.param == param
    llm.core.add(GenerateRequest("waits", [5], GREEDY))
    with pytest.raises(Overloaded):
        llm.core.add(GenerateRequest("many", [5], GREEDY.with_(n=4)))
    llm.core.abort_all()
    for params, param in (
        (SamplingParams(n=5, detokenize=False), "n"),
        (SamplingParams(stop_token_ids=[97], detokenize=False), "stop_token_ids"),
        (SamplingParams(stop_token_ids=[-1], detokenize=False), "stop_token_ids"),
        (SamplingParams(stop_token_ids=range(97), min_tokens=1, detokenize=False), "min_tokens"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            llm.generate([[5]], params)
        assert caught.value.param == param
    with pytest.raises(InvalidRequest):
        llm.generate(["text"], GREEDY)
    with pytest.raises(InvalidRequest):
        llm.generate([[5]], SamplingParams(logit_bias={97: 1.0}, detokenize=False))
    assert not llm.core.has_work
    assert len(llm.generate([[5]] * 9, GREEDY)) == 9
