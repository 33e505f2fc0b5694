"""Environment interface: initial messages, and a reaction to each message of the policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rondo.graders import Grader, Sample
from rondo.rl.environments.tools import Tool
from rondo.rl.tasks.types import Problem

Message = Mapping[str, Any]
"""A message in OpenAI's format, with a role and a content."""
Told = str | Sequence[Message]
"""Messages, or a text as the content of a user message."""


@dataclass(frozen=True)
class Turn:
    """The environment's reaction to a message. Rewards and parts are summed over the turns of an episode."""

    messages: Told = ()
    reward: float = 0.0
    parts: Mapping[str, float] = field(default_factory=dict)
    done: bool = False


class Environment(Protocol):
    """The environment of one episode. Methods may be plain functions, which run in a thread and may block.

    Optional members: `tools`, a sequence of `Tool`s or functions, which are called before `step`, and `close()`,
    which is called at the end of every episode, also after an error.
    """

    async def reset(self, problem: Problem, seed: int) -> Told:
        """The first messages. All samples of a group have the same problem and seed, and must start with the same
        messages for their rewards to be comparable.
        """

    async def step(self, answer: Message) -> Turn:
        """React to the policy's message `answer`: `content`, and optionally `reasoning_content` and `tool_calls`."""


@dataclass(frozen=True)
class Bounds:
    """Limits of an episode."""

    turns: int = 8
    """Maximum number of the policy's turns."""
    tokens: int = 1024
    """Maximum number of sampled tokens in all turns."""
    seconds: float = 300.0
    """Total wall time."""
    step_seconds: float = 30.0
    """Time limit of one call of the environment."""


def messages_of(messages: Told) -> list[Message]:
    return [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)


class Graded:
    """A question with tools. The first message without a tool call is the final answer and is scored by a grader."""

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
