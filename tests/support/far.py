"""RL with engines of other processes."""

from rondo.graders import Sample, Score
from rondo.rl.loop import Loop
from rondo.rl.remote.engine_pool import EnginePool
from rondo.rl.rollout.async_collector import AsyncCollector
from rondo.rl.tasks.registry import task


class Lengths:
    """Pays for nothing that can be learned, so that every group teaches."""

    name, max_tokens = "lengths", 8
    prompts = staticmethod(task("reverse").prompts)

    async def score(self, sample: Sample) -> Score:
        return Score("ok", float(len(sample.completion) % 3))


def fleet_of(loop: Loop) -> EnginePool:
    assert isinstance(loop.collector, AsyncCollector)
    assert isinstance(loop.collector.engine, EnginePool)
    return loop.collector.engine
