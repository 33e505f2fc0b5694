"""Data sets and objective of each kind of training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from rondo.data.batching.datasets import Dataset
from rondo.data.batching.groups import Groups, row_of_groups
from rondo.data.batching.loader import DataRank, MakeRow, rows_of_all
from rondo.data.batching.packing import Document, PackedRow, Tree
from rondo.models.adapters import adapter_of
from rondo.models.devices import device_named
from rondo.parallel.precision import computing_type
from rondo.text.tokenizer import Tokenizer
from rondo.train.checkpoints.reading import read_model
from rondo.train.config import Kind, TrainConfig
from rondo.train.evaluation.evaluate import HeldOut
from rondo.train.evaluation.evaluator import Evaluator
from rondo.train.learner.shared_prefix import shares_prefixes
from rondo.train.loop import Batches
from rondo.train.losses.objective import Objective, answer_tokens, next_tokens
from rondo.train.losses.preference import BradleyTerry, Kto
from rondo.train.recipes import data, preference, reward
from rondo.train.recipes.answers import TokenizedAnswers
from rondo.train.recipes.batches import loader
from rondo.train.recipes.data import TrainingSource
from rondo.train.recipes.reference import Computed, Reference, known


@dataclass(frozen=True)
class Recipe:
    batches: Batches
    objective: Objective
    held_out: HeldOut | None


@dataclass(frozen=True)
class RecipeInputs:
    """Inputs of a recipe."""

    config: TrainConfig
    model: Path
    tokenizer: Tokenizer
    evaluator: Evaluator
    job: Path

    @cached_property
    def reference(self) -> Computed:
        """Reference by the initial model of the job, independent of training."""
        if adapter_of(self.evaluator.model) is not None:
            return Computed()
        config = self.config
        # It is not trained, so it needs no master weights.
        dtype = computing_type(getattr(torch, config.dtype), config.precision)
        told = config.model_copy(update={"dtype": str(dtype).removeprefix("torch.")})
        mesh = self.evaluator.mesh
        device = torch.device("cpu")
        if mesh is None:
            own = self.evaluator.model.device
            # Megatron-Core's learner has a skeleton of the model without memory.
            device = device_named(config.device) if own.type == "meta" else own
        model = read_model(self.model, dtype, device, divided=mesh is not None)
        return Computed(Evaluator(model, mesh, told))

    def shares(self, share: bool) -> bool:
        return share and shares_prefixes(self.evaluator.model.attention_specs())


@dataclass(frozen=True)
class Examples:
    """Training examples of a recipe's sources."""

    datasets: Sequence[Dataset]
    objective: Objective
    longest: int | None = None
    make_row: MakeRow | None = None

    def rows(self, budget: int) -> list[PackedRow]:
        """All examples as rows."""
        return [
            row
            for dataset in self.datasets
            for row in rows_of_all(dataset, budget, longest=self.longest, make_row=self.make_row)
        ]


def recipe(
    kind: Kind,
    work: RecipeInputs,
    opened: data.OpenedData,
    tokenized: data.Tokenized | None = None,
    judged: TokenizedAnswers | None = None,
) -> Recipe:
    """`tokenized` is the training data of SFT or pretraining, `judged` that of preference or reward training, if it was
    tokenized already."""
    config, held_out = work.config, opened.held_out
    taught = examples(kind, work, opened.training, tokenized=tokenized, judged=judged)
    weights = [source.told.weight for source in opened.training]
    mesh = work.evaluator.mesh
    batches = loader(
        taught.datasets,
        weights,
        config,
        longest=taught.longest,
        make_row=taught.make_row,
        rank=DataRank(mesh.dp_rank, mesh.degrees.dp) if mesh else None,
    )
    asked = None
    if held_out:
        # The held-out records may change when a job resumes.
        own = examples(kind, work, held_out, f"held_out_reference_{data.digest(held_out)[:12]}")
        asked = HeldOut(own.rows(config.tokens_per_microbatch), own.objective)
    return Recipe(batches, taught.objective, asked)


def examples(
    kind: Kind,
    work: RecipeInputs,
    sources: Sequence[TrainingSource],
    file: str = "reference",
    tokenized: data.Tokenized | None = None,
    judged: TokenizedAnswers | None = None,
) -> Examples:
    """Examples of the sources. `file` is the name of the file with their reference log-probabilities."""
    if kind in ("preference", "reward"):
        records = (source.records for source in sources)
        judged = judged or TokenizedAnswers.of(kind, work.config, work.tokenizer, records)
        return _preference(work, judged, file) if kind == "preference" else _reward(work, judged)
    longest = work.config.max_length if kind == "pretrain" else None
    tokenized = tokenized or data.datasets(kind, sources, work.tokenizer, work.config)
    objective = next_tokens if kind == "pretrain" else answer_tokens
    return Examples(tokenized.datasets, objective, longest)


def _preference(work: RecipeInputs, answers: TokenizedAnswers, file: str) -> Examples:
    config, told = work.config, work.config.preference
    loss = preference.loss_of(told)
    aside: list[Document] = []
    if isinstance(loss, Kto):
        judged = answers.judged
        trees = [preference.judged_trees(own, first) for own, first in zip(judged, _firsts(judged))]
        aside = preference.mismatched([one for own in judged for one in own], config.max_length)
    else:
        pairs = answers.pairs
        trees = [preference.pair_trees(own, first) for own, first in zip(pairs, _firsts(pairs))]
    by: Reference | None = None if told.loss == "simpo" else work.reference
    if isinstance(by, Computed) and told.reference == "before":
        documents = [document for own in trees for tree in own for document in tree.apart()]
        kept = work.job / f"{file}.f32"
        by = known(by, work.evaluator, [*documents, *aside], config.tokens_per_microbatch, kept)
    objective = preference.Preference(loss, by, aside, config.tokens_per_microbatch)
    return _groups(work, trees, objective, told.share_prefix)


def _reward(work: RecipeInputs, answers: TokenizedAnswers) -> Examples:
    config, pairs = work.config.reward, answers.pairs
    trees = [reward.pair_trees(own, first) for own, first in zip(pairs, _firsts(pairs))]
    return _groups(work, trees, reward.RewardObjective(BradleyTerry(config.center)), config.share_prefix)


def _groups(
    work: RecipeInputs, trees: Sequence[Sequence[Tree]], objective: Objective, share: bool
) -> Examples:
    """Examples whose pairs are in one row each: so the gradient of a pair's loss is computed by row like any other, and
    its prompt is computed once.
    """
    for own in trees:
        preference.check_sizes(own, work.config)
    datasets = [Groups(own, share=work.shares(share)) for own in trees]
    return Examples(datasets, objective, make_row=row_of_groups)


def _firsts(parts: Sequence[Sequence[object]]) -> list[int]:
    """Number of items in the parts before each part."""
    counts = [0]
    for part in parts:
        counts.append(counts[-1] + len(part))
    return counts
