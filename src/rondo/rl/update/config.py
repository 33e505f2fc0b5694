"""Settings of an RL job's auxiliary models. Torch-free."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from rondo.base.settings.config import Section


class CriticConfig(Section):
    """Value model, which predicts the return at each token."""

    kind: Literal["none", "separate", "shared"] = Field(
        "none", description="separate: a value model of its own; shared: a value head on the policy"
    )
    model: str = Field(
        "",
        description="separate: initial model or reward model, a folder or a name; default: the policy's model",
    )
    lr: float | None = Field(None, gt=0, description="separate: peak learning rate; default: rl.lr")
    warmup: int = Field(0, ge=0, description="steps at the start that train only the critic")
    clip: float = Field(
        0.2, ge=0, description="value clipping range around the value before the step; 0: off"
    )
    coefficient: float = Field(
        0.1, gt=0, description="shared: coefficient of the value loss beside the policy loss"
    )

    @model_validator(mode="after")
    def _is_of_its_kind(self) -> CriticConfig:
        for name, kinds in _KINDS.items():
            if getattr(self, name) != type(self).model_fields[name].default and self.kind not in kinds:
                raise ValueError(
                    f"{name} is for a critic of kind {' or '.join(kinds)}, and kind is {self.kind}: set kind, or leave "
                    f"{name} out"
                )
        return self


_KINDS = {
    "model": ("separate",),
    "lr": ("separate",),
    "warmup": ("separate", "shared"),
    "clip": ("separate", "shared"),
    "coefficient": ("shared",),
}


class RewardModelConfig(Section):
    """A reward model's score as a part of the reward."""

    model: str = Field("", description="reward model, a folder or a name; default: none")
    weight: float = Field(1.0, description="weight of the reward model's score beside the task's reward")


class DistillConfig(Section):
    """On-policy distillation: the policy's samples, scored token by token by a teacher's log-probabilities."""

    teacher: str = Field(
        "", description="teacher with the policy's tokenizer, a folder or a name; default: none"
    )
    weight: float = Field(1.0, gt=0, description="coefficient of the divergence from the teacher")
    discount: float = Field(
        0.0,
        ge=0,
        le=1,
        description="discount with which a token is charged for the divergence of later tokens; 0: only its own",
    )
    reward: bool = Field(False, description="add the task's reward to the distillation objective")


class PairsConfig(Section):
    """Preference training on on-policy pairs: the best against the worst sample of each group."""

    loss: Literal["none", "dpo", "ipo", "simpo", "kto"] = Field(
        "none", description="preference loss; none: policy loss"
    )
    beta: float | None = Field(
        None,
        gt=0,
        description="beta of the loss as in preference.beta of `rondo train`; default 0.1, simpo 2",
    )
    gamma: float = Field(1.0, ge=0, description="simpo: target margin")
    good_weight: float = Field(1.0, ge=0, description="kto: weight of desirable answers")
    bad_weight: float = Field(1.0, ge=0, description="kto: weight of undesirable answers")

    @property
    def needs_reference(self) -> bool:
        return self.loss in ("dpo", "ipo", "kto")
