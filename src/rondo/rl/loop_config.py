"""Settings of the loop, independent of the algorithm. Torch-free."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from rondo.base.settings.config import Section
from rondo.parallel.config import LayoutConfig
from rondo.train.config import AdapterConfig, OptimConfig

Mode = Literal["sync", "one_step_off", "async"]
RolloutRanks = Literal["data_parallel", "all", "first"]


class EvalConfig(Section):
    """Evaluation on held-out prompts before, during and after training."""

    every: int = Field(0, ge=0, description="steps between evaluations; 0: only before and after training")
    samples: int = Field(1, gt=0, description="samples per held-out prompt; pass@k needs k of them")
    k: list[int] = Field([1], description="values of k for which pass@k is reported beside pass@1")
    correct: float = Field(
        1.0, description="reward from which an answer passes, for tasks without a part named correct"
    )

    @model_validator(mode="after")
    def _has_samples(self) -> EvalConfig:
        if not self.k or min(self.k) < 1 or max(self.k) > self.samples:
            raise ValueError(
                f"k is {self.k}, but each must be from 1 to samples, which is {self.samples}: raise samples"
            )
        return self


class LoopConfig(OptimConfig):
    """The RL loop: synchronization, time limits and evaluation."""

    mode: Mode = Field(
        "sync",
        description="sync: a step's samples use the newest weights; one_step_off: they are generated while the "
        "previous step trains; async: generation runs up to max_staleness steps ahead and weight pushes "
        "interrupt it",
    )
    max_staleness: int = Field(
        2, ge=1, description="async: maximum age of a trained token in weight versions"
    )
    grader_timeout: float = Field(
        30.0,
        gt=0,
        description="seconds for the score of one answer; episodes have their own Bounds",
    )
    most_idle: int = Field(
        20,
        ge=0,
        description="consecutive steps without a gradient signal after which the job ends with the reason; 0: never",
    )
    evaluate: EvalConfig = Field(EvalConfig(), description="evaluation on held-out prompts")
    deterministic: bool = Field(
        False, description="on a CPU: log-probabilities of engine and learner are equal bit for bit"
    )
    adapter: AdapterConfig = Field(
        AdapterConfig(), description="train an adapter instead of the full weights"
    )

    layout: LayoutConfig = Field(LayoutConfig(), description="parallelism of the learner over several ranks")
    learner: Literal["native", "megatron"] = Field(
        "native", description="native: Rondo's layers; megatron: Megatron-Core (extra megatron)"
    )
    rollout_ranks: RolloutRanks = Field(
        "data_parallel",
        description="on several ranks, the ranks that have an engine with a copy of the whole weights: the first rank "
        "of each data-parallel replica, all ranks, or only the first rank. Asynchronous rollouts, episodes and remote "
        "engines use the first rank",
    )

    @property
    def kept(self) -> str | None:
        return "float32" if self.precision else None

    @property
    def staleness(self) -> int:
        """Maximum number of steps by which generation may run ahead of training."""
        return {"sync": 0, "one_step_off": 1, "async": self.max_staleness}[self.mode]
