"""The RL loop: prompts -> rollout -> score -> advantage -> pack -> train -> push weights -> rollout ...

A step, for every algorithm and engine:

    collect   the step's groups: a prompt and its samples, each scored as soon as it ends
              (rollout/sync_collector.py, rollout/async_collector.py)
    prepare   rewards to advantages, samples to packed rows, and the token columns
              of the loss: the learner's own log-probabilities, the
              reference's, the critic's values                                                 (learning.py)
    learn     epochs x mini-batches, each an optimizer step                                    (learning.py)
    push      the engine receives the next version of the weights                              (weights/)
    store     observers store rollouts and raise alarms                                        (observer.py)

The collector determines the engine, whether generation overlaps training, and the staleness limit (engines.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from torch import Tensor

from rondo.base.errors import ConfigError, RondoError
from rondo.models import Decoder
from rondo.rl import evaluation
from rondo.rl.config import RlConfig
from rondo.rl.record.metrics import group_metrics
from rondo.rl.record.timer import LoopTimer
from rondo.rl.rollout.engines import collector_for, shared_engine, synchronous
from rondo.rl.rollout.requests import RolloutBatch
from rondo.rl.rollout.types import RlStep, SampleGroup
from rondo.rl.tasks.types import AnyTask
from rondo.rl.update.division import RankDivision
from rondo.rl.update.learning import Learning
from rondo.text.tokenizer import Tokenizer
from rondo.train.learner.learner import Learner, Metrics

if TYPE_CHECKING:
    from rondo.parallel.ranks.mesh import Mesh
    from rondo.rl.remote.rank_policy import RankPolicy
    from rondo.rl.rollout.replica import WeightReplica

UNJUDGED_STEPS = 3
"""Steps without any judged answer after which the run ends."""
TAUGHT_NOTHING = (
    "the task is too hard or too easy for this model, or its grader fails (`unjudged` says how often). "
    "Fine-tune first, or choose another task"
)


KeepGroups = Callable[[int, Sequence[SampleGroup]], None]
"""Callback with the number of trained steps and the groups of an evaluation."""


class NothingToLearn(RondoError):
    """No training signal is left."""


class NoAnswerJudged(RondoError):
    """The grader has judged no answer of the run."""


class Loop:
    """The RL loop. As a context manager it closes its engine and graders at the end, as `close` does."""

    def __init__(
        self,
        model: Decoder,
        tokenizer: Tokenizer,
        task: AnyTask,
        config: RlConfig,
        mesh: Mesh | None = None,
        doing: Callable[[str], None] = lambda what: None,
    ) -> None:
        """With a mesh, every rank makes the same calls. `doing` receives the name of each phase before it begins."""
        self.tokenizer, self.task, self.config = tokenizer, task, config
        self.max_tokens = config.max_tokens or task.max_tokens
        self._doing = doing
        division = RankDivision(mesh)
        alone = mesh is None and config.learner == "native"
        replica = None if alone else _replica(model, task, config, division)
        self.learning = Learning(model, tokenizer, config, self.max_tokens, division)
        company = self.learning.company
        self.collector = collector_for(self.learner, tokenizer, task, config, company, division, replica)
        self.learning.company.share_device(shared_engine(self.collector))
        self.observers: list[Callable[[RlStep], None]] = []
        self.steps_done = 0
        self.idle = 0
        """Number of consecutive steps without a gradient signal."""
        self.unjudged: str | None = ""
        """The grader's last error as long as it has judged no answer; None after the first judged answer."""

    @property
    def learner(self) -> Learner:
        return self.learning.learner

    @property
    def version(self) -> int:
        """Version of the engine's weights."""
        return self.collector.version

    def step(self) -> Metrics:
        if self.steps_done >= UNJUDGED_STEPS:
            self.check_judged()
        self._check_idle()
        clock, number, version = LoopTimer(self.collector.graded), self.steps_done, self.version
        self._doing(f"step {number + 1}: rollouts")
        found = self.collector.collect(number, clock)
        _check_fits(found, self.task)
        self._doing(f"step {number + 1}: log-probabilities")
        with clock("known"):
            batches, advantages = self.learning.prepare(found.groups, number)
        self.learning.company.roles.phase("train")
        self._doing(f"step {number + 1}: training and weight push")
        with clock("push"), self.collector.pushing(version + 1), clock("train"):
            metrics = self.learning.learn(batches, number)
        self._doing(f"step {number + 1}: its end")
        self.steps_done += 1
        self.idle = 0 if batches else self.idle + 1
        self.collector.trained(self.steps_done)
        metrics |= self._seen(found, version)
        self._note_unjudged(found)
        with clock("store"):
            self._tell(RlStep(number + 1, version, [*found.groups, *found.dropped], advantages, metrics))
        metrics |= clock.metrics(_sampled(found.groups))
        return metrics | self.learning.effort.metrics(metrics["seconds/train"])

    def push(self) -> None:
        """Push weights that other code has changed."""
        with self.collector.pushing(self.version + 1):
            pass

    def evaluate(self, seed: int = 0, keep: KeepGroups | None = None) -> Metrics:
        """Metrics on held-out prompts, at temperature 1. Another seed selects other prompts. `keep` receives the
        answers.
        """
        self._doing(f"step {self.steps_done}: evaluation")
        groups = evaluation.answers(self.collector, self.task, self.config, self.max_tokens, seed)
        if keep:
            keep(self.steps_done, groups)
        return evaluation.measured(groups, self.config)

    def close(self) -> None:
        self.collector.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def states(self) -> dict[str, Tensor]:
        """The tensors of a checkpoint."""
        return self.learning.states()

    def facts(self) -> dict[str, Any]:
        """The JSON part of a checkpoint. Prompts and seeds of the next steps follow from the step."""
        return {
            "version": self.version,
            "idle": self.idle,
            "unjudged": self.unjudged,
            "learning": self.learning.facts(),
            "collector": self.collector.state(),
        }

    def restore(self, folder: str | Path, step: int, facts: Mapping[str, Any]) -> None:
        self.learning.load(folder, facts["learning"])
        self.steps_done, self.idle = step, facts["idle"]
        self.unjudged = facts.get("unjudged")
        self.collector.restore(facts["collector"], step)
        with self.collector.pushing(max(facts["version"], self.version + 1)):
            pass

    def _seen(self, found: RolloutBatch, version: int) -> Metrics:
        groups = [*found.groups, *found.dropped]
        return group_metrics(groups, version) | found.metrics

    def _tell(self, step: RlStep) -> None:
        for observer in self.observers:
            observer(step)

    def check_judged(self) -> None:
        """Raises if the grader has failed for every answer of the run so far."""
        if self.unjudged:
            raise NoAnswerJudged(
                f"the grader of {self.task.name} has judged no answer in {self.steps_done} steps: {self.unjudged}"
            )

    def _note_unjudged(self, found: RolloutBatch) -> None:
        if self.unjudged is None:
            return
        groups = [*found.groups, *found.dropped]
        scores = [sample.score for group in groups for sample in group.samples if sample.score is not None]
        if any(score.outcome == "ok" for score in scores):
            self.unjudged = None
        elif scores:
            self.unjudged = scores[-1].detail or f"outcome {scores[-1].outcome} without details"

    def _check_idle(self) -> None:
        most = self.config.most_idle
        if most and self.idle >= most:
            raise NothingToLearn(
                f"all samples of every group earned the same for {self.idle} steps: {TAUGHT_NOTHING}; "
                "rl.most_idle sets how long to wait."
            )


def _replica(
    model: Decoder, task: AnyTask, config: RlConfig, division: RankDivision
) -> WeightReplica | RankPolicy:
    # Imported only for several ranks: they import torch.distributed.
    from rondo.rl.rollout.replica import WeightReplica

    if config.engine.url:
        from rondo.rl.remote.rank_policy import rank_policy

        if (policy := rank_policy(model, config, division.mesh)) is not None:
            return policy
    here = division.has_engine(config.rollout_ranks if synchronous(config, task) else "first")
    device = model.device if division.mesh is None else division.mesh.device
    return WeightReplica(model, config, device, here=here)


def _check_fits(found: RolloutBatch, task: AnyTask) -> None:
    if found.counts["too_long"] and not any(group.samples for group in found.groups):
        raise ConfigError(
            f"no prompt of {task.name} leaves room for an answer: it is longer than the model's context, or than "
            "tokens_per_microbatch. Shorten the prompts, or raise rl.tokens_per_microbatch",
            param="rl.tokens_per_microbatch",
        )


def _sampled(groups: Sequence[SampleGroup]) -> int:
    return sum(sample.trained for group in groups for sample in group.samples)
