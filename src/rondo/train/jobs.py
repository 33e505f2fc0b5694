"""A training job from its config: find model and data, train from wherever it stopped, export."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from rondo import models
from rondo.base.errors import ConfigError
from rondo.data.prefetch import Prefetch
from rondo.models.store import fingerprint, resolve
from rondo.text.tokenizer import Tokenizer
from rondo.train import data
from rondo.train.config import TrainConfig
from rondo.train.data import Kind
from rondo.train.job import Job
from rondo.train.learner import Learner
from rondo.train.loop import OnResume, OnStep, export, train


@dataclass(frozen=True)
class Plan:
    kind: Kind
    config: TrainConfig
    model: Path
    sources: list[data.Source]
    job: Job


def plan(kind: Kind, config: TrainConfig) -> Plan:
    """Checks what can be checked before any work; the same plan is the same job."""
    for name in ("model", "data"):
        if not getattr(config, name):
            raise ConfigError(f"which {name}? Give --{name}.", param=f"train.{name}")
    model = resolve(config.model)
    sources = data.open_sources(kind, config)
    spec = {
        "kind": kind,
        "model": fingerprint(model),
        "dataset": data.digest(sources),
        "config": config.model_dump(mode="json", exclude={"model", "data", "loader"}),
    }
    return Plan(kind, config, model, sources, Job.of(spec, model=config.model, data=_named(config.data)))


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
        batches = data.batches(plan.kind, plan.sources, tokenizer, config)
        with Prefetch(batches, config.loader.prefetch) as fetched:
            train(learner, fetched, config, job, on_step, on_resume)
        return export(learner, tokenizer.save, job)


def _named(data: str | list[str]) -> str:
    return data if isinstance(data, str) else ", ".join(data)
