"""Synchronous rollouts: groups are generated and scored in the caller's thread, reproducibly for fixed weights and
seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Protocol

from rondo.client.types import CompletionOutput, SamplingParams
from rondo.engine.entrypoints.llm import LLM
from rondo.graders import Score
from rondo.models.files.mapping import to_hf
from rondo.rl.record.timer import LoopTimer
from rondo.rl.rollout.prompt_sampler import PromptSampler
from rondo.rl.rollout.requests import ENDED, RolloutBatch, RolloutBuilder
from rondo.rl.rollout.types import Rollout, SampleGroup, as_sample, rollout_of
from rondo.rl.tasks.types import Problem
from rondo.weights.in_place import InPlace, Receiver


class Collector(Protocol):
    @property
    def version(self) -> int:
        """Version of the engine's weights."""

    def collect(self, step: int, clock: LoopTimer) -> RolloutBatch:
        """The groups that step `step` trains on."""

    def answer(
        self, problems: Sequence[Problem], sampling: SamplingParams, seeds: Sequence[int]
    ) -> list[SampleGroup]:
        """One scored group per problem, with the current weights."""

    def pushing(self, version: int) -> Any:
        """A context within which the learner's weights may change; at its end the engine has them as `version`."""

    def trained(self, steps_done: int) -> None:
        """Report that `steps_done` steps are trained and their weights pushed."""

    def graded(self) -> float:
        """Total seconds in which graders were busy."""

    def state(self) -> dict[str, Any]:
        """Checkpoint state of complete groups before training on them."""

    def restore(self, state: dict[str, Any], steps_done: int) -> None: ...

    def close(self) -> None: ...


class SyncCollector:
    """Generates a step's groups on request. Each sample is scored as soon as it ends, in parallel with generation."""

    def __init__(self, engine: LLM, builder: RolloutBuilder, draws: PromptSampler, weights: InPlace) -> None:
        self.engine, self.builder, self.draws, self.weights = engine, builder, draws, weights
        self._receivers = [Receiver("engine", engine, lambda: to_hf(engine.core.model))]

    @property
    def version(self) -> int:
        return self.engine.weight_version

    def collect(self, step: int, clock: LoopTimer) -> RolloutBatch:
        """Collect a step's groups in rounds. Resampled groups run together in the next round, so that the composition
        of batches does not depend on timing.
        """
        count = self.draws.prompts_per_step
        made: dict[int, SampleGroup] = {}
        wanted = list(range(step * count, (step + 1) * count))
        found, attempt = RolloutBatch([]), 0
        while wanted:
            problems = [self.draws.problem(number, attempt) for number in wanted]
            seeds = [self.draws.sampling_seed(number, attempt) for number in wanted]
            groups = self._answered(problems, self.builder.sampling, seeds, clock)
            with clock("score"):
                groups = self.builder.company.judged(groups)
            again = []
            for number, group in zip(wanted, groups, strict=True):
                made[number] = group
                why = self.builder.again(group, attempt)
                if why is not None:
                    again.append(number)
                    found.counts["too_long" if why == "too_long" else "drawn_again"] += 1
                    found.dropped += [group] if group.samples else []
            wanted, attempt = again, attempt + 1
        found.groups = [made[number] for number in sorted(made)]
        found.counts["empty"] = sum(not group.samples for group in found.groups)
        return found

    def answer(
        self, problems: Sequence[Problem], sampling: SamplingParams, seeds: Sequence[int]
    ) -> list[SampleGroup]:
        """Answer problems outside of a step, such as evaluation problems. The prefix cache is reset afterwards,
        because a run that resumes at the next step starts with an empty cache.
        """
        groups = self._answered(problems, sampling, seeds, LoopTimer())
        self.engine.reset_prefix_cache()
        return groups

    @contextmanager
    def pushing(self, version: int) -> Iterator[None]:
        with self.weights.update(version, self._receivers):
            yield

    def trained(self, steps_done: int) -> None:
        """No operation: nothing is generated during updates."""

    def graded(self) -> float:
        return self.builder.scorer.at_work

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any], steps_done: int) -> None:
        """No operation: there is no state between two steps."""

    def close(self) -> None:
        self.builder.scorer.close()
        self.engine.close()

    def _answered(
        self, problems: Sequence[Problem], sampling: SamplingParams, seeds: Sequence[int], clock: LoopTimer
    ) -> list[SampleGroup]:
        builder = self.builder
        builder.company.roles.phase("rollout")
        with clock("rollout"):
            prompts = [builder.prompt(problem) for problem in problems]
            asked = [i for i, prompt in enumerate(prompts) if prompt is not None]
            fitting = [(i, prompts[i] or []) for i in asked]
            each = [builder.fitting(sampling, prompt).with_(seed=seeds[i]) for i, prompt in fitting]
            scores: dict[tuple[int, int], Future[Score]] = {}
            rollouts: dict[tuple[int, int], Rollout] = {}

            def ended(samples: list[tuple[int, CompletionOutput]]) -> None:
                done = [((asked[number], output.index), rollout_of(output)) for number, output in samples]
                rollouts.update(done)
                whole = [(name, rollout) for name, rollout in done if rollout.finish_reason != "abort"]
                given = [as_sample(problems[name[0]], rollout) for name, rollout in whole]
                futures = builder.scorer.submit(given)
                scores.update(zip((name for name, _ in whole), futures, strict=True))

            self.engine.generate([prompt for _, prompt in fitting], each, on_ended=ended)
        with clock("score"):
            judged = dict(zip(scores, builder.scorer.wait(list(scores.values())), strict=True))
        return [
            SampleGroup(
                problem,
                prompts[i] or [],
                [
                    rollouts[i, k].scored(judged.get((i, k), ENDED))
                    for k in range(sampling.n)
                    if (i, k) in rollouts
                ],
            )
            for i, problem in enumerate(problems)
        ]
