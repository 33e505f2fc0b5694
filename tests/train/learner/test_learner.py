import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rondo import models
from rondo.base.errors import ModelError
from rondo.data.batching.packing import Document, PackedRow, Tree, pack
from rondo.models import Decoder, Packed
from rondo.models.files.mapping import to_hf
from rondo.train.config import OptimConfig
from rondo.train.learner.learner import Learner
from rondo.train.losses.policy import Correction, PolicyLoss
from rondo.train.losses.sums import cross_entropy
from support.tiny import TINY_MLA, VOCAB, tiny_model

CONFIG = OptimConfig(lr=1e-2, weight_decay=0.1)


def answers(source: random.Random, n: int) -> list[Document]:
    found = []
    for _ in range(n):
        ids = [source.choice([7, 8]) for _ in range(source.randint(1, 9))]  # many begin alike
        columns = {
            "advantages": [source.uniform(-1, 1)] * len(ids),
            "sampler_logprobs": [source.uniform(-6, -5) for _ in ids],
        }
        found.append(Document(ids, [source.choice([0.5, 1.0, 2.0]) for _ in ids], columns))
    return found


def groups(seed: int = 0) -> list[Tree]:
    source = random.Random(seed)
    return [
        Tree([source.randrange(VOCAB) for _ in range(source.randint(1, 8))], answers(source, 4))
        for _ in range(5)
    ]


def separate(trees: Sequence[Tree]) -> list[Document]:
    return [
        Document(
            [*tree.prefix, *branch.tokens],
            [0.0] * len(tree.prefix) + list(branch.weights),
            {name: [0.0] * len(tree.prefix) + list(column) for name, column in branch.columns.items()},
        )
        for tree in trees
        for branch in tree.branches
    ]


def gradients(
    model: Decoder, rows: list[PackedRow], loss: object
) -> tuple[dict[str, float], list[torch.Tensor]]:
    learner = Learner(model, CONFIG)
    metrics = learner.forward_backward(rows, loss, temperature=0.7)  # type: ignore[arg-type]
    found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    learner.optimizer.zero_grad()
    return metrics, found


@pytest.mark.parametrize(
    "loss",
    [
        cross_entropy,
        PolicyLoss(kl=0.0),
        PolicyLoss(0.1, 0.3, entropy=0.1),
        PolicyLoss(ratio="sequence", correction=Correction(level="sequence")),
    ],
    ids=["ce", "ppo", "clip", "answers"],
)
def test_the_result_does_not_depend_on_how_the_batch_was_cut(loss: object) -> None:
    model, trees = tiny_model(), groups()
    metrics, expected = gradients(model, pack(trees, 1000), loss)
    for rows in (pack(trees, 24), pack(separate(trees), 1000), pack(separate(trees), 24)):
        assert len(rows) > 1 or not any(parent >= 0 for parent in rows[0].parents)
        others, found = gradients(model, rows, loss)
        assert others == pytest.approx(metrics, rel=1e-4, abs=1e-6)
        for a, b in zip(expected, found, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("ratio", ["token", "sequence", "product"])
def test_over_its_own_log_probabilities_a_ratio_is_one_to_the_last_bit(ratio: Any) -> None:
    learner = Learner(tiny_model(), CONFIG)
    rows = pack(groups(), 40)
    known = [
        replace(row, columns={**row.columns, "sampler_logprobs": own, "reference_logprobs": own})
        for row, own in zip(rows, learner.logprobs(rows, 0.7), strict=True)
    ]
    loss = PolicyLoss(ratio=ratio, kl=0.1, correction=Correction(), entropy=0.1)
    first = learner.forward_backward(known, loss, temperature=0.7)
    assert (first["ratio"], first["ratio_max"], first["correction"]) == (1, 1, 1)
    exact = ("policy_kl", "sampler_kl", "reference_kl", "logprob_diff_max", "clip_share", "correction_share")
    assert [first[name] for name in exact] == [0] * len(exact)
    learner.optim_step()
    assert learner.forward_backward(known, replace(loss, correction=None), temperature=0.7)["policy_kl"] > 0


@pytest.mark.parametrize("window", [None, 4])
def test_shared_prompts_give_the_logprobs_of_separate_ones(window: int | None) -> None:
    changes = {"sliding_window": window, "use_sliding_window": True, "max_window_layers": 0} if window else {}
    learner, trees = Learner(tiny_model(**changes), CONFIG), groups()
    assert {spec.window for spec in learner.model.attention_specs()} == {window}
    shared = np.sort(np.concatenate(learner.logprobs(pack(trees, 1000))))
    apart = np.sort(np.concatenate(learner.logprobs(pack(separate(trees), 1000))))
    np.testing.assert_allclose(shared, apart, rtol=1e-5, atol=1e-5)


def test_cross_entropy_is_pytorchs_mean_over_valid_tokens() -> None:
    model = tiny_model()
    ids = list(range(40, 60))
    metrics, found = gradients_at_one(model, pack([Document(ids, [1.0] * 20)], 64))
    logits = model(torch.tensor(ids[:-1]), torch.arange(19), Packed([0, 19]))
    expected = torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:]))
    assert metrics["loss"] == pytest.approx(expected.item(), rel=1e-5)
    expected.backward()
    for parameter, grad in zip(model.parameters(), found, strict=True):
        torch.testing.assert_close(parameter.grad, grad, rtol=1e-4, atol=1e-6)


