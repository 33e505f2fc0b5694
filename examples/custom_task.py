"""A task of your own: the letters of a word in alphabetical order, learned by imitation first and by reward then.

    python examples/custom_task.py                   begins with the demo model; keeps the result as `alphabetical`
    rondo serve alphabetical

A task makes problems from a random source, knows one right answer to each, and grades any answer part by part.
"""

import argparse
import random
from typing import Any

from rondo import models
from rondo.demo.corpus import solved
from rondo.models.store import create_model, resolve
from rondo.rl.config import RlConfig
from rondo.rl.loop import Loop
from rondo.rl.tasks.registry import Task
from rondo.text.tokenizer import Tokenizer
from rondo.train.config import TrainConfig
from rondo.train.learner.learner import Learner
from rondo.train.loop import train
from rondo.train.recipes import sft

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def make(source: random.Random) -> tuple[str, dict[str, Any]]:
    """What the model is asked, and what the grader has to know."""
    word = "".join(source.sample(LETTERS, source.randint(3, 4)))
    return f"order {word}", {"word": word}


def solve(facts: dict[str, Any]) -> str:
    return "".join(sorted(facts["word"]))


def grade(facts: dict[str, Any], answer: str) -> dict[str, float]:
    """Each part from 0 to 1. Parts that are easier than the whole give a model something to climb."""
    word, right = facts["word"], solve(facts)
    return {
        "format": float(answer.isalpha() and answer.isupper()),
        "letters": len(set(answer) & set(word)) / max(len(set(answer) | set(word)), 1),
        "places": sum(a == b for a, b in zip(answer, right, strict=False)) / max(len(answer), len(right)),
        "correct": float(answer == right),
    }


TASK = Task(
    name="alphabetical",
    about="the letters of a word in order: order DOG",
    make=make,
    solve=solve,
    grade=grade,
    shares={"format": 0.1, "letters": 0.2, "places": 0.3, "correct": 0.4},
    max_tokens=8,
)


def main() -> None:
    parser = argparse.ArgumentParser(description="Tune a model on a task of your own.")
    parser.add_argument("--model", default="demo", help="where to begin: a name, or a folder (demo)")
    parser.add_argument("--sft-steps", type=int, default=15, help="steps of imitation (15)")
    parser.add_argument("--rl-steps", type=int, default=40, help="steps of GRPO (40)")
    parser.add_argument("--prompts", type=int, default=32, help="prompts an RL step; 8 answers each (32)")
    parser.add_argument("--eval-prompts", type=int, default=128, help="held-out prompts (128)")
    given = parser.parse_args()

    folder = resolve(given.model)
    model, tokenizer = models.load(folder), Tokenizer.load(folder)

    # Imitation, until the answers are right now and then: with no success at all, GRPO has nothing to prefer.
    imitation = TrainConfig(
        steps=given.sft_steps, lr=1e-3, decay="constant", tokens_per_step=4096, max_length=256
    )
    examples = sft.examples(tokenizer, solved(TASK, seed=0, n=2000), imitation.max_length)
    train(Learner(model, imitation), sft.batches(examples, imitation), imitation)

    # Reward: the engine in here samples from the very tensors that the learner changes.
    config = RlConfig(
        steps=given.rl_steps,
        lr=3e-4,
        warmup=5,
        prompts_per_step=given.prompts,
        samples_per_prompt=8,
        eval_prompts=given.eval_prompts,
    )
    with Loop(model, tokenizer, TASK, config) as loop:
        print(f"after imitation: right on {loop.evaluate()['reward/correct']:.0%} of held-out prompts")
        for step in range(1, config.steps + 1):
            metrics = loop.step()
            if step % 10 == 0 or step == config.steps:
                parts = "  ".join(f"{part} {metrics[f'reward/{part}']:.2f}" for part in TASK.shares)
                print(f"step {step}: reward {metrics['reward']:.2f}  ({parts})", flush=True)
        print(f"after reward: right on {loop.evaluate()['reward/correct']:.0%} of held-out prompts")
    print(f"kept in {create_model(TASK.name, model, tokenizer=folder, replace=True)}")


if __name__ == "__main__":
    main()
