import asyncio

import pytest

from rondo.base.errors import Conflict, InvalidRequest, Overloaded, Unavailable
from rondo.client.types import GenerateRequest, SamplingParams
from rondo.engine.config import EngineConfig
from rondo.engine.core import EngineCore
from rondo.engine.entrypoints.llm import LLM
from support.engines import PARAMS, Pace, at_work, collect, threaded
from support.waiting import run, until


@pytest.fixture
def core(tiny):
    return EngineCore(tiny, EngineConfig(max_num_seqs=4, block_size=4))


async def idle(engine):
    for _ in range(2000):
        if not engine.core.has_work and not engine._streams:
            break
        await asyncio.sleep(0.005)
    engine.core.pool.check()
    assert engine.core.pool.used == 0


def test_streams_are_what_the_synchronous_engine_says(engine, pace, tiny):
    pace.hurry()

    async def main():
        params = [PARAMS.with_(seed=i, n=2) for i in range(6)]
        got = await asyncio.gather(*(collect(engine, f"r{i}", p) for i, p in enumerate(params)))
        want = LLM(tiny, config=engine.core.config).generate([[5, 6, 7]] * 6, params)
        assert [g.tokens for g in got] == [[s.token_ids for s in o.outputs] for o in want]

    run(main())


def test_a_request_of_one_step_wakes_each_side_once(engine, monkeypatch):
    async def main():
        loop, calls = asyncio.get_running_loop(), []

        def counted(name, call):
            return lambda *args, **kwargs: (calls.append(name), call(*args, **kwargs))[1]

        monkeypatch.setattr(loop, "call_soon_threadsafe", counted("reader", loop.call_soon_threadsafe))
        monkeypatch.setattr(engine._inbox, "post", counted("engine", engine._inbox.post))
        await collect(engine, "one", PARAMS.with_(max_tokens=1))
        assert sorted(calls) == ["engine", "reader"]

    run(main())


def test_leaving_and_cancelling_abort(engine):
    async def main():
        long = PARAMS.with_(max_tokens=250)
        stream = engine.generate(GenerateRequest("left", [5], long))
        await anext(stream)
        await stream.aclose()
        task = asyncio.create_task(collect(engine, "cancelled", long))
        await until(at_work(engine.core, "cancelled"))
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
        await until(at_work(engine.core))
        await engine.abort("a")
        assert (await task).reason == "abort"
        await engine.abort("unknown")

    run(main())


def test_refusals_leave_others_alone(engine, pace):
    async def main():
        task = asyncio.create_task(collect(engine, "a", PARAMS.with_(max_tokens=100)))
        await until(at_work(engine.core))
        with pytest.raises(InvalidRequest):
            await collect(engine, "b", prompt=[])
        with pytest.raises(InvalidRequest):
            await collect(engine, "c", SamplingParams(stop="x"))
        with pytest.raises(Conflict):
            await collect(engine, "a")
        pace.hurry()
        assert len((await task).tokens[0]) == 100

    run(main())


@pytest.mark.parametrize("mode", ["keep", "wait", "abort"])
def test_pause_and_resume(engine, pace, mode):
    async def main():
        running = asyncio.create_task(collect(engine, "a", PARAMS.with_(max_tokens=200)))
        await until(at_work(engine.core))
        if mode == "wait":
            pace.hurry()
        await engine.pause(mode)
        assert not engine.ready
        later = asyncio.create_task(collect(engine, "b"))
        await asyncio.sleep(0.05)
        assert not later.done()
        assert running.done() == (mode != "keep")
        await engine.resume()
        pace.hurry()
        assert (await running).reason == ("abort" if mode == "abort" else "length")
        assert len((await later).tokens[0]) == 60

    run(main())


def test_weights_change_between_two_steps(engine, pace):
    async def main():
        task = asyncio.create_task(collect(engine, "a", PARAMS.with_(max_tokens=200)))
        await until(at_work(engine.core))
        await engine.start_weight_update()
        with pytest.raises(Conflict):
            await engine.start_weight_update()
        await asyncio.sleep(0.02)
        await engine.finish_weight_update(1)
        pace.hurry()
        versions = (await task).versions
        assert versions == sorted(versions)
        assert set(versions) == {0, 1}

    run(main())


