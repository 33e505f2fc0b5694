"""Number of steps, and the size of a step, that a number of epochs comes to."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rondo.data.batching.groups import group_size
from rondo.data.batching.sampler import DocumentSampler, DocumentSpans, Position
from rondo.train.config import TrainConfig
from rondo.train.recipes import preference
from rondo.train.recipes.answers import TokenizedAnswers

MEASURED = 256
"""Steps from which the tokens of a step are computed, since some of its room stays unfilled."""
STEPS_PER_EPOCH = 32
EXAMPLES_PER_STEP = 8
Lengths = NDArray[Any]


def with_steps(
    config: TrainConfig,
    epochs: float,
    lengths: Sequence[Lengths],
    weights: Sequence[float],
    longest: int | None = None,
) -> TrainConfig:
    """The config with the steps that `epochs` come to. An epoch of several sources has as many tokens as all of them
    together."""
    total = epoch_tokens(lengths)
    tokens_per_step = config.tokens_per_step
    documents = sum(int(np.count_nonzero(each > 1)) for each in lengths)
    if config.examples_per_step is not None:
        tokens_per_step = max(math.ceil(config.examples_per_step * total / max(documents, 1)), 1)
    elif "tokens_per_step" not in config.model_fields_set:
        tokens_per_step = step_size(total, documents, config.tokens_per_step)
    spans = [DocumentSpans(each, longest) for each in lengths]
    sampler = DocumentSampler(spans, weights, config.seed, tokens_per_step)
    steps = math.ceil(epochs * total / _tokens_of_a_step(sampler, total) - 1e-6)
    steps = max(steps, 1)
    warmup = config.warmup if "warmup" in config.model_fields_set else min(config.warmup, -(-steps // 10))
    found = {"steps": steps, "tokens_per_step": tokens_per_step, "warmup": warmup}
    given = {
        "epochs": None,
        "examples_per_step": None,
    }  # equal steps are the same job, however they were given
    return config.model_copy(update=found | given)


def step_size(total: int, documents: int, most: int) -> int:
    """Tokens of a step for `total` tokens in `documents`: small data sets have smaller steps, so that an epoch is more
    than a few steps."""
    wanted = max(total / STEPS_PER_EPOCH, EXAMPLES_PER_STEP * total / max(documents, 1))
    return max(min(math.ceil(wanted), total, most), 1)


def _tokens_of_a_step(sampler: DocumentSampler, total: int) -> float:
    """Mean over the first epoch, or its first steps."""
    position, steps = Position(), 0
    taken = 0
    while steps < MEASURED and taken < total:
        pieces, position = sampler.take(position)
        taken += sum(piece.size for piece in pieces)
        steps += 1
    return max(taken / steps, 1.0)


def epoch_tokens(lengths: Sequence[Lengths]) -> int:
    """Input tokens of all documents."""
    return sum(int(np.maximum(each.astype(np.int64) - 1, 0).sum()) for each in lengths)


def group_lengths(answers: TokenizedAnswers) -> list[Lengths]:
    """Lengths of the pairs or labelled answers of each source, as the loader counts them."""
    trees = [
        *map(preference.pair_trees, answers.pairs),
        *map(preference.judged_trees, answers.judged),
    ]
    return [np.asarray([group_size(tree) + 1 for tree in own], np.int64) for own in trees]
