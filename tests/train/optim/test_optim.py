"""Muon beside AdamW, and the average of the weights, against PyTorch's own."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from rondo.data.batching.packing import Document, pack
from rondo.models.adapters import LoraSpec, attach_lora
from rondo.train.config import OptimConfig
from rondo.train.learner.learner import Learner
from rondo.train.losses.sums import cross_entropy
from rondo.train.optim.muon import is_hidden_matrix
from rondo.train.optim.optimizer import make_optimizer
from support.tiny import TINY_GPT_OSS, tiny_model

CONFIG = OptimConfig(lr=1e-2, weight_decay=0.1, optimizer="muon")
ROWS = pack([Document(list(range(40, 70)), [1.0] * 30)], 64)


def set_gradients(model: torch.nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def test_norms_and_biases_are_not_decayed() -> None:
    model = tiny_model(**TINY_GPT_OSS)
    decays = {
        id(p): group["weight_decay"]
        for group in make_optimizer(model, OptimConfig(weight_decay=0.1)).param_groups
        for p in group["params"]
    }
    found = {name: decays[id(p)] for name, p in model.named_parameters()}
    assert {name for name, p in model.named_parameters() if p.ndim == 2 and name.endswith("bias")}
    for name, decay in found.items():
        assert decay == (0.0 if name.endswith("bias") or "norm" in name or "sinks" in name else 0.1), name


def test_matrices_step_as_pytorchs_muon_and_all_else_as_its_adamw() -> None:
    ours, theirs = tiny_model(), tiny_model()
    optimizer = make_optimizer(ours, CONFIG)
    named = dict(theirs.named_parameters())
    hidden = {name: p for name, p in named.items() if is_hidden_matrix(name, p)}
    assert {"layers.0.attention.q.weight", "layers.1.mlp.down.weight"} <= hidden.keys()
    assert not {"embed.weight", "head.norm.weight", "layers.0.attention_norm.weight"} & hidden.keys()
    muon = torch.optim.Muon(
        hidden.values(), lr=1e-2, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw"
    )
    rest = [p for name, p in named.items() if name not in hidden]
    adamw = torch.optim.AdamW(
        [
            {"params": [p for p in rest if p.ndim >= 2], "weight_decay": 0.1},
            {"params": [p for p in rest if p.ndim < 2], "weight_decay": 0.0},
        ],
        lr=1e-2,
        betas=CONFIG.betas,
        fused=True,
    )
    for step in range(3):
        for group in [*optimizer.param_groups, *muon.param_groups, *adamw.param_groups]:
            group["lr"] = 1e-2 / (step + 1)
        for model in (ours, theirs):
            set_gradients(model, step)
        for each in (optimizer, muon, adamw):
            each.step()
    for name, parameter in ours.named_parameters():
        assert torch.equal(parameter, named[name]), name


def test_its_state_survives_pytorchs_own_saving() -> None:
    ours = make_optimizer(model := tiny_model(), CONFIG)
    set_gradients(model, 0)
    ours.step()
    other = make_optimizer(twin := tiny_model(seed=5), CONFIG)
    other.load_state_dict(copy.deepcopy(ours.state_dict()))
    twin.load_state_dict(model.state_dict())
    for each, optimizer in ((model, ours), (twin, other)):
        set_gradients(each, 1)
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


def learner(**changes: object) -> Learner:
    return Learner(tiny_model(), CONFIG.model_copy(update={"ema": 0.7, **changes}))


def learn(learner: Learner, steps: int) -> None:
    for _ in range(steps):
        learner.forward_backward(ROWS, cross_entropy)
        learner.optim_step()


def test_the_average_is_pytorchs() -> None:
    ours = learner()
    average = AveragedModel(ours.model, multi_avg_fn=get_ema_multi_avg_fn(0.7), use_buffers=False)
    average.update_parameters(ours.model)  # the first is a copy
    for _ in range(3):
        learn(ours, 1)
        average.update_parameters(ours.model)
    assert ours.ema is not None
    for name, parameter in average.module.named_parameters():
        torch.testing.assert_close(ours.ema.tensors[name], parameter.detach(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("lora", [False, True])
def test_saved_and_loaded_it_goes_on_to_the_bit(lora: bool, tmp_path: Path) -> None:
    learners = []
    for seed in (0, 9):
        model = tiny_model()
        if lora:
            attach_lora(model, LoraSpec(4), seed=seed)
        learners.append(Learner(model, CONFIG.model_copy(update={"ema": 0.7})))
    one, other = learners
    learn(one, 2)
    one.save(tmp_path)
    other.load(tmp_path, 2)
    for each in learners:
        learn(each, 2)
    assert all(
        torch.equal(a, b) for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True)
    )
    assert one.ema is not None
    assert other.ema is not None
    assert all(torch.equal(average, other.ema.tensors[name]) for name, average in one.ema.tensors.items())


def test_a_job_leaves_the_average_where_it_was_asked_for() -> None:
    last, average = learner(), learner(export="average")
    for each in (last, average):
        learn(each, 3)
        before = [p.detach().clone() for p in each.model.parameters()]
        with each.as_left():
            left = {name: p.detach().clone() for name, p in each.model.named_parameters()}
        assert all(torch.equal(a, b) for a, b in zip(before, each.model.parameters(), strict=True))
        assert each.ema is not None
        same = all(torch.equal(tensor, each.ema.tensors[name]) for name, tensor in left.items())
        assert same == (each is average)
    with pytest.raises(ValueError, match="ema is 0"):
        OptimConfig(export="average")


def test_what_computes_in_16_bits_has_the_average_too() -> None:
    each = learner(export="average", precision="bfloat16")
    learn(each, 3)
    last = each.logprobs(ROWS)[0]
    assert each.ema is not None
    average = tiny_model()
    average.load_state_dict(dict(each.ema.tensors), strict=False)
    with each.as_left():
        expected = Learner(average, CONFIG.model_copy(update={"precision": "bfloat16"})).logprobs(ROWS)[0]
        assert np.array_equal(each.logprobs(ROWS)[0], expected)
    assert np.array_equal(each.logprobs(ROWS)[0], last)
    assert not np.array_equal(last, expected)
