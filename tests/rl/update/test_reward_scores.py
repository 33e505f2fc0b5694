import math
from pathlib import Path

import pytest

from rondo import models
from rondo.base.errors import ConfigError
from rondo.graders import Score
from rondo.models.fresh import make_scorer
from rondo.rl.rollout.types import Rollout, SampleGroup
from rondo.rl.tasks.types import Problem
from rondo.rl.update.reward_scores import RewardScorer, with_reward_model
from rondo.text.bpe import train_bpe
from rondo.text.tokenizer import Tokenizer
from rondo.train.recipes.reward_model import RewardModel
from support.tiny import tiny_model, tiny_tokenizer

PROBLEM = Problem("the user asks", {})


def sample(tokens: list[int], score: Score | None = None, **changes: object) -> Rollout:
    count = len(tokens)
    told = {
        "token_ids": tokens,
        "sampled": [True] * count,
        "logprobs": [-1.0] * count,
        "versions": [0] * count,
        "text": tiny_tokenizer().decode(tokens),
        "finish_reason": "stop",
        "score": score,
    }
    return Rollout(**told | changes)  # type: ignore[arg-type]


def judge(tokenizer: Tokenizer | None = None, tokens: int = 32) -> RewardModel:
    model = tiny_model(seed=2)
    make_scorer(model, seed=1)
    return RewardModel(model, tokenizer or tiny_tokenizer(), tokens_per_row=tokens)


def test_every_sample_is_scored_on_the_tokens_that_were_sampled() -> None:
    groups = [
        SampleGroup(PROBLEM, [7, 8, 9], [sample([5, 6]), sample([5, 6, 11, 12]), sample([10])]),
        SampleGroup(PROBLEM, [7, 8], [sample([20, 21], prompt_ids=[40, 41]), sample([20, 21])]),
        SampleGroup(PROBLEM, [7], []),
    ]
    scorer = RewardScorer(judge(), tiny_tokenizer())
    found = scorer.scores(groups)
    assert [len(row) for row in found] == [3, 2, 0]
    alone = [
        [judge().score([[*(s.prompt_ids or group.prompt_ids), *s.token_ids]])[0] for s in group.samples]
        for group in groups
    ]
    for ours, theirs in zip(found, alone, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-6)
    assert found[1][0] != pytest.approx(found[1][1], rel=1e-4)
    assert scorer.scores([]) == []


def test_a_reward_model_with_its_own_tokenizer_reads_the_text() -> None:
    other = train_bpe(["some quite different words here"] * 3, 290)
    model = judge(other, 64)
    scorer = RewardScorer(model, tiny_tokenizer())
    answer = sample(tiny_tokenizer().encode("the assistant answers"))
    chat = [*PROBLEM.messages, {"role": "assistant", "content": answer.text}]
    assert scorer.scores([SampleGroup(PROBLEM, [7], [answer])])[0] == pytest.approx(model.score_chats([chat]))
    turns = sample([5, 6], sampled=[True, False])
    with pytest.raises(ConfigError, match="not for episodes of several turns"):
        scorer.scores([SampleGroup(PROBLEM, [7], [turns])])


def test_it_is_one_part_more_of_the_score() -> None:
    samples = [
        sample([5], Score("ok", 0.5, {"correct": 0.5})),
        sample([6], Score("timeout", 0.0, {}, "too slow")),
        sample([7], Score("ok", 1.0, {"correct": 1.0})),
        sample([8]),
    ]
    (group,) = with_reward_model(
        [SampleGroup(PROBLEM, [1], samples)], [[2.0, 3.0, math.nan, 1.0]], weight=0.25
    )
    first, slow, broken, nobody = (each.score for each in group.samples)
    assert first == Score("ok", 1.0, {"correct": 0.5, "reward_model": 2.0})
    assert slow == Score("timeout", 0.0, {}, "too slow")
    assert nobody is None
    assert broken is not None
    assert (broken.outcome, broken.detail) == ("error", "the reward model says nan")


def test_it_is_read_from_a_folder(tmp_path: Path) -> None:
    models.save(judge().model, tmp_path / "judge")
    tiny_tokenizer().save(tmp_path / "judge")
    scorer = RewardScorer.load(str(tmp_path / "judge"), tiny_tokenizer(), "cpu", 64)
    groups = [SampleGroup(PROBLEM, [7, 8], [sample([5, 6])])]
    assert scorer.scores(groups)[0] == pytest.approx(
        RewardScorer(judge(), tiny_tokenizer()).scores(groups)[0]
    )
