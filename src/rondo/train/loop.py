"""The training loop of pretraining and SFT: batches, steps, metrics and checkpoints; it can be killed at any time."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from rondo import models
from rondo.base.errors import RondoError
from rondo.base.storage.files import atomic_dir, write_json
from rondo.base.telemetry.log import get_logger
from rondo.data.batching.loader import Batch
from rondo.data.batching.sampler import Position
from rondo.jobs.job import Job
from rondo.jobs.summary import LINEAGE, lineage_of
from rondo.parallel.ranks.crew import Paused, RankSupervisor
from rondo.train.checkpoints.checkpoint import Keep
from rondo.train.checkpoints.saving import Checkpoints
from rondo.train.config import TrainConfig
from rondo.train.learner.learner import Learner, Metrics
from rondo.train.losses.objective import Objective, next_tokens
from rondo.train.metrics.faults import Diverged, Faults
from rondo.train.metrics.meter import Meter
from rondo.train.metrics.stragglers import look
from rondo.train.optim.schedule import learning_rate

log = get_logger(__name__)

Batches = Callable[[Position], Batch]
Evaluate = Callable[[Learner], Metrics]
OnStep = Callable[[int, Metrics], None]
OnResume = Callable[[int], None]
"""Callback before the first step with the step of the checkpoint from which a job resumes."""


def train(
    learner: Learner,
    batches: Batches,
    config: TrainConfig,
    job: Job | None = None,
    on_step: OnStep | None = None,
    on_resume: OnResume | None = None,
    objective: Objective = next_tokens,
    evaluate: Evaluate | None = None,
    crew: RankSupervisor | None = None,
) -> None:
    """Trains `learner` until `config.steps` or `config.until`, from the job's last checkpoint if it has one."""
    crew = crew or RankSupervisor()
    with contextlib.ExitStack() as stack:
        stack.enter_context(crew.heeding())
        stack.enter_context(crew.stepping())  # ends after the last save
        meter = Meter(learner, config.metrics.peak)
        run = _Run(learner, batches, config, objective, evaluate, crew, meter, Faults(config))
        if job:
            keep = Keep(config.keep, config.keep_best)
            reuse = config.offload == "none"
            run.saved = stack.enter_context(Checkpoints(job.checkpoints, keep, learner.mesh, reuse=reuse))
            run.job = job
            run.resume()
            job.set_status("running", learner.step, steps=config.steps)
        if learner.step and on_resume:
            on_resume(learner.step)
        run.heed()
        run.before = job.last_metrics() if job is not None and learner.step > 0 else {}
        done = run.reached(run.before)
        while learner.step < config.steps and not done:
            metrics = run.step()
            if on_step:
                on_step(learner.step, metrics)
            done = run.reached(metrics)
            if not done:
                run.heed()
        crew.doing(f"step {learner.step}: finishing")


