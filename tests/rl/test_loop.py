import asyncio
import json
import math
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rondo import models
from rondo.base.errors import ConfigError
from rondo.base.storage.files import atomic_dir
from rondo.base.storage.hashing import sha256_file
from rondo.engine.entrypoints.llm import LLM
from rondo.graders import Sample, Score
from rondo.rl import jobs
from rondo.rl.config import RlConfig
from rondo.rl.loop import Loop, NoAnswerJudged, NothingToLearn
from rondo.rl.rollout.sync_collector import SyncCollector
from rondo.rl.rollout.types import RlStep, Rollout, SampleGroup
from rondo.rl.tasks.registry import task
from rondo.rl.tasks.types import Problem, Split
from rondo.rl.update.learning import Learning
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


def grpo(**changes: object) -> Loop:
    return Loop(tiny_model(), tiny_tokenizer(), task("reverse"), CONFIG.model_copy(update=changes))


def engine_of(loop: Loop) -> LLM:
    assert isinstance(loop.collector, SyncCollector)
    return loop.collector.engine


def test_learner_and_sampler_agree_and_share_their_weights() -> None:
    loop = grpo()
    before = [p.detach().clone() for p in loop.learner.model.parameters()]
    for version in (0, 1, 2):
        metrics = loop.step()
        assert metrics["weight_version"] == version
        assert loop.version == version + 1
        assert metrics["logprob_diff_max"] < 2e-5
        assert metrics["clip_share"] == 0
        assert metrics.keys() >= {
            "reward",
            "reward/correct",
            "seconds/rollout",
            "grad_norm",
            "tokens_per_second",
            "memory/resident",
        }
        assert 0 < metrics["mfu_causal"] <= metrics["mfu"]
    assert engine_of(loop).core.model is loop.learner.model
    assert any(not torch.equal(a, b) for a, b in zip(before, loop.learner.model.parameters(), strict=True))
    assert isinstance(loop.collector, SyncCollector)
    (published,) = loop.collector.weights.directory.lookup("policy")
    assert published.version == 3


def test_in_16_bits_both_compute_over_the_same_copy_of_the_masters() -> None:
    loop = grpo(precision="bfloat16", kl=0.1)
    for version in (0, 1):
        assert loop.step()["logprob_diff_max"] < 2e-5, "the same bits, also after a push"
        assert loop.version == version + 1
    assert engine_of(loop).core.model is loop.learner.computing
    assert {p.dtype for p in engine_of(loop).core.model.parameters()} == {torch.bfloat16}
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


def answer(tokens: list[int], **changes: object) -> Rollout:
    count = len(tokens)
    made = Rollout(tokens, [True] * count, [-1.0] * count, [0] * count, "", "stop")
    return replace(made, **changes)  # type: ignore[arg-type]


def scored(*totals: float | None) -> list[Rollout]:
    """An answer of one token for each reward; None is a grader that failed."""
    scores = [Score("error", 0.0) if total is None else Score("ok", total) for total in totals]
    return [answer([5 + i], score=score) for i, score in enumerate(scores)]


PROBLEM = Problem("reverse AB", {"word": "AB"})


def test_answers_that_no_grader_judged_are_no_part_of_the_loss() -> None:
    """Neither of its rows nor of its divisor, whatever else the loss has: a divergence, an entropy."""
    tokens = [[5, 6], [7, 8, 9], [5, 9]]
    right = [
        answer(ids, score=Score("ok", total)) for ids, total in zip(tokens, (0.0, 1.0, 0.5), strict=True)
    ]
    failed = [answer([9, 8, 7, 6], score=Score("error", 0.0)), answer([5], score=Score("timeout", 0.0))]
    for changes in ({}, {"kl": 0.1}, {"aggregate": "sequence"}, {"aggregate": "constant"}):
        config = RlConfig(model="", entropy=0.01, **changes)  # type: ignore[arg-type]
        learning = Learning(tiny_model(), tiny_tokenizer(), config, longest=8)
        (without,), _ = learning.prepare([SampleGroup(PROBLEM, [3, 4], right)], 0)
        (with_failed,), _ = learning.prepare([SampleGroup(PROBLEM, [3, 4], [*failed, *right])], 0)
        assert without.tokens == with_failed.tokens == 7
        for ours, theirs in zip(without.rows, with_failed.rows, strict=True):
            assert ours.tokens.tolist() == theirs.tokens.tolist()
            assert ours.weights.tolist() == theirs.weights.tolist()
            assert ours.columns["advantages"].tolist() == theirs.columns["advantages"].tolist()


