"""The overlapped loop: what the plain loop says, whatever comes in between. (Answers: see test_generate.)"""

import asyncio
import random

import pytest
import torch

from rondo.base.errors import ConfigError, Conflict, RondoError, Unavailable
from rondo.client.types import GenerateRequest, SamplingParams
from rondo.engine.config import EngineConfig
from rondo.engine.core import EngineCore
from rondo.engine.llm import LLM
from support.engines import at_work, collect
from support.waiting import run, until

PARAMS = SamplingParams(max_tokens=30, seed=1, ignore_eos=True, detokenize=False)


def make(model, **config) -> EngineCore:
    return EngineCore(model, EngineConfig(**{"max_num_seqs": 6, "block_size": 4, "overlap": True, **config}))


def finish(core: EngineCore) -> None:
    while core.has_work:
        core.step()
        core.pool.check()
    assert core.pool.used == 0


def random_params(rng: random.Random) -> SamplingParams:
    return SamplingParams(
        max_tokens=rng.randrange(1, 25),
        temperature=rng.choice([0.0, 0.3, 1.0]),
        seed=rng.randrange(1000),
        n=rng.choice([1, 1, 2, 4]),
        stop_token_ids=tuple(rng.sample(range(97), 10)),
        top_p=rng.choice([1.0, 0.8]),
        logprobs=rng.choice([None, 0, 2]),
        presence_penalty=rng.choice([0.0, 0.0, 1.0]),
        detokenize=False,
    )


def facts(sample):
    """All that a client sees of a sample, but for numbers that hang on who else was in the batch."""
    return sample.tokens, sample.finish_reason, sample.stop_reason, len(sample.weight_versions)


def random_prompt(rng: random.Random, stem: list[int]) -> list[int]:
    """Some begin alike."""
    own = [rng.randrange(3, 97) for _ in range(rng.randrange(1, 20))]
    return stem[: rng.choice([0, 0, 9, 20])] + own


@pytest.mark.parametrize("seed", range(6))
def test_aborts_at_random_times_change_nothing_for_the_others(tiny, seed):
    rng = random.Random(seed)
    config = {"num_blocks": 80, "max_model_len": 70} if seed % 2 else {}
    config |= {"max_step_tokens": rng.choice([7, 64]), "block_size": rng.choice([1, 4, 4])}
    stem = [rng.randrange(3, 97) for _ in range(20)]
    requests = [GenerateRequest(str(i), random_prompt(rng, stem), random_params(rng)) for i in range(24)]
    plain = make(tiny, **config, overlap=False)
    want = [plain.add(request) for request in requests]
    finish(plain)
    core = make(tiny, **config)
    got, coming = [], list(requests)
    while coming or core.has_work:
        if coming and rng.random() < 0.5:
            got.append(core.add(coming.pop(0)))
        if got and rng.random() < 0.1:
            core.abort(rng.choice(got)[0].id, rng.choice([None, 0, 1]))
        core.step()
        core.pool.check()
    assert core.pool.used == 0
    whole = 0
    for ours, theirs in zip(got, want, strict=True):
        for sample, other in zip(ours, theirs, strict=True):
            if sample.finish_reason != "abort":
                assert facts(sample) == facts(other)
                assert sample.logprobs == pytest.approx(other.logprobs, abs=1e-3)
                assert [len(row) for row in sample.top_logprobs] == [len(row) for row in other.top_logprobs]
                whole += 1
            assert sample.tokens == other.tokens[: len(sample.tokens)]
            assert len(sample.tokens) - sample.prompt_length == len(sample.weight_versions)
    assert 10 < whole < sum(len(samples) for samples in got)


@pytest.mark.parametrize("other", [{"speculation": "ngram"}, {"tensor_parallel": 2}], ids=str)
def test_what_does_not_go_together_is_refused(tiny, other):
    with pytest.raises(ConfigError, match=next(iter(other))) as caught:
        make(tiny, **other)
    assert caught.value.param == "overlap"


def test_a_step_is_under_way_while_the_one_before_is_accounted_for(tiny):
    core = make(tiny)
    core.add(GenerateRequest("a", [5], PARAMS))
    core.add(GenerateRequest("b", [6, 7], PARAMS))
    under_way = []
    advance = core._overlap._advance

    def looks(plan, result):
        under_way.append(core._overlap._flight is not None)
        return advance(plan, result)

    core._overlap._advance = looks
    finish(core)
    assert under_way == [True] * 29 + [False]  # the last token is known to be the last


def test_who_stopped_runs_one_step_too_many_and_it_shows_nowhere(tiny):
    free = make(tiny, overlap=False)
    (one,) = free.add(GenerateRequest("a", [5, 6], PARAMS))
    finish(free)
    stop = one.tokens[12]
    core = make(tiny)
    (request,) = core.add(GenerateRequest("a", [5, 6], PARAMS.with_(stop_token_ids=[stop])))
    dropped = 0
    while core.has_work:
        dropped += len(core.step().advanced) == 0
        core.pool.check()
    end = one.tokens.index(stop, 2) + 1
    assert request.tokens == one.tokens[:end]
    assert dropped == 2  # the first step, which has none before it, and the last
    (again,) = core.add(GenerateRequest("again", one.tokens[: end + 8], PARAMS))
    finish(core)
    assert again.tokens[: len(one.tokens)] == one.tokens


