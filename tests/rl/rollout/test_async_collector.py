"""Generation beside the learner: how far ahead, which versions, and that the same weights say the same."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from rondo.base.errors import Unavailable
from rondo.graders import Sample, Score
from rondo.rl.config import RlConfig
from rondo.rl.loop import Loop
from rondo.rl.rollout.async_collector import AsyncCollector
from rondo.rl.rollout.types import RlStep, SampleGroup
from rondo.rl.tasks.registry import task
from support.tiny import tiny_model, tiny_tokenizer
from support.waiting import wait_until

CONFIG = RlConfig(
    prompts_per_step=4,
    samples_per_prompt=4,
    steps=5,
    lr=1e-2,
    eval_prompts=8,
    max_tokens=8,
    tokens_per_microbatch=256,
)


def loop_of(goal: object = None, **changes: object) -> tuple[Loop, list[RlStep]]:
    loop = Loop(tiny_model(), tiny_tokenizer(), goal or task("reverse"), CONFIG.model_copy(update=changes))  # type: ignore[arg-type]
    told: list[RlStep] = []
    loop.observers.append(told.append)
    return loop, told


def versions(step: RlStep) -> list[list[int]]:
    return [sample.versions for group in step.groups for sample in group.samples]


@pytest.mark.parametrize("mode", ["one_step_off", "async"])
def test_a_step_trains_on_no_token_older_than_it_may_be(mode: str) -> None:
    loop, told = loop_of(mode=mode, max_staleness=2)
    most = {"one_step_off": 1, "async": 2}[mode]
    metrics = [loop.step() for _ in range(5)]
    loop.close()
    assert loop.version == 5
    for step in told:
        for made in versions(step):
            assert made == sorted(made), "versions only grow along a sample"
            assert all(0 <= step.version - version <= most for version in made)
            if mode == "one_step_off":
                assert len(set(made)) == 1, "a push waits for what was begun"
    assert any(version < step.version for step in told for made in versions(step) for version in made)
    assert all(torch.isfinite(torch.tensor(each["loss"])) for each in metrics)


def test_the_engine_has_the_learners_weights_after_each_push_and_not_before() -> None:
    loop, _ = loop_of(mode="async")
    assert isinstance(loop.collector, AsyncCollector)
    loop.step()
    engine = loop.collector.engine
    for own, theirs in zip(loop.learner.model.parameters(), engine.core.model.parameters(), strict=True):  # type: ignore[attr-defined]
        assert torch.equal(own, theirs)
        assert own.data_ptr() != theirs.data_ptr()
    loop.close()


def test_without_staleness_the_groups_are_those_of_the_synchronous_loop() -> None:
    """Over a copy of the weights and by another thread, in deterministic mode."""
    direct, told = loop_of(deterministic=True)
    direct.step()
    beside, other = loop_of(deterministic=True, mode="one_step_off")
    beside.step()
    beside.close()

    def tokens(groups: list[SampleGroup]) -> list[list[int]]:
        return [sample.token_ids for group in groups for sample in group.samples]

    def logprobs(groups: list[SampleGroup]) -> list[list[float]]:
        return [sample.logprobs for group in groups for sample in group.samples]

    assert tokens(told[0].groups) == tokens(other[0].groups)
    assert logprobs(told[0].groups) == logprobs(other[0].groups)


class Gate:
    """Scores nothing of a step's groups until it is let through."""

    name, max_tokens = "gate", 8
    prompts = staticmethod(task("reverse").prompts)

    def __init__(self) -> None:
        self.open, self.seen = threading.Event(), 0

    async def score(self, sample: Sample) -> Score:
        self.seen += 1
        await asyncio.to_thread(self.open.wait, 60)
        return Score("ok", float(len(sample.completion) % 3))


def test_generation_goes_on_while_graders_are_slow() -> None:
    """The answers of two steps wait for scores before the first step has any of its own."""
    gate = Gate()
    loop, _ = loop_of(gate, mode="one_step_off")
    done = threading.Thread(target=loop.step)
    done.start()
    deadline = time.monotonic() + 60
    while gate.seen < 2 * 16 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert gate.seen == 2 * 16, "those of step 1 and of step 2, and no more"
    assert done.is_alive()
    gate.open.set()
    done.join(60)
    assert loop.steps_done == 1
    loop.close()


def test_a_sample_is_scored_while_its_siblings_are_generated() -> None:
    class Early:
        name, max_tokens = "early", 64
        prompts = staticmethod(task("reverse").prompts)
        loop: Loop

        def __init__(self) -> None:
            self.running: list[int] = []

        async def score(self, sample: Sample) -> Score:
            collector = self.loop.collector
            assert isinstance(collector, AsyncCollector)
            self.running.append(collector.engine.load()[0])  # type: ignore[attr-defined]
            return Score("ok", float(len(sample.completion) % 2))

    goal = Early()
    loop, _ = loop_of(goal, mode="async", max_staleness=1, max_tokens=64)
    goal.loop = loop
    loop.step()
    loop.close()
    assert any(goal.running), "some score was asked for while samples ran"


