"""Settings of a training job, without a dependency on torch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from pydantic import Field, field_validator, model_validator

from rondo.base.settings.config import Section
from rondo.data.config import LoaderConfig
from rondo.parallel.config import LayoutConfig, MemoryConfig

CONDITION = re.compile(r"\s*([\w@/.+-]+?)\s*(<=|>=)\s*(-?[0-9.]+(?:e-?[0-9]+)?)\s*", re.IGNORECASE)
Kind = Literal["pretrain", "sft", "preference", "reward"]
OverLong = Literal["stop", "skip", "truncate"]
SFT_EPOCHS = 3.0
SFT_HELD_OUT = 0.1


class OptimConfig(MemoryConfig):
    """The optimizer and its schedule."""

    optimizer: Literal["adamw", "muon"] = Field(
        "adamw", description="muon: Muon for hidden matrices, AdamW for embeddings, head and vectors"
    )
    lr: float = Field(3e-4, gt=0, description="peak learning rate")
    warmup: int = Field(10, ge=0, description="steps of linear warm-up")
    decay: Literal["cosine", "linear", "constant", "wsd"] = Field(
        "cosine", description="learning-rate schedule after the warm-up"
    )
    lr_end: float = Field(0.1, ge=0, le=1, description="final learning rate as a share of lr")
    weight_decay: float = Field(0.1, ge=0, description="weight decay of matrices; norms and biases have none")
    betas: tuple[float, float] = Field((0.9, 0.95), description="AdamW: beta1 and beta2")
    eps: float = Field(1e-8, gt=0, description="AdamW: epsilon")
    momentum: float = Field(0.95, ge=0, lt=1, description="Muon: momentum")
    ema: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="decay of the exponential moving average of the weights, such as 0.999; 0: no average",
    )
    export: Literal["last", "average"] = Field(
        "last", description="exported weights: the last, or their exponential moving average"
    )
    clip: float = Field(1.0, ge=0, description="maximum gradient norm; 0: no clipping")
    balance: float = Field(
        1e-3,
        ge=0,
        description="update rate of the router bias that balances expert load, for models with such a bias",
    )

    until: str = Field(
        "",
        description="condition on a metric that ends the job early, such as evaluate/loss<=1.2, "
        "held_out/reward/correct>=0.9, or elapsed>=3600 for the seconds of all steps",
    )
    router_aux_loss: float | None = Field(
        None,
        ge=0,
        description="coefficient of the load-balancing loss of softmax routers; by default router_aux_loss_coef of the "
        "model's config (Mixtral, Qwen3-MoE), 0 for other models",
    )

    @field_validator("until")
    @classmethod
    def _is_a_condition(cls, text: str) -> str:
        if text and not CONDITION.fullmatch(text):
            raise ValueError("must be a metric, <= or >=, and a number, such as evaluate/loss<=1.2")
        return text

    def reached(self, metrics: Mapping[str, float]) -> bool:
        """Whether the metrics of a step meet `until`; a metric that only some steps have is not met in the others."""
        found = CONDITION.fullmatch(self.until)
        if found is None or found[1] not in metrics:
            return False
        value, limit = metrics[found[1]], float(found[3])
        return value <= limit if found[2] == "<=" else value >= limit

    def elapsed(self, before: Mapping[str, float], seconds: float) -> dict[str, float]:
        """The metric `elapsed` if `until` names it: seconds of all steps, from the metrics of the step before."""
        found = CONDITION.fullmatch(self.until)
        if found is None or found[1] != "elapsed":
            return {}
        return {"elapsed": before.get("elapsed", 0.0) + seconds}

    def neutral(self) -> set[str]:
        return super().neutral() | (set() if self.until else {"until"})

    @model_validator(mode="after")
    def _average_is_kept(self) -> OptimConfig:
        if self.export == "average" and not self.ema:
            raise ValueError(
                "export is average, but ema is 0, so there is no average: set ema, such as 0.999"
            )
        return self


class PreferenceConfig(Section):
    """Settings of `rondo train preference`: DPO and related losses."""

    loss: Literal["dpo", "ipo", "kto", "simpo"] = Field(
        "dpo", description="dpo, ipo and simpo train on pairs; kto also trains on labelled single answers"
    )
    lr: float = Field(
        1e-6,
        gt=0,
        description="peak learning rate if train.lr is not given; adapters need about ten times as much",
    )
    beta: float | None = Field(
        None,
        gt=0,
        description="strength of the reference constraint; ipo: inverse of the target margin; simpo: scale of the "
        "margin; default 0.1, simpo 2",
    )
    gamma: float = Field(1.0, ge=0, description="simpo: target margin")
    good_weight: float = Field(1.0, ge=0, description="kto: weight of desirable answers")
    bad_weight: float = Field(1.0, ge=0, description="kto: weight of undesirable answers")
    reference: Literal["batch", "before"] = Field(
        "batch",
        description="when reference log-probabilities are computed: per batch, with a copy of the initial model in "
        "memory (no copy with an adapter); or for all data before the first step",
    )
    share_prefix: bool = Field(True, description="compute the prompt of a pair once")


class RewardConfig(Section):
    """Settings of `rondo train reward`: a model that scores answers."""

    lr: float = Field(1e-5, gt=0, description="peak learning rate if train.lr is not given")
    center: float = Field(
        0.0,
        ge=0,
        description="coefficient that pulls the mean score of a pair to 0, such as 0.01",
    )
    share_prefix: bool = Field(True, description="compute the prompt of a pair once")


class EvaluateConfig(Section):
    """Evaluation during training, and by `rondo evaluate`."""

    every: int = Field(0, ge=0, description="steps between evaluations; 0: only at the end")
    data: str | list[str] = Field(
        "", description="held-out records in the format of train.data; reports loss, perplexity or accuracy"
    )
    held_out: float | None = Field(
        None,
        ge=0,
        lt=1,
        description="share of the training records that is held out, selected by hash; 0: none; by default 0.1 for "
        "sft without evaluate.data, else 0",
    )
    tasks: str | list[str] = Field("", description="JSON Lines files of multiple-choice and generation tasks")
    max_tokens: int = Field(64, gt=0, description="maximum answer length of generation tasks")

    @model_validator(mode="after")
    def _holds_out_once(self) -> EvaluateConfig:
        if self.data and self.held_out:
            raise ValueError("data and held_out exclude each other: leave held_out out, or data empty")
        return self


class AdapterConfig(Section):
    """Training of a small set of weights over a frozen base model."""

    kind: Literal["none", "lora", "tokenformer"] = Field("none", description="none: full weights")
    r: int = Field(16, gt=0, description="rank of the adapter")
    alpha: float = Field(32.0, gt=0, description="lora: the output is scaled by alpha / r")
    targets: str | list[str] = Field(
        "all-linear", description="lora: target modules as names, all-linear or a regular expression"
    )
    quantize_base: Literal["none", "nf4"] = Field(
        "none", description="lora: nf4 quantizes the frozen base to 4 bits in memory (QLoRA)"
    )
    heads: int = Field(4, gt=0, description="tokenformer: attention heads over the slots")

    @model_validator(mode="after")
    def _is_a_lora(self) -> AdapterConfig:
        if self.quantize_base != "none" and self.kind != "lora":
            raise ValueError(f"quantize_base {self.quantize_base} needs a frozen base: set kind to lora")
        return self


class MetricsConfig(Section):
    """Metric loggers besides the job's own metrics.jsonl, and the peak for MFU."""

    tensorboard: bool = Field(
        False, description="write TensorBoard event files to the job's tensorboard/ folder"
    )
    wandb: str = Field(
        "",
        description="Weights & Biases project (extra wandb); WANDB_MODE=offline logs to local files only",
    )
    wandb_name: str = Field("", description="name of the Weights & Biases run; default: the job's")
    wandb_entity: str = Field(
        "", description="user or team of the Weights & Biases run; default: the login's"
    )
    wandb_tags: list[str] = Field([], description="tags of the Weights & Biases run")
    port: int | None = Field(
        None,
        ge=0,
        le=65535,
        description="port of the Prometheus endpoint /metrics while the job runs; 0: any free port",
    )
    host: str = Field("127.0.0.1", description="address of the Prometheus endpoint")
    peak: float = Field(
        0.0,
        ge=0,
        description="peak Tflop/s of one device for MFU; 0: a GPU's data sheet value, a CPU's measured value",
    )


