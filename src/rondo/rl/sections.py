"""What an RL job is told of the models beside its policy. Torch-free."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from rondo.base.config import Section


class CriticConfig(Section):
    """The model that says at each token what is still to be earned."""

    kind: Literal["none", "separate", "shared"] = Field(
        "none", description="separate: a model of its own; shared: one more number from the policy's layers"
    )
    model: str = Field(
        "",
        description="separate: the model or reward model it begins as, a folder or a name; by default the policy's own",
    )
    lr: float | None = Field(None, gt=0, description="separate: its peak learning rate; by default rl.lr")
    warmup: int = Field(0, ge=0, description="steps at the beginning in which the critic alone learns")
    clip: float = Field(
        0.2, ge=0, description="how far a value may leave what it was before the step; 0 does not clip"
    )
    coefficient: float = Field(
        0.1, gt=0, description="shared: what its loss counts beside the policy's, in the layers of both"
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

    model: str = Field("", description="a reward model's folder or name; none by default")
    weight: float = Field(1.0, description="what its score counts beside the task's own")


class DistillConfig(Section):
    """On-policy distillation: the policy's own answers, judged token by token by how likely a teacher finds them."""

    teacher: str = Field(
        "", description="a model with the policy's tokenizer, a folder or a name; none by default"
    )
    weight: float = Field(1.0, gt=0, description="what the divergence from the teacher costs")
    discount: float = Field(
        0.0, ge=0, le=1, description="how much a token answers for those after it; 0: for itself alone"
    )
    reward: bool = Field(False, description="whether the task's reward counts beside the teacher")


class PairsConfig(Section):
    """Preference training on pairs that the policy makes: of each group the best answer against the worst."""

    loss: Literal["none", "dpo", "ipo", "simpo", "kto"] = Field(
        "none", description="none: a step learns by the policy's loss"
    )
    beta: float | None = Field(
        None, gt=0, description="as preference.beta of `rondo train`; 0.1 by default, simpo's 2"
    )
    gamma: float = Field(1.0, ge=0, description="simpo: by how much the better answer has to win")
    good_weight: float = Field(1.0, ge=0, description="kto: what a good answer counts")
    bad_weight: float = Field(1.0, ge=0, description="kto: what a bad answer counts")

    @property
    def needs_reference(self) -> bool:
        return self.loss in ("dpo", "ipo", "kto")
