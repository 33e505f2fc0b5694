"""The models beside the policy, in the loop."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from rondo import models
from rondo.base.errors import ConfigError
from rondo.base.storage.files import atomic_dir
from rondo.graders import Sample, Score
from rondo.models.fresh import make_scorer
from rondo.rl.config import RlConfig
from rondo.rl.loop import Loop
from rondo.rl.rollout.engines import shared_engine
from rondo.rl.rollout.types import RlStep
from rondo.rl.tasks.registry import task
from rondo.rl.tasks.types import Problem, Split
from rondo.rl.update.device_sharing import Role, Roles, engine_role, parked
from rondo.train.checkpoints.checkpoint import Keep
from rondo.train.checkpoints.saving import Checkpoints
from support.tiny import tiny_model, tiny_tokenizer

SMALL = {
    "prompts_per_step": 3,
    "samples_per_prompt": 4,
    "steps": 4,
    "lr": 1e-2,
    "eval_prompts": 4,
    "max_tokens": 5,
    "tokens_per_microbatch": 256,
}


def loop(**changes: object) -> Loop:
    return Loop(tiny_model(), tiny_tokenizer(), task("reverse"), RlConfig(**SMALL | changes))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("models")
    scorer = tiny_model(seed=4)
    make_scorer(scorer, seed=3)
    for name, model in {"other": tiny_model(seed=7), "judge": scorer}.items():
        with atomic_dir(place / name) as inside:
            models.save_into(model, inside)
            tiny_tokenizer().save(inside)
    return place


@pytest.mark.parametrize("kind", ["separate", "shared"])
def test_ppo_in_the_loop(kind: str) -> None:
    one = loop(algorithm="ppo", critic={"kind": kind}, minibatches=2, epochs=2)
    for step in range(3):
        metrics = one.step()
        assert metrics.keys() >= {
            "critic/loss",
            "critic/clip_share",
            "critic/explained_variance",
            "critic/value",
        }
        assert metrics["updates"] == 4
        assert metrics["critic/value"] == pytest.approx(0.0) if step == 0 else metrics["critic/value"] != 0
        assert one.learning.update_metrics[0]["logprob_diff_max"] < 2e-5
        assert one.learning.update_metrics[0]["clip_share"] == 0
    one.close()


@pytest.mark.parametrize("kind", ["separate", "shared"])
def test_a_critic_goes_on_with_the_loop(kind: str, tmp_path: Path) -> None:
    settings = {"algorithm": "ppo", "critic": {"kind": kind, "warmup": 1}}
    whole, part, rest = (loop(**settings) for _ in range(3))
    for _ in range(2):
        whole.step()
        part.step()
    with Checkpoints(str(tmp_path), Keep(1)) as saved:
        saved.save(part.states(), 2, part.facts())
    found = Checkpoints(str(tmp_path), Keep(1)).newest()
    assert found is not None
    rest.restore(found.folder, 2, found.state())
    one, other = whole.step(), rest.step()
    for name in ("loss", "critic/loss", "critic/explained_variance", "grad_norm", "reward"):
        assert one[name] == other[name], name
    ours, theirs = whole.states(), rest.states()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours if "random" not in name)
    for each in (whole, part, rest):
        each.close()


def test_the_policy_waits_while_a_critic_warms_up() -> None:
    one = loop(algorithm="ppo", critic={"kind": "separate", "warmup": 1})
    before = {name: p.detach().clone() for name, p in one.learner.model.named_parameters()}
    critic = one.learning.company.critic
    assert critic is not None
    assert critic.learner is not None
    for step in range(2):
        one.step()
        moved = [name for name, p in one.learner.model.named_parameters() if not torch.equal(p, before[name])]
        assert bool(moved) == (step > 0)
        assert critic.learner.step == step + 1
    one.close()


def test_a_teacher_alone_and_beside_the_task(folder: Path) -> None:
    alone = loop(distill={"teacher": str(folder / "other")})
    first = alone.step()
    for _ in range(5):
        last = alone.step()
    assert first["distill/reverse_kl"] > 0
    assert last["distill/reverse_kl"] < first["distill/reverse_kl"]
    both = loop(distill={"teacher": str(folder / "other"), "reward": True}).step()
    assert both["distill/reverse_kl"] == first["distill/reverse_kl"]
    assert both["grad_norm"] != first["grad_norm"]
    alone.close()


def test_a_reward_models_part_is_in_the_reward(folder: Path) -> None:
    plain, judged = loop().step(), loop(reward_model={"model": str(folder / "judge"), "weight": 0.5}).step()
    assert judged["reward/places"] == plain["reward/places"]
    assert judged["reward"] == pytest.approx(plain["reward"] + 0.5 * judged["reward/reward_model"])
    assert judged["reward/reward_model"] != 0


class Equal:
    """All answers earn the same."""

    name, max_tokens = "equal", 5

    def prompts(self, seed: int, n: int, split: Split = "train") -> list[Problem]:
        return task("reverse").prompts(seed, n, split)

    async def score(self, sample: Sample) -> Score:
        return Score("ok", 1.0)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_group_is_drawn_anew_by_what_the_advantages_see(folder: Path, mode: str) -> None:
    """The grader tells no two answers apart, and the reward model does."""
    found = {}
    for weight in (0.0, 1.0):
        judge = {"model": str(folder / "judge"), "weight": weight}
        settings = SMALL | {"mode": mode, "dynamic_sampling": 1, "reward_model": judge}
        one = Loop(tiny_model(), tiny_tokenizer(), Equal(), RlConfig(**settings))  # type: ignore[arg-type]
        told: list[RlStep] = []
        one.observers.append(told.append)
        found[weight] = one.step()
        one.close()
        samples = [sample for group in told[0].groups for sample in group.samples]
        assert all(s.score is not None and s.score.parts.keys() == {"reward_model"} for s in samples)
    assert found[0.0]["groups/drawn_again"] == SMALL["prompts_per_step"]
    assert found[1.0]["groups/drawn_again"] == 0
    assert found[1.0]["updates"] == 1


def test_a_reward_model_that_is_asked_at_any_time_takes_no_turns(folder: Path) -> None:
    settings = {"mode": "async", "dynamic_sampling": 1, "reward_model": {"model": str(folder / "judge")}}
    one = loop(**settings)
    company = one.learning.company
    company.config = company.config.model_copy(update={"device_bytes": 1 << 30})
    with pytest.raises(ConfigError, match="can take no turns") as caught:
        company.share_device(None)
    assert caught.value.param == "rl.device_bytes"
    one.close()


@pytest.mark.parametrize("loss", ["dpo", "kto", "simpo"])
def test_pairs_of_the_policys_own_answers(loss: str) -> None:
    one = loop(algorithm="online_dpo", pairs={"loss": loss}, lr=1e-3)
    for _ in range(2):
        metrics = one.step()
        assert 0 < metrics["pairs"] <= SMALL["prompts_per_step"]  # type: ignore[operator]
        assert metrics["updates"] == 1
    assert (one.learning.company.reference is None) == (loss == "simpo")
    one.close()


def test_taking_turns_changes_no_bit() -> None:
    settings = {"kl": 0.1, "algorithm": "ppo"}
    plain, turns = loop(**settings), loop(**settings)
    engine, reference = shared_engine(turns.collector), turns.learning.company.reference
    assert engine is not None
    assert reference is not None
    moves: list[str] = []

    def told(role: Role) -> Role:
        def come() -> None:
            moves.append(f"+{role.name}")
            role.onload()

        def go() -> None:
            moves.append(f"-{role.name}")
            role.offload()

        return replace(role, nbytes=1, onload=come, offload=go)

    turns.learning.company.roles = Roles(
        [told(engine_role(engine)), told(parked("reference", reference.model))], 1
    )
    for _ in range(3):
        ours, theirs = plain.step(), turns.step()
        assert ours["loss"] == theirs["loss"]
        assert ours["reward"] == theirs["reward"]
    assert plain.evaluate() == turns.evaluate()
    each = ["-reference", "+engine", "-engine", "+reference"]
    assert moves == [*each[:1], *each[2:], *each, *each, *each[:2]], "both are there at first"
    plain.close()
    turns.close()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"advantage": "gae", "normalise": "batch"}, "set critic.kind to separate or shared"),
        ({"critic": {"kind": "shared"}}, "asks no critic: take algorithm ppo"),
        ({"pairs": {"loss": "dpo"}, "kl": 0.1}, "leave kl out"),
        ({"pairs": {"loss": "dpo"}, "minibatches": 2}, "leave minibatches at 1"),
        ({"device_bytes": 5, "device": "cpu"}, "on a CPU all models stay"),
        ({"algorithm": "ppo", "critic": {"coefficient": 1.0}}, "coefficient is for a critic of kind shared"),
    ],
)
def test_what_does_not_go_together_is_refused(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        RlConfig(**settings)  # type: ignore[arg-type]


def test_an_algorithms_section_keeps_what_the_user_did_not_set() -> None:
    assert RlConfig(algorithm="ppo", critic={"lr": 1e-4}).critic.kind == "separate"  # type: ignore[arg-type]
    assert RlConfig(algorithm="ppo", critic={"kind": "shared"}).critic.kind == "shared"  # type: ignore[arg-type]
