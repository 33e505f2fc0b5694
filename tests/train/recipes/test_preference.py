"""Preference training: its data, and jobs with each kind of weights."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

from rondo import models
from rondo.base.errors import InvalidRequest, NotFound
from rondo.base.storage.files import atomic_dir
from rondo.data.batching.groups import Groups, row_of_groups
from rondo.data.batching.packing import Document, PackedRow, Tree, pack, plan_rows
from rondo.data.batching.sampler import DocumentSpan
from rondo.models.adapters import LoraSpec, attach_lora, load_adapter
from rondo.models.store import resolve
from rondo.parallel.config import Precision
from rondo.train import jobs
from rondo.train.config import AdapterConfig, OptimConfig, PreferenceConfig, TrainConfig
from rondo.train.learner.learner import Learner
from rondo.train.losses.preference import Dpo, Kto
from rondo.train.recipes.answers import Judged, judged, pairs
from rondo.train.recipes.preference import check_sizes, loss_of, mismatched, pair_trees
from rondo.train.recipes.reference import Computed
from rondo.train.recipes.registry import RecipeInputs
from support.home import own_home
from support.tiny import tiny_model, tiny_tokenizer

RECORDS = [
    {
        "prompt": f"the user asks {i % 7}",
        "chosen": "the assistant answers" + " to" * (i % 3),
        "rejected": "reverse",
    }
    for i in range(24)
]
TALK = {
    "messages": [{"role": "user", "content": "add"}],
    "chosen": [{"role": "assistant", "content": "sort"}],
    "rejected": "down",
}


def test_answers_are_tokenized_as_they_are_said() -> None:
    tokenizer = tiny_tokenizer()
    plain, talk = pairs(tokenizer, [RECORDS[1], TALK])
    assert tokenizer.decode(plain.prompt) == RECORDS[1]["prompt"]
    assert tokenizer.decode(plain.chosen, skip_special=False) == RECORDS[1]["chosen"] + "<|im_end|>"
    assert talk.prompt == tokenizer.apply_chat(TALK["messages"])  # type: ignore[arg-type]
    assert tokenizer.decode(talk.chosen, skip_special=False) == "sort<|im_end|>"
    assert tokenizer.decode(talk.rejected, skip_special=False) == "down<|im_end|>"
    label = {"prompt": "a", "completion": "b", "label": True}
    assert [one.good for one in judged(tokenizer, [TALK, label])] == [True, False, True]


def test_records_that_nobody_judged_are_named() -> None:
    plain = {"prompt": "a", "completion": "b"}
    with pytest.raises(InvalidRequest, match='record 2 has no "chosen" and "rejected"'):
        pairs(tiny_tokenizer(), [TALK, plain])
    with pytest.raises(InvalidRequest, match="record 1 has neither"):
        judged(tiny_tokenizer(), [plain])


def test_kto_sets_answers_beside_prompts_that_are_not_theirs() -> None:
    ones = [Judged([1], [10], True), Judged([1], [11, 12, 13], False), Judged([2], [20, 21], True)]
    found = mismatched(ones, longest=3)
    assert [list(one.tokens) for one in found] == [[1, 20, 21], [1, 20, 21], [2, 10]]
    assert [one.facts["document"] for one in found] == [3, 4, 5]


def rows_of(trees: list[Tree], budget: int, share: bool) -> list[PackedRow]:
    groups = Groups(trees, share=share)
    plan = plan_rows([int(n) - 1 for n in groups.lengths], budget)
    return [row_of_groups(groups.read([DocumentSpan(0, i, 0, 0) for i in row])) for row in plan]


@pytest.mark.parametrize("kind", ["dpo", "ipo", "kto", "simpo"])
def test_the_result_does_not_depend_on_how_the_batch_was_cut(kind: str) -> None:
    model, before = tiny_model(), Learner(tiny_model(seed=3), OptimConfig())
    loss = loss_of(PreferenceConfig(loss=kind))  # type: ignore[arg-type]
    if isinstance(loss, Kto):
        loss = replace(loss, kl=0.1)
    trees = pair_trees(pairs(tiny_tokenizer(), RECORDS[:9]))
    found = []
    for budget, share in ((10_000, True), (10_000, False), (100, True), (60, False)):
        learner = Learner(model, OptimConfig())
        rows = Computed(before).given(learner, rows_of(trees, budget, share))
        assert (len(rows) > 1) == (budget < 1000)
        metrics = learner.forward_backward(rows, loss)
        found.append((metrics, [p.grad.clone() for p in model.parameters() if p.grad is not None]))
        learner.optimizer.zero_grad()
    for metrics, gradients in found[1:]:
        assert metrics == pytest.approx(found[0][0], rel=1e-4, abs=1e-6)
        for a, b in zip(found[0][1], gradients, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_a_loss_of_pairs_is_a_mean_over_pairs() -> None:
    learner = Learner(tiny_model(), OptimConfig())
    rows = Computed(learner).given(
        learner, rows_of(pair_trees(pairs(tiny_tokenizer(), RECORDS[:4])), 500, True)
    )
    assert learner.forward_backward(rows, Dpo())["loss"] == pytest.approx(np.log(2), abs=1e-5)


@pytest.mark.parametrize("precision", [None, "bfloat16"])
def test_the_reference_of_an_adapter_is_its_base(precision: Literal["bfloat16"] | None) -> None:
    settings = OptimConfig(lr=0.1, precision=precision)
    model, base = tiny_model(), Learner(tiny_model(), settings)
    attach_lora(model, LoraSpec(4))
    learner = Learner(model, settings)
    trees = pair_trees(pairs(tiny_tokenizer(), RECORDS[:4]))
    rows = pack(trees, 500)
    for _ in range(2):
        given = Computed().given(learner, rows)
        metrics = learner.forward_backward(given, Dpo())
        learner.optim_step()
    assert metrics["margin"] > 0.001
    expected = base.document_logprobs(rows)
    for own, row in zip(expected, given, strict=True):
        np.testing.assert_array_equal(own, row.facts["reference"])
    assert not np.allclose(learner.document_logprobs(rows)[0], expected[0])


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and data."""
    folder = tmp_path_factory.mktemp("ground")
    with atomic_dir(folder / "model") as model:
        models.save_into(tiny_model(), model)
        tiny_tokenizer().save(model)
    (folder / "data.jsonl").write_text("\n".join(map(json.dumps, RECORDS)))
    return folder