class SamplesConfig(Section):
    """Answers sampled during training, for the log, samples.jsonl and the report."""

    every: int | None = Field(
        None, ge=0, description="steps between samples; default: a tenth of the steps; 0: no samples"
    )
    prompts: int = Field(5, gt=0, description="prompts to sample; the first three answers are logged")
    max_tokens: int = Field(
        64, gt=0, description="maximum length of a sampled answer, in SFT and pretraining"
    )

    def due(self, step: int, steps: int) -> bool:
        """Whether answers are sampled after a step."""
        every = max(1, steps // 10) if self.every is None else self.every
        return every > 0 and (step % every == 0 or step == steps)


class TrainConfig(OptimConfig):
    """Settings of `rondo train` for all recipes."""

    name: str = Field("", description="name of the job, by which every command accepts it; default: its hash")
    model: str = Field("", description="a model's folder, or its name under RONDO_HOME/models")
    data: str | list[str] = Field(
        "",
        description="prepared shards, a .jsonl, .txt or .parquet file, or a folder of them, here or at s3://; "
        "several are mixed by their weights: web@0.7",
    )
    learner: Literal["native", "megatron"] = Field(
        "native", description="native: Rondo's layers; megatron: Megatron-Core (extra megatron)"
    )
    steps: int = Field(100, gt=0, description="optimizer steps; sft: by default those of 3 epochs")
    epochs: float | None = Field(
        None, gt=0, description="passes over the training data, instead of steps; sft: 3 by default"
    )
    tokens_per_step: int = Field(
        16384,
        gt=0,
        description="batch size in tokens, independent of the number of devices; epochs of a small data set: by "
        "default at least 32 steps an epoch of at least 8 examples",
    )
    examples_per_step: int | None = Field(
        None,
        gt=0,
        description="batch size in examples instead of tokens_per_step, by their mean length; needs epochs",
    )
    tokens_per_microbatch: int = Field(8192, gt=0, description="maximum tokens in one forward pass")
    max_length: int = Field(
        2048, gt=1, description="maximum document length in tokens; pretraining splits longer ones"
    )
    over_long: OverLong = Field(
        "stop",
        description="sft: reaction to examples of more than max_length tokens; truncate drops the end of the answer",
    )
    preview: int = Field(
        3, ge=0, description="records shown before training as the model reads them; 0: none"
    )
    seed: int = Field(0, ge=0, description="random seed of the data order")
    dtype: Literal["float32", "bfloat16"] = Field(
        "float32",
        description="type of weights, moments and gradient sums; `precision` sets the compute type",
    )
    device: str = Field(
        "auto",
        examples=["auto", "cpu", "cuda"],
        description="cpu, cuda, cuda:1, ...; auto takes a GPU if there is one",
    )
    save_every: int = Field(50, ge=0, description="steps between checkpoints; 0: only at the end")
    keep: int = Field(2, gt=0, description="latest checkpoints to retain")
    keep_best: int = Field(0, ge=0, description="best checkpoints to retain, ranked by best_by")
    best_by: str = Field(
        "loss",
        description="metric that ranks checkpoints: lowest first, or highest first with a + before the name",
    )
    save_to: str = Field(
        "",
        description="folder or s3://bucket/prefix for checkpoints; default: the job's folder",
    )
    on_nan: Literal["skip", "roll_back", "stop"] = Field(
        "skip",
        description="reaction to a non-finite loss or gradient, or a spike: skip the batch; roll back to the last "
        "checkpoint and skip the batches since; or stop",
    )
    spike: float = Field(
        0.0,
        ge=0,
        description="gradient norms above this multiple of the median of the last 64 are spikes; 0: off",
    )
    most_faults: int = Field(
        10, ge=0, description="consecutive skipped batches or roll-backs after which the job stops"
    )
    stragglers: int = Field(100, ge=0, description="steps between straggler checks; 0: off")
    loader: LoaderConfig = Field(LoaderConfig(), description="data loader")
    layout: LayoutConfig = Field(LayoutConfig(), description="parallelism")
    metrics: MetricsConfig = Field(MetricsConfig(), description="metric loggers")
    evaluate: EvaluateConfig = Field(EvaluateConfig(), description="evaluation during training")
    samples: SamplesConfig = Field(SamplesConfig(), description="answers sampled during training")
    profile: str = Field(
        "",
        description="steps to record with torch's profiler, such as 12 or 10-12, in the job's profile/ folder",
    )
    adapter: AdapterConfig = Field(
        AdapterConfig(), description="train an adapter instead of the full weights"
    )
    preference: PreferenceConfig = Field(PreferenceConfig(), description="preference training")
    reward: RewardConfig = Field(RewardConfig(), description="reward model training")

    @property
    def kept(self) -> str:
        return self.dtype

    def epochs_of(self, kind: Kind) -> float | None:
        """Epochs to train, or None if steps are counted."""
        default = SFT_EPOCHS if kind == "sft" and "steps" not in self.model_fields_set else None
        return self.epochs or default

    def held_out_of(self, kind: Kind) -> float:
        """The share of the training records to hold out."""
        if self.evaluate.held_out is not None:
            return self.evaluate.held_out
        return SFT_HELD_OUT if kind == "sft" and not self.evaluate.data else 0.0

    def of_kind(self, kind: Kind) -> TrainConfig:
        """This config with the recipe's default learning rate, if none is given."""
        own = {"preference": self.preference.lr, "reward": self.reward.lr}
        if kind not in own or "lr" in self.model_fields_set:
            return self
        return self.model_copy(update={"lr": own[kind]})

    @model_validator(mode="after")
    def _counts_steps_or_epochs(self) -> TrainConfig:
        if self.epochs is not None and "steps" in self.model_fields_set:
            raise ValueError("steps and epochs exclude each other: give one of them")
        if self.examples_per_step is not None and "tokens_per_step" in self.model_fields_set:
            raise ValueError("examples_per_step and tokens_per_step exclude each other: give one of them")
        return self

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
            raise ValueError(f"precision {self.precision} needs float32 weights: leave dtype at float32")
        return self

    @model_validator(mode="after")
    def _row_fits(self) -> TrainConfig:
        if self.max_length > self.tokens_per_microbatch:
            raise ValueError(
                "max_length must not exceed tokens_per_microbatch: a document is never split over rows"
            )
        return self
