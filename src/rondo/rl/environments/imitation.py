"""Imitation data: conversations in which a scripted function replaces the policy, for SFT before RL."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from rondo.rl.environments.environment import Message, messages_of
from rondo.rl.environments.tools import answer_call, as_tools
from rondo.rl.tasks.games import Game
from rondo.rl.tasks.types import Problem
from rondo.text.conversation.answers import ParsedCall

Speak = Callable[[Sequence[Message]], Message | str]
"""Function from the conversation so far to the next message; a text is the content, a message may have `tool_calls`."""


def conversations(game: Game, speak: Speak, seed: int, n: int) -> list[dict[str, Any]]:
    """`n` SFT records, played in the game's own environments."""

    async def each() -> list[dict[str, Any]]:
        problems = game.prompts(seed, n)
        return [await _conversation(game, speak, problem, at) for at, problem in enumerate(problems)]

    return asyncio.run(each())


async def _conversation(game: Game, speak: Speak, problem: Problem, seed: int) -> dict[str, Any]:
    environment, aside = game.environment(), game.aside
    tools = as_tools(getattr(environment, "tools", ()))
    messages = messages_of(await aside.call(game.bounds.step_seconds, environment.reset, problem, seed))
    for _ in range(game.bounds.turns):
        said = speak(messages)
        answer: Message = {"role": "assistant", "content": said} if isinstance(said, str) else said
        messages.append(answer)
        calls = [ParsedCall(id=call["id"], **call["function"]) for call in answer.get("tool_calls") or ()]
        if calls:
            messages += [await answer_call(tools, call, aside) for call in calls]
            continue
        turn = await aside.call(game.bounds.step_seconds, environment.step, answer)
        if turn.done:
            break
        messages += messages_of(turn.messages)
    while messages[-1]["role"] != "assistant":
        messages.pop()
    return {"messages": messages} | ({"tools": [tool.shown for tool in tools]} if tools else {})
