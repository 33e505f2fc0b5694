"""What is kept of an RL job's rollouts, and what it gives the alarm for. Torch-free."""

from __future__ import annotations

from pydantic import Field

from rondo.base.config import Section


class RolloutsConfig(Section):
    keep: int = Field(1000, ge=0, description="steps whose rollouts stay on the disk; 0 stores none")
    max_bytes: int = Field(8 << 30, gt=0, description="the most that they take; the oldest go first")


class AlarmsConfig(Section):
    """0 turns an alarm off."""

    window: int = Field(10, ge=3, description="steps whose median is compared with that of others before")
    certainty: float = Field(
        4.0, gt=0, description="how many standard errors of the two medians a change has to be"
    )
    hacking: float = Field(
        0.4,
        ge=0,
        description="by how much one part of the reward rises and another falls, in standard deviations of the samples",
    )
    length: float = Field(2.0, ge=0, description="how many times as long answers become, for no more reward")
    duplicated: float = Field(
        0.5, ge=0, le=1, description="the share of answers that are the same, though problems differ"
    )
    mismatch: float = Field(
        0.01, ge=0, description="the KL divergence between sampler and learner, nats a token"
    )
    mismatch_growth: float = Field(10.0, ge=0, description="how many times as large it becomes")
    entropy: float = Field(
        0.2, ge=0, lt=1, description="what is left of the entropy, as a share of what it was"
    )
    reward: float = Field(
        0.5, ge=0, description="by how much the reward falls, in standard deviations of the samples"
    )
    no_signal: float = Field(
        0.95, ge=0, le=1, description="the share of groups in which all earn the same, unless they solve it"
    )
    unjudged: float = Field(0.05, ge=0, le=1, description="the share of samples that no grader could judge")
