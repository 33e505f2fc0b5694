"""The batches of a training job, from a recipe's data sets in the order determined by the seed."""

from __future__ import annotations

from collections.abc import Sequence

from rondo.data.batching.datasets import Dataset
from rondo.data.batching.loader import DataRank, Loader, MakeRow
from rondo.train.config import TrainConfig


def loader(
    datasets: Sequence[Dataset],
    weights: Sequence[float],
    config: TrainConfig,
    *,
    longest: int | None = None,
    make_row: MakeRow | None = None,
    rank: DataRank | None = None,
) -> Loader:
    """Documents are not split, except for documents with more than `longest` tokens to predict."""
    return Loader(
        datasets,
        weights=weights,
        seed=config.seed,
        tokens_per_step=config.tokens_per_step,
        tokens_per_microbatch=config.tokens_per_microbatch,
        longest=longest,
        make_row=make_row,
        rank=rank,
    )
