"""RL jobs: load the model, train or resume, export."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from rondo import models
from rondo.base.errors import ConfigError, NotFound
from rondo.base.telemetry.log import get_logger
from rondo.jobs.job import Job
from rondo.jobs.session import JobLog
from rondo.models import Decoder
from rondo.models.devices import device_named
from rondo.models.families import parse
from rondo.models.files.headers import read_config
from rondo.models.store import fingerprint, resolve, revision_of
from rondo.parallel.ranks.crew import Paused, RankSupervisor
from rondo.parallel.ranks.mesh import Mesh, join
from rondo.rl.config import RlConfig
from rondo.rl.loop import TAUGHT_NOTHING, Loop
from rondo.rl.record.observer import Watch
from rondo.rl.rollout.rank_checks import check_ranks
from rondo.rl.tasks.registry import find
from rondo.rl.tasks.registry import fingerprint as fingerprint_of_task
from rondo.rl.tasks.types import AnyTask
from rondo.text.tokenizer import Tokenizer
from rondo.train.checkpoints.checkpoint import Keep
from rondo.train.checkpoints.reading import read_model
from rondo.train.checkpoints.saving import Checkpoints
from rondo.train.jobs import device_of, export_last, run_job
from rondo.train.learner.learner import Learner, Metrics
from rondo.train.loop import OnResume, export
from rondo.train.metrics.sinks import telling
from rondo.train.recipes import adapter

log = get_logger(__name__)

OnStep = Callable[[int, Metrics], None]

HOW = {
    "name",
    "samples",
    "model",
    "save_every",
    "keep",
    "evaluate",
    "grader_timeout",
    "most_idle",
    "metrics",
    "rollouts",
    "alarms",
    "engine",
    "ray",
    "layout",
    "learner",
    "rollout_ranks",
}
"""Settings without influence on the trained weights, which the job's spec excludes; the model is in the spec by its
hash.
"""
BESIDE = {"critic": "model", "reward_model": "model", "distill": "teacher"}
"""Settings that contain names of other models. The spec has hashes instead, so that a different model of the same
name is a different job.
"""


@dataclass(frozen=True)
class RlJobPlan:
    config: RlConfig
    model: Path
    task: AnyTask
    job: Job


def plan(config: RlConfig, task: AnyTask | None = None, crew: RankSupervisor | None = None) -> RlJobPlan:
    """`task` is the task of the config, if it was read already. All ranks must call this."""
    crew = crew or RankSupervisor()
    if not config.model:
        raise ConfigError("which model? Give --model.", param="rl.model")
    if config.adapter.quantize_base != "none":
        raise ConfigError(
            "RL pushes whole weights to its engine, and 4-bit ones cannot be pushed: set "
            "rl.adapter.quantize_base=none, or train with `rondo train sft` or `preference`.",
            param="rl.adapter.quantize_base",
        )
    crew.doing("looking at model and task")
    found = task or find(config.task, config.grader, config.max_broken)
    model = resolve(config.model)
    shape = parse(read_config(model))
    adapter.check("sft", config.adapter, shape)
    check_ranks(config, found, shape, crew.world.size)
    if (config.engine.url or config.ray.engines) and config.adapter.kind == "tokenformer":
        raise ConfigError(
            "a Tokenformer cannot be added up with its base, and only whole weights are pushed to an engine of another "
            "process: leave rl.engine.url and rl.ray.engines out, or train a lora.",
            param="rl.adapter.kind",
        )
    spec = {"kind": "rl", "model": fingerprint(model), "config": _told(config)}
    if (made_of := fingerprint_of_task(found)) is not None:
        spec["task"] = made_of
    base, revision = str(model.absolute()), revision_of(model)
    origin = {"model": config.model, "base": base, "revision": revision}
    job = Job.of(spec, writes=crew.first, name=config.name, **origin)
    return RlJobPlan(config, model, found, job)


def _check_device(config: RlConfig) -> None:
    """Check `device_bytes` against the learner's device. With Ray the learner runs on another machine than `plan`."""
    if config.device_bytes and device_named(config.device).type == "cpu":
        raise ConfigError(
            f"device_bytes is for a GPU, and device {config.device} is the CPU here: leave rl.device_bytes at 0.",
            param="rl.device_bytes",
        )


