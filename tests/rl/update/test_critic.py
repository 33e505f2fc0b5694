import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from rondo import models
from rondo.base.errors import ConfigError
from rondo.base.storage.files import atomic_dir
from rondo.data.batching.packing import Document, PackedRow, Tree, pack
from rondo.models import Decoder
from rondo.models.fresh import make_scorer
from rondo.rl.config import RlConfig
from rondo.rl.update.advantages import gae
from rondo.rl.update.config import CriticConfig
from rondo.rl.update.critic import Critic, make_critic, value_metrics
from rondo.train.checkpoints.checkpoint import Keep
from rondo.train.checkpoints.saving import Checkpoints
from rondo.train.learner.learner import Learner
from rondo.train.losses.sums import LossOutput, Predictions
from support.tiny import tiny_model, tiny_tokenizer

PROMPT, ONE, OTHER, LENGTH, GAMMA = [5, 6], 9, 8, 3, 0.9
ANSWERS = [list(answer) for answer in itertools.product([ONE, OTHER], repeat=LENGTH)]
"""Of a policy that chooses one of two tokens at random, three times, and earns at the end one point for each ONE."""


def expected_value(answer: Sequence[int], t: int) -> float:
    """Before its t-th token."""
    so_far = sum(token == ONE for token in answer[:t])
    return float(GAMMA ** (LENGTH - 1 - t) * (so_far + 0.5 * (LENGTH - t)))


def rows_of(
    columns: Sequence[dict[str, Sequence[float]]] | None = None, budget: int = 1000
) -> list[PackedRow]:
    branches = [
        Document(answer, [1.0] * LENGTH, columns[i] if columns else {}, {"sample": float(i)})
        for i, answer in enumerate(ANSWERS)
    ]
    return pack([Tree(PROMPT, branches)], budget)


