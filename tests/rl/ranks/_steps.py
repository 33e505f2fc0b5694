"""RL steps of a loop on several ranks, and of one process: for `support.launch`."""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rondo import models
from rondo.base.storage.files import atomic_dir
from rondo.graders import Sample, Score
from rondo.models.fresh import make_scorer
from rondo.parallel.config import LayoutConfig
from rondo.parallel.ranks.mesh import join
from rondo.parallel.ranks.world import read_world
from rondo.rl.config import RlConfig
from rondo.rl.loop import Loop
from rondo.rl.tasks.registry import task
from support.tiny import tiny_model, tiny_tokenizer

STEPS = 3
SMALL: dict[str, Any] = {
    "prompts_per_step": 3,
    "samples_per_prompt": 4,
    "steps": STEPS,
    "lr": 1e-2,
    "eps": 1e-3,  # so that no step is decided by the sign of what is almost nothing
    "eval_prompts": 3,
    "max_tokens": 6,
    "tokens_per_microbatch": 128,
    "deterministic": True,
}


class Hashed:
    """Rewards that depend on the whole answer."""

    name, max_tokens = "hashed", 6
    prompts = staticmethod(task("reverse").prompts)

    async def score(self, sample: Sample) -> Score:
        return Score("ok", zlib.crc32(sample.completion.encode()) % 5 / 4)


@dataclass(frozen=True)
class Steps:
    metrics: list[dict[str, float]]
    first: list[dict[str, float]]
    """Metrics of the first mini-batch of each step."""
    gradients: dict[str, Tensor]
    """Gradients of the first optimizer step, before they are clipped."""
    weights: dict[str, Tensor]
    tokens: list[list[int]]
    """Sampled tokens of the last step."""
    held_out: dict[str, float]


def leave(folder: Path, *, scores: bool, **changes: Any) -> str:
    model = tiny_model(seed=5, **changes)
    if scores:
        make_scorer(model, seed=5)
    with atomic_dir(folder) as inside:
        models.save_into(model, inside)
        tiny_tokenizer().save(inside)
    return str(folder)


def config_of(settings: Mapping[str, Any], folder: Path) -> RlConfig:
    """The config, with the names `judge` and `other` replaced by folders of models."""
    settings = dict(settings)
    for section, key, scores in (("reward_model", "model", True), ("distill", "teacher", False)):
        if section in settings:
            place = folder / section
            told = str(place) if place.exists() else leave(place, scores=scores)
            settings[section] = {**settings[section], key: told}
    return RlConfig(**SMALL | settings)


def steps_of(
    settings: Mapping[str, Any],
    changes: Mapping[str, Any],
    layout: Mapping[str, Any] | None = None,
    steps: int = STEPS,
) -> Steps:
    """Steps of one process, or of this rank in a layout."""
    model = tiny_model(**changes)
    with tempfile.TemporaryDirectory() as folder:
        config = config_of(settings, Path(folder))
        mesh = None
        if layout is not None:
            mesh = join(LayoutConfig(**layout), read_world(), model.config, torch.device("cpu"))
        loop = Loop(model, tiny_tokenizer(), Hashed(), config, mesh)
    told: list[list[int]] = []
    loop.observers.append(
        lambda step: told.__setitem__(
            slice(None), [s.token_ids for group in step.groups for s in group.samples]
        )
    )
    gradients: dict[str, Tensor] = {}
    original = loop.learner._clip

    def clip() -> float:
        if not gradients:
            gradients.update(gradients_of(loop.learner.model))
        return original()

    loop.learner._clip = clip  # type: ignore[method-assign]
    metrics, first = [], []
    for _ in range(steps):
        metrics.append(loop.step())
        first.append(loop.learning.update_metrics[0])
    held_out = loop.evaluate()
    loop.close()
    weights = {name: whole.clone() for name, whole in loop.learner.gathered(torch.float32)}
    return Steps(metrics, first, gradients, weights, told, held_out)


def gradients_of(model: nn.Module) -> dict[str, Tensor]:
    """Whole gradients of this stage's parameters."""
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {name: (x.full_tensor() if hasattr(x, "full_tensor") else x).clone() for name, x in found.items()}


def on_ranks(
    cases: Sequence[tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]],
    steps: int = STEPS,
) -> list[Steps]:
    """For each (layout, settings, changes of the model), on every rank."""
    return [steps_of(settings, changes, layout, steps) for layout, settings, changes in cases]