def _told(config: RlConfig) -> dict[str, Any]:
    told = config.model_dump(mode="json", exclude={*HOW, *config.neutral()})
    for section, name in BESIDE.items():
        if model := told[section][name]:
            told[section][name] = fingerprint(_found(model, f"rl.{section}.{name}"))
    return told


def _found(model: str, param: str) -> Path:
    try:
        return resolve(model)
    except NotFound as error:
        raise NotFound(f"{param}: {error.message}", param=param, code=error.code) from None


def run(
    plan: RlJobPlan,
    on_step: OnStep | None = None,
    on_resume: OnResume | None = None,
    crew: RankSupervisor | None = None,
) -> Path:
    """Run or resume the job, and return the folder of its result. A finished job is not repeated. All ranks must call
    this. A first Ctrl-C or a SIGTERM raises Paused after the step, with a saved checkpoint.
    """
    crew = crew or RankSupervisor()

    def work(log: JobLog) -> Path:
        return _train(plan, crew, log, on_step, on_resume)

    return run_job(plan.job, plan.config.steps, crew, plan.model, work)


def _train(
    plan: RlJobPlan,
    crew: RankSupervisor,
    written: JobLog,
    on_step: OnStep | None,
    on_resume: OnResume | None,
) -> Path:
    config, job = plan.config, plan.job
    _check_device(config)
    loop, mesh = _loop(plan, crew)
    with (
        contextlib.closing(loop),
        telling(config.metrics, job, loop.learner.device, on_step, crew.world.rank, section="rl") as tell,
        crew.stepping(),  # ends after the last save
        Checkpoints(job.checkpoints, Keep(config.keep), mesh) as saved,
    ):
        watch = Watch(job, config) if crew.first else None
        if watch is not None:
            loop.observers.append(watch)
        run = _Run(loop, job, saved, crew, watch)
        step = run.resume()
        job.set_status("running", step, steps=config.steps)
        if step:
            written.line(f"resumed from step {step}")
            if on_resume:
                on_resume(step)
        run.heed()
        if step == 0:
            job.log({"step": 0, **run.held_out()})
        run.before = job.last_metrics() if step else {}
        done = run.reached(run.before)
        while loop.steps_done < config.steps and not done:
            metrics = run.step()
            written.step(loop.steps_done, config.steps, metrics)
            tell(loop.steps_done, metrics)
            done = run.reached(metrics)
            if not done:
                run.heed()
        loop.check_judged()
        held_out = run.held_out()
        if mesh is not None:
            run.save_last()
        crew.doing(f"step {loop.steps_done}: finishing")
    if not crew.first:
        return job.result
    if loop.idle == config.steps:
        log.warning("no step has changed the weights: %s.", TAUGHT_NOTHING)
    if mesh is not None:
        return _leave_gathered(plan, loop, held_out)
    return _leave(plan, loop.learner, loop.tokenizer, loop.steps_done, held_out)


def _loop(plan: RlJobPlan, crew: RankSupervisor) -> tuple[Loop, Mesh | None]:
    config, alone = _with_folder(plan.config, plan.job), crew.world.size == 1
    # The seed of all global random draws, whose state is part of a checkpoint.
    torch.manual_seed(config.seed if alone else (config.seed << 20) + crew.world.rank)
    crew.doing("loading the model")
    device = device_of(config.device, crew.world)
    model = _model(plan, device if alone else torch.device("cpu"), divided=not alone)
    crew.doing("dividing the model")
    mesh = None if alone else join(config.layout, crew.world, model.config, device)
    tokenizer = Tokenizer.load(plan.model)
    return Loop(model, tokenizer, plan.task, config, mesh, crew.doing), mesh


def _with_folder(config: RlConfig, job: Job) -> RlConfig:
    """The config with a folder for pushed weights, or a folder in the store, that only this job uses."""
    place = Path(config.engine.folder) / job.short if config.engine.folder else job.path / "weights"
    own = {"folder": str(place)}
    if config.engine.store:
        own["transport"] = f"{config.engine.store.rstrip('/')}/{job.short}"
    return config.model_copy(update={"engine": config.engine.model_copy(update=own)})


