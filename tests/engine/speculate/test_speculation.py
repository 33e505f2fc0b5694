"""With speculation or without it, an engine says the same; only the number of steps differs."""

import math
import random
from collections import Counter

import pytest
import torch

from rondo.base.errors import ConfigError
from rondo.client.types import GenerateRequest, SamplingParams
from rondo.engine.config import EngineConfig
from rondo.engine.core import EngineCore
from rondo.engine.entrypoints.async_engine import AsyncEngine
from rondo.engine.entrypoints.llm import LLM
from rondo.engine.metrics.counters import EngineMetrics
from rondo.engine.speculate.controller import Controller
from rondo.models import Packed, new, save
from rondo.ops import token_logprobs
from support.tiny import tiny_model, tiny_tokenizer
from support.waiting import run

PLAIN = SamplingParams(max_tokens=24, ignore_eos=True, detokenize=False)
GREEDY = PLAIN.with_(temperature=0.0)
DRAFTS = ("itself", "near", "random")
PROPOSERS = ("ngram", *DRAFTS)
KINDS = {
    "greedy": GREEDY,
    "hot": PLAIN.with_(seed=1),
    "filtered": PLAIN.with_(seed=2, temperature=0.8, top_k=20, top_p=0.9, min_p=0.02),
    "edited": PLAIN.with_(
        seed=3,
        temperature=0.5,
        repetition_penalty=1.2,
        presence_penalty=0.4,
        frequency_penalty=0.3,
        logit_bias={7: 3.0, 9: -100.0},
    ),
    "ending": PLAIN.with_(seed=4, ignore_eos=False, min_tokens=6, stop_token_ids=tuple(range(10, 30))),
    "several": PLAIN.with_(seed=5, temperature=0.3, n=3),
}


@pytest.fixture(scope="module")
def folders(tiny, tmp_path_factory):
    """Drafts: the model itself, one whose weights are a little off, and one that knows nothing."""
    root = tmp_path_factory.mktemp("drafts")
    near = new(tiny.config.hf, seed=0).eval()
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in near.parameters():
            weight.add_(0.03 * torch.randn_like(weight))
    narrow = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_key_value_heads": 1}
    stranger = new({**tiny.config.hf, **narrow}, seed=7).eval()
    for name, model in zip(DRAFTS, (tiny, near, stranger), strict=True):
        save(model, root / name)
    return root


@pytest.fixture
def engine(tiny, folders):
    def make(proposer: str | None, **config) -> LLM:
        config = {"block_size": 4, "max_num_seqs": 16, "speculation_adaptive": False, **config}
        if proposer == "ngram":
            config |= {"speculation": "ngram"}
        elif proposer is not None:
            config |= {"speculation": "draft", "draft_model": str(folders / proposer)}
        return LLM(tiny, config=EngineConfig(**config))

    return make


