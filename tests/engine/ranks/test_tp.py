"""An engine on two ranks must say what an engine on one says, and must not outlive either of them."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from openai import OpenAI

from engine.conftest import TINY
from rondo.base.errors import ConfigError, Unavailable
from rondo.client.engine import fault_of
from rondo.client.types import GenerateRequest, SamplingParams
from rondo.engine.config import EngineConfig
from rondo.engine.core import EngineCore
from rondo.engine.entrypoints.async_engine import AsyncEngine
from rondo.engine.entrypoints.llm import LLM
from rondo.engine.entrypoints.load import load_core
from rondo.engine.ranks.following import FollowerRank
from rondo.engine.ranks.outbox import RankMessage, SharedStep
from rondo.engine.ranks.ranks import RankSetup
from rondo.engine.ranks.tp import Leader
from rondo.models import new, save
from rondo.parallel.tensor.load import load
from server.process.test_serve import serve, wait_until_ready
from server.running import make_model
from support.engines import Pace, at_work
from support.ports import free_port
from support.processes import alive, children_of, wait_until_gone
from support.ranks import ThreadRanks
from support.waiting import until

LOGPROB_TOLERANCE = 2e-5
"""The ranks' halves are added in another order than one process adds them."""

CONFIG = EngineConfig(
    max_num_seqs=8,
    block_size=4,
    max_step_tokens=24,
    num_blocks=40,
    max_model_len=120,
    speculation="ngram",
    speculation_adaptive=False,
)
"""Tight enough that prompts are cut, prefixes found and requests preempted."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tp") / "tiny"
    save(new(TINY | {"vocab_size": 101, "num_key_value_heads": 1, "attention_bias": True}, seed=0), folder)
    return folder


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    return ThreadRanks(tmp_path_factory.mktemp("ranks"))


def processes_of(core: EngineCore) -> list[int]:
    assert isinstance(core, Leader)
    return [other.process.pid for other in core.ranks.others]


@pytest.fixture(scope="module")
def two(folder):
    llm = LLM(folder, tokenizer=object(), config=CONFIG.model_copy(update={"tensor_parallel": 2}))
    yield llm
    pids = processes_of(llm.core)
    llm.close()
    assert not any(map(alive, pids))


@pytest.fixture(scope="module")
def one(folder):
    return LLM(folder, tokenizer=object(), config=CONFIG)


def prompts(count: int) -> list[list[int]]:
    return [[(7 * i + 3 * j) % 90 + 3 for j in range(5 + 9 * i % 40)] for i in range(count)]


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": 0.0},
        {"temperature": 0.8},
        {"n": 5, "temperature": 0.4},
        {"top_p": 0.8, "top_k": 20, "min_p": 0.01},
        {"presence_penalty": 1.0, "repetition_penalty": 1.3, "logit_bias": {5: 3.0}, "min_tokens": 4},
        {"stop_token_ids": list(range(20)), "max_tokens": None},
        {"prompt_logprobs": 2, "allowed_token_ids": tuple(range(10, 60))},
    ],
    ids=str,
)
def test_two_ranks_give_the_tokens_of_one(one, two, changes):
    base = SamplingParams(max_tokens=16, logprobs=3, detokenize=False)
    params = [base.with_(seed=i, **changes) for i in range(6)]
    for expected, given in zip(
        one.generate(prompts(6), params), two.generate(prompts(6), params), strict=True
    ):
        assert given.cached_tokens == expected.cached_tokens
        for got_entry, want_entry in zip(
            given.prompt_logprobs or [], expected.prompt_logprobs or [], strict=True
        ):
            assert (got_entry is None) == (want_entry is None)
            if got_entry and want_entry:
                assert got_entry[0][1] == pytest.approx(want_entry[0][1], abs=LOGPROB_TOLERANCE)
        for want, got in zip(expected.outputs, given.outputs, strict=True):
            assert (got.token_ids, got.finish_reason) == (want.token_ids, want.finish_reason)
            assert got.logprobs == pytest.approx(want.logprobs, abs=LOGPROB_TOLERANCE)
            assert [[token for token, _ in top] for top in got.top_logprobs] == [
                [token for token, _ in top] for top in want.top_logprobs
            ]


def test_what_was_done_in_between_is_done_on_both(one, two):
    """Prefixes were found and requests preempted; the caches are emptied together; a request is ended in the middle."""
    params = SamplingParams(max_tokens=24, seed=3, detokenize=False, ignore_eos=True)
    for llm in (one, two):
        llm.generate(prompts(6), params.with_(n=5, temperature=0.4, max_tokens=16))
        llm.reset_prefix_cache()
        hits = llm.core.scheduler.counters.prefix_hits
        llm.generate([[9] * 30], params)
        assert llm.core.scheduler.counters.prefix_hits == hits
        llm.core.add(GenerateRequest("left", [5] * 30, params.with_(n=3)))
        for _ in range(5):
            llm.core.step()
        llm.core.abort("left", 1)
        llm.core.step()
        llm.core.abort_all()
        llm.core.pool.check()
        assert llm.core.pool.used == 0
    assert two.core.scheduler.counters == one.core.scheduler.counters
    assert two.core.speculation.counters == one.core.speculation.counters
    assert two.core.speculation.counters.accepted > 0
    assert two.core.scheduler.counters.preemptions > 0
    assert two.core.scheduler.counters.prefix_hits > 0
    assert [o.outputs[0].token_ids for o in two.generate(prompts(3), params)] == [
        o.outputs[0].token_ids for o in one.generate(prompts(3), params)
    ]


@pytest.mark.parametrize("level", [1, 2])
def test_all_ranks_sleep_and_wake(one, two, level):
    params = SamplingParams(max_tokens=12, seed=3, detokenize=False, ignore_eos=True)
    expected = one.generate(prompts(3), params)
    (sample,) = two.core.add(GenerateRequest("through", prompts(3)[0], params))
    two.core.step()
    two.sleep(level)
    two.wake_up(["weights"])
    two.wake_up()
    while two.core.has_work:
        two.core.step()
    assert sample.tokens[sample.prompt_length :] == expected[0].outputs[0].token_ids
    assert [o.outputs[0].token_ids for o in two.generate(prompts(3), params)] == [
        o.outputs[0].token_ids for o in expected
    ]


def test_weights_are_not_updated_in_place(two):
    with pytest.raises(ConfigError, match="tensor_parallel"):
        two.start_weight_update()


def test_ranks_that_disagree_end_the_engine(two):
    """Last of those that share these ranks."""
    pids = processes_of(two.core)
    two.core.scheduler.max_step_tokens = 2
    with pytest.raises(
        Unavailable, match=r"rank 1 of 2 \(process \d+\) failed: it planned another step than rank 0. The"
    ):
        two.generate([[5, 6, 7]])
    with pytest.raises(Unavailable, match="planned another step"):
        two.generate([[5, 6, 7]])
    wait_until_gone(pids)


@pytest.mark.parametrize(
    ("plan", "sampled", "says"), [(1, 0, "planned another step"), (1, 1, "sampled other tokens")]
)
def test_a_rank_compares_what_it_does_with_rank_0(folder, ranks, plan, sampled, says):
    def make(group):
        model = load(folder, group)
        setup = RankSetup(group.rank, folder, CONFIG, "cpu", (), 0, folder, 30)
        return FollowerRank(model, group, setup, lambda answer: None)

    _, follower = ranks.run(2, make)
    request = GenerateRequest("a", [5, 6], SamplingParams(detokenize=False))
    with pytest.raises(RuntimeError, match=says):
        follower.follow(RankMessage([("add", (request,)), ("step", ())], SharedStep(plan, False, sampled)))


def test_everything_public_in_the_engine_is_done_on_all_ranks_or_refused():
    """A method that changes the engine must not change rank 0 alone."""
    reads = {"weight_version", "has_work", "whole", "has_request", "check_weights", "samples", "stages_aside"}
    through_others = {"abort_all"}
    rank_0_has_the_names = {"load_adapter"}
    refused = {"start_weight_update", "finish_weight_update", "abort_weight_update"}
    of_one_rank = {"stage_weights", "switch_weights"}  # called where `stages_aside`, which ranks deny
    own = {"watch", "close"}
    public = {name for name in vars(EngineCore) if not name.startswith("_")}
    told = {name for name in vars(Leader) if not name.startswith("_")} - own
    assert public - reads - through_others - rank_0_has_the_names - refused - of_one_rank - own == told


def test_killing_a_rank_fails_every_request_with_a_reason(folder):
    drafts = {"speculation": "draft", "draft_model": str(folder), "speculation_adaptive": True}
    core = load_core(folder, CONFIG.model_copy(update={"tensor_parallel": 2, **drafts}))
    (pid,) = processes_of(core)
    pace = core.runner.run = Pace(core.runner.run)
    engine = AsyncEngine(core)
    long = SamplingParams(max_tokens=None, ignore_eos=True, detokenize=False)

    async def ask(name: str, params: SamplingParams = long) -> int:
        return sum(
            [len(c.token_ids) async for c in engine.generate(GenerateRequest(name, [5, 6, 7], params))]
        )

    async def main() -> None:
        pace.hurry()
        whole = await ask("whole")
        for mode in ("keep", "wait", "abort"):
            pace.slow_down()
            running = asyncio.create_task(ask(mode))
            await until(at_work(core))
            if mode == "wait":
                pace.hurry()
            await engine.pause(mode)
            pace.hurry()
            later = asyncio.create_task(ask(f"later-{mode}", long.with_(max_tokens=5)))
            await asyncio.sleep(0.01)
            assert not later.done()
            await engine.resume()
            assert await later == 5
            assert (await running == whole) == (mode != "abort")
        pace.slow_down()
        running = [asyncio.create_task(ask(f"r{i}", long.with_(n=2))) for i in range(20)]
        await until(at_work(core))
        os.kill(pid, signal.SIGKILL)
        ended = await asyncio.wait_for(asyncio.gather(*running, return_exceptions=True), 60)
        assert core.speculation.counters.accepted > 0
        assert {type(each) for each in ended} == {Unavailable}
        assert {each.message for each in ended} == {engine.failure.message}
        assert "rank 1 of 2" in engine.failure.message
        assert "killed by signal 9" in engine.failure.message
        with pytest.raises(Unavailable, match="rank 1 of 2"):
            await ask("after")

    try:
        asyncio.run(main())
        assert fault_of(engine)
    finally:
        engine.stop()
    wait_until_gone([pid])


def test_over_http_and_no_rank_outlives_rank_0(tmp_path):
    model = make_model(tmp_path / "served")
    port = free_port()
    process = serve(str(model), "--port", str(port), "--engine.tensor_parallel=2", "--engine.threads=1")
    try:
        url = wait_until_ready(process, port)
        others = children_of(process.pid)
        assert len(others) == 1
        one = LLM(model, config=EngineConfig(threads=1))
        with OpenAI(base_url=url + "/v1", api_key="none") as client:
            asked = {
                "model": model.name,
                "prompt": "abc def",
                "max_tokens": 20,
                "seed": 5,
                "n": 2,
                "logprobs": 1,
            }
            answer = client.completions.create(**asked)
            sampling = SamplingParams(max_tokens=20, seed=5, n=2, logprobs=1, logprobs_mode="raw")
            (expected,) = one.generate("abc def", sampling)
            for choice, sample in zip(answer.choices, expected.outputs, strict=True):
                assert choice.text == sample.text
                assert choice.logprobs.token_logprobs == pytest.approx(sample.logprobs, abs=LOGPROB_TOLERANCE)
            left = client.chat.completions.create(
                model=model.name, messages=[{"role": "user", "content": "abc"}], max_tokens=400, stream=True
            )
            next(iter(left))
            left.close()
            body = {**asked, "max_tokens": 400, "stream": True, "extra_body": {"ignore_eos": True}}
            with client.completions.create(**body) as stream:
                next(iter(stream))
                # In the middle of a step, or nearly so.
                process.kill()
                process.wait(10)
        wait_until_gone(others)
    finally:
        process.kill()
        process.communicate()


def test_a_rank_ends_with_rank_0_even_if_a_fork_of_it_lives_on():
    """The fork has the ends of all pipes and sockets."""
    script = """