def _model(plan: RlJobPlan, device: torch.device, *, divided: bool = False) -> Decoder:
    config = plan.config
    if divided and config.precision:
        model = read_model(plan.model, torch.float32, device, divided=True)
    else:
        dtype = torch.float32 if config.precision else None  # as stored
        model = models.load(plan.model, dtype=dtype, device=device)
    adapter.put_on(model, config.adapter, seed=config.seed, base=str(plan.model.absolute()))
    return model


@dataclass
class _Run:
    loop: Loop
    job: Job
    saved: Checkpoints
    crew: RankSupervisor
    watch: Watch | None
    """The observer, on the first rank."""
    last_saved: int = field(default=-1)
    before: Metrics = field(default_factory=dict)
    """Metrics of the step before."""

    def resume(self) -> int:
        """Resume from the newest checkpoint, if there is one, and return its step."""
        found = self.saved.newest()
        if found is not None:
            self.loop.restore(found.folder, found.step, found.state())
            self.last_saved = found.step
        step = self.loop.steps_done
        self.job.forget_after(step or -1)  # without a checkpoint step 0 is repeated too
        if self.watch is not None:
            self.watch.forget_after(step)
        return step

    def reached(self, metrics: Metrics) -> bool:
        """Whether `until` ends the job after a step with these metrics; the first rank decides."""
        return bool(self.loop.config.until) and self.crew.first_says(self.loop.config.reached(metrics))

    def save_last(self) -> None:
        """Save the final weights, if the last step did not."""
        if self.last_saved != self.loop.steps_done:
            self._save()
        self.saved.wait()

    def step(self) -> Metrics:
        loop, config = self.loop, self.loop.config
        metrics = loop.step()
        metrics |= config.elapsed(self.before, metrics.get("seconds", 0.0))
        self.before, step = metrics, loop.steps_done
        if config.evaluate.every and step % config.evaluate.every == 0 and step < config.steps:
            metrics |= self.held_out()
        self.saved.check()
        self.job.log({"step": step, **metrics})
        if step == config.steps or (config.save_every and step % config.save_every == 0):
            self._save()
        self.job.set_status("running", step, steps=config.steps, reward=metrics.get("reward", 0.0))
        return metrics

    def heed(self) -> None:
        """Pause the run if the process has received a stop signal: save a checkpoint and raise Paused."""
        step, steps = self.loop.steps_done, self.loop.config.steps
        self.crew.doing(f"step {step}: its end")
        if not self.crew.any_asked_to_stop() or step >= steps:
            return
        if step and self.last_saved != step:
            self._save()
        self.saved.wait()
        raise Paused(step, steps, interrupted=self.crew.interrupted)

    def held_out(self) -> Metrics:
        """Metrics of the evaluation on held-out prompts, some of whose answers are stored as samples."""
        found = self.loop.evaluate(keep=None if self.watch is None else self.watch.keep_held_out)
        return {f"held_out/{name}": value for name, value in found.items()}

    def _save(self) -> None:
        self.last_saved = self.loop.steps_done
        self.crew.doing(f"step {self.last_saved}: saving")
        self.saved.save(self.loop.states(), self.last_saved, self.loop.facts())


def _leave(plan: RlJobPlan, learner: Learner, tokenizer: Tokenizer, step: int, held_out: Metrics) -> Path:
    """Export the result: the merged model and the adapter, or only the adapter if it cannot be merged."""
    settings, job = plan.config.adapter, plan.job
    if settings.kind != "none":
        with learner.as_left():
            whole = adapter.leave(learner.model, settings, job.adapter)
        if not whole:
            return job.succeed(step, **held_out)
    export(learner, tokenizer.save, job, **held_out)
    return job.succeed(step, **held_out)


def _leave_gathered(plan: RlJobPlan, loop: Loop, held_out: Metrics) -> Path:
    """Export from the last checkpoint, which holds the parts of all ranks. An adapter is small, and is loaded onto its
    base.
    """
    config, job = plan.config, plan.job
    last = f"{job.checkpoints}/step_{loop.steps_done}"
    if config.adapter.kind == "none":
        export_last(loop.learner, last, loop.tokenizer.save, job, **held_out)
        return job.succeed(loop.steps_done, **held_out)
    whole = Learner(_model(plan, torch.device("cpu")), config.model_copy(update={"offload": "none"}))
    whole.load(last, loop.learner.step)
    return _leave(plan, whole, loop.tokenizer, loop.steps_done, held_out)
