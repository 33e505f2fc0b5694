"""Rollouts of a job of several ranks: every rank receives all samples of a step.

With synchronous rollouts, each rank that has an engine generates and scores its share of the groups. Asynchronous
rollouts, episodes and remote engines are driven by the first rank alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

from rondo.client.types import SamplingParams
from rondo.engine.entrypoints.llm import LLM
from rondo.models.files.mapping import to_hf
from rondo.rl.record.timer import LoopTimer
from rondo.rl.rollout.prompt_sampler import PromptSampler
from rondo.rl.rollout.replica import WeightReplica
from rondo.rl.rollout.requests import RolloutBatch, RolloutBuilder
from rondo.rl.rollout.sync_collector import Collector, SyncCollector
from rondo.rl.rollout.types import SampleGroup
from rondo.rl.tasks.types import Problem
from rondo.rl.update.aux_models import AuxiliaryModels
from rondo.rl.update.division import RankDivision
from rondo.train.learner.learner import Learner
from rondo.weights.directory import Directory
from rondo.weights.in_place import InPlace


class DividedCollector(SyncCollector):
    """Synchronous rollouts on the ranks that have an engine. The reward model scores the groups of all ranks together,
    because it is divided too.
    """

    def __init__(
        self,
        engine: LLM | None,
        builder: RolloutBuilder,
        draws: PromptSampler,
        name: str,
        replica: WeightReplica,
        learner: Learner,
        division: RankDivision,
    ) -> None:
        self._replica, self._learner, self._division, self._version = replica, learner, division, 0
        self._here = engine
        self._engines = [rank for rank, has in enumerate(division.said_by_all(engine is not None)) if has]
        model = replica.model
        if engine is None or model is None:
            self.builder, self.draws = builder, draws
        else:
            super().__init__(engine, builder, draws, InPlace(name, lambda: to_hf(model), Directory()))

    @property
    def version(self) -> int:
        return self._version

    def answer(
        self, problems: Sequence[Problem], sampling: SamplingParams, seeds: Sequence[int]
    ) -> list[SampleGroup]:
        groups = self._answered(problems, sampling, seeds, LoopTimer())
        if self._here is not None:
            self._here.reset_prefix_cache()
        return groups

    @contextmanager
    def pushing(self, version: int) -> Iterator[None]:
        yield
        with nullcontext() if self._here is None else super().pushing(version):
            self._replica.pull(self._learner)
        self._version = version

    def close(self) -> None:
        self.builder.scorer.close()
        if self._here is not None:
            self._here.close()

    def _answered(
        self, problems: Sequence[Problem], sampling: SamplingParams, seeds: Sequence[int], clock: LoopTimer
    ) -> list[SampleGroup]:
        rank = self._division.rank
        own: Sequence[int] = range(0)
        if rank in self._engines:
            own = range(self._engines.index(rank), len(problems), len(self._engines))
        made: list[SampleGroup] = []
        if own:
            made = super()._answered([problems[i] for i in own], sampling, [seeds[i] for i in own], clock)
        with clock("rollout"):
            parts = self._division.said_by_all(list(zip(own, made, strict=True)))
        return [group for _, group in sorted((pair for part in parts for pair in part), key=lambda x: x[0])]


class FirstRankCollector:
    """Rollouts that the first rank collects and broadcasts."""

    def __init__(
        self,
        own: Collector | None,
        share: Callable[[], None],
        division: RankDivision,
        company: AuxiliaryModels,
    ) -> None:
        """`own` is the first rank's collector, and None on other ranks. `share` is a rank's part in a push, which
        precedes the push of the collector."""
        self._own, self._share = own, share
        self._division, self._company = division, company
        self._version: int = division.first_says(own.version if own else 0)

    @property
    def version(self) -> int:
        return self._version

    def collect(self, step: int, clock: LoopTimer) -> RolloutBatch:
        own = self._own.collect(step, clock) if self._own else RolloutBatch([])
        with clock("rollout"):
            found = self._division.first_says(own)
        with clock("score"):
            found.groups = self._company.judged(found.groups)
        return found

    def answer(
        self, problems: Sequence[Problem], sampling: SamplingParams, seeds: Sequence[int]
    ) -> list[SampleGroup]:
        return self._division.first_says(self._own.answer(problems, sampling, seeds) if self._own else [])

    @contextmanager
    def pushing(self, version: int) -> Iterator[None]:
        yield
        with self._own.pushing(version) if self._own else nullcontext():
            self._share()
        self._version = version

    def trained(self, steps_done: int) -> None:
        if self._own:
            self._own.trained(steps_done)

    def graded(self) -> float:
        return self._own.graded() if self._own else 0.0

    def state(self) -> dict[str, Any]:
        return self._own.state() if self._own else {}

    def restore(self, state: dict[str, Any], steps_done: int) -> None:
        if self._own:
            self._own.restore(state, steps_done)

    def close(self) -> None:
        if self._own:
            self._own.close()
