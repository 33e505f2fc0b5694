"""Problem and sampling seed of each group, both pure functions of the group's number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rondo.base.errors import ConfigError
from rondo.rl.tasks.types import AnyTask, Problem

SPREAD = 1_000_003
AGAIN = 400_009
"""More than the number of steps, so that the first draw of a step never equals the second draw of another."""


@dataclass
class PromptSampler:
    """Problems by group number. The position of a run in its data is the number of the next group."""

    task: AnyTask
    seed: int
    prompts_per_step: int
    _last: tuple[int, Sequence[Problem]] = field(default=(-1, ()))

    def problem(self, number: int, attempt: int = 0) -> Problem:
        """The problem of a group; `attempt` counts how often the group was resampled."""
        step, place = divmod(number, self.prompts_per_step)
        seed = self._seed(step, attempt)
        if self._last[0] != seed:
            found = self.task.prompts(seed, self.prompts_per_step)
            if len(found) < self.prompts_per_step:
                raise ConfigError(
                    f"the task {self.task.name} has {len(found)} prompts for a step of {self.prompts_per_step}: give "
                    "it more, or set prompts_per_step lower",
                    param="rl.prompts_per_step",
                )
            self._last = seed, found
        return self._last[1][place]

    def sampling_seed(self, number: int, attempt: int = 0) -> int:
        step, place = divmod(number, self.prompts_per_step)
        return self._seed(step, attempt) * SPREAD + place

    def _seed(self, step: int, attempt: int) -> int:
        return self.seed * SPREAD + step + attempt * AGAIN
