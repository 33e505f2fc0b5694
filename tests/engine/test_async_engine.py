import asyncio
import time

import pytest

from rondo.base.errors import Conflict, InvalidRequest, Unavailable
from rondo.client.types import GenerateRequest, SamplingParams
from rondo.engine.async_engine import AsyncEngine
from rondo.engine.config import EngineConfig
from rondo.engine.core import EngineCore
from rondo.engine.llm import LLM

PARAMS = SamplingParams(max_tokens=20, seed=1, ignore_eos=True, detokenize=False)


@pytest.fixture
def engine(tiny):
    """A step takes at least a millisecond, so that a long request is still running when a test looks."""
    core = EngineCore(tiny, EngineConfig(max_num_seqs=4, block_size=4))
    run = core.runner.run

    def slowly(plan):
        time.sleep(0.001)
        return run(plan)

    core.runner.run = slowly
    engine = AsyncEngine(core)
    yield engine
    engine.stop()


async def collect(engine, name, params=PARAMS, prompt=(5, 6, 7)):
    tokens, versions, reason = {}, [], None
    async for chunk in engine.generate(GenerateRequest(name, prompt, params)):
        tokens.setdefault(chunk.index, []).extend(chunk.token_ids)
        versions += chunk.weight_versions
        reason = chunk.finish_reason or reason
    return tokens, versions, reason


async def idle(engine):
    for _ in range(2000):
        if not engine.core.has_work and not engine._streams:
            break
        await asyncio.sleep(0.005)
    engine.core.pool.check()
    assert engine.core.pool.used == 0


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 30))


def test_streams_are_what_the_synchronous_engine_says(engine, tiny):
    async def main():
        params = [PARAMS.with_(seed=i, n=2) for i in range(6)]
        got = await asyncio.gather(*(collect(engine, f"r{i}", p) for i, p in enumerate(params)))
        want = LLM(tiny, config=engine.core.config).generate([[5, 6, 7]] * 6, params)
        assert [list(g[0].values()) for g in got] == [[s.token_ids for s in o.outputs] for o in want]

    run(main())


def test_leaving_and_cancelling_abort(engine):
    async def main():
        long = PARAMS.with_(max_tokens=200)
        stream = engine.generate(GenerateRequest("left", [5], long))
        await anext(stream)
        await stream.aclose()
        task = asyncio.create_task(collect(engine, "cancelled", long))
        await asyncio.sleep(0.02)
        task.cancel()
        early = asyncio.create_task(collect(engine, "early", long))
        await asyncio.sleep(0)
        early.cancel()
        await asyncio.gather(task, early, return_exceptions=True)
        await idle(engine)
        assert engine.metrics.finished["abort"] in (2, 3)

    run(main())


def test_abort_from_elsewhere_ends_the_stream(engine):
    async def main():
        task = asyncio.create_task(collect(engine, "a", PARAMS.with_(max_tokens=250)))
        await asyncio.sleep(0.02)
        await engine.abort("a")
        assert (await task)[2] == "abort"
        await engine.abort("unknown")

    run(main())


def test_refusals_leave_others_alone(engine):
    async def main():
        task = asyncio.create_task(collect(engine, "a", PARAMS.with_(max_tokens=100)))
        await asyncio.sleep(0.005)
        with pytest.raises(InvalidRequest):
            await collect(engine, "b", prompt=[])
        with pytest.raises(InvalidRequest):
            await collect(engine, "c", SamplingParams(stop="x"))
        with pytest.raises(Conflict):
            await collect(engine, "a")
        assert len((await task)[0][0]) == 100

    run(main())


@pytest.mark.parametrize("mode", ["keep", "wait", "abort"])
def test_pause_and_resume(engine, mode):
    async def main():
        running = asyncio.create_task(collect(engine, "a", PARAMS.with_(max_tokens=200)))
        await asyncio.sleep(0.01)
        await engine.pause(mode)
        assert not engine.ready
        later = asyncio.create_task(collect(engine, "b"))
        await asyncio.sleep(0.05)
        assert not later.done()
        assert running.done() == (mode != "keep")
        await engine.resume()
        assert (await running)[2] == ("abort" if mode == "abort" else "length")
        assert len((await later)[0][0]) == 20

    run(main())


def test_weights_change_between_two_steps(engine):
    async def main():
        task = asyncio.create_task(collect(engine, "a", PARAMS.with_(max_tokens=200)))
        await asyncio.sleep(0.03)
        await engine.start_weight_update()
        with pytest.raises(Conflict):
            await engine.start_weight_update()
        await asyncio.sleep(0.02)
        await engine.finish_weight_update(1)
        versions = (await task)[1]
        assert versions == sorted(versions)
        assert set(versions) == {0, 1}

    run(main())


def test_a_step_that_fails_fails_every_request_clearly(engine):
    async def main():
        task = asyncio.create_task(collect(engine, "a", PARAMS.with_(max_tokens=250)))
        await asyncio.sleep(0.01)

        def broken(plan):
            raise RuntimeError("out of order")

        engine.core.runner.run = broken
        with pytest.raises(Unavailable, match="engine failed"):
            await task
        assert engine.failure is not None
        with pytest.raises(Unavailable):
            await collect(engine, "b")

    run(main())


def test_drain_finishes_what_runs_and_refuses_the_rest(engine):
    async def main():
        task = asyncio.create_task(collect(engine, "a", PARAMS.with_(max_tokens=100)))
        await asyncio.sleep(0.01)
        drain = asyncio.create_task(engine.drain(10))
        await asyncio.sleep(0)
        with pytest.raises(Unavailable):
            await collect(engine, "b")
        assert len((await task)[0][0]) == 100
        await drain
        with pytest.raises(Unavailable):
            await collect(engine, "c")

    run(main())


def test_a_drain_that_takes_too_long_cuts_requests_off(engine):
    async def main():
        task = asyncio.create_task(collect(engine, "a", PARAMS.with_(max_tokens=250)))
        await asyncio.sleep(0.01)
        await engine.pause()
        await engine.drain(0.05)
        with pytest.raises(Unavailable):
            await task

    run(main())


def test_a_slow_reader_gets_bigger_chunks(engine):
    async def main():
        chunks = []
        async for chunk in engine.generate(GenerateRequest("a", [5], PARAMS.with_(max_tokens=100))):
            chunks.append(chunk)
            await asyncio.sleep(0.02)
        assert sum(len(chunk.token_ids) for chunk in chunks) == 100
        assert len(chunks) < 60

    run(main())
