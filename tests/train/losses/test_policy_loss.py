"""The policy's loss on numbers that can be done by hand. (Beside TRL's: tests/real/test_trl_policy_losses.py.)"""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from rondo.train.losses.policy import ESTIMATORS, Correction, PolicyLoss, k1, k2, k3
from rondo.train.losses.sums import Predictions

DOCUMENTS = [0, 2, 2, 4]
"""Of the four predictions below; the one in the middle predicts nothing."""


def predictions(
    logprobs: Tensor, sampled: Tensor, advantages: Tensor, *, entropy: Tensor | None = None, **more: Tensor
) -> Predictions:
    columns = {"advantages": advantages, "sampler_logprobs": sampled, **more}
    return Predictions(logprobs, torch.ones_like(logprobs), columns, DOCUMENTS, entropy=entropy)


def on_policy() -> tuple[Tensor, Tensor]:
    logprobs = torch.tensor([-1.0, -2.3, -0.5, -7.1], requires_grad=True)
    return logprobs, torch.tensor([1.0, -2.0, 0.0, 0.5])


@pytest.mark.parametrize(
    "loss",
    [
        PolicyLoss(),
        PolicyLoss(surrogate="cispo"),
        PolicyLoss(surrogate="reinforce"),
        PolicyLoss(dual_clip=3.0),
        PolicyLoss(correction=Correction("truncate")),
        PolicyLoss(correction=Correction("mask", "sequence", cap=1.0, floor=1.0)),
    ],
    ids=lambda loss: f"{loss.surrogate}-{loss.dual_clip}-{loss.correction}",
)
def test_on_policy_the_gradient_is_that_of_reinforce_to_the_last_bit(loss: PolicyLoss) -> None:
    logprobs, advantages = on_policy()
    output = loss(
        predictions(
            logprobs, logprobs.detach().clone(), advantages, reference_logprobs=logprobs.detach().clone()
        )
    )
    output.total.backward()
    assert logprobs.grad is not None
    assert torch.equal(logprobs.grad, -advantages)
    exact = {name: float(x) for name, x in (output.sums | output.maxima).items()}
    assert exact.pop("ratio") == len(logprobs)
    assert exact.pop("ratio_max") == 1
    assert exact.pop("correction", 4.0) == len(logprobs)
    assert exact.keys() >= {"sampler_kl", "policy_kl", "reference_kl", "logprob_diff", "logprob_diff_max"}
    assert set(exact.values()) == {0.0}


@pytest.mark.parametrize("ratio", ["sequence", "product"])
def test_on_policy_ratios_of_answers_are_one_to_the_last_bit(ratio: Any) -> None:
    logprobs, advantages = on_policy()
    output = PolicyLoss(ratio=ratio)(predictions(logprobs, logprobs.detach().clone(), advantages))
    assert output.sums["ratio"] == 4
    assert output.total == -advantages.sum()


def test_a_ratio_that_is_clipped_has_no_gradient() -> None:
    logprobs = torch.tensor([0.5, -0.5, 0.5, -0.5], requires_grad=True)
    advantages = torch.tensor([1.0, -1.0, -1.0, 1.0])
    output = PolicyLoss(0.2, 0.3)(predictions(logprobs, torch.zeros(4), advantages))
    output.total.backward()
    assert logprobs.grad is not None
    assert logprobs.grad[:2].tolist() == [0.0, 0.0]
    assert bool((logprobs.grad[2:] != 0).all())
    assert (output.sums["clip_share"], output.sums["clip_share_low"], output.sums["clip_share_high"]) == (
        2,
        1,
        1,
    )
    up, down = math.exp(0.5), math.exp(-0.5)
    assert output.total.item() == pytest.approx(-1.3 + 0.8 + up - down, rel=1e-5)
    assert output.sums["ratio"].item() == pytest.approx(2 * (up + down), rel=1e-6)
    assert output.maxima["ratio_max"].item() == pytest.approx(up, rel=1e-6)


