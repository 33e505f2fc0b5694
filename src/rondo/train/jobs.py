"""A training job from its config: find model and data, train from wherever it stopped, export."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from rondo import models
from rondo.base.errors import ConfigError
from rondo.base.paths import path_of
from rondo.data.sources import Record, dataset_hash, read_jsonl
from rondo.models.store import fingerprint, resolve
from rondo.text.tokenizer import Tokenizer
from rondo.train import pretrain, sft
from rondo.train.config import TrainConfig
from rondo.train.job import Job
from rondo.train.learner import Learner
from rondo.train.loop import Batches, OnResume, OnStep, export, train

Kind = Literal["pretrain", "sft"]


@dataclass(frozen=True)
class Plan:
    kind: Kind
    config: TrainConfig
    model: Path
    records: list[Record]
    job: Job


def plan(kind: Kind, config: TrainConfig) -> Plan:
    """Checks what can be checked before any work; the same plan is the same job."""
    for name in ("model", "data"):
        if not getattr(config, name):
            raise ConfigError(f"which {name}? Give --{name}.", param=f"train.{name}")
    model = resolve(config.model)
    records = read_jsonl(path_of(config.data, "train.data"))
    spec = {
        "kind": kind,
        "model": fingerprint(model),
        "dataset": dataset_hash(records),
        "config": config.model_dump(mode="json", exclude={"model", "data"}),
    }
    return Plan(kind, config, model, records, Job.of(spec, model=config.model, data=config.data))


def run(plan: Plan, on_step: OnStep | None = None, on_resume: OnResume | None = None) -> Path:
    """The exported model's folder. A job that is done already is not done again."""
    config, job = plan.config, plan.job
    if job.done:
        return job.export
    with job.hold():
        job.set_status("starting", job.status().get("step", 0), steps=config.steps)
        tokenizer = Tokenizer.load(plan.model)
        model = models.load(plan.model, dtype=getattr(torch, config.dtype), device=config.device)
        learner = Learner(model, config)
        train(learner, _batches(plan, tokenizer), config, job, on_step, on_resume)
        return export(learner, tokenizer.save, job)


def _batches(plan: Plan, tokenizer: Tokenizer) -> Batches:
    if plan.kind == "pretrain":
        return pretrain.batches(pretrain.documents(tokenizer, plan.records), plan.config)
    return sft.batches(sft.examples(tokenizer, plan.records, plan.config.max_length), plan.config)
