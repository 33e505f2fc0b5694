"""Settings of stored rollouts and alarms. Torch-free."""

from __future__ import annotations

from pydantic import Field

from rondo.base.settings.config import Section


class RolloutsConfig(Section):
    keep: int = Field(1000, ge=0, description="steps whose rollouts stay on disk; 0: none")
    max_bytes: int = Field(
        8 << 30, gt=0, description="maximum size of stored rollouts in bytes; the oldest are deleted first"
    )


class AlarmsConfig(Section):
    """Thresholds of the alarms; 0 disables an alarm."""

    window: int = Field(
        10,
        ge=3,
        description="steps in the recent window, whose median is compared with the median of earlier steps",
    )
    certainty: float = Field(4.0, gt=0, description="minimum change in standard errors of the two medians")
    hacking: float = Field(
        0.4,
        ge=0,
        description="reward hacking: rise of one part of the reward while another falls, in standard deviations of "
        "the samples",
    )
    length: float = Field(
        2.0, ge=0, description="length growth: factor by which answers become longer without more reward"
    )
    duplicated: float = Field(
        0.5, ge=0, le=1, description="duplicates: share of equal answers to different problems"
    )
    mismatch: float = Field(
        0.01, ge=0, description="mismatch: KL divergence between sampler and learner in nats per token"
    )
    mismatch_growth: float = Field(10.0, ge=0, description="mismatch growth factor")
    entropy: float = Field(
        0.2, ge=0, lt=1, description="entropy collapse: remaining share of the initial entropy"
    )
    reward: float = Field(0.5, ge=0, description="reward drop in standard deviations of the samples")
    no_signal: float = Field(
        0.95, ge=0, le=1, description="no signal: share of groups with equal rewards, solved groups excluded"
    )
    unjudged: float = Field(0.05, ge=0, le=1, description="share of samples without a score from any grader")
