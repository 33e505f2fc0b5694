"""What answers have earned, as the advantages see it."""

from __future__ import annotations

from collections.abc import Sequence

from rondo.rl.config import RlConfig
from rondo.rl.rollout.types import SampleGroup, rewards
from rondo.rl.update.advantages import Floats, overlong_penalties


def earned(groups: Sequence[SampleGroup], config: RlConfig, longest: int) -> Floats:
    """[P, S], NaN where nobody judged. Answers that come near `longest` tokens have less than their score."""
    table = rewards(groups)
    if config.overlong:
        for row, group in zip(table, groups, strict=True):
            lengths = [sample.trained for sample in group.samples]
            row[: len(lengths)] += overlong_penalties(
                lengths, longest, config.overlong, config.overlong_penalty
            )
    return table
