"""Multi-turn tasks with seeded problems: an environment and its questions."""

from __future__ import annotations

import random
from collections.abc import Callable

from rondo.client.engine import Engine
from rondo.client.types import SamplingParams
from rondo.graders import Sample, Score
from rondo.rl.environments.environment import Bounds, Environment, Graded, Message, Told, Turn
from rondo.rl.environments.episodes import Past, Player
from rondo.rl.environments.tools import tool
from rondo.rl.environments.user_code import Aside
from rondo.rl.rollout.types import Rollout
from rondo.rl.tasks import puzzles
from rondo.rl.tasks.types import Facts, Problem, Split, split_of
from rondo.text.tokenizer import Tokenizer

Make = Callable[[random.Random], tuple[str, Facts]]


class Game:
    """A multi-turn task. `environment` creates the environment of one episode; `make` returns a question and the
    facts of the environment, by default only a number that identifies the problem.
    """

    def __init__(
        self,
        name: str,
        environment: Callable[[], Environment],
        make: Make | None = None,
        bounds: Bounds | None = None,
        about: str = "",
        past: Past = "segment",
    ) -> None:
        self.name, self.about = name, about
        self.environment = environment
        self.make = make or (lambda source: (f"{name} {source.getrandbits(32)}", {}))
        self.bounds = bounds or Bounds()
        self.past: Past = past
        self.aside = Aside()
        self.fingerprint: str | None = None
        """Hash of the user's file that defines the game."""
        self._player: Player | None = None

    @property
    def max_tokens(self) -> int:
        return self.bounds.tokens

    def prompts(self, seed: int, n: int, split: Split = "train") -> list[Problem]:
        """Problems, deterministic for a seed; the splits are disjoint."""
        source = random.Random(f"{self.name}:{split}:{seed}")
        problems: list[Problem] = []
        while len(problems) < n:
            question, facts = self.make(source)
            if split_of(f"{question} {sorted(facts.items())}") == split:
                problems.append(Problem(question, facts))
        return problems

    def prepare(self, tokenizer: Tokenizer, max_model_len: int) -> None:
        self._player = Player(self.name, tokenizer, max_model_len, self.bounds, self.aside, self.past)

    async def play(
        self, engine: Engine, problem: Problem, sampling: SamplingParams, seed: int, index: int
    ) -> Rollout:
        if self._player is None:
            raise RuntimeError(f"the game {self.name} was not prepared with a tokenizer")
        try:
            environment = self.environment()
        except Exception as error:  # user code may raise anything
            environment = _Unmade(error)
        return await self._player.play(engine, environment, problem, sampling, seed, index)

    async def score(self, sample: Sample) -> Score:
        """Unused: an episode is scored when it ends."""
        return Score("error", 0.0, detail=f"{self.name} is scored in its episodes")

    def close(self) -> None:
        self.aside.close()


class _Unmade:
    """Substitute for an environment whose construction failed; its episode fails with that error."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def reset(self, problem: Problem, seed: int) -> Told:
        raise self._error

    async def step(self, answer: Message) -> Turn:
        raise self._error


SPAN = 7
GUESSES = 3
"""Enough guesses for any of `SPAN` numbers by binary search."""


def make_guess(source: random.Random) -> tuple[str, Facts]:
    low = source.randint(0, 9 - SPAN + 1)
    return f"guess {low} to {low + SPAN - 1}", {"secret": source.randint(low, low + SPAN - 1)}


class Guess:
    """A guessing game: the environment answers each guess with "higher", "lower" or "yes"."""

    async def reset(self, problem: Problem, seed: int) -> Told:
        self.secret, self.left = int(problem.facts["secret"]), GUESSES
        return problem.question

    async def step(self, answer: Message) -> Turn:
        self.left -= 1
        said = str(answer["content"]).strip()
        guess = int(said) if said.isdecimal() and len(said) < 4 else None
        parts = {"format": float(guess is not None) / GUESSES, "correct": float(guess == self.secret)}
        if guess == self.secret:
            # Unused guesses count as well-formed.
            parts["format"] += self.left / GUESSES
        done = guess == self.secret or self.left == 0
        reward = 0.1 * parts["format"] + 0.9 * parts["correct"]
        return Turn(self._hint(guess), reward, parts, done)

    def _hint(self, guess: int | None) -> str:
        if guess is None:
            return "a number"
        return "yes" if guess == self.secret else "higher" if guess < self.secret else "lower"


def calculate(sum: str) -> str:
    """Works out a sum of whole numbers with + - * and brackets."""
    value, _ = puzzles.evaluate(sum)
    if value is None:
        raise ValueError(f"{sum!r} is no sum of whole numbers")
    return str(value)


def make_product(source: random.Random) -> tuple[str, Facts]:
    a, b = source.randint(10, 99), source.randint(10, 99)
    return f"work out {a}*{b}", {"value": a * b}


class _Product:
    async def score(self, sample: Sample) -> Score:
        correct = float(sample.completion.strip() == str(sample.metadata["value"]))
        number = float(sample.completion.strip().isdecimal())
        parts = {"format": number, "correct": correct}
        return Score("ok", 0.1 * number + 0.9 * correct, parts)


GAMES = {
    game.name: game
    for game in (
        Game(
            "guess",
            Guess,
            make_guess,
            Bounds(turns=GUESSES, tokens=24),
            about="find a number in three guesses: guess 2 to 8",
        ),
        Game(
            "calculator",
            lambda: Graded(_Product(), [tool(calculate)]),
            make_product,
            Bounds(turns=3, tokens=96),
            about="work out a product with a tool: work out 37*64",
        ),
    )
}