def test_a_group_in_which_all_earn_the_same_is_left_out_and_counts_in_the_mean() -> None:
    learning = grpo().learning
    pair = [answer([5, 6], score=Score("ok", 0.0)), answer([7], score=Score("ok", 1.0))]
    same = [replace(sample, score=Score("ok", 1.0)) for sample in pair]
    groups = [SampleGroup(PROBLEM, [1, 2, 3], samples) for samples in (pair, same)]
    (batch,), advantages = learning.prepare(groups, 0)
    (row,) = batch.rows
    assert batch.tokens == 6
    assert row.tokens.tolist() == [1, 2, 3, 5]
    assert row.targets.tolist() == [7, 5, 6]
    assert row.columns["advantages"][0] == -row.columns["advantages"][1] > 0
    assert [[len(one) for one in group] for group in advantages] == [[2, 1], [0, 0]]
    assert set(row.columns) == {"advantages", "sampler_logprobs"}


def test_tokens_that_the_policy_did_not_choose_are_seen_and_not_learned() -> None:
    """A tool's output in the middle of an answer; an episode in two pieces, each after a prompt of its own."""
    learning = grpo(tokens_per_microbatch=64).learning
    first = answer([5, 6], sampled=[True, False], prompt_ids=[1, 2])
    whole = answer([7, 8, 9], sampled=[True, False, True], prompt_ids=[1, 2, 3], earlier=(first,))
    good, bad = replace(whole, score=Score("ok", 1.0)), replace(whole, score=Score("ok", 0.0))
    (batch,), _ = learning.prepare([SampleGroup(PROBLEM, [1, 2, 3], [good, bad])], 0)
    assert good.trained == 3
    assert batch.tokens == 6
    targets = sorted(int(x) for row in batch.rows for x in row.targets)
    assert targets == [5, 5, 7, 7, 9, 9]
    assert sum(row.weights.sum() for row in batch.rows) == 6


def test_a_step_without_anything_to_learn_changes_no_weight_and_many_end_the_run() -> None:
    class Content:
        name, max_tokens = "content", 6
        prompts = staticmethod(task("reverse").prompts)

        async def score(self, sample: Sample) -> Score:
            return Score("ok", 0.5, {"correct": 0.5})

    loop = Loop(tiny_model(), tiny_tokenizer(), Content(), CONFIG.model_copy(update={"most_idle": 2}))
    before = [p.detach().clone() for p in loop.learner.model.parameters()]
    for step in (1, 2):
        metrics = loop.step()
        assert (metrics["updates"], metrics["reward"]) == (0, 0.5)
        assert loop.version == loop.steps_done == step
    assert all(map(torch.equal, before, loop.learner.model.parameters()))
    with pytest.raises(NothingToLearn, match="earned the same for 2 steps"):
        loop.step()


def test_a_run_without_a_judged_answer_ends_with_the_graders_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        name, max_tokens = "broken", 6
        prompts = staticmethod(task("reverse").prompts)

        async def score(self, sample: Sample) -> Score:
            raise ValueError("no key for the judge")

    loop = Loop(tiny_model(), tiny_tokenizer(), Broken(), CONFIG)
    for _ in range(3):
        assert loop.step()["unjudged"] == 16
    again = Loop(tiny_model(), tiny_tokenizer(), Broken(), CONFIG)
    again.unjudged, again.steps_done = loop.facts()["unjudged"], 3  # as after resuming
    for each in (loop, again):
        with pytest.raises(NoAnswerJudged, match=r"judged no answer in 3 steps: .*no key for the judge"):
            each.step()
    monkeypatch.setenv("RONDO_HOME", str(own_home(tmp_path)))
    with atomic_dir(tmp_path / "model") as folder:
        models.save_into(tiny_model(), folder)
        tiny_tokenizer().save(folder)
    short = CONFIG.model_copy(update={"steps": 1, "model": str(tmp_path / "model")})
    plan = jobs.plan(short, Broken())
    with pytest.raises(NoAnswerJudged, match="in 1 steps"):
        jobs.run(plan)
    assert plan.job.state() == "failed"