def test_a_dual_clip_bounds_what_a_bad_token_can_cost() -> None:
    logprobs = torch.tensor([2.0, 0.5, 2.0, 0.0], requires_grad=True)
    advantages = torch.tensor([-1.0, -1.0, 1.0, 1.0])
    output = PolicyLoss(dual_clip=3.0)(predictions(logprobs, torch.zeros(4), advantages))
    output.total.backward()
    assert logprobs.grad is not None
    assert output.total.item() == pytest.approx(3.0 + math.exp(0.5) - 1.2 - 1.0, rel=1e-5)
    assert logprobs.grad.tolist() == pytest.approx([0.0, math.exp(0.5), 0.0, -1.0])
    assert output.sums["dual_clip_share"] == 1


def test_cispo_weighs_every_token_by_its_clipped_ratio() -> None:
    logprobs = torch.tensor([2.0, -2.0, 0.1, 3.0], requires_grad=True)
    advantages = torch.tensor([1.0, 1.0, -1.0, -1.0])
    output = PolicyLoss(1.0, 4.0, surrogate="cispo")(predictions(logprobs, torch.zeros(4), advantages))
    output.total.backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([-5.0, -math.exp(-2.0), math.exp(0.1), 5.0])
    assert output.sums["clip_share"] == 1


@pytest.mark.parametrize(("ratio", "per"), [("sequence", 2), ("product", 1)])
def test_ratios_of_answers(ratio: Any, per: int) -> None:
    logprobs = torch.tensor([0.1, 0.04, -0.1, 0.02], requires_grad=True)
    advantages = torch.tensor([1.0, 1.0, -2.0, -2.0])
    output = PolicyLoss(ratio=ratio)(predictions(logprobs, torch.zeros(4), advantages))
    output.total.backward()
    first, second = math.exp(0.14 / per), math.exp(-0.08 / per)
    assert output.total.item() == pytest.approx(2 * (-first + 2 * second), rel=1e-5)
    assert logprobs.grad is not None
    gradients = [-first * 2 / per] * 2 + [2 * second * 2 / per] * 2
    assert logprobs.grad.tolist() == pytest.approx(gradients, rel=1e-5)
    assert output.maxima["ratio_max"].item() == pytest.approx(first)


def test_the_ratio_is_over_the_learners_own_and_the_mismatch_beside_it() -> None:
    logprobs = torch.tensor([0.1, 0.1, 0.1, 0.1], requires_grad=True)
    old, sampler = torch.zeros(4), torch.tensor([-1.5, 0.0, 0.5, -2.0])
    given = predictions(logprobs, sampler, torch.ones(4), old_logprobs=old)
    output = PolicyLoss()(given)
    assert output.sums["ratio"].item() == pytest.approx(4 * math.exp(0.1), rel=1e-5)
    assert output.sums["logprob_diff"] == 4.0
    assert output.maxima["logprob_diff_max"] == 2.0
    kl = sum(math.exp(x) - x - 1 for x in (1.5, 0.0, -0.5, 2.0))
    assert output.sums["sampler_kl"].item() == pytest.approx(kl, rel=1e-5)
    assert output.sums["policy_kl"].item() == pytest.approx(4 * (math.exp(0.1) - 1.1), rel=1e-3)

    def weights(correction: Correction) -> list[float]:
        logprobs.grad = None
        found = PolicyLoss(correction=correction)(given)
        found.total.backward()
        assert logprobs.grad is not None
        weights = -logprobs.grad / math.exp(0.1)
        assert found.sums["correction"].item() == pytest.approx(weights.sum().item(), rel=1e-5)
        return [round(x, 4) for x in weights.tolist()]

    e = math.exp
    assert weights(Correction("truncate", cap=2.0)) == [2.0, 1.0, round(e(-0.5), 4), 2.0]
    assert weights(Correction("truncate", cap=2.0, floor=0.8)) == [2.0, 1.0, 0.8, 2.0]
    assert weights(Correction("mask", cap=5.0, floor=0.8)) == [round(e(1.5), 4), 1.0, 0.0, 0.0]
    whole = [round(e(1.5), 4)] * 2
    assert weights(Correction("truncate", "sequence", cap=4.4)) == [4.4, 4.4, 4.4, 4.4]
    assert weights(Correction("mask", "sequence", cap=4.485)) == [*whole, round(e(1.5), 4), round(e(1.5), 4)]
    assert weights(Correction("mask", "sequence", cap=4.48)) == [0.0] * 4
    cut = PolicyLoss(correction=Correction("mask", cap=3.0))(given).sums["correction_share"]
    assert cut == 2