@pytest.mark.parametrize("verb", ["update", "sleep"])
def test_updates_and_sleep_come_to_a_stop_first(tiny, verb):
    want = LLM(tiny).generate([[5, 6, 7]], PARAMS)[0].outputs[0].token_ids
    core = make(tiny)
    (request,) = core.add(GenerateRequest("a", [5, 6, 7], PARAMS))
    while request.generated < 9:
        core.step()
    if verb == "update":
        core.start_weight_update()
    else:
        core.sleep(1)
    assert request.generated == len(request.weight_versions) == 10
    with pytest.raises(Conflict):
        core.step()
    assert core.late().advanced == [request]
    if verb == "update":
        core.finish_weight_update(1)
    else:
        core.wake()
    finish(core)
    assert request.tokens[3:] == want
    assert request.weight_versions == [0] * 10 + [int(verb == "update")] * 20


def test_logits_that_are_not_finite_end_their_own_request(tiny):
    core = make(tiny)
    (bad,) = core.add(GenerateRequest("bad", [9, 9, 9], PARAMS))
    (good,) = core.add(GenerateRequest("good", [5, 6, 7], PARAMS))
    execute = core.runner.execute
    steps = []

    def breaks(step):
        if len(steps) == 5:
            for pages in core.runner.cache.tensors:
                pages[bad.tables[0].blocks[0]] = torch.nan
        steps.append(step)
        return execute(step)

    core.runner.execute = breaks
    finish(core)
    assert bad.finish_reason == "abort"
    assert bad.error.code == "not_finite"
    assert good.tokens[3:] == LLM(tiny).generate([[5, 6, 7]], PARAMS)[0].outputs[0].token_ids
    assert all(pages.isfinite().all() for pages in core.runner.cache.tensors)


def test_a_step_that_fails_beside_the_caller_fails_the_engine(tiny):
    llm = LLM(tiny, config=EngineConfig(overlap=True))
    execute = llm.core.runner.execute

    def broken(step):
        raise RuntimeError("out of order")

    llm.core.runner.execute = broken
    with pytest.raises(RuntimeError, match="out of order"):
        llm.generate([[5, 6]] * 3, PARAMS)
    assert not llm.core.has_work
    assert llm.core.pool.used == 0
    llm.core.add(GenerateRequest("a", [5], PARAMS))
    llm.core.step()
    llm.core.stop()
    with pytest.raises(RuntimeError, match="out of order"):
        llm.core.step()
    llm.core.abort_all()
    llm.core.runner.execute = execute
    assert len(llm.generate([[5, 6]], PARAMS)[0].outputs[0].token_ids) == 30


@pytest.fixture
def core(tiny):
    return make(tiny)


def test_streams_pauses_and_verbs_of_a_server(engine, pace, tiny):
    async def main():
        params = [PARAMS.with_(seed=i, n=2) for i in range(8)]
        tasks = [asyncio.create_task(collect(engine, str(i), p)) for i, p in enumerate(params)]
        for verb in (engine.pause, engine.sleep, engine.start_weight_update):
            told = engine.metrics.generated_tokens
            await until(lambda told=told: engine.metrics.generated_tokens > told)
            await verb()
            assert engine.core._overlap._flight is None
            await asyncio.sleep(0.01)
            told = engine.metrics.generated_tokens
            await asyncio.sleep(0.01)
            assert engine.metrics.generated_tokens == told
            await engine.resume()
            await engine.wake()
            if engine.core.updating:
                await engine.finish_weight_update(1)
        pace.hurry()
        got = [(await task).tokens for task in tasks]
        want = LLM(tiny).generate([[5, 6, 7]] * 8, params)
        assert got == [[sample.token_ids for sample in output.outputs] for output in want]
        assert engine.metrics.generated_tokens == 8 * 2 * 30

    run(main())


def test_what_a_stop_brings_is_told_at_once_though_the_engine_is_paused(engine, pace):
    """The pause comes just when the last token is under way."""
    pace.hurry()
    observe = engine.metrics.observe

    def pauses(step, now):
        observe(step, now)
        if engine.metrics.generated_tokens == 2:
            engine._inbox.post(lambda: engine._lifecycle.pause(abort=False))

    engine.metrics.observe = pauses
    heard = run(collect(engine, "a", PARAMS.with_(max_tokens=3)))
    assert (len(heard.tokens[0]), heard.reason, engine.is_paused) == (3, "length", True)


def test_a_step_that_fails_fails_every_request_clearly(engine):
    async def main():
        task = asyncio.create_task(collect(engine, "a", PARAMS.with_(max_tokens=200)))
        await until(at_work(engine.core))

        def broken(step):
            raise RuntimeError("out of order")

        engine.core.runner.execute = broken
        with pytest.raises(Unavailable, match="engine failed"):
            await task
        with pytest.raises(RondoError):
            await collect(engine, "b")

    run(main())
