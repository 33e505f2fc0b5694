"""A tool in the loop: a model whose template shows it, imitation of calls, and reward, with the real engine."""

import random
import runpy
from pathlib import Path

from rondo.rl.config import RlConfig
from rondo.rl.environments.imitation import conversations
from rondo.rl.loop import Loop
from rondo.rl.rollout.types import RlStep
from rondo.rl.tasks.games import GAMES
from rondo.train.config import TrainConfig
from rondo.train.learner.learner import Learner
from rondo.train.loop import train
from rondo.train.recipes import sft

EXAMPLE = Path(__file__).parents[3] / "examples" / "calculator.py"
GAME = GAMES["calculator"]


def test_calls_that_were_imitated_are_answered_and_what_the_policy_said_of_them_is_trained() -> None:
    """It knows the form of a call long before it can copy a number, and a calculator works out what it is asked."""
    example = runpy.run_path(str(EXAMPLE))
    played = conversations(GAME, example["speaker"](random.Random(0)), 0, 200)
    model, tokenizer = example["make"](played, 64, 0)
    imitation = TrainConfig(steps=40, lr=8e-3, tokens_per_step=1024, max_length=256)
    examples = sft.examples(tokenizer, played, imitation.max_length)
    train(Learner(model, imitation), sft.batches(examples, imitation), imitation)
    steps: list[RlStep] = []
    loop = Loop(model, tokenizer, GAME, RlConfig(prompts_per_step=2, samples_per_prompt=8, eval_prompts=4))
    loop.observers.append(steps.append)
    metrics = loop.step()
    loop.close()
    samples = [sample for group in steps[0].groups for sample in group.samples]
    called = [sample for sample in samples if "<tool_response>" in sample.text]
    assert called, samples[0].text
    for sample in called:
        heard = [id for id, chosen in zip(sample.token_ids, sample.sampled, strict=True) if not chosen]
        assert "<tool_response>" in tokenizer.decode(heard, skip_special=False)
        assert not any(
            logprob for logprob, chosen in zip(sample.logprobs, sample.sampled, strict=True) if not chosen
        )
    assert metrics["reward/format"] > 0
    assert metrics["updates"] == 1
    assert metrics["logprob_diff_max"] < 1e-4
