"""Rewards as input of the advantages."""

from __future__ import annotations

from collections.abc import Sequence

from rondo.rl.config import RlConfig
from rondo.rl.rollout.types import SampleGroup, rewards
from rondo.rl.update.advantages import Floats, overlong_penalties


def earned(groups: Sequence[SampleGroup], config: RlConfig, longest: int) -> Floats:
    """Rewards [P, S], NaN for samples without a valid score, minus the overlong penalty of samples close to `longest`
    tokens.
    """
    table = rewards(groups)
    if config.overlong:
        for row, group in zip(table, groups, strict=True):
            lengths = [sample.trained for sample in group.samples]
            row[: len(lengths)] += overlong_penalties(
                lengths, longest, config.overlong, config.overlong_penalty
            )
    return table
