"""What an RL job is told. Torch-free."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rondo.train.config import OptimConfig


class RlConfig(OptimConfig):
    """Group-relative policy optimisation on a task."""

    lr: float = Field(1e-5, gt=0, description="peak learning rate")
    warmup: int = Field(0, ge=0, description="steps of linear warm-up")
    decay: Literal["cosine", "linear", "constant", "wsd"] = Field(
        "constant", description="what follows the warm-up"
    )
    weight_decay: float = Field(0.0, ge=0, description="for matrices; norms and biases are not decayed")

    precision: Literal["float32", "bfloat16"] | None = Field(
        None,
        description="what learner and engine compute in, over weights in float32; by default all is as stored",
    )

    model: str = Field("", description="a model's folder, or its name under RONDO_HOME/models")
    task: str = Field("reverse", description="reverse, add, sort or countdown")
    steps: int = Field(100, gt=0, description="RL steps")
    prompts_per_step: int = Field(16, gt=0, description="prompts drawn a step")
    samples_per_prompt: int = Field(16, gt=1, description="answers sampled to each prompt")
    max_tokens: int | None = Field(None, gt=0, description="longest answer; the task's own by default")
    temperature: float = Field(1.0, gt=0, description="of sampling, and of the learner's log-probabilities")
    normalise: Literal["std", "mean"] = Field(
        "std", description="std: GRPO; mean: Dr. GRPO, not divided by the deviation"
    )
    aggregate: Literal["token", "sequence", "constant"] = Field(
        "token", description="what counts alike in the loss"
    )
    clip_low: float = Field(0.2, ge=0, description="how far below 1 the probability ratio earns")
    clip_high: float = Field(0.2, ge=0, description="how far above 1 the probability ratio earns")
    kl: float = Field(0.0, ge=0, description="weight of the KL divergence from the reference policy")
    tokens_per_microbatch: int = Field(16384, gt=0, description="the most tokens in one forward pass")
    share_prefix: bool = Field(True, description="compute a prompt once for all of its samples")
    block_size: int = Field(
        16, gt=0, description="tokens in a KV block; 1 lets samples share all of a short prompt"
    )
    seed: int = Field(0, ge=0, description="decides the prompts and the samples")
    save_every: int = Field(20, ge=0, description="steps between checkpoints; 0 saves at the end alone")
    keep: int = Field(2, gt=0, description="how many checkpoints stay")
    eval_prompts: int = Field(128, gt=0, description="held-out prompts asked before and after")
    device: str = Field("cpu", description="cpu, cuda, ...")