class Fickle(Controller):
    """Now on, now off."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.rng = random.Random(seed)

    def allows(self, load: int) -> bool:
        return self.rng.random() < 0.8


def prompts(count: int = 2) -> list[list[int]]:
    rng = random.Random(0)
    shared = [rng.randrange(3, 97) for _ in range(9)]
    mixed = [[rng.randrange(3, 97) for _ in range(rng.randrange(1, 30))] for _ in range(count)]
    return [*mixed, [*shared, 5], [*shared, 6], [5, 6, 7, 8] * 6, [9] * 13]


def answers(llm: LLM, params: SamplingParams, ids: list[list[int]] | None = None) -> list[list[object]]:
    outputs = llm.generate(prompts() if ids is None else ids, params)
    assert llm.core.pool.used == 0
    llm.core.pool.check()
    return [[(s.token_ids, s.finish_reason, s.stop_reason) for s in output.outputs] for output in outputs]


@pytest.fixture(scope="module")
def expected(tiny):
    llm = LLM(tiny, config=EngineConfig(block_size=4, max_num_seqs=16))
    return {kind: answers(llm, params) for kind, params in KINDS.items()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("proposer", PROPOSERS)
def test_the_tokens_are_those_without_it(engine, expected, proposer, kind):
    llm = engine(proposer)
    assert answers(llm, KINDS[kind]) == expected[kind]
    assert answers(llm, KINDS[kind]) == expected[kind]
    counters = llm.core.speculation.counters
    assert counters.drafts > 0
    assert counters.accepted == sum(counters.accepted_at)
    if proposer == "itself" and kind != "ending":
        assert counters.accepted > 0.9 * counters.proposed
    if proposer == "random":
        assert counters.accepted < 0.1 * counters.proposed
    if proposer == "near":
        assert 0.05 < counters.accepted / counters.proposed < 0.98


@pytest.mark.parametrize(
    "config",
    [
        {"max_step_tokens": 7},
        {"max_step_tokens": 2},
        {"max_num_seqs": 1, "num_blocks": 512},
        {"prefix_cache": False},
        {"block_size": 1},
        {"block_size": 64},
        {"num_blocks": 18, "max_model_len": 72},
        {"speculation_tokens": 1},
        {"speculation_tokens": 9},
        {"ngram_min": 1, "ngram_max": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("proposer", ["ngram", "near"])
def test_nor_does_it_depend_on_how_steps_are_cut(engine, expected, proposer, config):
    llm = engine(proposer, **config)
    for kind in ("hot", "several"):
        assert answers(llm, KINDS[kind]) == expected[kind]
    if config.get("num_blocks") == 18:
        assert llm.core.scheduler.counters.preemptions > 0
    if config.get("max_step_tokens") != 2:
        assert llm.core.speculation.counters.accepted > 0


@pytest.mark.parametrize("proposer", ["ngram", "itself"])
@pytest.mark.parametrize("seed", range(3))
def test_requests_that_come_and_go_at_any_time(engine, proposer, seed):
    """Each says a beginning of what it says alone, or all of it; and nothing unverified is ever found again."""
    rng = random.Random(seed)
    llm, alone = engine(proposer, num_blocks=24, max_model_len=64), engine(None)
    core = llm.core
    core.speculation.controller = Fickle(seed)
    samples = []
    for step in range(200):
        if step < 60 and rng.random() < 0.4:
            prompt = [rng.choice((5, 6, 7)) for _ in range(rng.randrange(1, 20))]
            params = PLAIN.with_(
                seed=step, n=rng.choice((1, 1, 3)), temperature=rng.choice((0, 1)), max_tokens=20
            )
            samples.append(core.add(GenerateRequest(str(step), prompt, params)))
        if samples and rng.random() < 0.1:
            core.abort(rng.choice(samples)[0].id, rng.choice((None, 0)))
        if step == 30:
            core.start_weight_update()
            core.finish_weight_update(1)
        core.step()
        core.pool.check()
        assert core.pool.used == len({block for r in core.scheduler.running for block in r.tables[0].blocks})
        for r in core.scheduler.running:
            assert not r.proposed
            r.check()
            for i, block in enumerate(r.tables[0].blocks[: r.published]):
                identity = core.pool.groups[0].identity(block)
                assert identity is None or list(identity[2]) == r.tokens[4 * i : 4 * i + 4]
    while core.has_work:
        core.step()
    assert core.pool.used == 0
    for group in samples:
        prompt = group[0].tokens[: group[0].prompt_length]
        want = alone.generate([prompt], group[0].sampling)[0].outputs
        for sample, whole in zip(group, want, strict=True):
            said = sample.tokens[sample.prompt_length :]
            assert said == (
                whole.token_ids[: len(said)] if sample.finish_reason == "abort" else whole.token_ids
            )
    assert core.speculation.counters.accepted > (10 if proposer == "ngram" else 100)


def test_fewer_steps(engine):
    def steps(proposer):
        core = engine(proposer).core
        core.add(GenerateRequest("a", [5, 6, 7], GREEDY.with_(max_tokens=41)))
        count = 0
        while core.has_work:
            core.step()
            count += 1
        return count

    assert steps(None) == 41
    assert steps("itself") == 9


@pytest.mark.parametrize("proposer", ["ngram", "itself"])
def test_an_accepted_run_ends_where_the_request_does(engine, proposer):
    ids = [[5, 6, 7, 8] * 6]
    whole = answers(engine(None), GREEDY, ids)[0][0][0]
    for length in range(1, 12):
        params = GREEDY.with_(max_tokens=length)
        assert answers(engine(proposer), params, ids)[0][0] == (whole[:length], "length", None)
    for stop in set(whole):
        params = GREEDY.with_(stop_token_ids=(stop,))
        until = whole.index(stop) + 1
        assert answers(engine(proposer), params, ids)[0][0] == (whole[:until], "stop", stop)


@pytest.mark.parametrize(("mode", "temperature"), [("scaled", 0.7), ("raw", 0.0)])
def test_logprobs_are_the_learners(tiny, engine, mode, temperature):
    params = PLAIN.with_(temperature=temperature, seed=3, logprobs=2, logprobs_mode=mode)
    llm = engine("near")
    for output in llm.generate(prompts(), params):
        sample = output.outputs[0]
        tokens = torch.tensor(output.prompt_token_ids + sample.token_ids)
        with torch.no_grad():
            logits = tiny(tokens, torch.arange(len(tokens)), Packed([0, len(tokens)]))
        logits = logits[len(output.prompt_token_ids) - 1 : -1]
        scale = temperature if mode == "scaled" else 1.0
        want = token_logprobs(logits, torch.tensor(sample.token_ids), scale)
        assert torch.allclose(torch.tensor(sample.logprobs), want, atol=2e-5)
        best = (logits / (scale or 1.0)).log_softmax(-1).topk(2).indices.tolist()
        assert [[token for token, _ in top] for top in sample.top_logprobs] == best
    assert llm.core.speculation.counters.accepted > 0


def test_stop_strings_inside_a_run(tmp_path):
    model, tokenizer = tiny_model().eval(), tiny_tokenizer()
    save(model, tmp_path / "model")
    plain = LLM(model, tokenizer, EngineConfig())
    drafted = LLM(
        model,
        tokenizer,
        EngineConfig(speculation="draft", draft_model=str(tmp_path / "model"), speculation_adaptive=False),
    )
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, logprobs=0)
    text = plain.generate("the user", params)[0].outputs[0].text
    stops = {text[i : i + 3] for i in range(0, len(text) - 3, 4)}
    assert len(stops) > 5
    for stop in stops:
        given = params.with_(stop=(stop,))
        (want,), (got,) = (llm.generate("the user", given)[0].outputs for llm in (plain, drafted))
        assert (got.text, got.token_ids, got.finish_reason, got.stop_reason) == (
            want.text,
            want.token_ids,
            "stop",
            stop,
        )
        assert got.logprobs == pytest.approx(want.logprobs, abs=1e-5)

    async def stream(stop):
        engine = AsyncEngine(EngineCore(model, drafted.config), tokenizer)
        try:
            request = GenerateRequest("a", tokenizer.encode("the user"), params.with_(stop=(stop,)))
            return "".join([chunk.text async for chunk in engine.generate(request)])
        finally:
            engine.stop()

    stop = sorted(stops)[0]
    assert run(stream(stop)) == text[: text.index(stop)]


@pytest.mark.parametrize("proposer", ["ngram", "near"])
def test_samples_follow_the_models_own_distribution(tiny, engine, proposer):
    """Three tokens, of which the last two may be proposed, drawn with many seeds: chi-square against the model."""
    count, top_k = 3000, 3
    (loop,) = engine(None).generate([[5, 6, 7]], GREEDY)
    prompt = [5, 6, 7, *loop.outputs[0].token_ids]
    llm = engine(proposer, ngram_min=1, ngram_max=1, max_num_seqs=64)
    params = [PLAIN.with_(seed=seed, max_tokens=3, top_k=top_k) for seed in range(count)]
    outputs = llm.generate([prompt] * count, params)
    seen = Counter(tuple(output.outputs[0].token_ids) for output in outputs)
    counters = llm.core.speculation.counters
    assert 0.02 < counters.accepted / counters.proposed < 0.98
    assert counters.accepted > count / 50

    paths: dict[tuple[int, ...], float] = {(): 1.0}
    for _ in range(3):
        rows = [torch.tensor([*prompt, *path]) for path in paths]
        bounds = [len(rows[0]) * i for i in range(len(rows) + 1)]
        with torch.no_grad():
            logits = tiny(torch.cat(rows), torch.arange(len(rows[0])).repeat(len(rows)), Packed(bounds))
        best = logits[[bound - 1 for bound in bounds[1:]]].topk(top_k)
        odds = best.values.softmax(-1)
        paths = {
            (*path, int(token)): chance * float(share)
            for i, (path, chance) in enumerate(paths.items())
            for token, share in zip(best.indices[i], odds[i], strict=True)
        }
    assert set(seen) <= set(paths)
    likely = {path: chance * count for path, chance in paths.items() if chance * count >= 5}
    rest = count - sum(likely.values())
    chi = sum((seen[path] - want) ** 2 / want for path, want in likely.items())
    if rest >= 5:
        chi += (count - sum(seen[path] for path in likely) - rest) ** 2 / rest
    freedom = len(likely)
    assert chi < freedom + 4 * math.sqrt(2 * freedom)


def test_every_token_says_which_weights_made_it(engine):
    core = engine("itself").core
    (request,) = core.add(GenerateRequest("a", [5] * 9, GREEDY.with_(max_tokens=24)))
    for _ in range(3):
        core.step()
    made = request.generated
    assert made > 3
    core.start_weight_update()
    core.finish_weight_update(3)
    while core.has_work:
        core.step()
    assert request.weight_versions == [0] * made + [3] * (24 - made)


@pytest.mark.parametrize("level", [1, 2])
def test_a_draft_sleeps_and_wakes_with_the_engine(tmp_path, level):
    for name in ("model", "draft"):
        save(tiny_model(), tmp_path / name)
        tiny_tokenizer().save(tmp_path / name)
    config = EngineConfig(
        speculation="draft",
        draft_model=str(tmp_path / "draft"),
        speculation_adaptive=False,
        prefix_cache=False,
    )
    llm = LLM(tmp_path / "model", config=config)
    draft = llm.core.speculation.proposer.runner
    want = answers(llm, GREEDY)
    before = llm.core.speculation.counters.accepted
    weights = {name: weight.clone() for name, weight in draft.model.named_parameters()}
    llm.sleep(level)
    assert not draft.cache.tensors
    llm.wake_up()
    assert all(torch.equal(weight, weights[name]) for name, weight in draft.model.named_parameters())
    assert answers(llm, GREEDY) == want
    assert llm.core.speculation.counters.accepted == 2 * before > 0


def test_proposals_that_are_not_finite_do_no_harm(tiny):
    """A proposal's keys lie beside those of its request, and NaN does not stay behind a mask."""
    poison = 96
    model = new({**tiny.config.hf, "tie_word_embeddings": False}, seed=0).eval()
    with torch.no_grad():
        model.embed.weight[poison] = torch.nan
    config = EngineConfig(block_size=4, num_blocks=16, max_model_len=32, speculation="ngram")
    config = config.model_copy(update={"speculation_adaptive": False})
    params = GREEDY.with_(logit_bias={poison: -100.0}, max_tokens=16)
    plain = EngineConfig(block_size=4, num_blocks=16, max_model_len=32)
    want = LLM(model, config=plain).generate([[5, 6, 7]], params)[0].outputs[0].token_ids

    class Poisoner:
        def propose(self, requests):
            for request in requests:
                request.proposed = ([want[request.generated]] + [poison] * 9)[: request.ahead]

    for compiled in (True, False):
        core = EngineCore(model, config)
        core.speculation.proposer = Poisoner()
        if not compiled:
            # As where the mask is added to the scores: one that is not finite spoils its whole row.
            forward = core.runner.forward

            def spoiling(step, forward=forward):
                logits = forward(step)
                for i, request in enumerate(step.requests):
                    if request.proposed:
                        logits[i] = torch.nan
                return logits

            core.runner.forward = spoiling
        (request,) = core.add(GenerateRequest("a", [5, 6, 7], params))
        while core.has_work:
            core.step()
        assert request.error is None
        assert request.tokens[3:] == want
        assert core.speculation.counters.drafts == 1
        assert all(tensor.isfinite().all() for tensor in core.runner.cache.tensors)