def test_several_optimizer_steps_from_one_rollout() -> None:
    """In deterministic mode the first mini-batch has a ratio of exactly 1 and a KL divergence of exactly 0."""
    loop = grpo(minibatches=2, epochs=2, deterministic=True, kl=0.1)
    for _ in range(2):
        metrics = loop.step()
        told = loop.learning.update_metrics
        assert len(told) == metrics["updates"] == 4
        assert told[0]["ratio"] == told[0]["ratio_max"] == 1.0
        assert told[0]["policy_kl"] == told[0]["sampler_kl"] == told[0]["logprob_diff_max"] == 0.0
        assert told[3]["policy_kl"] > 0
        assert metrics["tokens"] == 2 * sum(each["tokens"] for each in told[:2])
    assert loop.version == 2, "however many optimizer steps, a push a step"
    assert loop.learner.step == 8


def test_a_mini_batch_has_its_share_of_the_groups() -> None:
    learning = grpo(minibatches=3).learning
    groups = [SampleGroup(PROBLEM, [1, 2, 3 + i], scored(0.0, 1.0)) for i in range(4)]
    batches, _ = learning.prepare(groups, 7)
    assert sorted(batch.tokens for batch in batches) == [2, 2, 4]
    again, _ = learning.prepare(groups, 7)
    assert [b.rows[0].tokens.tolist() for b in batches] == [b.rows[0].tokens.tolist() for b in again]
    prompts = sorted(int(row.tokens[-1]) for batch in batches for row in batch.rows for _ in range(1))
    assert set(prompts) <= {3, 4, 5, 6}
    assert len(learning.prepare(groups[:2], 7)[0]) == 2, "never more mini-batches than groups"


def test_observers_are_told_each_step_and_may_add_to_its_metrics() -> None:
    loop, told = grpo(), list[RlStep]()

    def watch(step: RlStep) -> None:
        told.append(step)
        step.metrics["watched"] = 1.0

    loop.observers.append(watch)
    metrics = [loop.step(), loop.step()]
    assert [each["watched"] for each in metrics] == [1.0, 1.0]
    for each in metrics:
        phases = [value for name, value in each.items() if name.startswith("seconds/")]
        assert sum(phases) <= each["seconds"], "what observers took is one of them"
        assert each["seconds/store"] > 0
    assert [(step.number, step.version) for step in told] == [(1, 0), (2, 1)]
    for group, advantages in zip(told[0].groups, told[0].advantages, strict=True):
        lengths = [len(sample.token_ids) for sample in group.samples]
        assert [len(one) for one in advantages] in (lengths, [0] * len(lengths))
    assert {version for group in told[1].groups for s in group.samples for version in s.versions} == {1}


def test_the_kl_term_pulls_towards_the_reference() -> None:
    loop = grpo(kl=0.5)
    assert loop.step()["reference_kl"] == pytest.approx(0.0, abs=1e-9)
    assert loop.step()["reference_kl"] > 0


def test_a_grader_that_fails_is_counted_and_teaches_nothing() -> None:
    class Moody:
        """Fails on some answers, hangs on others."""

        name, max_tokens = "moody", 6
        prompts = staticmethod(task("reverse").prompts)

        async def score(self, sample: Sample) -> Score:
            kind = zlib.crc32(sample.completion.encode()) % 4
            if kind == 0:
                raise RuntimeError("cannot read this")
            if kind == 1:
                await asyncio.sleep(60)
            return Score("ok", math.nan if kind == 2 else len(sample.completion) / 9)

    changes = {"grader_timeout": 0.2, "samples_per_prompt": 8}
    loop = Loop(tiny_model(), tiny_tokenizer(), Moody(), CONFIG.model_copy(update=changes))
    told: list[RlStep] = []
    loop.observers.append(told.append)
    metrics = loop.step()
    outcomes = [sample.score.outcome for group in told[0].groups for sample in group.samples if sample.score]
    assert set(outcomes) == {"ok", "error", "timeout"}
    assert metrics["unjudged"] == len(outcomes) - outcomes.count("ok")
    for group, advantages in zip(told[0].groups, told[0].advantages, strict=True):
        for sample, own in zip(group.samples, advantages, strict=True):
            assert sample.judged or not any(own)


def test_a_prompt_that_leaves_no_room_is_drawn_anew() -> None:
    long = Problem("reverse " + "A" * 400, {"word": "A"})

    class Mixed:
        name, max_tokens = "mixed", 6
        share = 2

        def prompts(self, seed: int, n: int, split: str = "train") -> list[Problem]:
            fine = task("reverse").prompts(seed, n)
            return [long if i % self.share == 0 else problem for i, problem in enumerate(fine)]

        score = task("reverse").score

    loop = Loop(tiny_model(), tiny_tokenizer(), Mixed(), CONFIG)
    metrics = loop.step()
    assert metrics["groups/empty"] == 2
    assert metrics["groups/too_long"] == 2 * 16
    Mixed.share = 1
    with pytest.raises(ConfigError, match="no prompt of mixed leaves room"):
        loop.step()


