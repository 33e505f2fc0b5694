import itertools
import math

import pytest
import torch
import transformers
from torch import Tensor

from rondo.train.losses import PolicyLoss, Predictions, k3
from rondo.train.schedule import learning_rate


def predictions(logprobs: Tensor, sampled: Tensor, advantages: Tensor) -> Predictions:
    columns = {"advantages": advantages, "sampler_logprobs": sampled, "reference_logprobs": sampled - 0.5}
    return Predictions(logprobs, torch.ones_like(logprobs), columns)


def test_on_policy_the_gradient_is_that_of_reinforce() -> None:
    logprobs = torch.tensor([-1.0, -2.0, -0.5], requires_grad=True)
    advantages = torch.tensor([1.0, -2.0, 0.0])
    output = PolicyLoss()(predictions(logprobs, logprobs.detach().clone(), advantages))
    output.total.backward()
    assert logprobs.grad is not None
    assert torch.equal(logprobs.grad, -advantages)
    assert output.sums["clip_share"] == 0
    assert output.sums["sampler_kl"] == 0
    assert output.maxima["logprob_diff_max"] == 0


def test_a_ratio_that_is_clipped_has_no_gradient() -> None:
    logprobs = torch.tensor([0.5, -0.5, 0.5, -0.5], requires_grad=True)
    advantages = torch.tensor([1.0, -1.0, -1.0, 1.0])
    output = PolicyLoss(0.2, 0.3)(predictions(logprobs, torch.zeros(4), advantages))
    output.total.backward()
    assert logprobs.grad is not None
    assert logprobs.grad[:2].tolist() == [0.0, 0.0]
    assert bool((logprobs.grad[2:] != 0).all())
    assert output.sums["clip_share"] == 2
    up, down = math.exp(0.5), math.exp(-0.5)
    assert output.total.item() == pytest.approx(-1.3 + 0.8 + up - down, rel=1e-5)


def test_k3_is_never_negative_and_nothing_at_equality() -> None:
    x = torch.linspace(-3, 0, 50)
    assert bool((k3(x, torch.full_like(x, -1.5)) >= 0).all())
    assert not k3(x, x).any()


@pytest.mark.parametrize("decay", ["cosine", "linear", "wsd"])
def test_schedules_warm_up_and_end_where_they_should(decay: str) -> None:
    def rates(**more: float) -> list[float]:
        return [
            learning_rate(i, lr=2.0, warmup=10, steps=110, decay=decay, **more)  # type: ignore[arg-type]
            for i in range(111)
        ]

    plain = rates(lr_end=0.1)
    assert plain[0] == pytest.approx(0.2)
    assert plain[9] == plain[10] == pytest.approx(2.0)
    assert plain[110] == pytest.approx(0.2)
    assert min(plain[10:]) >= 0.2 - 1e-9
    assert all(a >= b for a, b in itertools.pairwise(plain[10:]))
    if decay == "wsd":
        assert plain[88] == pytest.approx(2.0)
        assert plain[99] == pytest.approx(1.1)
    assert learning_rate(50, lr=2.0, warmup=10, steps=110, decay="constant") == 2.0


@pytest.mark.parametrize("decay", ["cosine", "linear", "wsd"])
def test_schedules_are_transformers_after_the_warm_up(decay: str) -> None:
    warmup, steps = 10, 110
    after = {"min_lr_rate": 0.1} if decay == "cosine" else {}
    name = {"cosine": "cosine_with_min_lr", "linear": "linear", "wsd": "warmup_stable_decay"}[decay]
    if decay == "wsd":
        after = {"num_decay_steps": 22, "min_lr_ratio": 0.1, "decay_type": "linear"}  # type: ignore[dict-item]
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=2.0)
    theirs = transformers.get_scheduler(
        name, optimizer, num_warmup_steps=warmup, num_training_steps=steps, scheduler_specific_kwargs=after
    )
    for step in range(steps):
        if step >= warmup:
            ours = learning_rate(
                step,
                lr=2.0,
                warmup=warmup,
                steps=steps,
                decay=decay,
                lr_end=0.1 if after else 0.0,  # type: ignore[arg-type]
            )
            assert ours == pytest.approx(theirs.get_last_lr()[0]), step
        optimizer.step()
        theirs.step()
