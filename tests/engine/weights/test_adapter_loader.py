"""Adapters are loaded beside the engine's steps: who waits for one, and what goes wrong with it, keeps nobody else."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from rondo.base.errors import ModelError, NotFound, Overloaded, RondoError, Unavailable
from rondo.engine.config import EngineConfig
from rondo.engine.entrypoints.async_engine import AsyncEngine
from rondo.engine.entrypoints.llm import LLM
from rondo.models import Decoder
from support.adapters import GREEDY, NAMES, core_with, truncate, write_loras
from support.engines import Heard, collect, threaded
from support.waiting import run, until


@pytest.fixture
def folder(tiny: Decoder, tmp_path: Path) -> Path:
    return write_loras(tiny, tmp_path)


@pytest.fixture
def engine(tiny: Decoder, folder: Path) -> Iterator[AsyncEngine]:
    """With room for one adapter."""
    with threaded(core_with(tiny, folder, max_loaded_adapters=1)) as engine:
        yield engine


async def take_the_place(engine: AsyncEngine) -> asyncio.Task[Heard]:
    """The engine is paused, so that the request that is returned keeps adapter a until it is resumed."""
    await engine.pause()
    first = asyncio.create_task(collect(engine, "first", GREEDY, adapter="a"))
    await until(lambda: engine.core.has_request("first"))
    return first


async def wait_for_place(engine: AsyncEngine, name: str = "waits") -> asyncio.Task[Heard]:
    before = engine._loader._waiting
    task = asyncio.create_task(collect(engine, name, GREEDY, adapter="b"))
    await until(lambda: engine._loader._waiting > before and engine.core.adapters._waiters)
    return task


def test_requests_wait_for_room(engine: AsyncEngine, tiny: Decoder, folder: Path) -> None:
    want = LLM(tiny, config=EngineConfig(adapters_dir=str(folder))).generate(
        [[5, 6, 7]] * 8, GREEDY, adapter=NAMES * 2
    )

    async def main() -> None:
        asked = (collect(engine, f"r{i}", GREEDY, adapter=name) for i, name in enumerate(NAMES * 2))
        got = await asyncio.gather(*asked)
        assert [heard.tokens for heard in got] == [[output.outputs[0].token_ids] for output in want]

    run(main())
    assert engine.core.adapters.num_loaded == 1


def test_who_leaves_while_waiting_holds_nothing(engine: AsyncEngine) -> None:
    async def main() -> None:
        first = await take_the_place(engine)
        waiting = [asyncio.create_task(collect(engine, f"w{i}", GREEDY, adapter="b")) for i in range(3)]
        await asyncio.sleep(0.05)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await engine.resume()
        await first
        assert (await collect(engine, "last", GREEDY, adapter="c")).reason == "length"
        assert all(adapter.holders == 0 for adapter in engine.core.adapters._loaded)

    run(main())


def test_unloaded_while_waiting(engine: AsyncEngine) -> None:
    """In the queue, and before it; whoever waits for another adapter is not touched."""

    async def main() -> None:
        queued = await take_the_place(engine)
        before = await wait_for_place(engine)
        other = asyncio.create_task(collect(engine, "other", GREEDY, adapter="c"))
        await asyncio.sleep(0.05)
        await engine.unload_adapter("b")
        await engine.unload_adapter("a")
        for task in (queued, before):
            with pytest.raises(NotFound, match="was unloaded while the request waited"):
                await task
        await engine.resume()
        assert (await other).reason == "length"

    run(main())


def test_who_waits_for_a_place_keeps_no_operator_waiting(engine: AsyncEngine, folder: Path) -> None:
    async def main() -> None:
        first = await take_the_place(engine)
        waits = await wait_for_place(engine)
        await asyncio.wait_for(engine.load_adapter("x", str(folder / "c")), 10)
        assert engine.has_adapter("x")
        await asyncio.wait_for(engine.unload_adapter("x"), 10)
        assert not engine.has_adapter("x")
        assert not waits.done()
        await engine.resume()
        assert [heard.reason for heard in (await first, await waits)] == ["length", "length"]

    run(main())


def test_who_leaves_lets_go_of_its_place_in_line(tiny: Decoder, folder: Path) -> None:
    async def main(engine: AsyncEngine) -> None:
        first = await take_the_place(engine)
        leaves = await wait_for_place(engine, "leaves")
        with pytest.raises(Overloaded, match="1 requests wait for adapters"):
            await collect(engine, "refused", GREEDY, adapter="c")
        leaves.cancel()
        await asyncio.gather(leaves, return_exceptions=True)
        stays = await wait_for_place(engine, "stays")
        await engine.resume()
        assert [heard.reason for heard in (await first, await stays)] == ["length", "length"]

    with threaded(core_with(tiny, folder, max_loaded_adapters=1, max_queued=1)) as engine:
        run(main(engine))


def test_stopping_ends_who_waits(engine: AsyncEngine) -> None:
    async def main() -> None:
        first = await take_the_place(engine)
        waits = await wait_for_place(engine)
        await asyncio.to_thread(engine.stop)
        with pytest.raises(Unavailable) as shut:
            await waits
        assert shut.value.code == "shutting_down"
        with pytest.raises(RondoError):
            await first
        with pytest.raises(Unavailable):
            await engine.load_adapter("x", "anywhere")

    run(main())


def test_faults_beside_the_steps(engine: AsyncEngine, folder: Path) -> None:
    truncate(folder / "b")

    async def main() -> None:
        results = await asyncio.gather(
            *(collect(engine, name, GREEDY, adapter=name) for name in ("a", "b", "nobody")),
            return_exceptions=True,
        )
        assert results[0].reason == "length"
        assert isinstance(results[1], ModelError)
        assert isinstance(results[2], NotFound)
        with pytest.raises(ModelError, match="truncated"):
            await engine.load_adapter("x", str(folder / "b"))
        assert not engine.has_adapter("x")

    run(main())
