"""Observer of a running RL job: stores rollouts and raises alarms. It never stops the job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from rondo.base.errors import StorageError
from rondo.base.telemetry.log import get_logger
from rondo.jobs.samples import SHOWN, SampledAnswer, add_samples, forget_samples_after
from rondo.rl.record.alarms import Alarm, Alarms
from rondo.rl.record.events import EventLog
from rondo.rl.record.store import FOLDER, RolloutStore

if TYPE_CHECKING:
    from rondo.jobs.job import Job
    from rondo.rl.config import RlConfig
    from rondo.rl.rollout.types import RlStep, SampleGroup

log = get_logger(__name__)


class Watch:
    """Observer of the loop, in the process that holds the job's lock."""

    def __init__(self, job: Job, config: RlConfig) -> None:
        self._job, self._config = job, config
        self._store = RolloutStore(job.path / FOLDER, config.rollouts.keep, config.rollouts.max_bytes)
        self._events = EventLog(job.path)
        self._alarms = Alarms(config.alarms)
        self._lost = 0.0
        self._told = False

    def forget_after(self, step: int) -> None:
        """Delete records of steps that will be repeated; their metrics must be deleted before."""
        rows = self._job.metrics()
        self._alarms = Alarms.after(self._config.alarms, rows)
        self._lost = max((row.get("rollouts_lost", 0.0) for row in rows), default=0.0)
        self._events.forget_after(step)
        self._store.forget_after(step)
        forget_samples_after(self._job.path, step or -1)

    def __call__(self, step: RlStep) -> None:
        self._keep(step)
        if self._config.samples.due(step.number, self._config.steps):
            self._keep_samples([_sampled(step.number, "rollout", *each) for each in enumerate(step.groups)])
        step.metrics["rollouts_lost"] = self._lost
        before = self._alarms.standing
        for alarm in self._alarms.check(step.number, step.metrics):
            self._tell(alarm)
        standing = self._alarms.standing
        for kind in (kind for kind in before if kind not in standing):
            log.info("the alarm is over: %s", kind, extra={"step": step.number})
            self._events.add("alarm_over", step.number, alarm=kind)
        step.metrics["alarms"] = float(len(standing))
        step.metrics.update({f"alarm/{kind}": 1.0 for kind in standing})

    def keep_held_out(self, step: int, groups: Sequence[SampleGroup]) -> None:
        """Store answers of an evaluation, as samples before, during and after training."""
        if self._config.samples.every != 0:
            found = [_sampled(step, "held_out", *each) for each in enumerate(groups)]
            self._keep_samples(found, log_them=not step)

    def _keep_samples(self, found: Sequence[SampledAnswer | None], log_them: bool = True) -> None:
        samples = [sample for sample in found if sample][: self._config.samples.prompts]
        try:
            add_samples(self._job.path, samples)
        except StorageError as error:
            log.warning("sampled answers are not stored: %s", error.message)
        for sample in samples[:SHOWN] if log_them else ():
            log.info("step %d: %s", sample.step, sample)

    def _keep(self, step: RlStep) -> None:
        try:
            self._store.put(step.number, step.groups, step.advantages)
        except StorageError as error:
            self._lost += sum(len(group.samples) for group in step.groups)
            if not self._told:
                log.warning("rollouts are not stored, and the job goes on without them: %s", error.message)
            self._told = True

    def _tell(self, alarm: Alarm) -> None:
        advice = alarm.advice.replace("JOB", self._job.short)
        log.warning("alarm: %s since step %d: %s. What to do: %s", alarm.kind, alarm.since, alarm.saw, advice)
        self._events.add(
            "alarm", alarm.step, alarm=alarm.kind, since=alarm.since, saw=alarm.saw, advice=advice
        )


def _sampled(
    step: int, split: Literal["held_out", "rollout"], index: int, group: SampleGroup
) -> SampledAnswer | None:
    """The first sample of a group; None for an empty group."""
    if not group.samples:
        return None
    sample, score = group.samples[0], group.samples[0].score
    reward = score.total if score and score.outcome == "ok" else None
    asked = group.problem.question or str(group.problem.messages[-1].get("content", ""))
    return SampledAnswer(step, split, index, asked, sample.text, reward=reward)