def test_what_was_accepted_is_counted(engine):
    llm = engine("near")
    metrics = EngineMetrics(llm.core, "tiny")
    samples = [
        llm.core.add(GenerateRequest(str(i), ids, PLAIN.with_(seed=i)))[0] for i, ids in enumerate(prompts())
    ]
    while llm.core.has_work:
        metrics.observe(llm.core.step(), 1.0)
    values = {
        sample.name + sample.labels.get("position", ""): sample.value
        for family in metrics.collect()
        for sample in family.samples
    }
    counters = llm.core.speculation.counters
    assert values["rondo:spec_decode_num_drafts_total"] == counters.drafts > 0
    assert values["rondo:spec_decode_num_draft_tokens_total"] == counters.proposed
    assert values["rondo:spec_decode_num_accepted_tokens_total"] == counters.accepted > 0
    per_place = [values[f"rondo:spec_decode_num_accepted_tokens_per_pos_total{i}"] for i in range(4)]
    assert sum(per_place) == counters.accepted
    assert per_place == sorted(per_place, reverse=True)
    assert values["rondo:generation_tokens_total"] == sum(sample.generated for sample in samples)


def test_what_cannot_speculate_says_so(tiny, folders, tmp_path):
    other = new({**tiny.config.hf, "vocab_size": 64}, seed=0).eval()
    save(other, tmp_path / "other")
    for config, says in (
        ({"speculation": "draft"}, "needs a draft_model"),
        ({"speculation": "draft", "draft_model": str(tmp_path / "other")}, "vocabulary of 64 tokens"),
        ({"speculation": "draft", "draft_model": "nowhere"}, "draft_model: There is no model 'nowhere'"),
        ({"speculation": "ngram", "ngram_min": 4, "ngram_max": 2}, "lower ngram_min"),
    ):
        with pytest.raises(ConfigError, match=says) as caught:
            LLM(tiny, config=EngineConfig(**config))
        assert caught.value.param in ("draft_model", "ngram_min")


def test_a_draft_with_another_tokenizer_is_refused(tmp_path):
    from rondo.text.bpe import train_bpe

    for name, tokenizer in (
        ("model", tiny_tokenizer()),
        ("draft", train_bpe(["something else is written here entirely, over and over"] * 3, 300)),
    ):
        save(tiny_model(), tmp_path / name)
        tokenizer.save(tmp_path / name)
    config = EngineConfig(speculation="draft", draft_model=str(tmp_path / "draft"))
    with pytest.raises(ConfigError, match="another tokenizer"):
        LLM(tmp_path / "model", config=config)
    LLM(tmp_path / "draft", config=config)


def test_a_draft_finds_prefixes_too(engine):
    """What it computed of a block is there for the next request that hits it."""
    llm = engine("itself")
    runner, computed = llm.core.speculation.proposer.runner, []
    prepare = runner.prepare

    def counting(plan):
        computed.append(sum(request.planned for request in (*plan.decodes, *plan.chunks)))
        return prepare(plan)

    runner.prepare = counting
    prompt = [random.Random(0).randrange(3, 97) for _ in range(41)]
    for first in (42, 2):
        computed.clear()
        llm.generate([prompt], GREEDY)
        assert computed[0] == first