def test_a_step_that_fails_fails_every_request_clearly(engine):
    async def main():
        task = asyncio.create_task(collect(engine, "a", PARAMS.with_(max_tokens=250)))
        await until(at_work(engine.core))

        def broken(plan):
            raise RuntimeError("out of order")

        engine.core.runner.run = broken
        with pytest.raises(Unavailable, match="engine failed"):
            await task
        assert engine.failure is not None
        with pytest.raises(Unavailable):
            await collect(engine, "b")

    run(main())


def test_drain_finishes_what_runs_and_refuses_the_rest(engine, pace):
    async def main():
        task = asyncio.create_task(collect(engine, "a", PARAMS.with_(max_tokens=100)))
        await until(at_work(engine.core))
        drain = asyncio.create_task(engine.drain(30))
        await asyncio.sleep(0)
        with pytest.raises(Unavailable):
            await collect(engine, "b")
        pace.hurry()
        assert len((await task).tokens[0]) == 100
        await drain
        with pytest.raises(Unavailable):
            await collect(engine, "c")

    run(main())


def test_a_drain_that_takes_too_long_cuts_requests_off(engine):
    async def main():
        task = asyncio.create_task(collect(engine, "a", PARAMS.with_(max_tokens=250)))
        await until(at_work(engine.core))
        await engine.pause()
        await engine.drain(0.05)
        with pytest.raises(Unavailable):
            await task

    run(main())


def test_a_slow_reader_gets_bigger_chunks(engine, pace):
    async def main():
        stream = engine.generate(GenerateRequest("a", [5], PARAMS.with_(max_tokens=100)))
        first = len((await anext(stream)).token_ids)
        pace.hurry()
        await until(lambda: not engine.core.has_work)
        assert [len(chunk.token_ids) async for chunk in stream] == [100 - first]

    run(main())


def test_a_request_of_a_paused_engine_is_queued_counted_and_abortable(engine, pace):
    scheduler = engine.core.scheduler
    scheduler.max_queued = 2
    pace.hurry()

    async def main():
        for mode in ("keep", "wait"):
            await engine.pause(mode)
            waiting = [asyncio.create_task(collect(engine, name)) for name in ("a", "b")]
            await until(lambda: scheduler.num_waiting == 2)
            with pytest.raises(Overloaded):
                await collect(engine, "c")
            await engine.abort("a")
            assert await waiting[0] == ([[]], [], "abort")
            await engine.resume()
            assert (await waiting[1]).reason == "length"
        assert engine.metrics.generated_tokens == 2 * PARAMS.max_tokens

    run(main())


def test_a_pause_that_waits_starts_nothing_new(engine, pace):
    async def main():
        # Four run, the fifth is in the queue when the pause comes.
        params, scheduler = PARAMS.with_(max_tokens=200), engine.core.scheduler
        tasks = [asyncio.create_task(collect(engine, str(i), params)) for i in range(5)]
        await until(lambda: scheduler.num_running == 4 and scheduler.num_waiting == 1)
        pause = asyncio.create_task(engine.pause("wait"))
        await until(lambda: scheduler.holding)
        assert not engine.ready
        pace.hurry()
        await pause
        assert not scheduler.running
        assert scheduler.num_waiting == 1
        await asyncio.gather(*tasks[:4])
        await engine.resume()
        assert (await tasks[4]).reason == "length"
        assert engine.ready

    run(main())


def test_a_pause_that_waits_lets_preempted_requests_finish(tiny):
    core = EngineCore(tiny, EngineConfig(max_num_seqs=4, block_size=4, num_blocks=20, max_model_len=64))
    pace = core.runner.run = Pace(core.runner.run)

    async def main(engine):
        tasks = [asyncio.create_task(collect(engine, str(i))) for i in range(4)]
        await until(lambda: core.scheduler.counters.preemptions)
        assert core.has_work
        pause = asyncio.create_task(engine.pause("wait"))
        await until(lambda: core.scheduler.holding)
        pace.hurry()
        await pause
        assert not core.has_work
        await asyncio.gather(*tasks)

    with threaded(core) as engine:
        run(main(engine))