def test_with_a_correction_and_no_column_the_present_policy_is_the_learners() -> None:
    logprobs = torch.tensor([0.1, 0.2, 0.3, 0.4], requires_grad=True)
    sampler = torch.tensor([0.0, 0.0, 0.3, 1.4])
    output = PolicyLoss(correction=Correction())(predictions(logprobs, sampler, torch.ones(4)))
    output.total.backward()
    assert output.sums["ratio"] == 4
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([-math.exp(x) for x in (0.1, 0.2, 0.0, -1.0)])


def test_estimators_are_nothing_at_equality_and_their_means_are_the_divergence() -> None:
    """Over all outcomes of a distribution, each as often as it occurs."""
    policy, reference = (torch.randn(50, dtype=torch.float64).log_softmax(0) for _ in range(2))
    wanted = torch.nn.functional.kl_div(reference, policy, log_target=True, reduction="sum")
    for estimator in (k1, k3):
        assert (policy.exp() * estimator(policy, reference)).sum().item() == pytest.approx(wanted.item())
    near = (policy + 0.01 * reference).log_softmax(0)
    wanted = torch.nn.functional.kl_div(policy, near, log_target=True, reduction="sum")
    assert (near.exp() * k2(near, policy)).sum().item() == pytest.approx(wanted.item(), rel=0.05)
    for estimator in ESTIMATORS.values():
        assert not estimator(policy, policy).any()
    assert bool((k3(policy, reference) >= 0).all())


@pytest.mark.parametrize(
    ("estimator", "unbiased"), [("k1", True), ("k2", False), ("k3", True)], ids=lambda x: str(x)
)
def test_the_gradient_of_the_term_is_that_of_the_divergence(estimator: Any, unbiased: bool) -> None:
    """k1 times the ratio and k2 as it is, on average over what the policy samples; k3 times the ratio too."""
    logits = torch.randn(9, dtype=torch.float64, requires_grad=True)
    reference = torch.randn(9, dtype=torch.float64).log_softmax(0)
    exact = logits.log_softmax(0)
    (exact.exp() * (exact - reference)).sum().backward()
    wanted, logits.grad = logits.grad, None
    logprobs = logits.log_softmax(0)
    columns = {
        "advantages": torch.zeros(9),
        "sampler_logprobs": logprobs.detach(),
        "reference_logprobs": reference,
    }
    batch = Predictions(logprobs, logprobs.detach().exp(), columns, [0, 9])
    PolicyLoss(kl=1.0, kl_estimator=estimator, kl_unbiased=unbiased)(batch).total.backward()
    torch.testing.assert_close(logits.grad, wanted)


def test_an_entropy_is_measured_and_earns() -> None:
    logprobs, advantages = on_policy()
    entropy = torch.tensor([1.0, 2.0, 0.5, 0.0], requires_grad=True)
    given = predictions(logprobs, logprobs.detach().clone(), advantages, entropy=entropy)
    assert not PolicyLoss().needs_entropy
    measured = PolicyLoss(measure_entropy=True)
    assert measured.needs_entropy
    assert measured(given).sums["entropy"] == 3.5
    assert measured(given).total == PolicyLoss()(given).total
    output = PolicyLoss(entropy=0.1)(given)
    assert output.total.item() == pytest.approx(PolicyLoss()(given).total.item() - 0.35)
    output.total.backward()
    assert entropy.grad is not None
    assert entropy.grad.tolist() == pytest.approx([-0.1] * 4)


def test_a_row_that_predicts_nothing() -> None:
    nothing = torch.zeros(0, requires_grad=True)
    columns = {"advantages": nothing.detach(), "sampler_logprobs": nothing.detach()}
    batch = Predictions(nothing, nothing.detach(), columns, [0, 0, 0])
    for loss in (PolicyLoss(), PolicyLoss(ratio="sequence", correction=Correction(level="sequence"))):
        output = loss(batch)
        assert output.total == 0
        assert all(x == 0 for x in (output.sums | output.maxima).values())
