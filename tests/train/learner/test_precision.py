"""Layers that compute in 16 or 8 bits, beside fp32; and what does not go together."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from rondo.base.errors import ConfigError
from rondo.models.adapters import LoraSpec, attach_lora
from rondo.parallel.config import Precision
from rondo.parallel.precision import Fp8Linear, Fp8LinearByRow
from rondo.train.config import OptimConfig, TrainConfig
from rondo.train.learner.learner import Learner
from rondo.train.losses.sums import cross_entropy
from support.layouts import rows_of
from support.tiny import TINY_MOE, tiny_model

LAYERS, ROUNDINGS, PRODUCTS = 2, 11, 7
"""Of a tiny model: its layers; on a layer's longest path, results that are rounded; and its products."""


def errors(precision: Precision) -> float:
    """How large, against the gradient, its error is: each rounding is off by at most its unit, and independent ones add
    up as squares do. 8-bit products have two factors each, forward once and backward twice."""
    if precision.startswith("fp8"):
        inputs, gradients = 2.0**-4, 2.0**-3
        squares = LAYERS * PRODUCTS * (2 * inputs**2 + inputs**2 + gradients**2)
    else:
        unit = 2.0**-8 if precision == "bfloat16" else 2.0**-11
        ends = 3  # embedding, last norm, logits
        squares = 2 * (LAYERS * ROUNDINGS + ends) * unit**2
    return math.sqrt(squares)


def gradient(precision: Precision | None) -> tuple[float, Tensor]:
    learner = Learner(tiny_model(), OptimConfig(precision=precision))
    loss = learner.forward_backward(rows_of(0), cross_entropy)["loss"]
    scale = learner.scale.now if learner.scale else 1.0
    parts = [p.grad / scale for p in learner.model.parameters() if p.grad is not None]
    return loss, torch.cat([part.flatten() for part in parts])


@pytest.mark.parametrize("precision", ["bfloat16", "float16", "fp8", "fp8-rowwise"])
def test_gradients_are_fp32s_but_for_rounding(precision: Precision) -> None:
    loss, whole = gradient(None)
    ours, narrow = gradient(precision)
    error = float((narrow - whole).norm() / whole.norm())
    assert errors(precision) / 20 < error < errors(precision), "less would be another precision"
    assert abs(ours - loss) < errors(precision) * loss


def test_8_bits_are_for_the_layers_matrices_alone() -> None:
    for precision, kind in (("fp8", Fp8Linear), ("fp8-rowwise", Fp8LinearByRow)):
        model = Learner(tiny_model(), OptimConfig(precision=precision)).computing
        found = [name for name, module in model.named_modules() if isinstance(module, Fp8Linear)]
        assert len(found) == LAYERS * PRODUCTS
        assert all(name.startswith("layers.") for name in found)
        assert type(model.get_submodule(found[0])) is kind


def test_masters_stay_in_float32_and_layers_compute_in_16_bits() -> None:
    learner = Learner(tiny_model(), OptimConfig(lr=1e-2, precision="bfloat16"))
    learner.forward_backward(rows_of(0), cross_entropy)
    assert {p.dtype for p in learner.computing.parameters()} == {torch.bfloat16}
    assert {p.dtype for p in learner.model.parameters()} == {torch.float32}
    assert all(p.grad is None for p in learner.computing.parameters())
    assert {p.grad.dtype for p in learner.model.parameters() if p.grad is not None} == {torch.float32}
    learner.optim_step()
    for master, own in zip(learner.model.parameters(), learner.computing.parameters(), strict=True):
        assert torch.equal(own, master.to(torch.bfloat16))


def test_what_balances_experts_is_exact_and_shared() -> None:
    learner = Learner(tiny_model(**TINY_MOE), OptimConfig(precision="bfloat16", balance=0.01))
    own = dict(learner.computing.named_parameters())
    shared = [name for name, p in learner.model.named_parameters() if own[name] is p]
    assert shared == [name for name in own if name.endswith("correction")]
    learner.forward_backward(rows_of(0), cross_entropy)
    assert learner.optim_step()["expert_load_max"] > 1


