"""An RL job from its config: find the model, step from wherever it stopped, export."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from rondo import models
from rondo.base.errors import ConfigError, RondoError
from rondo.models.store import fingerprint, resolve
from rondo.rl.config import RlConfig
from rondo.rl.loop import Grpo
from rondo.rl.tasks import task
from rondo.text.tokenizer import Tokenizer
from rondo.train.checkpoint import Keep
from rondo.train.job import Job
from rondo.train.learner import Metrics
from rondo.train.loop import OnResume, export
from rondo.train.saving import Checkpoints


@dataclass(frozen=True)
class Plan:
    config: RlConfig
    model: Path
    job: Job


def plan(config: RlConfig) -> Plan:
    if not config.model:
        raise ConfigError("which model? Give --model.", param="rl.model")
    task(config.task)
    model = resolve(config.model)
    spec = {
        "kind": "rl",
        "model": fingerprint(model),
        "config": config.model_dump(mode="json", exclude={"model", *config.neutral()}),
    }
    return Plan(config, model, Job.of(spec, model=config.model))


def run(
    plan: Plan,
    on_step: Callable[[int, Metrics], None] | None = None,
    on_resume: OnResume | None = None,
) -> Path:
    """The exported model's folder. A job that is done already is not done again."""
    if plan.job.done:
        return plan.job.export
    with plan.job.hold():
        return _run(plan, on_step, on_resume)


def _run(plan: Plan, on_step: Callable[[int, Metrics], None] | None, on_resume: OnResume | None) -> Path:
    config, job = plan.config, plan.job
    job.set_status("starting", job.status().get("step", 0), steps=config.steps)
    dtype = torch.float32 if config.precision else None  # as stored
    model = models.load(plan.model, dtype=dtype, device=config.device)
    grpo = Grpo(model, Tokenizer.load(plan.model), task(config.task), config)
    begin = _resume(grpo, job)
    job.set_status("running", begin, steps=config.steps)
    if begin and on_resume:
        on_resume(begin)
    try:
        if begin == 0:
            job.log({"step": 0, **_held_out(grpo)})
        with Checkpoints(job.checkpoints, Keep(config.keep)) as saved:
            while grpo.learner.step < config.steps:
                metrics = grpo.step()
                _record(grpo, job, saved, metrics)
                if on_step:
                    on_step(grpo.learner.step, metrics)
    except (Exception, KeyboardInterrupt) as error:
        stopped = "paused" if isinstance(error, KeyboardInterrupt) else "failed"
        reason = error.message if isinstance(error, RondoError) else repr(error)
        job.set_status(stopped, grpo.learner.step, reason=reason)  # type: ignore[arg-type]
        raise
    return export(grpo.learner, grpo.tokenizer.save, job, **_held_out(grpo))


def _held_out(grpo: Grpo) -> Metrics:
    """What the policy earns on prompts it never trains on."""
    return {f"held_out/{name}": value for name, value in grpo.evaluate().items()}


def _resume(grpo: Grpo, job: Job) -> int:
    """Prompts and samples follow from the step, so weights and optimizer are all there is to restore."""
    found = Checkpoints(job.checkpoints, Keep(grpo.config.keep)).newest()
    step = found.step if found else 0
    if found:
        grpo.learner.load(found.folder, found.step)
        grpo.push()
    job.forget_after(step or -1)  # before the first checkpoint everything is done again, step 0 too
    return step


def _record(grpo: Grpo, job: Job, saved: Checkpoints, metrics: Metrics) -> None:
    step, config = grpo.learner.step, grpo.config
    saved.check()
    job.log({"step": step, **metrics})
    if step == config.steps or (config.save_every and step % config.save_every == 0):
        saved.save(grpo.learner.states(), step, {"weight_version": grpo.engine.weight_version})
    job.set_status("running", step, steps=config.steps, reward=metrics["reward"])