def config(ground: Path, **changes: object) -> TrainConfig:
    return TrainConfig(
        model=str(ground / "model"),
        data=str(ground / "data.jsonl"),
        steps=6,
        tokens_per_step=300,
        tokens_per_microbatch=128,
        max_length=60,
        lr=1e-2,
        warmup=0,
    ).model_copy(update=changes)


def metrics_of(plan: jobs.TrainJobPlan) -> list[dict[str, float]]:
    return [json.loads(line) for line in (plan.job.path / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("adapter", ["none", "lora", "tokenformer"])
@pytest.mark.parametrize("loss", ["dpo", "kto"])
def test_margins_rise_with_every_kind_of_weights(
    loss: str, adapter: str, ground: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RONDO_HOME", str(own_home(tmp_path)))
    told = config(
        ground,
        preference=PreferenceConfig(loss=loss),  # type: ignore[arg-type]
        adapter=AdapterConfig(kind=adapter, r=4),  # type: ignore[arg-type]
    )
    plan = jobs.plan("preference", told)
    left = jobs.run(plan)
    rows = metrics_of(plan)
    assert rows[0]["loss"] == pytest.approx(np.log(2) if loss == "dpo" else 0.5, abs=1e-4)
    assert rows[-1]["loss"] < rows[0]["loss"] - 0.02
    assert rows[-1]["accuracy"] > 0.7
    assert jobs.run(plan) == left
    model = models.load(ground / "model")
    if adapter == "none":
        assert left == plan.job.export
        return
    load_adapter(model, plan.job.adapter, train=True)
    if adapter == "lora":
        assert left == plan.job.export
        merged, document = models.load(left), pack(pair_trees(pairs(tiny_tokenizer(), RECORDS[:1])), 99)
        np.testing.assert_allclose(
            Learner(merged, OptimConfig()).logprobs(document)[0],
            Learner(model, OptimConfig()).logprobs(document)[0],
            rtol=1e-4,
        )
    else:
        assert left == plan.job.adapter
        with pytest.raises(NotFound, match="has left an adapter and no model of its own"):
            resolve(plan.job.name)


@pytest.mark.parametrize("loss", ["ipo", "kto"])
def test_a_reference_known_before_is_the_one_computed_batch_by_batch(
    loss: str, ground: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RONDO_HOME", str(own_home(tmp_path)))
    found = []
    for when in ("batch", "before"):
        told = PreferenceConfig(loss=loss, reference=when)  # type: ignore[arg-type]
        plan = jobs.plan("preference", config(ground, preference=told, steps=2))
        jobs.run(plan)
        found.append([row["loss"] for row in metrics_of(plan)])
    assert found[0] == pytest.approx(found[1], rel=1e-4)


@pytest.mark.parametrize("precision", ["bfloat16", "fp8"])
def test_a_reference_in_fewer_bits_has_no_masters(precision: Precision, ground: Path, tmp_path: Path) -> None:
    """It computes what a working copy of masters would, and there are none."""
    told = config(ground, precision=precision)
    model = models.load(ground / "model")
    learner = Learner(model, told)
    work = RecipeInputs(told, ground / "model", tiny_tokenizer(), learner, tmp_path)
    own = work.reference.own
    assert own is not None
    assert own.working is None
    assert {p.dtype for p in own.model.parameters()} == {torch.bfloat16}
    rows = rows_of(pair_trees(pairs(tiny_tokenizer(), RECORDS[:4])), 10_000, share=True)
    for mine, theirs in zip(own.logprobs(rows), learner.logprobs(rows), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_the_recipes_learning_rate_is_used_unless_one_is_given() -> None:
    assert TrainConfig().of_kind("preference").lr == 1e-6
    assert TrainConfig(lr=3e-4).of_kind("preference").lr == 3e-4
    assert TrainConfig().of_kind("sft").lr == 3e-4


def test_bad_answers_are_not_learned_as_if_they_were_good(
    ground: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RONDO_HOME", str(own_home(tmp_path)))
    with pytest.raises(InvalidRequest, match="line 1: the record has an answer that was judged to be bad"):
        jobs.plan("sft", config(ground))
    with pytest.raises(InvalidRequest, match=r"record 1 has \d+ tokens, more than max_length=8"):
        jobs.run(jobs.plan("preference", config(ground, max_length=8)))


def test_a_pair_that_does_not_fit_into_one_row_is_named() -> None:
    answer = Document([2] * 10, [1.0] * 10)
    with pytest.raises(InvalidRequest, match="record 1 has 38 tokens in its two answers"):
        check_sizes([Tree([1] * 10, [answer, answer])], TrainConfig(max_length=30, tokens_per_microbatch=30))