def test_groups_that_teach_nothing_are_drawn_anew_up_to_a_bound() -> None:
    class Picky:
        """Some words are all right, some all wrong, and some depend on the answer."""

        name, max_tokens = "picky", 6
        prompts = staticmethod(task("reverse").prompts)

        async def score(self, sample: Sample) -> Score:
            kind = zlib.crc32(sample.prompt.encode()) % 3
            return Score("ok", float(kind) if kind < 2 else float(zlib.crc32(sample.completion.encode()) % 2))

    def one(redraws: int) -> tuple[dict[str, float], list[SampleGroup]]:
        changes = {"dynamic_sampling": redraws}
        loop = Loop(tiny_model(), tiny_tokenizer(), Picky(), CONFIG.model_copy(update=changes))
        told: list[RlStep] = []
        loop.observers.append(told.append)
        return loop.step(), told[0].groups

    metrics, groups = one(12)
    assert metrics["groups/drawn_again"] == len(groups) - 4 > 0
    assert all(len({s.score.total for s in group.samples if s.score}) == 2 for group in groups[:4])
    bounded, _ = one(1)
    assert 0 < bounded["groups/drawn_again"] <= 4
    assert one(12)[0]["loss"] == metrics["loss"], "which groups are drawn again follows from the seed"


def test_what_overlong_answers_lose_tells_groups_that_teach() -> None:
    """All earn the same but for their lengths: as it is drawn anew, so it is learned from."""
    steps: list[RlStep] = []
    for overlong in (0.0, 1.0):
        changes = {"dynamic_sampling": 1, "overlong": overlong}
        loop = Loop(tiny_model(), tiny_tokenizer(), Equal(), CONFIG.model_copy(update=changes))
        loop.observers.append(steps.append)
        loop.step()
    plain, punished = steps
    assert plain.metrics["groups/drawn_again"] == 4
    assert punished.metrics["groups/drawn_again"] < 4
    dropped = punished.groups[4:]
    assert all(len({sample.trained for sample in group.samples}) == 1 for group in dropped)


@pytest.mark.parametrize("horizon", [1.0, 10.0])
def test_the_weight_of_the_divergence_is_steered(horizon: float) -> None:
    """In a first step there is none, which is as far below its target as counts."""
    loop = grpo(kl=0.1, kl_target=0.01, kl_horizon=horizon)
    assert loop.step()["kl_coefficient"] == 0.1
    assert loop.learning.kl == pytest.approx(0.1 * (1 - 0.2 / horizon))


class Equal:
    """All answers earn the same."""

    name, max_tokens = "equal", 6

    def prompts(self, seed: int, n: int, split: Split = "train") -> list[Problem]:
        return task("reverse").prompts(seed, n, split)

    async def score(self, sample: Sample) -> Score:
        return Score("ok", 1.0)


def test_answers_near_the_limit_earn_less() -> None:
    config = CONFIG.model_copy(update={"overlong": 1.0, "overlong_penalty": 0.5, "normalise": "mean"})
    loop = Loop(tiny_model(), tiny_tokenizer(), Equal(), config)
    steps: list[RlStep] = []
    loop.observers.append(steps.append)
    loop.step()
    lengths = [[sample.trained for sample in group.samples] for group in steps[0].groups]
    assert any(len(set(each)) > 1 for each in lengths)
    for each, found in zip(lengths, steps[0].advantages, strict=True):
        earned = [1 - 0.5 * length / 6 for length in each]
        mean = sum(earned) / len(earned)
        for own, advantages in zip(earned, found, strict=True):
            assert advantages == pytest.approx([own - mean] * len(advantages), abs=1e-6)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RONDO_HOME", str(own_home(tmp_path)))
    with atomic_dir(tmp_path / "models" / "tiny") as model:
        models.save_into(tiny_model(), model)
        tiny_tokenizer().save(model)
    return tmp_path


def test_an_rl_job_that_was_stopped_ends_like_one_that_was_not(folder: Path) -> None:
    config = CONFIG.model_copy(update={"model": "tiny", "save_every": 1})
    whole = jobs.run(jobs.plan(config.model_copy(update={"eval_prompts": 9})))

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
