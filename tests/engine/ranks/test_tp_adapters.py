"""Adapters over a model that is divided among two processes: what they say, and that both have them or neither."""

import asyncio
import gc
import os
import shutil
import signal
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.ranks.test_tp import LOGPROB_TOLERANCE, processes_of
from engine.weights.test_adapters import (
    ALL,
    GREEDY,
    LORAS,
    VOCAB,
    write_loras,
    write_tokenformer,
)
from rondo.base.errors import InvalidRequest, ModelError, NotFound, Unavailable
from rondo.client.types import GenerateRequest, SamplingParams
from rondo.engine.config import EngineConfig
from rondo.engine.entrypoints.async_engine import AsyncEngine
from rondo.engine.entrypoints.llm import LLM
from rondo.engine.ranks.following import FollowerRank
from rondo.engine.ranks.outbox import Outbox
from rondo.engine.ranks.ranks import RankSetup
from rondo.models import load
from rondo.parallel.tensor.load import load as load_shard
from support.adapters import truncate
from support.families import reference
from support.ranks import ThreadRanks
from support.waiting import scaled

CONFIG = EngineConfig(
    max_num_seqs=8, block_size=4, num_blocks=60, max_model_len=100, max_step_tokens=48, max_loaded_adapters=3
)


def prompt(length: int, seed: int) -> list[int]:
    return torch.randint(3, VOCAB, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    reference("llama3").save_pretrained(folder / "base")
    write_loras(folder / "adapters", "llama3", LORAS)
    base = load(folder / "base")
    for seed, heads in enumerate((2, 4, 4)):
        write_tokenformer(folder / "adapters" / f"tokenformer{seed}", base, seed, heads)
    return folder


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that is another one for rank 0 than for rank 1, by the folder each works in."""
    folder = tmp_path_factory.mktemp("apart")
    for rank in ("zero", "one"):
        (folder / rank).mkdir()
    return folder


HERE = Path("/proc/self/cwd")


@pytest.fixture(scope="module")
def two(folder: Path, apart: Path) -> Any:
    before = Path.cwd()
    os.chdir(apart / "one")
    try:
        config = {"tensor_parallel": 2, "adapters_dir": str(folder / "adapters")}
        llm = LLM(folder / "base", tokenizer=object(), config=CONFIG.model_copy(update=config))
        os.chdir(apart / "zero")
        yield llm
        llm.close()
    finally:
        os.chdir(before)


@pytest.fixture(scope="module")
def one(folder: Path) -> LLM:
    config = CONFIG.model_copy(update={"adapters_dir": str(folder / "adapters")})
    return LLM(folder / "base", tokenizer=object(), config=config)


def tokens_of(outputs: list[Any]) -> list[list[list[int]]]:
    return [[sample.token_ids for sample in output.outputs] for output in outputs]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_mixed_batch_is_that_of_one_rank(one: LLM, two: LLM, temperature: float) -> None:
    """More adapters than may be loaded at once, cut prompts, samples that part, prefixes of each adapter's own."""
    names = [*ALL, *reversed(ALL)]
    prompts = [prompt(2 + 3 * i % 50, i // 2) for i in range(len(names))]
    params = GREEDY.with_(max_tokens=8, temperature=temperature, seed=4, n=2 if temperature else 1)
    for _ in range(2):
        want = one.generate(prompts, params, adapter=names)
        got = two.generate(prompts, params, adapter=names)
        assert tokens_of(got) == tokens_of(want)
        for ours, theirs in zip(got, want, strict=True):
            assert ours.cached_tokens == theirs.cached_tokens
            for a, b in zip(ours.outputs, theirs.outputs, strict=True):
                assert a.logprobs == pytest.approx(b.logprobs, abs=LOGPROB_TOLERANCE)
    assert two.core.adapters.totals == one.core.adapters.totals
    assert two.core.adapters.totals.evictions > 0
    assert two.core.scheduler.counters == one.core.scheduler.counters


def test_verbs_reach_both_ranks_while_others_run(folder: Path, one: LLM, two: LLM) -> None:
    """Loaded, replaced and unloaded in the middle of answers: each ends with the version that it came with."""
    long = GREEDY.with_(max_tokens=40)
    places = {name: folder / "adapters" / name for name in ("all", "wide")}
    answers = []
    for llm in (one, two):
        core = llm.core
        core.load_adapter("x", places["all"])
        [first] = core.add(GenerateRequest("first", prompt(9, 1), long, adapter="x"))
        for _ in range(5):
            core.step()
        core.load_adapter("x", places["wide"], replace=True)
        with pytest.raises(InvalidRequest, match="load_inplace"):
            core.load_adapter("x", places["all"])
        [second] = core.add(GenerateRequest("second", prompt(9, 1), long, adapter="x"))
        for _ in range(5):
            core.step()
        assert first.adapter_key != second.adapter_key
        [late] = core.add(GenerateRequest("late", prompt(9, 1), long, adapter="x"))
        assert core.unload_adapter("x") == [late]
        with pytest.raises(NotFound):
            core.add(GenerateRequest("gone", prompt(9, 1), long, adapter="x"))
        while core.has_work:
            core.step()
        assert all(adapter.holders == 0 for adapter in core.adapters._loaded)
        core.pool.check()
        answers.append([first.tokens, second.tokens])
    assert answers[0] == answers[1]
    alone = one.generate([prompt(9, 1)] * 2, long, adapter=["all", "wide"])
    assert [tokens[9:] for tokens in answers[1]] == [samples[0] for samples in tokens_of(alone)]


def missing(folder: Path) -> None:
    shutil.rmtree(folder)


def different(folder: Path) -> None:
    """One number of those that only the other rank computes with."""
    file = folder / "adapter_model.safetensors"
    tensors = load_file(file)
    next(x for name, x in tensors.items() if "q_proj.lora_B" in name)[-1, 0] += 1
    save_file(tensors, file)


@pytest.mark.parametrize(
    ("rank", "spoil", "says"),
    [
        (
            "one",
            missing,
            "rank 1 of 2 could not read the adapter, so none has it: there is no adapter's folder",
        ),
        ("one", truncate, "rank 1 of 2 could not read the adapter, so none has it: .*truncated"),
        ("one", different, "rank 1 of 2 read other bytes"),
        ("zero", truncate, "^(?!rank).*truncated"),
    ],
)
def test_an_adapter_that_is_damaged_for_one_rank_is_loaded_on_none(
    folder: Path, apart: Path, one: LLM, two: LLM, rank: str, spoil: Any, says: str
) -> None:
    for each in ("zero", "one"):
        shutil.rmtree(apart / each / "x", ignore_errors=True)
        shutil.copytree(folder / "adapters" / "all", apart / each / "x")
    spoil(apart / rank / "x")
    core = two.core
    names = core.adapters.names()
    [running] = core.add(GenerateRequest("running", prompt(9, 1), GREEDY, adapter="wide"))
    core.step()
    loaded = core.adapters.num_loaded
    with pytest.raises((ModelError, NotFound), match=says):
        core.load_adapter("x", HERE / "x")
    assert core.adapters.names() == names
    assert core.adapters.num_loaded == loaded
    while core.has_work:
        core.step()
    [alone] = one.generate([prompt(9, 1)], GREEDY, adapter="wide")
    assert running.tokens[9:] == alone.outputs[0].token_ids
    shutil.rmtree(apart / rank / "x", ignore_errors=True)
    shutil.copytree(folder / "adapters" / "all", apart / rank / "x")
    core.load_adapter("x", HERE / "x")
    assert tokens_of(two.generate([prompt(9, 1)], GREEDY, adapter="x")) == tokens_of(
        one.generate([prompt(9, 1)], GREEDY, adapter="all")
    )
    core.unload_adapter("x")


@pytest.mark.parametrize("level", [1, 2])
def test_adapters_of_those_that_run_are_there_after_sleep(one: LLM, two: LLM, level: int) -> None:
    [want] = one.generate([prompt(9, 1)], GREEDY, adapter="ranks")
    core = two.core
    [request] = core.add(GenerateRequest("asleep", prompt(9, 1), GREEDY, adapter="ranks"))
    core.step()
    core.sleep(level)
    assert [adapter.name for adapter in core.adapters._loaded] == ["ranks"]
    core.wake()
    while core.has_work:
        core.step()
    assert request.tokens[9:] == want.outputs[0].token_ids


def test_a_rank_that_ends_while_it_reads_ends_the_engine(folder: Path, two: LLM) -> None:
    """Beside an engine's thread. Last of those that share these ranks."""
    [pid] = processes_of(two.core)
    engine = AsyncEngine(two.core)

    async def ask(name: str, adapter: str) -> list[int]:
        request = GenerateRequest(name, prompt(9, 1), GREEDY.with_(max_tokens=60), adapter=adapter)
        return [token async for chunk in engine.generate(request) for token in chunk.token_ids]

    async def main() -> None:
        running = asyncio.create_task(ask("running", "wide"))
        names = [name for name in ALL if name is not None]
        answers = await asyncio.gather(*(ask(f"r{name}", name) for name in names))
        assert await running == answers[names.index("wide")]
        await engine.load_adapter("y", str(folder / "adapters" / "all"))
        assert await ask("y", "y") == answers[names.index("all")]
        await engine.unload_adapter("y")
        os.kill(pid, signal.SIGSTOP)
        threading.Timer(0.3, os.kill, (pid, signal.SIGKILL)).start()
        with pytest.raises(Unavailable, match="rank 1 of 2"):
            await asyncio.wait_for(engine.load_adapter("z", str(folder / "adapters" / "all")), 20)

    try:
        asyncio.run(main())
    finally:
        engine.stop()


class FakeRanks:
    lost = None

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def check(self) -> None: ...

    def send(self, message: Any) -> None:
        self.sent += message.commands


def test_what_nobody_has_any_more_is_forgotten_after_what_used_it() -> None:
    ranks = FakeRanks()
    outbox = Outbox(ranks)  # type: ignore[arg-type]
    number = outbox.read_adapter(Path("/somewhere"))
    outbox.queue("add_with", "a request", number, 7)
    outbox.forget_adapter(number)
    outbox.send(("step", ()))
    assert [name for name, _ in ranks.sent] == ["read_adapter", "add_with", "forget_adapters", "step"]
    assert ranks.sent[2] == ("forget_adapters", ([number],))
    for _ in range(1000):
        outbox.queue("hold")
    assert len(ranks.sent) > 700


def test_a_rank_lets_go_of_what_it_is_told_to_forget(folder: Path, tmp_path: Path) -> None:
    answers: list[Any] = []
    answered = threading.Semaphore(0)

    def answer(read: Any) -> None:
        answers.append(read)
        answered.release()

    def make(group: Any) -> FollowerRank:
        setup = RankSetup(group.rank, folder / "base", CONFIG, "cpu", (), 0, folder, 30)
        return FollowerRank(load_shard(folder / "base", group), group, setup, answer)

    _, follower = ThreadRanks(tmp_path).run(2, make)
    follower.read_adapter(1, folder / "adapters" / "all")
    follower.read_adapter(2, folder / "nowhere")
    assert all(answered.acquire(timeout=scaled(10)) for _ in range(2))
    said = {read.number: read for read in answers}
    assert (said[1].rank, said[1].refused) == (1, "")
    assert len(said[1].content) == 64
    assert "no adapter's folder" in said[2].refused
    params = SamplingParams(detokenize=False)
    follower.add_with(GenerateRequest("a", [5, 6], params, adapter="x"), 1, 3)
    gone = weakref.ref(follower._served[1])
    follower.forget_adapters([1, 2])
    assert gone() is not None
    assert follower.adapters.num_loaded == 1
    follower.abort("a")
    gc.collect()
    assert gone() is None
    assert follower.adapters.num_loaded == 0
