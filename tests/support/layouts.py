"""A learner on several ranks beside one that has everything: what it says, its gradients and its weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed.tensor import DTensor

from rondo.data.batching.packing import Document, PackedRow, Tree, pack
from rondo.models import Decoder, decoder
from rondo.models.adapters.attached import trainable
from rondo.models.adapters.lora import attach_lora
from rondo.models.adapters.lora_config import LoraSpec
from rondo.models.adapters.tokenformer import TokenformerSpec, attach_tokenformer
from rondo.parallel.config import LayoutConfig
from rondo.parallel.ranks.mesh import Mesh, join
from rondo.parallel.ranks.world import read_world
from rondo.train.config import OptimConfig
from rondo.train.learner.learner import Learner
from rondo.train.losses.sums import Loss, LossOutput, Predictions, cross_entropy
from support.tiny import VOCAB, tiny_model
from support.wire import Wire

# An epsilon that large keeps steps from being decided by the sign of what is almost nothing.
CONFIG = OptimConfig(lr=1e-2, eps=1e-3, clip=0.5)
STEPS = 2


@dataclass(frozen=True)
class Outcome:
    metrics: list[dict[str, float]]
    gradients: dict[str, Tensor]
    """Of the first step, before they are clipped."""
    weights: dict[str, Tensor]
    logprobs: list[NDArray[np.float32]]
    """Of all rows, in their order, between the first step's gradients and the step itself."""
    passed: int
    """Bytes sent to other stages for the first step's gradients."""