def test_a_pause_that_cannot_come_true_or_is_given_up_leaves_no_trace(engine, pace):
    async def main():
        task = asyncio.create_task(collect(engine, "a", PARAMS.with_(max_tokens=200)))
        await until(at_work(engine.core))
        await engine.pause("keep")
        with pytest.raises(Conflict, match="resume"):
            await engine.pause("wait")
        await engine.resume()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(engine.pause("wait"), 0.05)
        assert (await collect(engine, "b", PARAMS.with_(max_tokens=5))).reason == "length"
        assert engine.ready
        waits = asyncio.create_task(engine.pause("wait"))
        await until(lambda: engine.core.scheduler.holding)
        await engine.pause("keep")
        with pytest.raises(Conflict, match="another pause"):
            await waits
        await engine.resume()
        waits = asyncio.create_task(engine.pause("wait"))
        await until(lambda: engine.core.scheduler.holding)
        await engine.resume()
        with pytest.raises(Conflict, match="resumed"):
            await waits
        pace.hurry()
        assert (await task).reason == "length"

    run(main())


def test_a_bug_in_the_thread_fails_requests_instead_of_hanging_them(engine, pace):
    pace.hurry()

    async def main():
        await collect(engine, "fine")

        def broken(*args):
            raise ZeroDivisionError

        engine.metrics.observe = broken
        engine.core.abort_all = broken
        with pytest.raises(Unavailable, match="engine failed"):
            await collect(engine, "a")
        engine._thread.join(30)
        assert not engine.ready
        with pytest.raises(Unavailable):
            await collect(engine, "b")
        with pytest.raises(Unavailable):
            await engine.pause("wait")
        await engine.abort("unknown")
        await engine.drain(5)

    run(main())


def test_weights_that_are_not_whole_compute_nothing(engine, pace):
    pace.hurry()

    async def main():
        await engine.start_weight_update()
        with pytest.raises(Conflict, match="not newer"):
            await engine.finish_weight_update(0)
        await engine.finish_weight_update(1)
        assert engine.ready
        with pytest.raises(Conflict, match="start one"):
            await engine.finish_weight_update(2)
        await engine.start_weight_update()
        await engine.abort_weight_update()
        assert not engine.ready
        task = asyncio.create_task(collect(engine, "a"))
        await asyncio.sleep(0.02)
        assert not task.done()
        await engine.start_weight_update()
        await engine.finish_weight_update(2)
        assert set((await task).versions) == {2}

    run(main())


def test_who_reads_samples_whole_is_woken_once_a_sample(engine, monkeypatch):
    async def main():
        loop, woken = asyncio.get_running_loop(), []
        call = loop.call_soon_threadsafe
        monkeypatch.setattr(loop, "call_soon_threadsafe", lambda *given: (woken.append(1), call(*given))[1])
        params = PARAMS.with_(max_tokens=20, n=2)
        chunks = [
            chunk async for chunk in engine.generate(GenerateRequest("w", [5, 6, 7], params, whole=True))
        ]
        assert [(chunk.index, len(chunk.token_ids), chunk.finish_reason) for chunk in chunks] == [
            (0, 20, "length"),
            (1, 20, "length"),
        ]
        assert len(woken) <= 2
        streamed = await collect(engine, "s", params)
        assert [chunk.token_ids for chunk in chunks] == streamed.tokens

    run(main())


def test_who_reads_samples_whole_hears_of_aborts(engine):
    async def main():
        asked = GenerateRequest("w", [5], PARAMS.with_(max_tokens=250), whole=True)
        reader = asyncio.create_task(anext(aiter(engine.generate(asked))))
        await until(at_work(engine.core, "w"))
        assert not reader.done()
        await engine.abort("w")
        chunk = await reader
        assert chunk.finish_reason == "abort"
        assert len(chunk.token_ids) >= 2

    run(main())
