"""Samples from the engine and their scores. Tokens stay the ids the engine sampled; text is for graders alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rondo.client.types import CompletionOutput, SamplingParams
from rondo.engine.llm import LLM
from rondo.graders import Grader, Sample, Score, guarded
from rondo.rl.tasks import Problem, Task
from rondo.text.tokenizer import Tokenizer

GRADER_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Group:
    """One prompt and its samples: token ids, their log-probabilities and weight versions."""

    problem: Problem
    prompt_ids: list[int]
    samples: list[CompletionOutput]


def rollout(
    engine: LLM, tokenizer: Tokenizer, problems: Sequence[Problem], sampling: SamplingParams, seed: int
) -> list[Group]:
    """`sampling.n` answers to each problem, a function of the weights and `seed` alone."""
    prompts = [tokenizer.apply_chat(problem.messages) for problem in problems]
    seeded = [sampling.with_(seed=seed * 1_000_003 + index) for index in range(len(prompts))]
    outputs = engine.generate(prompts, seeded)
    return [Group(p, ids, out.outputs) for p, ids, out in zip(problems, prompts, outputs, strict=True)]


def score(grader: Grader, groups: Sequence[Group]) -> list[list[Score]]:
    """Every sample's score, in order. A grader that fails or hangs gives a score that says so."""

    async def each() -> list[Score]:
        safe = guarded(grader, GRADER_TIMEOUT_S, getattr(grader, "name", None))
        return await asyncio.gather(
            *(safe.score(as_sample(group.problem, sample)) for group in groups for sample in group.samples)
        )

    flat = iter(asyncio.run(each()))
    return [[next(flat) for _ in group.samples] for group in groups]


def as_sample(problem: Problem, output: CompletionOutput) -> Sample:
    finished = output.finish_reason == "stop"
    return Sample(problem.question, output.text, metadata={**problem.facts, "finished": finished})


def rewards(scores: Sequence[Sequence[Score]]) -> NDArray[np.float64]:
    """[P, S]; NaN where a grader did not judge."""
    return np.array([[s.total if s.outcome == "ok" else np.nan for s in group] for group in scores])


def reward_metrics(scores: Sequence[Sequence[Score]]) -> dict[str, float]:
    """The mean total and the mean of each part over what was judged, and how many were not."""
    flat = [s for group in scores for s in group]
    judged = [s for s in flat if s.outcome == "ok"]
    metrics = {"reward": _mean([s.total for s in judged]), "unjudged": float(len(flat) - len(judged))}
    for name in judged[0].parts if judged else ():
        metrics[f"reward/{name}"] = _mean([s.parts[name] for s in judged])
    return metrics


def evaluate(
    engine: LLM, tokenizer: Tokenizer, task: Task, n: int, max_tokens: int, seed: int = 0
) -> dict[str, float]:
    """Reward metrics on `n` held-out problems, one sample each at temperature 1."""
    problems = task.prompts(seed, n, "held_out")
    sampling = SamplingParams(max_tokens=max_tokens)
    return reward_metrics(score(task, rollout(engine, tokenizer, problems, sampling, seed)))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
