"""The load-balancing loss, beside transformers' own function of the same router logits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func

from rondo.base.errors import ConfigError
from rondo.data.batching.packing import PackedRow
from rondo.models.parts import ExpertRouter
from rondo.parallel.config import Checkpointing
from rondo.train.config import OptimConfig
from rondo.train.learner.learner import Learner
from rondo.train.learner.passes import NOTHING, Passes
from rondo.train.losses.auxiliary import coefficient_of
from rondo.train.losses.sums import cross_entropy
from support.launch import fork
from support.layouts import on_ranks, rows_of
from support.tiny import TINY_MLA, TINY_MOE, tiny_model

EXPERTS, CHOSEN = TINY_MOE["num_experts"], TINY_MOE["num_experts_per_tok"]


def learner_of(coefficient: float | None, *, multiple: int = 1, **settings: Any) -> Learner:
    learner = Learner(tiny_model(**TINY_MOE), OptimConfig(router_aux_loss=coefficient, **settings))
    assert isinstance(learner.passes, Passes)
    learner.passes._multiple = multiple
    return learner


def gradients(learner: Learner, rows: list[PackedRow]) -> tuple[dict[str, float], dict[str, Tensor]]:
    found = learner.forward_backward(rows, cross_entropy)
    return found, {name: p.grad.clone() for name, p in learner.model.named_parameters() if p.grad is not None}


def theirs(rows: list[PackedRow], coefficient: float) -> tuple[float, dict[str, Tensor]]:
    """The mean over rows, weighted by what the loss counts, and its gradients through autograd."""
    learner = learner_of(0.0)
    logits: list[Tensor] = []
    for router in learner.model.modules():
        if isinstance(router, ExpertRouter):
            router.watch = lambda given: logits.append(given) or given  # type: ignore[func-returns-value]
    valid, mean = sum(row.valid for row in rows), 0.0
    assert isinstance(learner.passes, Passes)
    for row in rows:
        logits.clear()
        scored = learner.passes._scored(row, 1.0, entropy=False)
        balance = load_balancing_loss_func(tuple(logits), EXPERTS, CHOSEN)
        weights = torch.from_numpy(row.weights)
        total = -(scored * weights).sum() + coefficient * balance * row.valid
        (total / valid).backward()
        mean += float(balance.detach()) * row.valid / valid
    return mean, {name: p.grad for name, p in learner.model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("checkpointing", ["none", "selective", "full"])
@pytest.mark.parametrize("multiple", [1, 64])
def test_it_is_what_transformers_computes(multiple: int, checkpointing: Checkpointing) -> None:
    """Values and gradients, of packed rows, whatever fills them up."""
    rows = rows_of(0, count=3)
    mean, want = theirs(rows, 0.5)
    found, ours = gradients(learner_of(0.5, multiple=multiple, checkpointing=checkpointing), rows)
    assert found["router_aux_loss"] == pytest.approx(mean, rel=1e-5)
    assert ours.keys() == want.keys()
    for name in want:
        torch.testing.assert_close(ours[name], want[name], atol=1e-6, rtol=1e-4, msg=name)


def test_microbatches_may_come_apart() -> None:
    rows = rows_of(0, count=4)
    valid = sum(row.valid for row in rows)
    _, whole = gradients(learner_of(0.5), rows)
    learner = learner_of(0.5)
    for row in rows:
        learner.forward_backward([row], cross_entropy, valid=valid)
    learner.forward_backward([NOTHING], cross_entropy, valid=valid)
    for name, p in learner.model.named_parameters():
        if p.grad is not None:
            torch.testing.assert_close(p.grad, whole[name], atol=1e-6, rtol=1e-4, msg=name)


def test_it_balances() -> None:
    rows = rows_of(0, count=3)
    learner = learner_of(10.0, lr=1e-2)
    values = []
    for _ in range(20):
        values.append(learner.forward_backward(rows, cross_entropy)["router_aux_loss"])
        learner.optim_step()
    assert values[-1] < values[0]
    assert values[-1] == pytest.approx(CHOSEN, abs=0.02), "the least: every expert as often"


def test_forward_values_keep_their_bits() -> None:
    rows = rows_of(0, count=2)
    for ours, plain in zip(learner_of(0.5).logprobs(rows), learner_of(0.0).logprobs(rows), strict=True):
        assert (ours == plain).all()
    with_it, without = (gradients(learner_of(each), rows)[0]["loss"] for each in (0.5, 0.0))
    assert with_it == without


def test_the_coefficient_is_the_models_own() -> None:
    moe, other = tiny_model(**TINY_MOE).config, tiny_model(**TINY_MLA).config
    own = tiny_model(**TINY_MOE, router_aux_loss_coef=0.02).config
    assert (coefficient_of(moe, None), coefficient_of(own, None), coefficient_of(own, 0.0)) == (
        0.001,
        0.02,
        0.0,
    )
    assert coefficient_of(other, None) == coefficient_of(tiny_model().config, None) == 0.0
    for model in (other, tiny_model().config):
        with pytest.raises(ConfigError, match="no softmax routers") as error:
            coefficient_of(model, 0.1)
        assert error.value.param == "train.router_aux_loss"


def test_stages_balance_their_own_layers() -> None:
    """Of two stages of one layer each: the mean over layers, where one process takes all layers together."""
    layers: list[float] = []
    rows = rows_of(0)
    learner = learner_of(0.0)
    valid = sum(row.valid for row in rows)
    assert isinstance(learner.passes, Passes)
    for module in learner.model.modules():
        if isinstance(module, ExpertRouter):
            module.watch = lambda given: layers.append(float(balance_of(given))) or given  # type: ignore[func-returns-value]
    mean = 0.0
    for row in rows:
        layers.clear()
        learner.passes._scored(row, 1.0, entropy=False)
        mean += sum(layers) / 2 * row.valid / valid
    own = TINY_MOE | {"router_aux_loss_coef": 1.0}
    for outcomes in fork(on_ranks, 2, [({"pp": 2, "zero": 0}, own)]):
        # All ranks of the pipeline have all rows; those that its schedule takes last have the same length.
        assert outcomes[0].metrics[0]["router_aux_loss"] == pytest.approx(mean, rel=1e-4)


def balance_of(logits: Tensor) -> Tensor:
    found: Tensor = load_balancing_loss_func((logits.detach(),), EXPERTS, CHOSEN)
    return found
