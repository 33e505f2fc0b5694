"""The training loop of pretraining and SFT: batches in, steps, metrics, checkpoints; it can be killed anywhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from rondo import models
from rondo.base.errors import RondoError
from rondo.base.files import atomic_dir
from rondo.data.loader import Batch
from rondo.data.sampler import Position
from rondo.train import checkpoint
from rondo.train.config import TrainConfig
from rondo.train.job import Job
from rondo.train.learner import Learner, Metrics
from rondo.train.losses import cross_entropy
from rondo.train.schedule import learning_rate

Batches = Callable[[Position], Batch]
OnStep = Callable[[int, Metrics], None]
OnResume = Callable[[int], None]
"""Told, before the first step, the step of the checkpoint that a job goes on from."""


class Stop(Exception):
    """Raised by `on_step` to end training early, as if this had been the last step."""


def train(
    learner: Learner,
    batches: Batches,
    config: TrainConfig,
    job: Job | None = None,
    on_step: OnStep | None = None,
    on_resume: OnResume | None = None,
) -> None:
    """Steps `learner` until `config.steps`, from the job's last checkpoint if it has one."""
    position = _resume(learner, job) if job else Position()
    if job:
        job.set_status("running", learner.step, steps=config.steps)
    if learner.step and on_resume:
        on_resume(learner.step)
    try:
        while learner.step < config.steps:
            position, metrics = _step(learner, batches, position, config)
            if job:
                _record(job, learner, position, config, metrics)
            if on_step:
                on_step(learner.step, metrics)
    except Stop:
        return
    except (Exception, KeyboardInterrupt) as error:
        if job:
            stopped = "paused" if isinstance(error, KeyboardInterrupt) else "failed"
            reason = error.message if isinstance(error, RondoError) else repr(error)
            job.set_status(stopped, learner.step, reason=reason)  # type: ignore[arg-type]
        raise


def _step(
    learner: Learner, batches: Batches, position: Position, config: TrainConfig
) -> tuple[Position, Metrics]:
    begin = time.perf_counter()
    batch = batches(position)
    loaded = time.perf_counter()
    metrics = learner.forward_backward(batch.rows, cross_entropy, valid=batch.valid)
    lr = learning_rate(
        learner.step,
        lr=config.lr,
        warmup=config.warmup,
        steps=config.steps,
        decay=config.decay,
        lr_end=config.lr_end,
    )
    metrics |= learner.optim_step(lr)
    seconds = time.perf_counter() - begin
    tokens = sum(len(row.tokens) for row in batch.rows)
    metrics |= {
        "seconds": seconds,
        "tokens_per_second": tokens / seconds,
        "loader_share": (loaded - begin) / seconds,
        "unfilled": batch.unfilled,
        "epochs": batch.epochs,
    }
    return batch.position, metrics


def _resume(learner: Learner, job: Job) -> Position:
    found = checkpoint.latest(job.path)
    if found is None:
        job.forget_after(0)
        return Position()
    learner.load(found.path, found.step)
    job.forget_after(found.step)
    return Position.of(found.state()["position"])


def _record(job: Job, learner: Learner, position: Position, config: TrainConfig, metrics: Metrics) -> None:
    step = learner.step
    job.log({"step": step, **metrics})
    last = step == config.steps
    if last or (config.save_every and step % config.save_every == 0):
        checkpoint.save(job.path, step, learner.save, {"position": asdict(position)}, config.keep)
    job.set_status("running", step, steps=config.steps, loss=metrics["loss"])


def export(learner: Learner, tokenizer_save: Callable[[Path], None], job: Job, **facts: float) -> Path:
    """Writes what serving loads, weights and tokenizer, and marks the job as done. A process that was killed between
    the two leaves an export that is written again."""
    needed = sum(parameter.nbytes for parameter in learner.model.parameters())
    with atomic_dir(job.export, replace=True, needed=needed) as folder:
        models.save_into(learner.model, folder)
        tokenizer_save(folder)
    job.set_status("succeeded", learner.step, model=str(job.export), **facts)
    return job.export