def gradients_at_one(model: Decoder, rows: list[PackedRow]) -> tuple[dict[str, float], list[torch.Tensor]]:
    learner = Learner(model, CONFIG)
    metrics = learner.forward_backward(rows, cross_entropy)
    found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    learner.optimizer.zero_grad()
    return metrics, found


def test_norms_are_not_decayed_and_gradients_are_clipped() -> None:
    model = tiny_model()
    learner = Learner(model, OptimConfig(lr=0.1, weight_decay=0.5, clip=0.25))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    learner.optim_step()
    for name, parameter in model.named_parameters():
        expected = before[name] * (1 - 0.1 * 0.5) if parameter.ndim >= 2 else before[name]
        torch.testing.assert_close(parameter.detach(), expected)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    count = sum(p.numel() for p in model.parameters())
    norms = torch.stack([p.grad.norm() for p in model.parameters()])  # type: ignore[union-attr]
    assert float(norms.norm()) == pytest.approx(count**0.5, rel=1e-4)
    assert learner.optim_step()["grad_norm"] == pytest.approx(count**0.5, rel=1e-4)


def test_a_batch_without_predictions_changes_nothing() -> None:
    learner = Learner(tiny_model(), CONFIG)
    before = [p.detach().clone() for p in learner.model.parameters()]
    assert learner.forward_backward([], cross_entropy) == {"tokens": 0.0}
    learner.optim_step()
    assert all(torch.equal(a, b) for a, b in zip(before, learner.model.parameters(), strict=True))


def test_saved_and_loaded_it_goes_on_to_the_bit(tmp_path: Path) -> None:
    rows = pack(groups(), 64)
    one = Learner(tiny_model(), CONFIG)
    for _ in range(2):
        one.forward_backward(rows, cross_entropy)
        one.optim_step()
    one.save(tmp_path)
    other = Learner(tiny_model(seed=9), CONFIG)
    tensors = [p.data_ptr() for p in other.model.parameters()]
    other.load(tmp_path, 2)
    assert tensors == [p.data_ptr() for p in other.model.parameters()]
    assert other.step == 2
    for learner in (one, other):
        learner.forward_backward(rows, cross_entropy)
        learner.optim_step()
    assert all(
        torch.equal(a, b) for a, b in zip(one.model.parameters(), other.model.parameters(), strict=True)
    )
    with pytest.raises(ModelError, match="another model"):
        Learner(tiny_model(num_hidden_layers=1), CONFIG).load(tmp_path, 2)


def test_shards_and_export_speak_of_the_same_tensors(tmp_path: Path) -> None:
    learner = Learner(tiny_model(), CONFIG)
    learner.export_hf(tmp_path / "out")
    loaded = dict(to_hf(models.load(tmp_path / "out")))
    own = dict(learner.shards())
    assert own.keys() == loaded.keys()
    assert all(torch.equal(own[name], loaded[name]) for name in own)


def test_a_batch_that_is_left_out_corrects_no_router() -> None:
    learner = Learner(tiny_model(**TINY_MLA), CONFIG)
    before = {name: p.detach().clone() for name, p in learner.model.named_parameters()}
    rows = pack([Document(list(range(20)), [1.0] * 20)], 32)
    for accepted in (False, True):
        learner.forward_backward(rows, cross_entropy)
        assert learner.optim_step(accept=lambda norm, accepted=accepted: accepted)["expert_load_max"] >= 1
        changed = [name for name, p in learner.model.named_parameters() if not torch.equal(p, before[name])]
        assert bool(changed) == accepted
    assert any(name.endswith("correction") for name in changed)
