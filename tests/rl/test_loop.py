import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from rondo import models
from rondo.base.errors import ConfigError
from rondo.base.files import atomic_dir
from rondo.base.hashing import sha256_file
from rondo.client.types import CompletionOutput
from rondo.graders import Sample, Score
from rondo.rl import jobs
from rondo.rl.config import RlConfig
from rondo.rl.loop import Grpo
from rondo.rl.rollout import Group, rewards, score
from rondo.rl.tasks import Problem, task
from support.home import own_home
from support.tiny import tiny_model, tiny_tokenizer

CONFIG = RlConfig(
    prompts_per_step=4,
    samples_per_prompt=4,
    steps=4,
    lr=1e-2,
    eval_prompts=8,
    max_tokens=6,
    tokens_per_microbatch=256,
)


def grpo(**changes: object) -> Grpo:
    return Grpo(tiny_model(), tiny_tokenizer(), task("reverse"), CONFIG.model_copy(update=changes))


def test_learner_and_sampler_agree_and_share_their_weights() -> None:
    loop = grpo()
    before = [p.detach().clone() for p in loop.learner.model.parameters()]
    for version in (0, 1, 2):
        metrics = loop.step()
        assert metrics["weight_version"] == version
        assert loop.engine.weight_version == version + 1
        assert metrics["logprob_diff_max"] < 2e-5
        assert metrics["clip_share"] == 0
        assert metrics.keys() >= {
            "reward",
            "reward/correct",
            "seconds/rollout",
            "grad_norm",
            "tokens_per_second",
        }
    assert loop.engine.core.model is loop.learner.model
    assert any(not torch.equal(a, b) for a, b in zip(before, loop.learner.model.parameters(), strict=True))
    (published,) = loop.weights.directory.lookup("policy")
    assert published.version == 3


def test_in_16_bits_both_compute_over_the_same_copy_of_the_masters() -> None:
    loop = grpo(precision="bfloat16", kl=0.1)
    for version in (0, 1):
        assert loop.step()["logprob_diff_max"] < 2e-5, "the same bits, also after a push"
        assert loop.engine.weight_version == version + 1
    assert loop.engine.core.model is loop.learner.computing
    assert {p.dtype for p in loop.engine.core.model.parameters()} == {torch.bfloat16}
    assert {p.dtype for p in loop.learner.model.parameters()} == {torch.float32}


def test_equal_seeds_give_equal_steps_and_sharing_the_prompt_changes_nothing() -> None:
    one, same, unshared, other = (
        grpo(),
        grpo(),
        grpo(share_prefix=False, tokens_per_microbatch=64),
        grpo(seed=1),
    )
    first = [loop.step() for loop in (one, same, unshared, other)]
    weights = [
        torch.cat([p.detach().flatten() for p in loop.learner.model.parameters()])
        for loop in (one, same, unshared)
    ]
    assert torch.equal(weights[0], weights[1])
    assert first[0]["loss"] == first[1]["loss"] == pytest.approx(first[2]["loss"], abs=1e-6)
    assert first[0]["grad_norm"] == pytest.approx(first[2]["grad_norm"], rel=1e-4)
    assert first[0]["reward"] == first[2]["reward"] != first[3]["reward"]


def test_a_group_in_which_all_earn_the_same_is_left_out_and_counts_in_the_mean() -> None:
    loop = grpo()

    def answer(index: int, tokens: list[int]) -> CompletionOutput:
        return CompletionOutput(
            index, "", tokens, [0] * len(tokens), [-1.0] * len(tokens), finish_reason="stop"
        )

    problem = Problem("reverse AB", {"word": "AB"})
    groups = [Group(problem, [1, 2, 3], [answer(0, [5, 6]), answer(1, [7])]) for _ in range(2)]
    (row,) = loop.pack(groups, np.array([[1.0, -1.0], [0.0, 0.0]]))
    assert row.tokens.tolist() == [1, 2, 3, 5]
    assert row.targets.tolist() == [7, 5, 6]
    assert row.columns["advantages"].tolist() == [-1.0, 1.0, 1.0]


def test_the_kl_term_pulls_towards_the_reference() -> None:
    loop = grpo(kl=0.5)
    assert loop.step()["reference_kl"] == pytest.approx(0.0, abs=1e-9)
    assert loop.step()["reference_kl"] > 0


class Moody:
    """Fails, and judges only the rest."""

    name = "moody"

    async def score(self, sample: Sample) -> Score:
        if "B" in sample.prompt:
            raise RuntimeError("cannot read this")
        return Score("ok", 1.0, {"correct": 1.0})


def test_a_grader_that_fails_is_counted_and_teaches_nothing() -> None:
    output = CompletionOutput(0, "x", [1], [0], [-1.0], finish_reason="stop")
    groups = [
        Group(Problem(f"reverse {word}", {"word": word}), [1], [output, output]) for word in ("AA", "BB")
    ]
    table = rewards(score(Moody(), groups))
    assert table[0].tolist() == [1.0, 1.0]
    assert all(math.isnan(x) for x in table[1])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RONDO_HOME", str(own_home(tmp_path)))
    with atomic_dir(tmp_path / "models" / "tiny") as model:
        models.save_into(tiny_model(), model)
        tiny_tokenizer().save(model)
    return tmp_path


def test_an_rl_job_that_was_stopped_ends_like_one_that_was_not(folder: Path) -> None:
    config = CONFIG.model_copy(update={"model": "tiny", "save_every": 1})
    whole = jobs.run(jobs.plan(config.model_copy(update={"keep": 3})))

    class Killed(Exception):
        pass

    def kill(step: int, metrics: object) -> None:
        if step == 2:
            raise Killed

    plan = jobs.plan(config)
    with pytest.raises(Killed):
        jobs.run(plan, kill)
    resumed: list[int] = []
    path = jobs.run(jobs.plan(config), lambda step, metrics: resumed.append(step))
    assert resumed == [3, 4]
    assert path != whole
    assert sha256_file(path / "model.safetensors") == sha256_file(whole / "model.safetensors")
    rows = [json.loads(line) for line in (plan.job.path / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if row["step"]] == [1, 2, 3, 4]
    assert plan.job.state() == "succeeded"


def test_a_job_without_a_model_is_refused() -> None:
    with pytest.raises(ConfigError, match="which model"):
        jobs.plan(CONFIG)