def test_an_adapter_learns_over_layers_in_16_bits() -> None:
    model = tiny_model()
    attach_lora(model, LoraSpec(r=4))
    learner = Learner(model, OptimConfig(lr=1e-2, precision="bfloat16"))
    before = [p.detach().clone() for p in model.parameters()]
    for _ in range(2):
        first = learner.forward_backward(rows_of(0), cross_entropy)["loss"]
        learner.optim_step()
    assert learner.forward_backward(rows_of(0), cross_entropy)["loss"] < first
    for p, was in zip(model.parameters(), before, strict=True):
        assert torch.equal(p, was) == (not p.requires_grad)


def test_a_step_that_overflows_is_skipped_and_counted(tmp_path: Path) -> None:
    learner = Learner(tiny_model(), OptimConfig(lr=1e-2, precision="float16"))
    assert learner.scale is not None
    before = [p.detach().clone() for p in learner.model.parameters()]

    def step() -> dict[str, float]:
        learner.forward_backward(rows_of(0), cross_entropy)
        return learner.optim_step()

    learner.scale.tensors["scale"].fill_(2.0**40)
    metrics = step()
    assert (metrics["skipped_steps"], metrics["loss_scale"]) == (1, 2.0**39)
    assert not math.isfinite(metrics["grad_norm"])
    assert all(map(torch.equal, before, learner.model.parameters()))
    assert not learner.optimizer.state
    learner.scale.tensors["scale"].fill_(2.0**10)
    assert step()["skipped_steps"] == 1
    assert not any(map(torch.equal, before, learner.model.parameters()))
    learner.save(tmp_path)
    other = Learner(tiny_model(seed=5), OptimConfig(lr=1e-2, precision="float16"))
    other.load(tmp_path, 2)
    assert other.scale is not None
    assert {name: float(x) for name, x in other.scale.tensors.items()} == {
        "scale": 2.0**10,
        "well": 1,
        "skipped": 1,
    }
    for each in (learner, other):
        each.forward_backward(rows_of(1), cross_entropy)
        each.optim_step()
    assert all(map(torch.equal, learner.model.parameters(), other.model.parameters()))


def test_a_scale_grows_after_steps_that_went_well() -> None:
    from rondo.train.optim.loss_scale import LossScale

    scale = LossScale(8.0, patience=3)
    grown = []
    for finite in (True, True, True, True, True, False, True, True, True):
        scale.learn(finite)
        grown.append(scale.now)
    assert grown == [8, 8, 16, 16, 16, 8, 8, 8, 16]


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_what_is_kept_in_16_bits_is_computed_in_them(precision: Precision) -> None:
    with pytest.raises(ConfigError, match=f"{precision} needs float32 weights") as error:
        Learner(tiny_model().to(torch.bfloat16), OptimConfig(precision=precision))
    assert error.value.param == "train.precision"


@pytest.mark.parametrize("precision", ["float32", "float16"])
def test_a_jobs_config_says_so_before_any_work(precision: Precision) -> None:
    with pytest.raises(ValueError, match="leave dtype at float32"):
        TrainConfig(dtype="bfloat16", precision=precision)


def test_what_changes_nothing_is_no_part_of_a_jobs_hash() -> None:
    assert "precision" in TrainConfig().neutral(), "what is not asked for is not in the hash"
    assert "precision" not in TrainConfig(precision="bfloat16").neutral()
    assert {"checkpointing", "offload", "offload_to", "logits"} <= TrainConfig(precision="fp8").neutral()


def test_8_bits_need_matrices_that_fit() -> None:
    sizes = {"hidden_size": 24, "head_dim": 6, "intermediate_size": 40}
    with pytest.raises(ConfigError, match="divisible by 16"):
        Learner(tiny_model(**sizes), OptimConfig(precision="fp8"))


def test_where_no_smaller_scale_helps_it_is_a_fault_like_any_other() -> None:
    learner = Learner(tiny_model(), OptimConfig(precision="float16"))
    assert learner.scale is not None
    learner.scale.tensors["scale"].fill_(1.0)
    with torch.no_grad():
        next(learner.model.parameters()).fill_(math.nan)
        learner.computing.embed.weight.fill_(math.nan)
    asked: list[float] = []

    def accept(norm: float) -> bool:
        asked.append(norm)
        return False

    learner.forward_backward(rows_of(0), cross_entropy)
    learner.optim_step(accept=accept)
    assert len(asked) == 1
    assert not math.isfinite(asked[0])
