"""What a training job is told: the words of its config, and nothing of torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from rondo.base.config import Section
from rondo.data.config import LoaderConfig


class OptimConfig(Section):
    """AdamW and its schedule."""

    lr: float = Field(3e-4, gt=0, description="peak learning rate")
    warmup: int = Field(10, ge=0, description="steps of linear warm-up")
    decay: Literal["cosine", "linear", "constant", "wsd"] = Field(
        "cosine", description="what follows the warm-up"
    )
    lr_end: float = Field(0.1, ge=0, le=1, description="learning rate at the end, as a share of lr")
    weight_decay: float = Field(0.1, ge=0, description="for matrices; norms and biases are not decayed")
    betas: tuple[float, float] = Field((0.9, 0.95), description="AdamW's averaging factors")
    eps: float = Field(1e-8, gt=0, description="AdamW's epsilon")
    clip: float = Field(1.0, ge=0, description="largest gradient norm; 0 does not clip")


class TrainConfig(OptimConfig):
    """Pretraining and supervised fine-tuning."""

    model: str = Field("", description="a model's folder, or its name under RONDO_HOME/models")
    data: str | list[str] = Field(
        "",
        description="prepared shards, a .jsonl, .txt or .parquet file, or a folder of them, here or at s3://; "
        "several are mixed by their weights: web@0.7",
    )
    steps: int = Field(100, gt=0, description="optimizer steps")
    tokens_per_step: int = Field(
        16384, gt=0, description="the batch, in tokens, whatever the number of devices"
    )
    tokens_per_microbatch: int = Field(8192, gt=0, description="the most tokens in one forward pass")
    max_length: int = Field(
        2048, gt=1, description="longest document in tokens; pretraining cuts, SFT refuses"
    )
    seed: int = Field(0, ge=0, description="decides the order of the data")
    dtype: Literal["float32", "bfloat16"] = Field("float32", description="the weights' type in training")
    device: str = Field("cpu", description="cpu, cuda, ...")
    save_every: int = Field(50, ge=0, description="steps between checkpoints; 0 saves at the end alone")
    keep: int = Field(2, gt=0, description="how many checkpoints stay")
    loader: LoaderConfig = Field(LoaderConfig(), description="reading the data")

    @model_validator(mode="after")
    def _row_fits(self) -> TrainConfig:
        if self.max_length > self.tokens_per_microbatch:
            raise ValueError(
                "max_length must not exceed tokens_per_microbatch: a document is never split over rows"
            )
        return self