import os, time
from rondo.engine.ranks.ranks import Ranks
ranks = Ranks(2, 60)
fork = os.fork()
if fork:
    print(ranks.others[0].process.pid, ranks.meeting, fork, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        pid, meeting, fork = process.stdout.readline().split()
        try:
            assert alive(int(pid))
            process.kill()
            wait_until_gone([int(pid)])
            assert not Path(meeting).parent.exists()
        finally:
            process.kill()
            os.kill(int(fork), signal.SIGKILL)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"tensor_parallel": 5}, "4 attention heads"),
        ({"tensor_parallel": 2, "device": "cuda:1"}, "CUDA_VISIBLE_DEVICES"),
        ({"tensor_parallel": 2, "adapters_dir": "anywhere"}, "not a folder"),
        ({"tensor_parallel": 2, "device": "cuda"}, "there are 0 GPUs"),
    ],
)
def test_what_cannot_be_divided_is_refused_before_anything_starts(folder, changes, says, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", None)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    with pytest.raises(ConfigError, match=says):
        LLM(folder, tokenizer=object(), config=CONFIG.model_copy(update=changes))


def test_a_model_in_this_process_cannot_be_divided(tiny):
    with pytest.raises(ConfigError, match="the model's folder") as refused:
        LLM(tiny, config=EngineConfig(tensor_parallel=2))
    assert refused.value.param == "tensor_parallel"