def rows_of(step: int, *, length: int = 64, count: int = 5, answers: bool = False) -> list[PackedRow]:
    """A number of rows that few layouts divide evenly, of several documents each; or of answers to a prompt."""
    draw = torch.Generator().manual_seed(step)
    documents = []
    for _ in range(3 * count):
        size = int(torch.randint(8, length // 3 + 2, (), generator=draw))
        tokens = torch.randint(0, VOCAB, (size,), generator=draw).tolist()
        weights = torch.randint(0, 3, (size,), generator=draw).tolist()
        documents.append(Document(tokens, weights))
    if answers:
        return pack([Tree(each.tokens[:5], documents[i : i + 3]) for i, each in enumerate(documents)], length)
    return pack(documents, length)


def made(adapter: str | None = None, **changes: Any) -> Decoder:
    """A tiny model, perhaps with an adapter of which no part is zero."""
    model = tiny_model(**changes)
    if adapter == "lora":
        attach_lora(model, LoraSpec(r=4, targets=r".*(attn|mlp)\.[a-z_]*_proj(_with_mqa)?"))
    elif adapter == "tokenformer":
        attach_tokenformer(model, TokenformerSpec(r=4, heads=2))
    if adapter is not None:
        draw = torch.Generator().manual_seed(1)
        for parameter in trainable(model):
            parameter.data.normal_(0, 0.2, generator=draw)
    return model


@dataclass(frozen=True)
class Undecided:
    """Cross-entropy that would rather have wide distributions."""

    needs_entropy = True

    def __call__(self, batch: Predictions) -> LossOutput:
        assert batch.entropy is not None
        return LossOutput(-((batch.logprobs + 0.5 * batch.entropy) * batch.weights).sum())


def alone(
    config: OptimConfig = CONFIG, *, answers: bool = False, loss: Loss = cross_entropy, **changes: Any
) -> Outcome:
    """One process with all rows."""
    return _outcome(Learner(made(**changes), config), None, answers, loss)


def on_ranks(cases: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> list[Outcome]:
    """For each (layout, changes of the model, of its rows or of the loss), on every rank: for `support.launch`."""
    return [_on_rank(layout, changes, CONFIG) for layout, changes in cases]


def under(cases: Sequence[tuple[Mapping[str, Any], Mapping[str, Any], OptimConfig]]) -> list[Outcome]:
    """For each (layout, changes of the model, config), on every rank. Logits in parts are so even of a short row."""
    decoder.ROWS_AT_ONCE = 16
    return [_on_rank(*case) for case in cases]


def _on_rank(layout: Mapping[str, Any], changes: Mapping[str, Any], config: OptimConfig) -> Outcome:
    changes = dict(changes)
    answers, loss = changes.pop("answers", False), changes.pop("loss", cross_entropy)
    model = made(**changes)
    mesh = join(LayoutConfig(**layout), read_world(), model.config, torch.device("cpu"))
    return _outcome(Learner(model, config, mesh), mesh, answers, loss)


def same(ours: Outcome, one: Outcome, tolerance: float = 1e-6) -> None:
    for mine, its in zip(ours.metrics, one.metrics, strict=True):
        assert (
            mine["loss"] == torch.tensor(its["loss"]).item()
            or abs(mine["loss"] - its["loss"]) < tolerance * 10
        )
        assert abs(mine["grad_norm"] - its["grad_norm"]) < tolerance * 10 * max(1, its["grad_norm"])
        assert mine["tokens"] == its["tokens"]
    for mine, its in zip(ours.logprobs, one.logprobs, strict=True):
        np.testing.assert_allclose(mine, its, atol=10 * tolerance, rtol=1e-5)
    for name, gradient in ours.gradients.items():
        torch.testing.assert_close(gradient, one.gradients[name], atol=tolerance, rtol=1e-5, msg=name)
    for name, weight in ours.weights.items():
        torch.testing.assert_close(weight, one.weights[name], atol=10 * tolerance, rtol=1e-5, msg=name)


def together(outcomes: Sequence[Outcome]) -> dict[str, Tensor]:
    """All weights that the ranks have between them: a stage has its own. What several have is equal to the bit."""
    for one, other in combinations(outcomes, 2):
        for name in one.weights.keys() & other.weights.keys():
            assert torch.equal(one.weights[name], other.weights[name]), name
    return {name: weight for outcome in outcomes for name, weight in outcome.weights.items()}


def _outcome(learner: Learner, mesh: Mesh | None, answers: bool, loss: Loss) -> Outcome:
    metrics, gradients, logprobs, passed = [], {}, [], 0
    for step in range(STEPS):
        rows = rows_of(step, answers=answers)
        valid = sum(row.valid for row in rows)
        own = rows if mesh is None else rows[mesh.dp_rank :: mesh.degrees.dp]
        with Wire(mesh.pp) if mesh is not None and mesh.degrees.pp > 1 else nullcontext() as wire:
            said = _gradients(learner, own, loss, valid, parts=1 + step)
        if step == 0:
            passed = wire.sent["send"] if wire else 0
            logprobs = _in_order(learner.logprobs(own), mesh)
            scale = learner.scale.now if learner.scale else 1.0
            gradients = {
                name: _whole(p.grad) / scale
                for name, p in learner.model.named_parameters()
                if p.grad is not None
            }
        metrics.append(said | learner.optim_step())
    weights = {name: _whole(p.detach()) for name, p in learner.model.named_parameters()}
    return Outcome(metrics, gradients, weights, logprobs, passed)


def _gradients(
    learner: Learner, rows: list[PackedRow], loss: Loss, valid: int, parts: int
) -> dict[str, float]:
    """Of a step whose batch comes in parts: that of ranks that have few rows may be empty."""
    size = -(-len(rows) // parts)
    said = [
        learner.forward_backward(rows[i * size : (i + 1) * size], loss, valid=valid) for i in range(parts)
    ]
    return said[0] | {"loss": sum(each.get("loss", 0.0) for each in said)}


def _in_order(own: list[NDArray[np.float32]], mesh: Mesh | None) -> list[NDArray[np.float32]]:
    """Rows are dealt out round the ranks of dp."""
    if mesh is None:
        return own
    of_dp = dict(mesh.said((mesh.dp_rank, own)))
    count = sum(map(len, of_dp.values()))
    return [of_dp[i % mesh.degrees.dp][i // mesh.degrees.dp] for i in range(count)]


def _whole(x: Tensor) -> Tensor:
    return x.full_tensor().clone() if isinstance(x, DTensor) else x.clone()