def test_what_was_made_ahead_is_not_made_again_by_who_goes_on(tmp_path: Path) -> None:
    gate = Gate()
    gate.open.set()
    first, _ = loop_of(gate, mode="one_step_off")
    first.step()
    next_step, deadline = {4, 5, 6, 7}, time.monotonic() + 60
    while not next_step <= {number for number, *_ in first.collector.state()["made"]}:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    facts = first.facts()
    first.learner.save(tmp_path / "saved")
    first.close()
    second, told = loop_of(gate, mode="one_step_off")
    second.restore(tmp_path / "saved", 1, facts)
    assert second.version == first.version == 1
    second.step()
    second.close()
    made = [group for number, _, group in facts["collector"]["made"] if number in next_step]
    kept = [sample["token_ids"] for group in made for sample in group["samples"]]
    assert [sample.token_ids for group in told[0].groups for sample in group.samples] == kept


def test_an_engine_that_ends_ends_the_run_with_its_reason() -> None:
    loop, _ = loop_of(mode="async")
    assert isinstance(loop.collector, AsyncCollector)

    def broken() -> None:
        raise Unavailable("the machine is gone")

    loop.collector.engine.core.step = broken  # type: ignore[attr-defined]
    with pytest.raises(Unavailable, match="the machine is gone"):
        loop.step()
    loop.close()


def test_episodes_are_played_by_the_task() -> None:
    from rondo.client.types import GenerateRequest, SamplingParams
    from rondo.rl.rollout.types import Rollout
    from rondo.rl.tasks.types import Problem

    class Twice:
        """Asks twice, the second time with a tool's word in between."""

        name, max_tokens = "twice", 4
        prompts = staticmethod(task("reverse").prompts)
        prepared: tuple[object, int] | None = None

        def prepare(self, tokenizer: object, longest: int) -> None:
            self.prepared = (tokenizer, longest)

        async def score(self, sample: Sample) -> Score:
            raise AssertionError("an episode has its score")

        async def play(
            self, engine: AsyncCollector, problem: Problem, sampling: SamplingParams, seed: int, index: int
        ) -> Rollout:
            prompt, tokens, own, logprobs, made = (
                [1, 2, 3],
                list[int](),
                list[bool](),
                list[float](),
                list[int](),
            )
            for turn in range(2):
                asked = GenerateRequest(
                    f"{seed}-{index}-{turn}", [*prompt, *tokens], sampling.with_(seed=seed + index)
                )
                async for chunk in engine.generate(asked):  # type: ignore[attr-defined]
                    tokens += chunk.token_ids
                    own += [True] * len(chunk.token_ids)
                    logprobs += chunk.logprobs or []
                    made += chunk.weight_versions
                tokens, own, logprobs, made = [*tokens, 9], [*own, False], [*logprobs, 0.0], [*made, made[-1]]
            score = Score("ok", float(sum(tokens) % 5))
            return Rollout(tokens, own, logprobs, made, "", "stop", score, prompt_ids=prompt)

    goal = Twice()
    loop, told = loop_of(goal, max_tokens=4)
    metrics = loop.step()
    assert goal.prepared is not None
    assert metrics["logprob_diff_max"] < 2e-5, "the learner sees what the engine saw"
    assert all(group.prompt_ids == [1, 2, 3] for group in told[0].groups)
    assert metrics["updates"] == 1
    loop.close()


RAISES = """
from rondo.rl.loop import Loop
from rondo.rl.tasks.registry import task
from rl.rollout.test_async_collector import CONFIG
from support.tiny import tiny_model, tiny_tokenizer

config = CONFIG.model_copy(update={"mode": "async", "steps": 50, "samples_per_prompt": 16, "max_tokens": 100})
loop = Loop(tiny_model(), tiny_tokenizer(), task("reverse"), config)
loop.step()
raise ValueError("of mine")
"""


def test_a_script_that_raises_and_closes_nothing_ends_with_its_error_alone() -> None:
    """Its engine is in the middle of a step then."""
    told = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(
        [sys.executable, "-c", RAISES], env=told, capture_output=True, text=True, timeout=120
    )
    assert ended.stderr.rstrip().endswith("ValueError: of mine")
    assert ended.returncode == 1


def test_a_loop_ends_with_its_block() -> None:
    before = set(threading.enumerate())
    with loop_of(mode="async")[0] as loop:
        loop.step()
        assert set(threading.enumerate()) > before
    wait_until(lambda: not [each for each in threading.enumerate() if each not in before and each.is_alive()])
