"""What an RL job is told. Torch-free."""

from __future__ import annotations

from itertools import chain
from typing import Any, Literal

from pydantic import Field, model_validator

from rondo.rl.algorithms import PRESETS, Advantage, Aggregate, Normalise, contradictions, with_preset
from rondo.rl.far_config import FarConfig, RayConfig
from rondo.rl.ignored import ignored
from rondo.rl.loop_config import LoopConfig
from rondo.rl.sections import CriticConfig, DistillConfig, PairsConfig, RewardModelConfig
from rondo.rl.watch_config import AlarmsConfig, RolloutsConfig
from rondo.train.config import MetricsConfig


class RlConfig(LoopConfig):
    """Reinforcement learning on a task."""

    algorithm: str = Field(
        "grpo",
        description="sets what you do not: ppo, grpo, dr_grpo, dapo, rloo, reinforce++, reinforce++-baseline, gspo or "
        "cispo",
    )
    lr: float = Field(1e-5, gt=0, description="peak learning rate")
    warmup: int = Field(0, ge=0, description="steps of linear warm-up")
    decay: Literal["cosine", "linear", "constant", "wsd"] = Field(
        "constant", description="what follows the warm-up"
    )
    router_aux_loss: float | None = Field(
        0.0, ge=0, description="coefficient of the load-balancing loss of softmax routers"
    )
    weight_decay: float = Field(0.0, ge=0, description="for matrices; norms and biases are not decayed")

    precision: Literal["float32", "bfloat16"] | None = Field(
        None,
        description="what learner and engine compute in, over weights in float32; by default all is as stored",
    )

    model: str = Field("", description="a model's folder, or its name under RONDO_HOME/models")
    task: str = Field(
        "reverse",
        description="reverse, add, sort, guess or calculator; a JSON Lines file; or "
        "a task of your own as module:attribute",
    )
    grader: dict[str, Any] = Field(
        {},
        description="of a task from a file: how answers are graded, as type=math; docs/graders.md lists them",
    )
    max_broken: int = Field(0, ge=0, description="of a task from a file: broken lines that are left out")
    steps: int = Field(100, gt=0, description="RL steps")
    prompts_per_step: int = Field(16, gt=0, description="prompts drawn a step")
    samples_per_prompt: int = Field(16, gt=0, description="answers sampled to each prompt")
    max_tokens: int | None = Field(None, gt=0, description="longest answer; the task's own by default")
    temperature: float = Field(1.0, gt=0, description="of sampling, and of the learner's log-probabilities")
    advantage: Advantage = Field(
        "group",
        description="what a reward is set beside: the mean of its group, or of the group's others (leave_one_out); or "
        "by token what is earned from it on (returns), less what a critic expected (gae)",
    )
    normalise: Normalise = Field(
        "std",
        description="of groups, std: divided by the group's deviation (GRPO), mean: not divided (Dr. GRPO); of tokens, "
        "none; of either, batch: mean 0 and deviation 1 over all tokens of the step",
    )
    gamma: float = Field(1.0, gt=0, le=1, description="returns, gae: what a reward counts one token earlier")
    gae_lambda: float = Field(
        0.95, ge=0, le=1, description="gae: 0 trusts the critic's next value, 1 what was earned"
    )
    aggregate: Aggregate = Field(
        "token",
        description="what counts alike in the loss: tokens, answers (sequence), or tokens over a constant length",
    )
    ratio: Literal["token", "sequence", "product"] = Field(
        "token",
        description="how likely is now what was sampled: each token; an answer, by the token (sequence, GSPO); the "
        "whole answer (product, RLOO)",
    )
    surrogate: Literal["clip", "cispo", "reinforce"] = Field(
        "clip",
        description="clip: PPO's; cispo: clipped ratios as weights, which leave no token out; reinforce: no ratios",
    )
    clip_low: float = Field(0.2, ge=0, le=1, description="how far below 1 the probability ratio earns")
    clip_high: float = Field(0.2, ge=0, description="how far above 1 the probability ratio earns")
    dual_clip: float = Field(
        0.0, ge=0, description="the largest ratio that counts against a bad answer, 3 say; 0 has none"
    )
    kl: float = Field(0.0, ge=0, description="weight of the KL divergence from the reference policy")
    kl_estimator: Literal["k1", "k2", "k3"] = Field(
        "k3", description="of the divergence at a token: the log-ratio, half its square, or Schulman's"
    )
    kl_in: Literal["loss", "reward"] = Field("loss", description="what the divergence is taken from")
    kl_unbiased: bool = Field(
        False, description="the loss's divergence times the ratio, so that its gradient is not biased"
    )
    kl_target: float = Field(
        0.0, ge=0, description="nats a token that kl is steered towards, from where it begins; 0 leaves it"
    )
    kl_horizon: float = Field(10.0, ge=1, description="steps over which kl is steered")
    correction: Literal["none", "truncate", "mask"] = Field(
        "none",
        description="weights for what the learner finds likelier or less likely than the sampler did; out of bounds "
        "they become the bound, or 0 (mask)",
    )
    correction_level: Literal["token", "sequence"] = Field(
        "token", description="whether each token is weighed or the whole answer"
    )
    correction_cap: float = Field(3.0, gt=0, description="the largest such weight")
    correction_floor: float = Field(0.0, ge=0, description="the smallest such weight")
    entropy: float = Field(0.0, description="what a nat of the policy's mean entropy earns in the loss")
    measure_entropy: bool = Field(
        False, description="the exact entropy as a metric: one more pass over the logits"
    )
    overlong: float = Field(
        0.0,
        ge=0,
        le=1,
        description="the last share of max_tokens in which answers are punished, more and more",
    )
    overlong_penalty: float = Field(1.0, ge=0, description="what an answer loses that fills max_tokens")
    dynamic_sampling: int = Field(
        0, ge=0, description="how often a group may be drawn anew whose samples all earned the same; 0: never"
    )
    minibatches: int = Field(1, gt=0, description="optimizer steps that a step's samples are divided into")
    epochs: int = Field(1, gt=0, description="how often a step's samples are learned from")
    tokens_per_microbatch: int = Field(16384, gt=0, description="the most tokens in one forward pass")
    share_prefix: bool = Field(True, description="compute a prompt once for all of its samples")
    block_size: int = Field(
        16, gt=0, description="tokens in a KV block; 1 lets samples share all of a short prompt"
    )
    seed: int = Field(0, ge=0, description="decides the prompts and the samples")
    save_every: int = Field(20, ge=0, description="steps between checkpoints; 0 saves at the end alone")
    keep: int = Field(2, gt=0, description="how many checkpoints stay")
    eval_prompts: int = Field(128, gt=0, description="held-out prompts asked before and after")
    device: str = Field("auto", description="cpu, cuda, cuda:1, ...; auto takes a GPU if there is one")
    metrics: MetricsConfig = Field(MetricsConfig(), description="where metrics go")
    rollouts: RolloutsConfig = Field(RolloutsConfig(), description="which rollouts stay")
    alarms: AlarmsConfig = Field(AlarmsConfig(), description="what the alarm is given for")
    device_bytes: int = Field(
        0,
        ge=0,
        description="what the models beside the policy's weights may take of a GPU together, in bytes: who is not "
        "needed waits in host memory; 0: all stay",
    )
    critic: CriticConfig = Field(CriticConfig(), description="what is still to be earned at each token")
    reward_model: RewardModelConfig = Field(
        RewardModelConfig(), description="a reward model's score as a part of the reward"
    )
    distill: DistillConfig = Field(DistillConfig(), description="learning from a teacher")
    pairs: PairsConfig = Field(PairsConfig(), description="preference training on the policy's own answers")
    engine: FarConfig = Field(FarConfig(), description="engines that are not in this process")
    ray: RayConfig = Field(RayConfig(), description="engines and a learner that Ray places")

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
        """Whether the learner's own log-probabilities before the first mini-batch have to be known."""
        corrected = self.correction != "none" and self.epochs * self.minibatches > 1
        return corrected or (self.kl > 0 and self.kl_in == "reward")

    @property
    def learns_from_reward(self) -> bool:
        """Whether the task's reward counts, and not a teacher alone."""
        return not self.distill.teacher or self.distill.reward

    @property
    def every_group_counts(self) -> bool:
        """Whether a group teaches whose samples all earned the same."""
        by_group = self.advantage in ("group", "leave_one_out") and self.normalise != "batch"
        return not by_group or self.kl > 0 or self.entropy != 0 or bool(self.distill.teacher)
