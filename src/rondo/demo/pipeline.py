"""The demo pipeline, from pretraining to RL, in minutes on two cores, with generated data only.

Each phase is an ordinary job, so an interrupted demo resumes, and rollouts, metrics, alarms and reports are available.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rondo import models
from rondo.base.storage.files import atomic_dir, atomic_write, write_json
from rondo.base.storage.hashing import sha256_json
from rondo.base.storage.home import cache_dir, models_dir
from rondo.base.telemetry.log import get_logger
from rondo.demo import corpus
from rondo.demo.recipe import DemoRecipe, hf_config, recipe_for, tokenizer_for
from rondo.jobs.folders import free_name, name_job, update_origin
from rondo.jobs.job import Job
from rondo.models import Decoder
from rondo.models.store import export_model
from rondo.parallel.ranks.crew import Paused, RankSupervisor, StoppedEarly
from rondo.rl import jobs as rl_jobs
from rondo.rl.loop import Loop
from rondo.rl.tasks.registry import task as find_task
from rondo.text.tokenizer import Tokenizer
from rondo.train import jobs as train_jobs
from rondo.train.config import Kind, TrainConfig
from rondo.train.evaluation.evaluate import PREFIX
from rondo.train.learner.learner import Learner, Metrics

log = get_logger(__name__)

NAME = "demo"
PHASES = ("corpus", "pretrain", "sft", "rl", "save")
PRETRAINING, SOLVED, MODEL = "pretraining.jsonl", "solved.jsonl", "model"
"""Files of the demo's folder in the cache."""
OTHER_PROMPTS = 1
"""Seed of the held-out prompts for the final figures; the prompts that end a phase have another."""


@dataclass(frozen=True)
class Event:
    """One step of a phase, with the phase's own metrics."""

    phase: str
    step: int
    steps: int
    metrics: Metrics = field(default_factory=dict)


OnEvent = Callable[[Event], None]


@dataclass(frozen=True)
class DemoResult:
    """Rewards are success rates on held-out prompts, one sample each at temperature 1."""

    task: str
    reward_start: float
    reward_end: float
    steps: int
    seconds: float
    logprob_max_diff: float
    model: str
    jobs: tuple[str, ...]
    """Names of the jobs of pretraining, SFT and RL."""


def ensure_demo_model(progress: OnEvent | None = None, name: str = NAME, command: str = "") -> Path:
    """The demo model's folder. A missing model is trained first, with the default task and seed."""
    path = models_dir() / name
    if not (path / "config.json").is_file():
        run_demo(on_event=progress or _log_event, name=name, command=command)
    return path


def run_demo(
    task: str = "reverse",
    seed: int = 0,
    recipe: DemoRecipe | None = None,
    on_event: OnEvent | None = None,
    name: str = NAME,
    command: str = "",
) -> DemoResult:
    """Generate corpus, tokenizer and model, run the jobs of pretraining, SFT and RL, and save the model as `name`.
    Deterministic for a seed; finished jobs are not repeated. `command` is recorded as the command that resumes the
    jobs.
    """
    begin = time.perf_counter()
    say = on_event or (lambda event: None)
    phases = _Phases(task, seed, recipe or recipe_for(task), say, name, command)
    with phases.stoppable():
        before = phases.tuned()
        trained = phases.reinforced(before)
        path = models_dir() / name
        seconds = time.perf_counter() - begin
        rows = trained.metrics()
        result = DemoResult(
            task,
            phases.success(before.result),
            phases.success(trained.result),
            trained.step,
            seconds,
            max((row.get("logprob_diff_max", 0.0) for row in rows), default=0.0),
            str(path),
            tuple(phases.names),
        )
        say(Event("save", 0, 1))
        export_model(trained.result, path, replace=True)
        write_json(path / "demo.json", asdict(result))
        say(Event("save", 1, 1, {"seconds": seconds}))
    return result


@dataclass(frozen=True)
class DemoModel:
    """A model with occasional success, and the loop that trains it by RL."""

    model: Decoder
    tokenizer: Tokenizer
    grpo: Loop
    reward: float


def prepare(task: str, seed: int, recipe: DemoRecipe) -> DemoModel:
    """The model after pretraining and SFT, and the loop of the RL phase."""
    phases = _Phases(task, seed, recipe, lambda event: None, NAME)
    folder = phases.tuned().result
    model, tokenizer = models.load(folder), Tokenizer.load(folder)
    grpo = Loop(model, tokenizer, find_task(task), recipe.reinforcement(task, seed))
    return DemoModel(model, tokenizer, grpo, grpo.evaluate(seed=OTHER_PROMPTS)["reward/correct"])


