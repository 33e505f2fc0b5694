"""An environment of your own: a number is to be found in three guesses, and every guess is told where the number lies.

    python examples/environment.py                   begins with the demo model; keeps the result as `guesser`
    rondo rl --model demo --task examples/environment.py:GAME

An environment says what the policy is asked first, and what comes of each answer. All else is the library's: turns,
tokens, limits, and what happens when an environment fails.
"""

import argparse
import random

from rondo import models
from rondo.models.store import create_model, resolve
from rondo.rl.config import RlConfig
from rondo.rl.environments.environment import Bounds, Turn
from rondo.rl.environments.imitation import conversations
from rondo.rl.loop import Loop
from rondo.rl.tasks.games import Game
from rondo.text.tokenizer import Tokenizer
from rondo.train.config import TrainConfig
from rondo.train.learner.learner import Learner
from rondo.train.loop import train
from rondo.train.recipes import sft


class Guess:
    async def reset(self, problem, seed):
        self.number, self.left = random.Random(seed).randint(1, 7), 3
        return "guess 1 to 7"

    async def step(self, answer):
        guess, self.left = answer["content"], self.left - 1
        if guess == str(self.number) or not self.left:
            return Turn(reward=float(guess == str(self.number)), done=True)
        return Turn("higher" if guess < str(self.number) else "lower")


GAME = Game("seven", Guess, bounds=Bounds(turns=3, tokens=24))


def main() -> None:
    parser = argparse.ArgumentParser(description="Tune a model in an environment of your own.")
    parser.add_argument("--model", default="demo", help="where to begin: a name, or a folder (demo)")
    parser.add_argument("--sft-steps", type=int, default=10, help="steps of imitation (10)")
    parser.add_argument("--rl-steps", type=int, default=60, help="steps of RL (60)")
    parser.add_argument("--prompts", type=int, default=32, help="numbers an RL step; 8 episodes each (32)")
    parser.add_argument("--eval-prompts", type=int, default=128, help="held-out episodes (128)")
    parser.add_argument("--seed", type=int, default=0, help="of all that is drawn (0)")
    given = parser.parse_args()

    folder = resolve(given.model)
    model, tokenizer = models.load(folder), Tokenizer.load(folder)

    # Imitation of one who says any digit: the form of the game, and nothing of how to play it.
    source = random.Random(given.seed)
    played = conversations(GAME, lambda messages: str(source.randint(0, 9)), given.seed, 1000)
    imitation = TrainConfig(
        steps=given.sft_steps,
        lr=1e-3,
        decay="constant",
        tokens_per_step=4096,
        max_length=256,
        seed=given.seed,
    )
    examples = sft.examples(tokenizer, played, imitation.max_length)
    train(Learner(model, imitation), sft.batches(examples, imitation), imitation)

    config = RlConfig(
        steps=given.rl_steps,
        lr=3e-4,
        warmup=5,
        prompts_per_step=given.prompts,
        samples_per_prompt=8,
        eval_prompts=given.eval_prompts,
        seed=given.seed,
    )
    with Loop(model, tokenizer, GAME, config) as loop:
        print(f"after imitation: found {loop.evaluate()['reward']:.0%} of held-out numbers")
        for step in range(1, config.steps + 1):
            metrics = loop.step()
            if step % 10 == 0 or step == config.steps:
                print(f"step {step}: reward {metrics['reward']:.2f}", flush=True)
        print(f"after reward: found {loop.evaluate()['reward']:.0%} of held-out numbers")
    print(f"kept in {create_model('guesser', model, tokenizer=folder, replace=True)}")


if __name__ == "__main__":
    main()
