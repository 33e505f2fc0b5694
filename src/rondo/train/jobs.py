"""A training job from its config: resolve model and data, train or resume, export."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from rondo.base.errors import ConfigError, RondoError
from rondo.base.storage.files import atomic_dir
from rondo.data.batching.prefetch import Prefetch
from rondo.jobs.job import Job, State
from rondo.models import Decoder, ModelConfig
from rondo.models.devices import device_named
from rondo.models.families import parse
from rondo.models.files.headers import read_config
from rondo.models.fresh import make_scorer
from rondo.models.store import fingerprint, resolve, revision_of
from rondo.parallel.layout.degrees import degrees
from rondo.parallel.ranks.crew import Paused, RankSupervisor
from rondo.parallel.ranks.mesh import join
from rondo.parallel.ranks.world import World
from rondo.text.tokenizer import Tokenizer
from rondo.train.checkpoints.checkpoint import try_place
from rondo.train.checkpoints.export import export_checkpoint
from rondo.train.checkpoints.reading import read_model
from rondo.train.checkpoints.states import AVERAGE, MODEL
from rondo.train.config import Kind, TrainConfig
from rondo.train.evaluation.evaluate import Evaluation
from rondo.train.learner import factory
from rondo.train.learner.factory import learner_of
from rondo.train.learner.learner import Learner
from rondo.train.loop import OnResume, OnStep, export, train
from rondo.train.metrics.sinks import telling
from rondo.train.recipes import adapter, data
from rondo.train.recipes.registry import Recipe, RecipeInputs, recipe

HOW = {
    *("model", "data", "learner", "loader", "layout", "evaluate", "metrics", "profile"),
    *("save_every", "keep", "keep_best", "best_by", "save_to"),
    *("on_nan", "spike", "most_faults", "stragglers"),
}
"""Settings that do not affect the training result, and names whose targets enter the spec as hashes."""


@dataclass(frozen=True)
class TrainJobPlan:
    kind: Kind
    config: TrainConfig
    model: Path
    sources: list[data.TrainingSource]
    held_out: list[data.TrainingSource]
    job: Job


def plan(kind: Kind, config: TrainConfig, crew: RankSupervisor | None = None) -> TrainJobPlan:
    """Validates the config as far as possible before any work; equal plans are the same job, on any number of ranks."""
    for name in ("model", "data"):
        if not getattr(config, name):
            raise ConfigError(f"which {name}? Give --{name}.", param=f"train.{name}")
    crew = crew or RankSupervisor()
    crew.doing("looking at model and data")
    config = config.of_kind(kind)
    if config.save_to:
        try_place(config.save_to, crew.world.rank)
    model = resolve(config.model)
    shape = parse(read_config(model))
    adapter.check(kind, config.adapter, shape)
    _check_ranks(kind, config, shape, crew.world.size)
    sources = data.open_sources(kind, config)
    held_out = data.open_sources(kind, config, held_out=True)
    spec = {
        "kind": kind,
        "model": fingerprint(model),
        "dataset": data.digest(sources),
        "config": config.model_dump(mode="json", exclude={*HOW, *config.neutral()}),
    }
    origin = {
        "model": config.model,
        "revision": revision_of(model),
        "data": _named(config.data),
        "save_to": config.save_to,
    }
    job = Job.of(spec, writes=crew.first, **origin)
    return TrainJobPlan(kind, config, model, sources, held_out, job)


def _check_ranks(kind: Kind, config: TrainConfig, model: ModelConfig, ranks: int) -> None:
    factory.check(kind, config, model, degrees(config.layout, ranks, model))
    if ranks > 1 and kind == "preference" and config.preference.reference == "before":
        raise ConfigError(
            "one process alone computes the reference before the first step: leave it at batch, or train on one",
            param="train.preference.reference",
        )


def run(
    plan: TrainJobPlan,
    on_step: OnStep | None = None,
    on_resume: OnResume | None = None,
    crew: RankSupervisor | None = None,
) -> Path:
    """Runs the job, and returns the folder of its result. A finished job is not run again. All ranks must call this."""
    crew, job = crew or RankSupervisor(), plan.job
    crew.doing("meeting over the job")
    if crew.first_says(job.done):
        return job.result
    with job.hold():
        job.set_status("starting", job.step, steps=plan.config.steps)
        crew.on_hang(job.path / "hang", partial(_failed, job, plan.config.steps))
        try:
            return _run(plan, crew, on_step, on_resume)
        except Paused as pause:
            job.end("paused", job.step, steps=plan.config.steps, reason=str(pause))
            raise
        except (Exception, KeyboardInterrupt) as error:
            why = crew.explained(error)
            reason = why.message if isinstance(why, RondoError) else repr(why)
            state: State = "paused" if isinstance(why, KeyboardInterrupt) else "failed"
            job.end(state, job.step, steps=plan.config.steps, reason=reason)
            raise why from error


def _failed(job: Job, steps: int, reason: str) -> None:
    job.set_status("failed", job.step, steps=steps, reason=reason)


def _run(
    plan: TrainJobPlan, crew: RankSupervisor, on_step: OnStep | None, on_resume: OnResume | None
) -> Path:
    config, job = plan.config, plan.job
    tokenizer = Tokenizer.load(plan.model)
    device = device_of(config.device, crew.world)
    learner, made, evaluation = _ready(plan, crew, tokenizer, device)
    with (
        Prefetch(made.batches, config.loader.prefetch) as fetched,
        telling(config.metrics, job, device, on_step, crew.world.rank, config.profile) as tell,
    ):
        train(learner, fetched, config, job, tell, on_resume, made.objective, evaluation, crew)
    if not job.writes:
        return job.result
    leave = _leave if learner.mesh is None else _leave_gathered
    return leave(plan, learner, tokenizer)


def _ready(
    plan: TrainJobPlan, crew: RankSupervisor, tokenizer: Tokenizer, device: torch.device
) -> tuple[Learner, Recipe, Evaluation | None]:
    """Builds learner, recipe and evaluation. It retains no reference to the model as loaded: a learner may use another
    form of it.
    """
    config = plan.config
    crew.doing("loading the model")
    alone = crew.world.size == 1
    model = _model(plan, device if alone else torch.device("cpu"), divided=not alone)
    torch.manual_seed((config.seed << 20) + crew.world.rank)
    crew.doing("dividing the model")
    mesh = None if alone else join(config.layout, crew.world, model.config, device)
    learner = learner_of(config)(model, config, mesh)
    crew.doing("reading records")
    work = RecipeInputs(config, plan.model, tokenizer, learner, plan.job.path)
    made = recipe(plan.kind, work, plan.sources, plan.held_out)
    divided = mesh is not None or config.learner == "megatron"
    budget = config.tokens_per_microbatch
    evaluation = Evaluation.of(config.evaluate, tokenizer, budget, made.held_out, divided=divided)
    return learner, made, evaluation


def _model(plan: TrainJobPlan, device: torch.device, *, divided: bool = False) -> Decoder:
    """The initial model of training."""
    config = plan.config
    # A reward model's new head is not rounded, and Megatron-Core's weights are converted from whole ones.
    divided = divided and plan.kind != "reward" and config.learner == "native"
    model = read_model(plan.model, getattr(torch, config.dtype), device, divided=divided)
    if plan.kind == "reward" and not model.config.scores:
        make_scorer(model, config.seed)
    adapter.put_on(model, config.adapter, seed=config.seed, base=str(plan.model.absolute()))
    return model


def _leave(plan: TrainJobPlan, learner: Learner, tokenizer: Tokenizer) -> Path:
    config, job = plan.config, plan.job
    if config.adapter.kind != "none":
        with learner.as_left():
            whole = adapter.leave(learner.model, config.adapter, job.adapter)
        if not whole:
            return job.succeed(learner.step)
    return export(learner, tokenizer.save, job)


def _leave_gathered(plan: TrainJobPlan, learner: Learner, tokenizer: Tokenizer) -> Path:
    """Exports from the last checkpoint, which holds the parts of all ranks: the first rank needs memory for only one
    tensor at a time. An adapter is small, and is loaded onto its base.
    """
    config, job = plan.config, plan.job
    last = f"{job.checkpoints}/step_{learner.step}"
    if config.adapter.kind == "none":
        averaged = learner.ema is not None and config.export != "last"
        with atomic_dir(job.export, replace=True) as folder:
            export_checkpoint(learner.model.config, last, folder, AVERAGE if averaged else MODEL)
            tokenizer.save(folder)
        return job.succeed(learner.step)
    whole = Learner(_model(plan, torch.device("cpu")), config.model_copy(update={"offload": "none"}))
    whole.load(last, learner.step)
    return _leave(plan, whole, tokenizer)


def device_of(name: str, world: World) -> torch.device:
    """Device of this rank; `cuda` is a different GPU on each rank of a machine."""
    device = device_named(name)
    if device.type != "cuda" or device.index is not None or world.size == 1:
        return device
    device = torch.device("cuda", world.local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def _named(data: str | list[str]) -> str:
    return data if isinstance(data, str) else ", ".join(data)