@dataclass
class _Phases:
    task: str
    seed: int
    recipe: DemoRecipe
    say: OnEvent
    name: str
    command: str = ""
    crew: RankSupervisor = field(default_factory=RankSupervisor)
    names: list[str] = field(default_factory=list)

    @contextmanager
    def stoppable(self) -> Iterator[None]:
        with self.crew.heeding():
            try:
                yield
            except StoppedEarly:
                raise Paused(0, 0, interrupted=self.crew.interrupted) from None

    def tuned(self) -> Job:
        """The job of SFT on solved problems, which ends at the success rate `sft_until`."""
        base, recipe = self._base(), self.recipe
        pretrained = self._train("pretrain", base / MODEL, base / PRETRAINING, recipe.pretraining(self.seed))
        return self._train("sft", pretrained.result, base / SOLVED, recipe.tuning(self.seed))

    def reinforced(self, before: Job) -> Job:
        """The RL job, which ends at the success rate `rl_until`."""
        self._check_stop()
        config = self.recipe.reinforcement(self.task, self.seed).model_copy(
            update={"model": str(before.result)}
        )
        plan = rl_jobs.plan(config)
        self._named(plan.job, "rl", before.label)
        rl_jobs.run(plan, self._reporter("rl", config.steps), self._resumed("rl", config.steps), self.crew)
        self._told_as_done(plan.job, "rl")
        return plan.job

    def success(self, folder: Path) -> float:
        """Success rate of a model on held-out prompts."""
        config = self.recipe.reinforcement(self.task, self.seed)
        with Loop(models.load(folder), Tokenizer.load(folder), find_task(self.task), config) as loop:
            return loop.evaluate(seed=OTHER_PROMPTS)["reward/correct"]

    def _base(self) -> Path:
        """Folder of the model with random weights and of the training data, generated if it is missing."""
        recipe, seed = self.recipe, self.seed
        self.say(Event("corpus", 0, 1))
        key = sha256_json({**asdict(recipe), "seed": seed, "task": self.task})
        folder = cache_dir() / "demo" / key[:16]
        if not (folder / MODEL / "config.json").is_file():
            tokenizer = tokenizer_for(seed)
            model = models.new(hf_config(recipe, tokenizer), seed=seed)
            with atomic_dir(folder, replace=True) as made:
                (made / MODEL).mkdir()
                models.save_into(model, made / MODEL)
                tokenizer.save(made / MODEL)
                texts = corpus.stories(seed, recipe.stories) + corpus.sums(seed, recipe.sums)
                atomic_write(made / PRETRAINING, corpus.json_lines(texts))
                solved = corpus.solved(find_task(self.task), seed, recipe.sft_examples)
                atomic_write(made / SOLVED, corpus.json_lines(solved))
        model = models.load(folder / MODEL)
        facts = {
            "parameters": sum(p.numel() for p in model.parameters()),
            "vocabulary": model.config.vocab_size,
        }
        self.say(Event("corpus", 1, 1, {name: float(value) for name, value in facts.items()}))
        return folder

    def _train(self, kind: Kind, model: Path, data: Path, config: TrainConfig) -> Job:
        self._check_stop()
        plan = train_jobs.plan(kind, config.model_copy(update={"model": str(model), "data": str(data)}))
        self._named(plan.job, kind)
        told = self._reporter(kind, config.steps), self._resumed(kind, config.steps)
        with closing(_Success(self.task, self.recipe, self.seed, plan.model)) as success:
            train_jobs.run(plan, *told, self.crew, success if kind == "sft" else None)
        self._told_as_done(plan.job, kind)
        return plan.job

    def _named(self, job: Job, phase: str, model: str = "") -> None:
        """Name the job, and record the command and the name of its base model."""
        if job.label == job.short:
            name_job(job.path, free_name(f"{self.name}-{phase}", job.path))
        update_origin(
            job.path, command=self.command, model=self.names[-1] if self.names else "random weights"
        )
        self.names.append(job.label)

    def _reporter(self, phase: str, steps: int) -> Callable[[int, Metrics], None]:
        def report(step: int, metrics: Metrics) -> None:
            self.say(Event(phase, step, steps, metrics))

        return report

    def _resumed(self, phase: str, steps: int) -> Callable[[int], None]:
        return lambda step: self.say(Event(phase, step, steps))

    def _told_as_done(self, job: Job, phase: str) -> None:
        """The last step, for a job that was done already."""
        self.say(Event(phase, job.step, job.step, job.last_metrics()))

    def _check_stop(self) -> None:
        if self.crew.asked_to_stop:
            raise Paused(0, 0, interrupted=self.crew.interrupted)


@dataclass
class _Success:
    """Evaluation of the SFT phase: the success rate on the RL task, sampled from the learner's weights."""

    task: str
    recipe: DemoRecipe
    seed: int
    folder: Path
    loop: Loop | None = None

    def __call__(self, learner: Learner) -> Metrics:
        if self.loop is None:
            config = self.recipe.reinforcement(self.task, self.seed)
            self.loop = Loop(learner.model, Tokenizer.load(self.folder), find_task(self.task), config)
        self.loop.push()
        return {f"{PREFIX}{name}": value for name, value in self.loop.evaluate().items()}

    def close(self) -> None:
        if self.loop is not None:
            self.loop.close()


def _log_event(event: Event) -> None:
    if event.step in (0, event.steps) or event.step % 10 == 0:
        known: dict[str, object] = {
            n: round(event.metrics[n], 3) for n in ("loss", "reward/correct") if n in event.metrics
        }
        log.info(f"demo: {event.phase} {event.step} of at most {event.steps}", extra=known)
