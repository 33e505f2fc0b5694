"""What a training job is told: the words of its config, and nothing of torch."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, field_validator, model_validator

from rondo.base.config import Section
from rondo.data.config import LoaderConfig
from rondo.parallel.config import LayoutConfig, MemoryConfig

Kind = Literal["pretrain", "sft", "preference", "reward"]


class OptimConfig(MemoryConfig):
    """The optimizer and its schedule."""

    optimizer: Literal["adamw", "muon"] = Field(
        "adamw", description="muon is for hidden matrices, beside AdamW for embeddings, head and vectors"
    )
    lr: float = Field(3e-4, gt=0, description="peak learning rate")
    warmup: int = Field(10, ge=0, description="steps of linear warm-up")
    decay: Literal["cosine", "linear", "constant", "wsd"] = Field(
        "cosine", description="what follows the warm-up"
    )
    lr_end: float = Field(0.1, ge=0, le=1, description="learning rate at the end, as a share of lr")
    weight_decay: float = Field(0.1, ge=0, description="for matrices; norms and biases are not decayed")
    betas: tuple[float, float] = Field((0.9, 0.95), description="AdamW's averaging factors")
    eps: float = Field(1e-8, gt=0, description="AdamW's epsilon")
    momentum: float = Field(0.95, ge=0, lt=1, description="Muon's")
    ema: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="how much of an average of the weights a step keeps, 0.999 say; 0 keeps no average",
    )
    export: Literal["last", "average"] = Field(
        "last", description="what the job leaves: the last weights, or the average of them that ema keeps"
    )
    clip: float = Field(1.0, ge=0, description="largest gradient norm; 0 does not clip")
    balance: float = Field(
        1e-3,
        ge=0,
        description="what a step corrects the routers of experts by, where a model has corrections",
    )

    router_aux_loss: float | None = Field(
        None,
        ge=0,
        description="coefficient of the load-balancing loss of softmax routers; by default router_aux_loss_coef of the "
        "model's config (Mixtral, Qwen3-MoE), 0 for other models",
    )

    @model_validator(mode="after")
    def _average_is_kept(self) -> OptimConfig:
        if self.export == "average" and not self.ema:
            raise ValueError("export is average, but ema is 0, so that none is kept: set ema, 0.999 say")
        return self


class PreferenceConfig(Section):
    """`rondo train preference`: DPO and its kin."""

    loss: Literal["dpo", "ipo", "kto", "simpo"] = Field(
        "dpo", description="dpo, ipo and simpo learn from pairs, kto from answers with a label too"
    )
    lr: float = Field(
        1e-6,
        gt=0,
        description="peak learning rate where train.lr is not given; adapters want some ten times as much",
    )
    beta: float | None = Field(
        None,
        gt=0,
        description="how little the policy may leave the reference, ipo: what margin it seeks (a large one for a small "
        "beta), simpo: how much a margin counts; 0.1 by default, simpo's 2",
    )
    gamma: float = Field(1.0, ge=0, description="simpo: by how much the better answer has to win")
    good_weight: float = Field(1.0, ge=0, description="kto: what a good answer counts")
    bad_weight: float = Field(1.0, ge=0, description="kto: what a bad answer counts")
    reference: Literal["batch", "before"] = Field(
        "batch",
        description="when the reference's log-probabilities are computed: batch by batch, which keeps the model as it "
        "was in memory (not with an adapter); or all of them before the first step",
    )
    share_prefix: bool = Field(True, description="compute a pair's prompt once")


class RewardConfig(Section):
    """`rondo train reward`: a model that scores answers."""

    lr: float = Field(1e-5, gt=0, description="peak learning rate where train.lr is not given")
    center: float = Field(
        0.0,
        ge=0,
        description="how much a pair's scores are drawn to 0 together; 0.01 keeps their mean near it",
    )
    share_prefix: bool = Field(True, description="compute a pair's prompt once")


class EvaluateConfig(Section):
    """What is measured of a model that is being trained, and by `rondo evaluate`."""

    every: int = Field(0, ge=0, description="steps between evaluations; 0 evaluates at the end alone")
    data: str | list[str] = Field(
        "", description="held-out records, like those of train.data: their loss, perplexity or accuracy"
    )
    tasks: str | list[str] = Field(
        "", description="JSON lines of multiple-choice and generation tasks, a file or several"
    )
    max_tokens: int = Field(64, gt=0, description="longest answer to a generation task")


class AdapterConfig(Section):
    """Training a small set of weights over a base that stays as it is."""

    kind: Literal["none", "lora", "tokenformer"] = Field("none", description="none trains the model itself")
    r: int = Field(16, gt=0, description="the adapter's rank")
    alpha: float = Field(32.0, gt=0, description="lora: its output is scaled by alpha / r")
    targets: str | list[str] = Field(
        "all-linear", description="lora: modules it covers: their names, all-linear or a regular expression"
    )
    heads: int = Field(4, gt=0, description="tokenformer: heads of its attention over slots")


class MetricsConfig(Section):
    """Where a job's metrics go beside its own metrics.jsonl, and what mfu is a share of."""

    tensorboard: bool = Field(
        False, description="write TensorBoard's event files, into the job's tensorboard/"
    )
    wandb: str = Field(
        "",
        description="a project of Weights & Biases to log to (extra wandb); WANDB_MODE=offline keeps it here",
    )
    port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="where Prometheus finds /metrics while the job runs; 0 is any free one",
    )
    host: str = Field("127.0.0.1", description="the address that port is opened at")
    peak: float = Field(
        0.0,
        ge=0,
        description="Tflop/s that one device could do; 0 takes a card's by its name, and measures a CPU's",
    )


