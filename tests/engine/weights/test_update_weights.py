"""A new version of the weights from a folder, on one process and on two: all of it or nothing."""

import asyncio
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.conftest import TINY
from rondo.base.errors import ConfigError, Conflict, ModelError, RondoError
from rondo.client.types import GenerateRequest, SamplingParams
from rondo.engine.config import EngineConfig
from rondo.engine.core import EngineCore
from rondo.engine.entrypoints.async_engine import AsyncEngine
from rondo.engine.entrypoints.llm import LLM
from rondo.engine.entrypoints.load import load_core
from rondo.models import Decoder, load, new, save
from support.alone import greedy

TOLERANCE = 5e-5
GREEDY = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True, logprobs=0, detokenize=False)
PROMPT = [5, 6, 7, 8, 9, 10, 11]
HERE = Path("/proc/self/cwd")
"""Another folder for each process that works elsewhere."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("versions")
    for seed in range(3):
        save(new(TINY, seed=seed), folder / str(seed))
    save(new(TINY | {"num_hidden_layers": 1}, seed=0), folder / "smaller")
    for rank in ("zero", "one"):
        (folder / rank).mkdir()
    return folder


@pytest.fixture(scope="module", params=[1, 2], ids=["one process", "two processes"])
def started(folder: Path, request: pytest.FixtureRequest) -> Iterator[EngineCore]:
    """Where there are two, rank 1 works in the folder `one`."""
    config = EngineConfig(block_size=4, max_model_len=64, max_num_seqs=4, tensor_parallel=request.param)
    before = Path.cwd()
    os.chdir(folder / "one")
    try:
        core = load_core(folder / "0", config)
        os.chdir(folder / "zero")
        yield core
        core.close()
    finally:
        os.chdir(before)


@pytest.fixture
def core(started: EngineCore, folder: Path) -> EngineCore:
    """With the weights of the folder `0`, whatever version that is by now."""
    started.update_weights(folder / "0", started.weight_version + 1)
    return started


def add(core: EngineCore, name: str = "r", prompt: list[int] = PROMPT) -> Any:
    return core.add(GenerateRequest(name, prompt, GREEDY))[0]


def finish(core: EngineCore) -> None:
    while core.has_work:
        core.step()
    core.pool.check()
    assert core.pool.used == 0


def answer(core: EngineCore) -> list[int]:
    request = add(core)
    finish(core)
    tokens: list[int] = request.tokens[len(PROMPT) :]
    return tokens


def test_who_runs_goes_on_with_the_new_weights_over_the_old_keys(core: EngineCore, folder: Path) -> None:
    version = core.weight_version
    request = add(core)
    for _ in range(10):
        core.step()
    core.update_weights(folder / "1", version + 1)
    finish(core)
    assert request.weight_versions == [version] * 10 + [version + 1] * 14

    own = load(folder / "0")
    in_place = EngineCore(own, core.config.model_copy(update={"tensor_parallel": 1}), weight_version=version)
    want = add(in_place)
    for _ in range(10):
        in_place.step()
    in_place.start_weight_update()
    own.load_state_dict(load(folder / "1").state_dict())
    in_place.finish_weight_update(version + 1)
    finish(in_place)
    assert request.tokens == want.tokens
    assert request.logprobs == pytest.approx(want.logprobs, abs=TOLERANCE)
    later = add(core)
    finish(core)
    assert later.first_cached == 0
    assert later.tokens[len(PROMPT) :] == greedy(load(folder / "1"), PROMPT, 24)


def test_what_was_dropped_is_read_from_the_newest_folder(core: EngineCore, folder: Path) -> None:
    core.update_weights(folder / "2", core.weight_version + 1)
    core.sleep(2)
    with pytest.raises(Conflict, match="asleep"):
        core.update_weights(folder / "1", core.weight_version + 1)
    core.wake()
    assert answer(core) == greedy(load(folder / "2"), PROMPT, 24)


def truncate(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-9])


def other_model(folder: Path) -> None:
    shutil.copytree(folder.parent.parent / "smaller", folder, dirs_exist_ok=True)


@pytest.mark.parametrize(
    ("ranks", "spoil", "says"),
    [
        (("zero",), truncate, "truncated"),
        (("zero",), shutil.rmtree, "is not a folder"),
        (("zero",), other_model, "another model"),
        (("one",), truncate, "truncated"),
        (("one",), other_model, "another model"),
        (("zero", "one"), shutil.rmtree, "is not a folder"),
    ],
)
def test_an_update_that_fails_on_any_rank_is_none(
    core: EngineCore, folder: Path, ranks: tuple[str, ...], spoil: Any, says: str
) -> None:
    """It goes on as it was, in the middle of an answer, and takes the next one."""
    if core.config.tensor_parallel == 1 and ranks != ("zero",):
        pytest.skip("one process is rank 0")
    for each in ("zero", "one"):
        shutil.rmtree(folder / each / "next", ignore_errors=True)
        shutil.copytree(folder / "1", folder / each / "next")
    for rank in ranks:
        spoil(folder / rank / "next")
    version = core.weight_version
    request = add(core)
    core.step()
    with pytest.raises(ModelError, match=says) as refused:
        core.update_weights(HERE / "next", version + 1)
    assert ("rank 1 of 2 could not read the weights" in str(refused.value)) == (ranks == ("one",))
    assert core.weight_version == version
    finish(core)
    assert request.weight_versions == [version] * 24
    assert request.tokens[len(PROMPT) :] == greedy(load(folder / "0"), PROMPT, 24)
    core.update_weights(folder / "1", version + 1)
    assert answer(core) == greedy(load(folder / "1"), PROMPT, 24)


def test_an_old_version_is_refused(core: EngineCore, folder: Path) -> None:
    with pytest.raises(Conflict, match="not newer"):
        core.update_weights(folder / "1", core.weight_version)
    assert answer(core) == greedy(load(folder / "0"), PROMPT, 24)


def test_beside_an_engines_thread(core: EngineCore, folder: Path) -> None:
    """Last of those that share an engine: its thread ends it."""
    engine = AsyncEngine(core)
    version = core.weight_version

    async def ask() -> list[int]:
        request = GenerateRequest("r", PROMPT, GREEDY)
        return [token async for chunk in engine.generate(request) for token in chunk.token_ids]

    async def main() -> None:
        assert await ask() == greedy(load(folder / "0"), PROMPT, 24)
        with pytest.raises(RondoError):
            await engine.update_weights(folder / "nowhere", version + 1)
        await engine.update_weights(folder / "2", version + 1)
        assert engine.weight_version == version + 1
        assert await ask() == greedy(load(folder / "2"), PROMPT, 24)

    try:
        asyncio.run(asyncio.wait_for(main(), 60))
    finally:
        engine.stop()


def test_a_model_of_the_callers_is_the_callers_to_write_to(tiny: Decoder, folder: Path) -> None:
    with pytest.raises(ConfigError, match="start_weight_update"):
        LLM(tiny).update_weights(folder / "1", 1)
