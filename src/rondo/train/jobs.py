"""A training job from its config: resolve model and data, train or resume, export."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from rondo.base.errors import ConfigError, RondoError, Unavailable
from rondo.base.storage.files import atomic_dir, write_json
from rondo.data.batching.prefetch import Prefetch
from rondo.jobs.job import Job, State
from rondo.jobs.session import JobLog, working
from rondo.jobs.summary import LINEAGE, lineage_of
from rondo.models import Decoder, ModelConfig
from rondo.models.devices import device_named
from rondo.models.families import parse
from rondo.models.files.headers import read_config
from rondo.models.fresh import make_scorer
from rondo.models.quantized.quantize.making import load_nf4
from rondo.models.store import fingerprint, resolve, revision_of
from rondo.parallel.layout.degrees import degrees
from rondo.parallel.ranks.crew import Paused, RankSupervisor, StoppedEarly
from rondo.parallel.ranks.mesh import join
from rondo.parallel.ranks.world import World
from rondo.text.tokenizer import Tokenizer
from rondo.train.checkpoints.checkpoint import try_place
from rondo.train.checkpoints.export import export_checkpoint
from rondo.train.checkpoints.reading import read_model
from rondo.train.checkpoints.states import AVERAGE, MODEL
from rondo.train.config import Kind, TrainConfig
from rondo.train.evaluation.evaluate import Evaluation
from rondo.train.evaluation.samples import AnswerSampler
from rondo.train.learner import factory
from rondo.train.learner.factory import learner_of
from rondo.train.learner.learner import Learner, Metrics
from rondo.train.loop import Evaluate, OnResume, OnStep, export, train
from rondo.train.metrics.sinks import telling
from rondo.train.recipes import adapter, data
from rondo.train.recipes.answers import TokenizedAnswers
from rondo.train.recipes.defaults import PlannedConfig, planned
from rondo.train.recipes.epochs import group_lengths, with_steps
from rondo.train.recipes.registry import Recipe, RecipeInputs, recipe

HOW = {
    *("name", "model", "data", "samples", "learner", "loader", "layout", "evaluate", "metrics", "profile"),
    *("save_every", "keep", "keep_best", "best_by", "save_to", "preview", "examples_per_step"),
    *("on_nan", "spike", "most_faults", "stragglers"),
}
"""Settings that do not affect the training result, and names whose targets enter the spec as hashes."""


@dataclass(frozen=True)
class TrainJobPlan:
    kind: Kind
    config: TrainConfig
    model: Path
    opened: data.OpenedData
    tokenizer: Tokenizer
    job: Job
    planned: PlannedConfig
    """Choices of the planner, which `config` contains."""
    epochs: float | None = None
    """Epochs that the steps come to, if epochs are counted."""
    tokenized: data.Tokenized | None = None
    answers: TokenizedAnswers | None = None
    """Tokens of the training data of preference and reward training, if they were needed to count the steps."""
    """Training data of SFT, and of pretraining if epochs are counted."""


def plan(
    kind: Kind,
    config: TrainConfig,
    crew: RankSupervisor | None = None,
    opened: data.OpenedData | None = None,
) -> TrainJobPlan:
    """Validates the config as far as possible before any work; equal plans are the same job, on any number of ranks.
    `opened` is the job's data, if it was read already.
    """
    data.check_given(config)
    crew = crew or RankSupervisor()
    crew.doing("looking at model and data")
    if config.save_to:
        try_place(config.save_to, crew.world.rank)
    model = resolve(config.model)
    chosen = planned(kind, config, model, crew.world.size)
    config = chosen.config.of_kind(kind)
    shape = parse(read_config(model))
    adapter.check(kind, config.adapter, shape)
    _check_ranks(kind, config, shape, crew.world.size)
    if config.examples_per_step is not None and not config.epochs_of(kind):
        raise ConfigError(
            "train.examples_per_step needs train.epochs: with train.steps, give train.tokens_per_step.",
            param="train.examples_per_step",
        )
    opened = opened or data.open_data(kind, config)
    tokenizer, epochs = Tokenizer.load(model), config.epochs_of(kind)
    tokenized = None
    if kind == "sft" or (kind == "pretrain" and epochs):
        tokenized = data.datasets(kind, opened.training, tokenizer, config)
    answers = None
    if epochs:
        if tokenized is None:
            answers = TokenizedAnswers.of(
                kind, config, tokenizer, (source.records for source in opened.training)
            )
        config = _with_steps(kind, config, epochs, opened.training, tokenized, answers)
    spec = {
        "kind": kind,
        "model": fingerprint(model),
        "dataset": data.digest(opened.training),
        "config": config.model_dump(mode="json", exclude={*HOW, *config.neutral()}),
    }
    origin = {
        "model": config.model,
        "base": str(model.absolute()),
        "revision": revision_of(model),
        "data": _named(config.data),
        "save_to": config.save_to,
    }
    job = Job.of(spec, writes=crew.first, name=config.name, **origin)
    chosen = replace(chosen, config=config)
    return TrainJobPlan(kind, config, model, opened, tokenizer, job, chosen, epochs, tokenized, answers)


def _with_steps(
    kind: Kind,
    config: TrainConfig,
    epochs: float,
    sources: Sequence[data.TrainingSource],
    tokenized: data.Tokenized | None,
    answers: TokenizedAnswers | None,
) -> TrainConfig:
    weights = [source.told.weight for source in sources]
    if answers is not None:
        return with_steps(config, epochs, group_lengths(answers), weights)
    assert tokenized is not None
    longest = config.max_length if kind == "pretrain" else None
    return with_steps(config, epochs, [each.lengths for each in tokenized.datasets], weights, longest)


def _check_ranks(kind: Kind, config: TrainConfig, model: ModelConfig, ranks: int) -> None:
    found = degrees(config.layout, ranks, model)
    factory.check(config.learner, kind, config, config.adapter, model, found)
    if ranks > 1 and config.adapter.quantize_base != "none":
        raise ConfigError(
            "4-bit weights are not sharded: train with one process, or set train.adapter.quantize_base=none.",
            param="train.adapter.quantize_base",
        )
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
    evaluate: Evaluate | None = None,
) -> Path:
    """Runs the job, and returns the folder of its result. A finished job is not run again. All ranks must call this.
    `evaluate` replaces the evaluation of the config. A first Ctrl-C or a SIGTERM raises Paused after the step.
    """
    crew = crew or RankSupervisor()

    def work(log: JobLog) -> Path:
        return _run(plan, crew, log, on_step, on_resume, evaluate)

    return run_job(plan.job, plan.config.steps, crew, plan.model, work)


def run_job(job: Job, steps: int, crew: RankSupervisor, model: Path, work: Callable[[JobLog], Path]) -> Path:
    """Runs `work` with the job's lock and log unless the job is done, and returns the folder of its result. A stop
    signal raises Paused; an error is replaced by the one that explains it. All ranks must call this."""
    crew.doing("meeting over the job")
    if crew.first_says(job.done):
        return job.result

    def ended(error: BaseException) -> tuple[State, str]:
        why = error if isinstance(error, (StoppedEarly, Paused)) else crew.explained(error)
        paused = isinstance(why, (KeyboardInterrupt, Paused))
        return ("paused", str(why) or repr(why)) if paused else ("failed", _reason(why))

    with working(job, steps, ended, rank=crew.world.rank, model=model) as log, crew.heeding():
        crew.on_hang(job.path / "hang", partial(_failed, job, steps))
        try:
            return work(log)
        except StoppedEarly:
            raise Paused(newest_step(job), steps, interrupted=crew.interrupted) from None
        except (Exception, KeyboardInterrupt) as error:
            if isinstance(error, Paused) or (why := crew.explained(error)) is error:
                raise
            raise why from error


def _reason(error: BaseException) -> str:
    """The reason of a failure, including the cause of an engine failure, which engine clients do not receive."""
    if not isinstance(error, RondoError):
        return repr(error)
    hidden = error.__cause__ if isinstance(error, Unavailable) else None
    return error.message if hidden is None else f"{error.message} ({hidden!r})"


def newest_step(job: Job) -> int:
    """Step of the newest checkpoint, or 0."""
    return max(job.saved_steps(), default=0)


def _failed(job: Job, steps: int, reason: str) -> None:
    job.set_status("failed", job.step, steps=steps, reason=reason)


def _run(
    plan: TrainJobPlan,
    crew: RankSupervisor,
    log: JobLog,
    on_step: OnStep | None,
    on_resume: OnResume | None,
    evaluate: Evaluate | None,
) -> Path:
    config, job, tokenizer = plan.config, plan.job, plan.tokenizer
    device = device_of(config.device, crew.world)
    learner, made, evaluation = _ready(plan, crew, tokenizer, device)
    sampler = AnswerSampler.of(
        plan.kind, config, tokenizer, plan.opened.held_out, plan.opened.training, job, learner
    )
    if sampler and not newest_step(job):
        sampler.forget_after(-1)
        sampler.take(learner, 0)

    def resumed(step: int) -> None:
        log.line(f"resumed from step {step}")
        if sampler:
            sampler.forget_after(step)
        if on_resume:
            on_resume(step)

    def stepped(step: int, metrics: Metrics) -> None:
        log.step(step, config.steps, metrics)
        tell(step, metrics)

    with (
        Prefetch(made.batches, config.loader.prefetch) as fetched,
        telling(config.metrics, job, device, on_step, crew.world.rank, config.profile) as tell,
    ):
        after = _sampled(stepped, sampler, learner)
        train(learner, fetched, config, job, after, resumed, made.objective, evaluate or evaluation, crew)
    if sampler:
        sampler.finish(learner)
    if not job.writes:
        return job.result
    leave = _leave if learner.mesh is None else _leave_gathered
    return leave(plan, learner, tokenizer)


def _sampled(stepped: OnStep, sampler: AnswerSampler | None, learner: Learner) -> OnStep:
    """`stepped`, followed by sampled answers where they are due."""

    def after(step: int, metrics: Metrics) -> None:
        stepped(step, metrics)
        if sampler and sampler.due(step):
            sampler.take(learner, step)

    return after


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
    learner = learner_of(config.learner)(model, config, mesh)
    crew.doing("reading records")
    work = RecipeInputs(config, plan.model, tokenizer, learner, plan.job.path)
    made = recipe(plan.kind, work, plan.opened, plan.tokenized, plan.answers)
    divided = mesh is not None or config.learner == "megatron"
    budget = config.tokens_per_microbatch
    evaluation = Evaluation.of(config.evaluate, tokenizer, budget, made.held_out, divided=divided)
    return learner, made, evaluation


def _model(plan: TrainJobPlan, device: torch.device, *, divided: bool = False) -> Decoder:
    """The initial model of training."""
    config = plan.config
    # A reward model's new head is not rounded, and Megatron-Core's weights are converted from whole ones.
    divided = divided and plan.kind != "reward" and config.learner == "native"
    dtype = getattr(torch, config.dtype)
    if config.adapter.quantize_base != "none":
        model = load_nf4(plan.model, dtype, device)
    else:
        model = read_model(plan.model, dtype, device, divided=divided)
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
        export_last(learner, last, tokenizer.save, job)
        return job.succeed(learner.step)
    whole = Learner(_model(plan, torch.device("cpu")), config.model_copy(update={"offload": "none"}))
    whole.load(last, learner.step)
    return _leave(plan, whole, tokenizer)


def export_last(
    learner: Learner, checkpoint: str, save_tokenizer: Callable[[Path], None], job: Job, **facts: float
) -> None:
    """Exports the weights of a checkpoint, or their average, as the config says."""
    averaged = learner.ema is not None and learner.config.export != "last"
    with atomic_dir(job.export, replace=True) as folder:
        export_checkpoint(learner.model.config, checkpoint, folder, AVERAGE if averaged else MODEL)
        save_tokenizer(folder)
        write_json(folder / LINEAGE, lineage_of(job, **facts))


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