class TrainConfig(OptimConfig):
    """`rondo train`, whatever the recipe."""

    model: str = Field("", description="a model's folder, or its name under RONDO_HOME/models")
    data: str | list[str] = Field(
        "",
        description="prepared shards, a .jsonl, .txt or .parquet file, or a folder of them, here or at s3://; "
        "several are mixed by their weights: web@0.7",
    )
    learner: Literal["native", "megatron"] = Field(
        "native", description="whose layers train: megatron is Megatron-Core (extra megatron)"
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
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="the type of weights, moments and sums of gradients; precision says what computes",
    )
    device: str = Field("auto", description="cpu, cuda, cuda:1, ...; auto takes a GPU if there is one")
    save_every: int = Field(50, ge=0, description="steps between checkpoints; 0 saves at the end alone")
    keep: int = Field(2, gt=0, description="how many checkpoints stay: the last ones")
    keep_best: int = Field(0, ge=0, description="how many stay beside them: the best by best_by")
    best_by: str = Field(
        "loss",
        description="the metric of its own step by which a checkpoint is good; the lowest is the best, or with a + "
        "before the name the highest",
    )
    save_to: str = Field(
        "",
        description="a folder or s3://bucket/prefix that takes the checkpoints, in place of the job's folder",
    )
    on_nan: Literal["skip", "roll_back", "stop"] = Field(
        "skip",
        description="after a loss or gradient that is not finite, or a spike: leave the batch out, go back to the last "
        "checkpoint and leave out what was learned since, or stop",
    )
    spike: float = Field(
        0.0,
        ge=0,
        description="a gradient's norm above so many times the median of the last 64 is a spike; 0: none is",
    )
    most_faults: int = Field(
        10, ge=0, description="batches left out in a row, or times gone back, after which the job stops"
    )
    stragglers: int = Field(
        100, ge=0, description="steps between two looks at which rank is slower than the others; 0: none"
    )
    loader: LoaderConfig = Field(LoaderConfig(), description="reading the data")
    layout: LayoutConfig = Field(LayoutConfig(), description="how the ranks share the work")
    metrics: MetricsConfig = Field(MetricsConfig(), description="where metrics go")
    evaluate: EvaluateConfig = Field(EvaluateConfig(), description="measuring the model on the way")
    profile: str = Field(
        "",
        description="steps to look into with torch's profiler, such as 12 or 10-12: into the job's profile/",
    )
    adapter: AdapterConfig = Field(AdapterConfig(), description="training an adapter in the model's place")
    preference: PreferenceConfig = Field(PreferenceConfig(), description="preference training")
    reward: RewardConfig = Field(RewardConfig(), description="training a reward model")

    @property
    def kept(self) -> str:
        return self.dtype

    def of_kind(self, kind: Kind) -> TrainConfig:
        """With the learning rate that the recipe has where none was given."""
        own = {"preference": self.preference.lr, "reward": self.reward.lr}
        if kind not in own or "lr" in self.model_fields_set:
            return self
        return self.model_copy(update={"lr": own[kind]})

    @field_validator("profile")
    @classmethod
    def _is_a_span(cls, steps: str) -> str:
        found = re.fullmatch(r"([1-9][0-9]*)(?:-([1-9][0-9]*))?", steps)
        if steps and (found is None or int(found[1]) > int(found[2] or found[1])):
            raise ValueError("must be a step such as 12, or the first and the last of several, 10-12")
        return steps

    @model_validator(mode="after")
    def _computes_as_kept(self) -> TrainConfig:
        if self.dtype == "bfloat16" and self.precision in ("float32", "float16"):
            raise ValueError(
                f"precision {self.precision} needs weights that are kept in float32: leave dtype at float32"
            )
        return self

    @model_validator(mode="after")
    def _row_fits(self) -> TrainConfig:
        if self.max_length > self.tokens_per_microbatch:
            raise ValueError(
                "max_length must not exceed tokens_per_microbatch: a document is never split over rows"
            )
        return self
