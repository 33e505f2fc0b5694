"""Steps of preference and reward training, by one process or by ranks that share the work."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from rondo.data.batching.groups import Groups, row_of_groups
from rondo.data.batching.loader import rows_of_all
from rondo.data.batching.packing import PackedRow, Tree
from rondo.models.fresh import make_scorer
from rondo.parallel.config import LayoutConfig
from rondo.parallel.ranks.mesh import Mesh, join
from rondo.parallel.ranks.world import read_world
from rondo.train.config import OptimConfig
from rondo.train.evaluation.evaluate import choose
from rondo.train.evaluation.evaluator import Evaluator
from rondo.train.evaluation.tasks import MultipleChoice
from rondo.train.learner.learner import Learner
from rondo.train.losses.objective import Objective
from rondo.train.losses.preference import BradleyTerry, Dpo, Kto
from rondo.train.recipes import reward
from rondo.train.recipes.answers import Judged, PreferencePair
from rondo.train.recipes.preference import Preference, judged_trees, mismatched, pair_trees
from rondo.train.recipes.reference import Computed
from support.tiny import VOCAB, tiny_model

Said = tuple[list[dict[str, float]], dict[str, Tensor]]
"""Metrics of two steps, and the weights after them with their averages."""


def pairs() -> list[PreferencePair]:
    source = random.Random(5)

    def some() -> list[int]:
        return [source.randrange(VOCAB) for _ in range(source.randint(2, 9))]

    return [PreferencePair(some(), some(), some()) for _ in range(7)]


def work_of(kind: str, mesh: Mesh | None) -> tuple[list[Tree], Objective]:
    if kind == "reward":
        return reward.pair_trees(pairs()), reward.RewardObjective(BradleyTerry(0.1))
    before = Computed(Evaluator(tiny_model(seed=4), mesh))
    if kind == "dpo":
        return pair_trees(pairs()), Preference(Dpo(), before)
    judged = [Judged(pair.prompt, pair.chosen, i % 3 > 0) for i, pair in enumerate(pairs())]
    return judged_trees(judged), Preference(Kto(), before, mismatched(judged, 20), 40)


def rows_of(trees: Sequence[Tree], share: bool) -> list[PackedRow]:
    return rows_of_all(Groups(trees, share=share), 40, make_row=row_of_groups)


def steps(kind: str, optimizer: str, mesh: Mesh | None = None) -> Said:
    model = tiny_model()
    if kind == "reward":
        make_scorer(model)
    settings = {"optimizer": optimizer, "ema": 0.5, "lr": 1e-2, "eps": 1e-3}
    learner = Learner(model, OptimConfig(**settings), mesh)  # type: ignore[arg-type]
    trees, objective = work_of(kind, mesh)
    rows = rows_of(trees, share=mesh is None or mesh.degrees.cp == 1)
    own = rows if mesh is None else rows[mesh.dp_rank :: mesh.degrees.dp]
    metrics = []
    for _ in range(2):
        asked = objective(learner, own)
        measured = learner.measure(asked.rows, asked.loss)
        said = asked.told(learner.forward_backward(asked.rows, asked.loss)) | learner.optim_step()
        metrics.append(said | {f"measured/{name}": value for name, value in measured.items()})
    if kind != "reward":
        choices = [
            MultipleChoice("which", pair.prompt, [pair.chosen, pair.rejected], [3, 4], i % 2)
            for i, pair in enumerate(pairs())
        ]
        metrics[-1] |= choose(learner, choices, 40)
    assert learner.ema is not None
    tensors = dict(learner.model.named_parameters()) | {
        f"average:{n}": x for n, x in learner.ema.tensors.items()
    }
    return metrics, {name: _whole(x.detach()) for name, x in tensors.items()}


def on_ranks(cases: Sequence[tuple[Mapping[str, Any], str, str]]) -> list[Said]:
    """For each (layout, kind, optimizer), on every rank: for `support.launch`."""
    found = []
    for layout, kind, optimizer in cases:
        model = tiny_model()
        mesh = join(LayoutConfig(**layout), read_world(), model.config, torch.device("cpu"))
        found.append(steps(kind, optimizer, mesh))
    return found


def _whole(x: Tensor) -> Tensor:
    return x.full_tensor().clone() if isinstance(x, DTensor) else x.clone()
