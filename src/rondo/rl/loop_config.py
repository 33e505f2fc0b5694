"""What the loop is told, whatever it learns by. Torch-free."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from rondo.base.config import Section
from rondo.train.config import AdapterConfig, OptimConfig

Mode = Literal["sync", "one_step_off", "async"]


class EvalConfig(Section):
    """Held-out prompts, asked before, after and in between."""

    every: int = Field(0, ge=0, description="steps between evaluations; 0 evaluates before and after alone")
    samples: int = Field(1, gt=0, description="answers to each held-out prompt; pass@k needs k of them")
    k: list[int] = Field([1], description="for which k pass@k is told, beside pass@1")
    correct: float = Field(
        1.0, description="the reward from which an answer passes, where the task has no part named correct"
    )

    @model_validator(mode="after")
    def _has_samples(self) -> EvalConfig:
        if not self.k or min(self.k) < 1 or max(self.k) > self.samples:
            raise ValueError(
                f"k is {self.k}, but each must be from 1 to samples, which is {self.samples}: raise samples"
            )
        return self


class LoopConfig(OptimConfig):
    mode: Mode = Field(
        "sync",
        description="sync: a step's answers are of the newest weights; one_step_off: they are made while the step "
        "before trains; async: as far ahead as max_staleness says, and a push interrupts them",
    )
    max_staleness: int = Field(
        2, ge=1, description="async: how many steps older than the weights a trained token may be"
    )
    grader_timeout: float = Field(
        30.0,
        gt=0,
        description="seconds that the score of one answer may take; episodes have Bounds of their own",
    )
    most_idle: int = Field(
        20,
        ge=0,
        description="steps in a row that teach nothing before the run ends with the reason; 0: never",
    )
    evaluate: EvalConfig = Field(EvalConfig(), description="what is asked of held-out prompts")
    deterministic: bool = Field(
        False, description="on a CPU: the engine's log-probabilities are the learner's, bit for bit"
    )
    adapter: AdapterConfig = Field(
        AdapterConfig(), description="what learns: the model itself, or an adapter over it"
    )

    @property
    def staleness(self) -> int:
        """How many steps ahead of training groups may begin."""
        return {"sync": 0, "one_step_off": 1, "async": self.max_staleness}[self.mode]