@dataclass
class _Run:
    learner: Learner
    batches: Batches
    config: TrainConfig
    objective: Objective
    evaluate: Evaluate | None
    crew: RankSupervisor
    meter: Meter
    faults: Faults
    position: Position = field(default_factory=Position)
    job: Job | None = None
    saved: Checkpoints | None = None
    last_saved: int = -1
    before: Metrics = field(default_factory=dict)
    """Metrics of the step before."""
    took: float = 0.0
    waited: float = 0.0
    """Seconds of the last step (`took`), and of the wait for its data."""

    def step(self) -> Metrics:
        learner, config, clock, at = self.learner, self.config, self.meter.clock, self.learner.step + 1
        self.crew.doing(f"step {at}: reading data")
        with clock("load"):
            batch = self.batches(self.position)
        self.crew.doing(f"step {at}: forward and backward")
        with clock("forward_backward"):
            asked = self.objective(learner, batch.rows)
            metrics = asked.told(learner.forward_backward(asked.rows, asked.loss, valid=batch.valid))
        self.crew.doing(f"step {at}: optimizer")
        wrong: list[str] = []

        def accept(norm: float) -> bool:
            reason = self.faults.judge(metrics["loss"], norm)
            wrong.extend([reason] if reason else [])
            return reason is None

        with clock("optimizer"):
            metrics |= learner.optim_step(self._learning_rate(), accept)
        self.position = batch.position
        metrics |= self.meter.step(batch.rows)
        if wrong and self.faults.goes_back(at, wrong[0]):
            return metrics | self._go_back(wrong[0])
        self.took, self.waited = metrics["seconds"], metrics["seconds/load"]
        metrics |= {"unfilled": batch.unfilled, "epochs": batch.epochs}
        metrics |= config.elapsed(self.before, self.took)
        self.before = metrics
        if wrong:
            self._tell("step %d left its batch out: %s", at, wrong[0])
            metrics |= {"left_out": 1.0}
        if self.evaluate is not None and _due(at, config.evaluate.every, config):
            self.crew.doing(f"step {at}: evaluation")
            try:
                with clock("evaluate"), learner.as_left():
                    metrics |= self.evaluate(learner)
            except RondoError:
                if self.crew.world.size == 1:
                    self.record(metrics)  # metrics of the step are not lost with the evaluation
                raise
        self.record(metrics)
        return metrics

    def record(self, metrics: Metrics) -> None:
        """Logs the metrics and saves a checkpoint if one is due. The time of a checkpoint is part of the next step's
        metrics, as is the duration of the previous write.
        """
        if self.job is None or self.saved is None:
            return
        step, config = self.learner.step, self.config
        self.saved.check()
        self.job.log({"step": step, **metrics, **self.saved.spent})
        self.saved.spent.clear()
        if _due(step, config.save_every, config):
            self.crew.doing(f"step {step}: saving")
            with self.meter.clock("checkpoint"):
                self._save(rating(metrics, config.best_by))
        self.job.set_status("running", step, steps=config.steps, loss=metrics["loss"])

    def reached(self, metrics: Metrics) -> bool:
        """Whether `until` ends the job after a step with these metrics; the first rank decides."""
        return bool(self.config.until) and self.crew.first_says(self.config.reached(metrics))

    def heed(self) -> None:
        """Checks for stragglers, and stops all ranks if one of them has a stop request."""
        config, step = self.config, self.learner.step
        self.crew.doing(f"step {step}: its end")
        if step and config.stragglers and step % config.stragglers == 0 and self.crew.world.size > 1:
            for said in look(self.crew, self.learner.device, self.waited, self.took):
                self._tell("%s", said)
        if not self.crew.any_asked_to_stop() or step >= config.steps:
            return
        if self.saved is not None and step:
            if self.last_saved != step:
                self.crew.doing(f"step {step}: saving")
                self._save(None)
            self.saved.wait()
        raise Paused(step, config.steps, interrupted=self.crew.interrupted)

    def resume(self) -> None:
        assert self.job is not None
        self.crew.doing("looking for a checkpoint")
        self.job.forget_after(self._load())

    def _load(self) -> int:
        """Loads the newest checkpoint, if there is one, and returns its step or 0."""
        assert self.saved is not None
        found = self.saved.newest()
        if found is None:
            return 0
        self.learner.load(found.folder, found.step)
        state = found.state()
        self.position = Position.of(state["position"])
        self.faults.restore(state["faults"])
        self.last_saved = found.step
        return found.step

    def _save(self, value: float | None) -> None:
        assert self.saved is not None
        self.last_saved = self.learner.step
        state = {"position": asdict(self.position), "faults": self.faults.state()}
        self.saved.save(self.learner.states(), self.last_saved, state, value)

    def _go_back(self, reason: str) -> Metrics:
        """Rolls back to the weights of the last checkpoint; data continue after the batch that caused it."""
        after, at = self.position, self.learner.step
        if self.saved is not None:
            self.saved.wait()
        if self.job is None or self.saved is None or not self._load():
            raise Diverged(f"step {at}: {reason}, and there is no checkpoint yet to go back to.")
        self.position = after
        self.job.forget_after(self.learner.step)
        self._tell("step %d: %s; it goes back to step %d", at, reason, self.learner.step)
        return {"went_back_from": float(at)}

    def _learning_rate(self) -> float:
        config = self.config
        return learning_rate(
            self.learner.step,
            lr=config.lr,
            warmup=config.warmup,
            steps=config.steps,
            decay=config.decay,
            lr_end=config.lr_end,
        )

    def _tell(self, words: str, *facts: object) -> None:
        if self.crew.first:
            log.warning(words, *facts)


def rating(metrics: Metrics, by: str) -> float | None:
    """Metric that ranks a checkpoint, lower is better; None if it is not finite."""
    name = by.removeprefix("+")
    value = metrics.get(name, math.nan)
    if not math.isfinite(value):
        return None
    return -value if name != by else value


def _due(step: int, every: int, config: TrainConfig) -> bool:
    """Whether an action is due: at the end, and every `every` steps if `every` is above 0."""
    return step == config.steps or (every > 0 and step % every == 0)


def export(learner: Learner, tokenizer_save: Callable[[Path], None], job: Job, **facts: float) -> Path:
    """Exports weights and tokenizer for serving, and marks the job as done. If a process is killed between the two, the
    export is written again.
    """
    needed = sum(parameter.nbytes for parameter in learner.model.parameters())
    with learner.as_left(), atomic_dir(job.export, replace=True, needed=needed) as folder:
        models.save_into(learner.whole(), folder)
        tokenizer_save(folder)
        write_json(folder / LINEAGE, lineage_of(job, **facts))
    return job.succeed(learner.step, **facts)
