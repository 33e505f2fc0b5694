"""Settings of an RL job. Torch-free."""

from __future__ import annotations

from itertools import chain
from typing import Any, Literal

from pydantic import Field, model_validator

from rondo.rl.algorithms import PRESETS, Advantage, Aggregate, Normalise, contradictions, with_preset
from rondo.rl.loop_config import LoopConfig
from rondo.rl.record.config import AlarmsConfig, RolloutsConfig
from rondo.rl.record.unused_settings import ignored
from rondo.rl.remote.config import FarConfig, RayConfig
from rondo.rl.update.config import CriticConfig, DistillConfig, PairsConfig, RewardModelConfig
from rondo.train.config import MetricsConfig, SamplesConfig


class RlConfig(LoopConfig):
    """Reinforcement learning on a task."""

    algorithm: str = Field(
        "grpo",
        examples=list(PRESETS),
        description="preset of algorithm settings; explicit settings override it: ppo, grpo, dr_grpo, dapo, rloo, "
        "reinforce++, reinforce++-baseline, gspo or cispo",
    )
    lr: float = Field(1e-5, gt=0, description="peak learning rate")
    warmup: int = Field(0, ge=0, description="steps of linear warm-up")
    decay: Literal["cosine", "linear", "constant", "wsd"] = Field(
        "constant", description="learning-rate schedule after the warm-up"
    )
    router_aux_loss: float | None = Field(
        0.0, ge=0, description="coefficient of the load-balancing loss of softmax routers"
    )
    weight_decay: float = Field(0.0, ge=0, description="weight decay of matrices; norms and biases have none")

    precision: Literal["float32", "bfloat16"] | None = Field(
        None,
        description="compute type of learner and engine over float32 weights; default: the type of the stored weights",
    )

    name: str = Field("", description="name of the job, by which every command accepts it; default: its hash")
    model: str = Field("", description="a model's folder, or its name under RONDO_HOME/models")
    task: str = Field(
        "reverse",
        examples=["reverse", "add", "sort", "guess", "calculator"],
        description="reverse, add, sort, guess or calculator; a JSON Lines file; a data set ORG/NAME[:SPLIT] of the "
        "Hugging Face Hub; or a task of your own as module:attribute",
    )
    grader: dict[str, Any] = Field(
        {},
        description="grader of a task from a file or data set, such as type=math; docs/graders.md lists the types",
    )
    max_broken: int = Field(
        0, ge=0, description="malformed lines of a task file to skip before the job fails"
    )
    steps: int = Field(100, gt=0, description="RL steps")
    prompts_per_step: int = Field(16, gt=0, description="prompts per RL step")
    samples_per_prompt: int = Field(16, gt=0, description="samples per prompt")
    max_tokens: int | None = Field(
        None, gt=0, description="maximum answer length in tokens; default: the task's"
    )
    temperature: float = Field(
        1.0, gt=0, description="sampling temperature; the learner's log-probabilities use the same"
    )
    advantage: Advantage = Field(
        "group",
        description="baseline of the reward: mean of the group (group), mean of the other samples of the group "
        "(leave_one_out); or per token: return to go (returns), generalized advantage estimation with a "
        "critic (gae)",
    )
    normalise: Normalise = Field(
        "std",
        description="group advantages: std divides by the group's standard deviation (GRPO), mean does not (Dr. "
        "GRPO); token advantages: none; batch: whitened over all tokens of the step",
    )
    gamma: float = Field(1.0, gt=0, le=1, description="returns, gae: discount factor per token")
    gae_lambda: float = Field(
        0.95, ge=0, le=1, description="gae: lambda; 0 trusts the critic's next value, 1 uses the full return"
    )
    aggregate: Aggregate = Field(
        "token",
        description="unit of the loss average: tokens, answers (sequence), or tokens over a constant length",
    )
    ratio: Literal["token", "sequence", "product"] = Field(
        "token",
        description="importance ratio per token (token), per answer and length-normalized (sequence, GSPO), or per "
        "answer (product, RLOO)",
    )
    surrogate: Literal["clip", "cispo", "reinforce"] = Field(
        "clip",
        description="clip: PPO's clipped objective; cispo: clipped ratios as constant weights, so that no token is "
        "dropped; reinforce: no ratios",
    )
    clip_low: float = Field(
        0.2, ge=0, le=1, description="lower clip range: ratios below 1 - clip_low are clipped"
    )
    clip_high: float = Field(
        0.2, ge=0, description="upper clip range: ratios above 1 + clip_high are clipped"
    )
    dual_clip: float = Field(
        0.0,
        ge=0,
        description="dual clip: largest ratio that counts for a negative advantage, such as 3; 0: off",
    )
    kl: float = Field(0.0, ge=0, description="coefficient of the KL divergence from the reference policy")
    kl_estimator: Literal["k1", "k2", "k3"] = Field(
        "k3",
        description="per-token KL estimator: k1 the log-ratio, k2 half its square, k3 Schulman's unbiased "
        "low-variance estimator",
    )
    kl_in: Literal["loss", "reward"] = Field(
        "loss", description="where the KL penalty is applied: in the loss or in the reward"
    )
    kl_unbiased: bool = Field(
        False,
        description="multiply the KL term of the loss by the importance ratio, which makes its gradient unbiased",
    )
    kl_target: float = Field(
        0.0, ge=0, description="adaptive KL: target in nats per token; 0: constant coefficient"
    )
    kl_horizon: float = Field(10.0, ge=1, description="adaptive KL: horizon in steps")
    correction: Literal["none", "truncate", "mask"] = Field(
        "none",
        description="importance sampling correction of the mismatch between learner and sampler: truncate weights at "
        "the bounds, or mask tokens outside of them",
    )
    correction_level: Literal["token", "sequence"] = Field(
        "token", description="correction per token or per sequence"
    )
    correction_cap: float = Field(3.0, gt=0, description="largest correction weight")
    correction_floor: float = Field(0.0, ge=0, description="smallest correction weight")
    entropy: float = Field(0.0, description="entropy bonus: coefficient of the policy's mean entropy in nats")
    measure_entropy: bool = Field(
        False, description="log the exact entropy; costs one more pass over the logits"
    )
    overlong: float = Field(
        0.0,
        ge=0,
        le=1,
        description="soft overlong punishment: last share of max_tokens in which the penalty grows",
    )
    overlong_penalty: float = Field(
        1.0, ge=0, description="soft overlong punishment: penalty of an answer that fills max_tokens"
    )
    dynamic_sampling: int = Field(
        0,
        ge=0,
        description="dynamic sampling: how often a group with equal rewards may be resampled; 0: never",
    )
    minibatches: int = Field(1, gt=0, description="optimizer steps per RL step")
    epochs: int = Field(1, gt=0, description="passes over the samples of an RL step")
    tokens_per_microbatch: int = Field(16384, gt=0, description="maximum tokens in one forward pass")
    share_prefix: bool = Field(True, description="compute a prompt once for all of its samples")
    block_size: int = Field(
        16, gt=0, description="tokens per KV block; 1 lets samples share a short prompt completely"
    )
    seed: int = Field(0, ge=0, description="random seed of prompts and samples")
    save_every: int = Field(20, ge=0, description="steps between checkpoints; 0: only at the end")
    keep: int = Field(2, gt=0, description="checkpoints to retain")
    eval_prompts: int = Field(
        128, gt=0, description="held-out prompts of the evaluation before and after training"
    )
    device: str = Field(
        "auto",
        examples=["auto", "cpu", "cuda"],
        description="cpu, cuda, cuda:1, ...; auto takes a GPU if there is one",
    )
    metrics: MetricsConfig = Field(MetricsConfig(), description="metric loggers")
    rollouts: RolloutsConfig = Field(RolloutsConfig(), description="storage of rollouts")
    samples: SamplesConfig = Field(SamplesConfig(), description="answers logged during training")
    alarms: AlarmsConfig = Field(AlarmsConfig(), description="thresholds of the alarms")
    device_bytes: int = Field(
        0,
        ge=0,
        description="GPU memory in bytes for reference, critic, reward model and teacher together; idle models are "
        "offloaded to host memory; 0: no limit",
    )
    critic: CriticConfig = Field(CriticConfig(), description="critic (value model)")
    reward_model: RewardModelConfig = Field(
        RewardModelConfig(), description="reward model whose score is a part of the reward"
    )
    distill: DistillConfig = Field(DistillConfig(), description="on-policy distillation from a teacher")
    pairs: PairsConfig = Field(
        PairsConfig(), description="preference training on pairs of the policy's own answers"
    )
    engine: FarConfig = Field(FarConfig(), description="remote engines")
    ray: RayConfig = Field(RayConfig(), description="engines and learner placed by Ray")

    @model_validator(mode="before")
    @classmethod
    def _has_its_algorithms_settings(cls, given: Any) -> Any:
        return with_preset(given) if isinstance(given, dict) else given

    @model_validator(mode="after")
    def _makes_sense(self) -> RlConfig:
        for reason in chain(contradictions(self), ignored(self)):
            raise ValueError(reason)
        return self

    def default_of(self, name: str) -> str:
        return f"algorithm {self.algorithm}" if name in PRESETS[self.algorithm] else ""

    @property
    def needs_reference(self) -> bool:
        return self.kl > 0 or self.pairs.needs_reference

    @property
    def needs_old(self) -> bool:
        """Whether the learner's log-probabilities before the first mini-batch are required."""
        corrected = self.correction != "none" and self.epochs * self.minibatches > 1
        return corrected or (self.kl > 0 and self.kl_in == "reward")

    @property
    def learns_from_reward(self) -> bool:
        """Whether the task's reward is part of the objective."""
        return not self.distill.teacher or self.distill.reward

    @property
    def every_group_counts(self) -> bool:
        """Whether groups with equal rewards are trained on."""
        by_group = self.advantage in ("group", "leave_one_out") and self.normalise != "batch"
        return not by_group or self.kl > 0 or self.entropy != 0 or bool(self.distill.teacher)
