"""That reward rises, in seconds: bench/learns.py shows it on tasks."""

import pytest

from rondo.graders import Sample, Score
from rondo.rl.config import RlConfig
from rondo.rl.loop import Loop
from rondo.rl.tasks.registry import task
from rondo.rl.tasks.types import Problem, Split
from support.tiny import tiny_model, tiny_tokenizer


class Short:
    """The shorter an answer, the better."""

    name, max_tokens = "short", 8

    def prompts(self, seed: int, n: int, split: Split = "train") -> list[Problem]:
        return task("reverse").prompts(seed, n, split)

    async def score(self, sample: Sample) -> Score:
        return Score("ok", 1.0 - min(len(sample.completion), 16) / 16)


@pytest.mark.parametrize("algorithm", ["grpo", "rloo"])
def test_reward_rises(algorithm: str) -> None:
    """In the mode whose numbers are the same in each run: how stale the others' samples are is a matter of time."""
    config = RlConfig(
        algorithm=algorithm,
        prompts_per_step=8,
        samples_per_prompt=8,
        steps=20,
        lr=2e-2,
        tokens_per_microbatch=2048,
    )
    loop = Loop(tiny_model(), tiny_tokenizer(), Short(), config)
    rewards = [loop.step()["reward"] for _ in range(20)]
    loop.close()
    assert sum(rewards[-3:]) / 3 > rewards[0] + 0.1
