"""What a policy talks to: an environment asks, hears the answer, and says what comes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rondo.graders import Grader, Sample
from rondo.rl.environments.tools import Tool
from rondo.rl.tasks.registry import Problem

Message = Mapping[str, Any]
"""In OpenAI's shape: a role, a content, and what goes with it."""
Told = str | Sequence[Message]
"""A text is a user's message."""


@dataclass(frozen=True)
class Turn:
    """What the environment says to an answer. Rewards and parts of an episode's turns are summed up."""

    messages: Told = ()
    reward: float = 0.0
    parts: Mapping[str, float] = field(default_factory=dict)
    done: bool = False


class Environment(Protocol):
    """One episode's world. Methods may be plain functions: those run in a thread, and may block.

    It may also have `tools` (a sequence of `Tool`s or functions: the policy's calls of them are answered before `step`
    hears of anything) and `close()`, which is called at the end of every episode, however it ends.
    """

    async def reset(self, problem: Problem, seed: int) -> Told:
        """The first messages. All samples of a group are given the same problem and seed, and must be asked the same
        for their rewards to be compared."""

    async def step(self, answer: Message) -> Turn:
        """`answer` is the policy's message: `content`, and `reasoning_content` and `tool_calls` where it has some."""


@dataclass(frozen=True)
class Bounds:
    """Where an episode ends if nothing else ends it."""

    turns: int = 8
    """Answers of the policy."""
    tokens: int = 1024
    """That the policy samples, in all of its answers."""
    seconds: float = 300.0
    """Of wall time, in all."""
    step_seconds: float = 30.0
    """For the environment to reset, or to answer once."""


def messages_of(told: Told) -> list[Message]:
    return [{"role": "user", "content": told}] if isinstance(told, str) else list(told)


class Graded:
    """A question with tools: the first answer without a call is the last, and is scored by a grader."""

    def __init__(self, grader: Grader, tools: Sequence[Tool] = ()) -> None:
        self.grader, self.tools = grader, tools

    async def reset(self, problem: Problem, seed: int) -> Told:
        self.problem = problem
        return problem.messages

    async def step(self, answer: Message) -> Turn:
        problem = self.problem
        said = str(answer.get("content") or "")
        score = await self.grader.score(Sample(problem.question, said, metadata=problem.facts))
        if score.outcome != "ok":
            raise RuntimeError(score.detail)
        return Turn(reward=score.total, parts=score.parts, done=True)