def by_sample(rows: Sequence[PackedRow], found: Sequence[np.ndarray]) -> list[np.ndarray]:
    parts = {}
    for row, values in zip(rows, found, strict=True):
        for i, number in enumerate(row.facts["sample"]):
            parts[int(number)] = values[row.documents[i] : row.documents[i + 1]]
    return [parts[i] for i in range(len(ANSWERS))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("models")
    with atomic_dir(place / "policy") as model:
        models.save_into(tiny_model(), model)
        tiny_tokenizer().save(model)
    scorer = tiny_model(seed=4)
    make_scorer(scorer, seed=3)
    with atomic_dir(place / "judge") as model:
        models.save_into(scorer, model)
        tiny_tokenizer().save(model)
    return place


def config(folder: Path | None = None, **critic: object) -> RlConfig:
    told = {"algorithm": "ppo", "critic": CriticConfig(**critic)} if critic else {}  # type: ignore[arg-type]
    return RlConfig(lr=1e-2, model="" if folder is None else str(folder / "policy"), **told)  # type: ignore[arg-type]


def made(folder: Path, **critic: object) -> tuple[Learner, Critic]:
    told, model = config(folder, **critic), tiny_model()
    found = make_critic(told, model, tiny_tokenizer())
    assert found is not None
    learner = Learner(model, told)
    found.attach(learner)
    return learner, found


def still(batch: Predictions) -> LossOutput:
    """A policy that learns nothing."""
    return LossOutput(batch.logprobs.sum() * 0.0)


def learn(learner: Learner, critic: Critic, lam: float, step: int) -> None:
    values = by_sample(rows_of(), critic.values(rows_of()))
    columns = []
    for answer, own in zip(ANSWERS, values, strict=True):
        rewards = np.zeros(LENGTH)
        rewards[-1] = sum(token == ONE for token in answer)
        _, returns = gae(rewards, own, GAMMA, lam)
        columns.append({"values": list(map(float, own)), "returns": list(map(float, returns))})
    rows = rows_of(columns)
    learner.forward_backward(rows, critic.joined(still))
    critic.forward_backward(rows, len(ANSWERS) * LENGTH)
    critic.optim_step(learner, step)
    learner.optim_step(accept=lambda norm: critic.policy_learns(step))


@pytest.mark.parametrize(("kind", "lam"), [("separate", 0.9), ("shared", 0.95)])
def test_it_learns_what_is_still_to_be_earned(kind: str, lam: float, folder: Path) -> None:
    learner, critic = made(folder, kind=kind)
    assert not np.concatenate(critic.values(rows_of())).any(), "it begins at 0"
    for step in range(150):
        learn(learner, critic, lam, step)
    found = by_sample(rows_of(), critic.values(rows_of()))
    wanted = [[expected_value(answer, t) for t in range(LENGTH)] for answer in ANSWERS]
    np.testing.assert_allclose(np.array(found), np.array(wanted), atol=0.1)


@pytest.mark.parametrize("kind", ["separate", "shared"])
def test_values_do_not_depend_on_how_rows_are_packed(kind: str, folder: Path) -> None:
    learner, critic = made(folder, kind=kind)
    for step in range(3):
        learn(learner, critic, 1.0, step)
    whole = by_sample(rows_of(), critic.values(rows_of()))
    small = rows_of(budget=6)
    apart = pack(
        Tree(
            PROMPT, [Document(a, [1.0] * LENGTH, {}, {"sample": float(i)}) for i, a in enumerate(ANSWERS)]
        ).apart(),
        12,
    )
    assert len(small) > 1
    for rows in (small, apart):
        np.testing.assert_allclose(by_sample(rows, critic.values(rows)), whole, rtol=1e-5, atol=1e-6)


def test_while_a_shared_one_warms_up_the_policy_stays_as_it_is(folder: Path) -> None:
    learner, critic = made(folder, kind="shared", warmup=2)
    before = {name: p.detach().clone() for name, p in learner.model.named_parameters()}
    for step in range(3):
        learn(learner, critic, 1.0, step)
        changed = {name for name, p in learner.model.named_parameters() if not torch.equal(p, before[name])}
        assert changed == {"head.value.weight"} if step < 2 else len(changed) > 5


def test_while_a_separate_one_warms_up_the_policy_takes_no_step(folder: Path) -> None:
    _, critic = made(folder, kind="separate", warmup=2)
    assert [critic.policy_learns(step) for step in range(4)] == [False, False, True, True]


def test_the_policy_says_the_same_with_a_value_head(folder: Path, tmp_path: Path) -> None:
    plain = Learner(tiny_model(), config())
    learner, _ = made(folder, kind="shared")
    for ours, theirs in zip(learner.logprobs(rows_of()), plain.logprobs(rows_of()), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    models.save(learner.model, tmp_path / "left")
    assert {name for name, _ in models.load(tmp_path / "left").named_parameters()} == {
        name for name, _ in plain.model.named_parameters()
    }


@pytest.mark.parametrize("kind", ["separate", "shared"])
def test_it_goes_on_from_the_policys_checkpoint(kind: str, folder: Path, tmp_path: Path) -> None:
    learner, critic = made(folder, kind=kind)
    for step in range(2):
        learn(learner, critic, 1.0, step)
    with Checkpoints(str(tmp_path), Keep(1)) as saved:
        saved.save(learner.states() | critic.states(), 2, {})
    found = Checkpoints(str(tmp_path), Keep(1)).newest()
    assert found is not None
    other, again = made(folder, kind=kind)
    other.load(found.folder, found.step)
    again.load(found.folder, found.step)
    learn(learner, critic, 1.0, 2)
    learn(other, again, 1.0, 2)
    ours, theirs = (one.states() | two.states() for one, two in ((learner, critic), (other, again)))
    assert ours.keys() == theirs.keys()
    assert (
        any("value" in name for name in ours) if kind == "shared" else any("critic/" in name for name in ours)
    )
    for name, x in ours.items():
        torch.testing.assert_close(theirs[name], x, rtol=0, atol=0)


def test_it_may_begin_as_a_reward_model(folder: Path) -> None:
    _, critic = made(folder, kind="separate", model=str(folder / "judge"), lr=1e-3)
    judge: Decoder = models.load(folder / "judge")
    expected = Learner(judge, config()).logprobs(rows_of())
    for ours, theirs in zip(critic.values(rows_of()), expected, strict=True):
        np.testing.assert_array_equal(ours, theirs)
        assert theirs.any()


def test_one_with_another_tokenizer_is_refused(folder: Path, tmp_path: Path) -> None:
    from rondo.text.bpe import train_bpe

    models.save(tiny_model(), tmp_path / "other")
    train_bpe(["some quite different words here"] * 3, 290).save(tmp_path / "other")
    with pytest.raises(ConfigError, match="another tokenizer than the policy") as error:
        made(folder, kind="separate", model=str(tmp_path / "other"))
    assert error.value.param == "rl.critic.model"


def test_settings_of_another_kind_are_refused() -> None:
    with pytest.raises(ValidationError, match="lr is for a critic of kind separate, and kind is shared"):
        CriticConfig(kind="shared", lr=1e-3)
    with pytest.raises(ValidationError, match="coefficient is for a critic of kind shared"):
        CriticConfig(kind="separate", coefficient=0.5)
    with pytest.raises(ValidationError, match="warmup is for a critic of kind separate or shared"):
        CriticConfig(warmup=3)


def test_what_values_explain() -> None:
    returns = [np.array([1.0, 2.0], np.float32), np.array([3.0], np.float32)]
    assert value_metrics(returns, returns)["critic/explained_variance"] == 1
    means = [np.full(len(r), 2.0, np.float32) for r in returns]
    assert value_metrics(means, returns)["critic/explained_variance"] == 0
    assert value_metrics([], [])["critic/explained_variance"] == 0
