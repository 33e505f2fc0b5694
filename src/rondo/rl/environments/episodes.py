"""Episodes: policy and environment alternate, and each token is marked as sampled or not."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from rondo.base.errors import ConfigError, InvalidRequest, Overloaded
from rondo.base.ids import new_id
from rondo.base.telemetry.log import get_logger
from rondo.base.telemetry.metrics import counter, histogram
from rondo.client.engine import Engine
from rondo.client.types import GenerateRequest, SamplingParams
from rondo.graders import Score
from rondo.rl.environments.environment import Bounds, Environment, Message, Turn, messages_of
from rondo.rl.environments.segment import Segment
from rondo.rl.environments.tools import Tool, answer_call, as_tools
from rondo.rl.environments.user_code import Aside, Late
from rondo.rl.rollout.seeds import seed_of
from rondo.rl.rollout.types import Rollout
from rondo.rl.tasks.types import Problem
from rondo.text.conversation.answers import ParsedAnswer, read_answer
from rondo.text.conversation.dialogue import Dialogue, ParsedTurn, Prompt
from rondo.text.parsing import choose_dialect
from rondo.text.tokenizer import Tokenizer

log = get_logger(__name__)

T = TypeVar("T")
Past = Literal["segment", "error"]

_episodes = counter("episodes", "Number of episodes by finish reason.", ("task", "finish"))
_turns = histogram(
    "episode_turns", "Number of the policy's turns per episode.", ("task",), (1, 2, 4, 8, 16, 32, 64)
)
_read = counter("episode_prompt_tokens", "Prompt tokens of all turns of episodes.", ("task",))
_cached = counter("episode_cached_tokens", "Prompt tokens of episodes found in the prefix cache.", ("task",))

ROOM_SECONDS = 0.1
"""Seconds between two attempts to queue a request in an engine with a full queue."""


class BrokenEnvironment(Exception):
    """The environment failed or timed out."""

    def __init__(self, finish: Literal["error", "timeout"], detail: str) -> None:
        super().__init__(detail)
        self.finish, self.detail = finish, detail


@dataclass(frozen=True)
class Player:
    """Plays episodes of one task.

    `past` is the behaviour when the chat template changes earlier turns. "segment": the conversation in its new form
    becomes the prompt of a new segment of the episode. "error": the episode fails.
    """

    name: str
    tokenizer: Tokenizer
    max_model_len: int
    bounds: Bounds
    aside: Aside
    past: Past = "segment"

    async def play(
        self,
        engine: Engine,
        environment: Environment,
        problem: Problem,
        sampling: SamplingParams,
        seed: int,
        index: int,
    ) -> Rollout:
        """Sample `index` of a group: a function of the weights, `seed` and `index` if the environment is
        deterministic. A failed environment still results in a rollout with a score, whose outcome is then not
        "ok".
        """
        episode = _Episode(self, engine, environment, sampling.with_(n=1, logprobs=0), seed, index)
        detail = ""
        try:
            async with asyncio.timeout(self.bounds.seconds) as limit:
                finish = await episode.run(problem)
        except TimeoutError:
            if not limit.expired():
                raise
            finish = "time"
        except BrokenEnvironment as broken:
            finish, detail = broken.finish, broken.detail
            log.warning("an episode failed", extra={"task": self.name, "finish": finish, "detail": detail})
        finally:
            await episode.close()
        _episodes.labels(self.name, finish).inc()
        _turns.labels(self.name).observe(episode.turns)
        return episode.rollout(finish, detail)


class _Episode:
    def __init__(
        self,
        player: Player,
        engine: Engine,
        environment: Environment,
        sampling: SamplingParams,
        seed: int,
        index: int,
    ) -> None:
        self.player, self.engine, self.environment = player, engine, environment
        self.seed, self.index = seed, index
        self.tools = as_tools(getattr(environment, "tools", ()))
        self.dialogue = Dialogue(player.tokenizer, [tool.shown for tool in self.tools])
        dialect = choose_dialect(player.tokenizer.tool_template)
        self.dialect = dialect if self.tools else dialect.without_calls()
        self.functions = [
            {"name": tool.name, "parameters": tool.parameters, "strict": None} for tool in self.tools
        ]
        self.sampling = sampling
        self.kept = _kept_ids(player.tokenizer, self.dialect.markers)
        self.pieces: list[Segment] = []
        self.reward, self.parts = 0.0, dict[str, float]()
        self.turns = self.spent = self.calls = 0
        check_tools(player.tokenizer, self.tools)

    async def run(self, problem: Problem) -> str:
        """Run the episode and return its finish reason."""
        bounds = self.player.bounds
        reaction = await self._call(self.environment.reset, problem, self.seed)
        prompt = self._start_segment(_messages(reaction))
        while True:
            room = min(bounds.tokens - self.spent, self.player.max_model_len - len(prompt.ids))
            if room < 1:
                return "length"
            ids, finish = await self._sample(prompt, room)
            if finish != "stop":
                return finish
            parsed = self._read(prompt, ids)
            turn = await self._answer(parsed)
            self._earn(turn)
            if turn.done:
                return "stop"
            if self.turns == bounds.turns:
                return "turns"
            prompt = self._continue(
                prompt,
                ParsedTurn(ids, parsed.words),
                [parsed.message, *_messages(turn.messages)],
            )

    async def close(self) -> None:
        close = getattr(self.environment, "close", None)
        if close is None:
            return
        try:
            await self._call(close)
        except BrokenEnvironment as broken:
            log.warning(
                "an environment did not close", extra={"task": self.player.name, "detail": broken.detail}
            )

    def rollout(self, finish: str, detail: str) -> Rollout:
        tokenizer = self.player.tokenizer
        pieces = self.pieces or [Segment([])]
        earlier = tuple(piece.rollout(tokenizer, "segment") for piece in pieces[:-1])
        return pieces[-1].rollout(tokenizer, finish, self._score(finish, detail), earlier)

    def _score(self, finish: str, detail: str) -> Score:
        """At a limit the score is the reward so far; a failed episode has no valid score."""
        if finish == "timeout":
            return Score("timeout", 0.0, detail=detail)
        if finish in ("error", "abort"):
            return Score("error", 0.0, detail=detail or "the engine ended the episode")
        return Score("ok", self.reward, self.parts)

    async def _sample(self, prompt: Prompt, room: int) -> tuple[list[int], str]:
        """The policy's next message. Sampled tokens are recorded even if the episode ends in the middle."""
        sampling = self.sampling.with_(
            max_tokens=room if self.sampling.max_tokens is None else min(room, self.sampling.max_tokens),
            seed=seed_of(self.seed, self.index, self.turns),
        )
        request = GenerateRequest(new_id("episode"), prompt.ids, sampling)
        piece, ids, finish = self.pieces[-1], list[int](), "abort"
        while True:
            try:
                async with aclosing(self.engine.generate(request)) as chunks:
                    async for chunk in chunks:
                        if not ids:
                            self._count(chunk.prompt_tokens, chunk.cached_tokens)
                        ids += chunk.token_ids
                        self.spent += len(chunk.token_ids)
                        piece.add_sampled(chunk.token_ids, chunk.logprobs or [], chunk.weight_versions)
                        finish = chunk.finish_reason or finish
                break
            except Overloaded:
                await asyncio.sleep(ROOM_SECONDS)
        self.turns += 1
        return ids, finish

    def _read(self, prompt: Prompt, ids: Sequence[int]) -> ParsedAnswer:
        text = self.player.tokenizer.detokenizer(keep=self.kept)
        parser = self.dialect.parser(prompt.text, self.functions)
        return read_answer(text.push(list(ids)) + text.flush(), parser, self._call_id)

    async def _answer(self, parsed: ParsedAnswer) -> Turn:
        """The reaction to a message: the results of its tool calls, if any, otherwise the environment's turn."""
        if not (parsed.calls and self.tools):
            return _checked(await self._call(self.environment.step, parsed.message), self.player.name)
        aside = self.player.aside
        return Turn(await asyncio.gather(*(answer_call(self.tools, call, aside) for call in parsed.calls)))

    async def _call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        seconds, name = self.player.bounds.step_seconds, method.__name__
        try:
            return await self.player.aside.call(seconds, method, *arguments)
        except Late:
            raise BrokenEnvironment("timeout", f"{name} did not answer within {seconds:g} s") from None
        except Exception as error:
            raise BrokenEnvironment("error", f"{name} failed: {type(error).__name__}: {error}") from error

    def _earn(self, turn: Turn) -> None:
        self.reward += turn.reward
        for name, value in turn.parts.items():
            self.parts[name] = self.parts.get(name, 0.0) + value

    def _start_segment(self, messages: Sequence[Message]) -> Prompt:
        prompt = self._written(lambda: self.dialogue.begin(messages))
        self.pieces.append(Segment(prompt.ids))
        return prompt

    def _continue(self, prompt: Prompt, answer: ParsedTurn, news: Sequence[Message]) -> Prompt:
        messages = [*prompt.messages, *news]
        following = self._written(lambda: self.dialogue.follow(prompt, answer, messages))
        if following is not None:
            self.pieces[-1].add_given(following.ids[len(prompt.ids) + len(answer.ids) :])
            return following
        if self.player.past == "error":
            raise BrokenEnvironment(
                "error",
                "the chat template writes earlier turns otherwise once more follows (it leaves out thoughts, say), so "
                'the tokens that were sampled cannot stay. Use past="segment", or a template that keeps the past.',
            )
        return self._start_segment(messages)

    def _written(self, write: Callable[[], T]) -> T:
        """Run the chat template, which can reject the environment's messages."""
        try:
            return write()
        except InvalidRequest as error:
            raise BrokenEnvironment("error", error.message) from error

    def _count(self, prompt: int, cached: int) -> None:
        _read.labels(self.player.name).inc(prompt)
        _cached.labels(self.player.name).inc(cached)

    def _call_id(self) -> str:
        """A call ID of nine letters and digits: the only format that every template accepts."""
        self.calls += 1
        return f"call{self.calls:05}"


def check_tools(tokenizer: Tokenizer, tools: Sequence[Tool]) -> None:
    template = tokenizer.tool_template or ""
    if tools and ("tools" not in template or choose_dialect(template).calls is None):
        raise ConfigError(
            f"the task has tools ({', '.join(tool.name for tool in tools)}), but the model's chat template does not "
            "show any, or its tool calls have no known format. Use a model whose template has them, such as Qwen, "
            "Llama 3 or Mistral do. The demo's has none; examples/calculator.py makes a small model that has.",
            param="rl.task",
        )


def _kept_ids(tokenizer: Tokenizer, markers: Sequence[str]) -> tuple[int, ...]:
    ids = (tokenizer.token_id(marker) for marker in markers)
    return tuple(id for id in ids if id is not None and id in tokenizer.special_ids)


def _checked(turn: Any, name: str) -> Turn:
    if not isinstance(turn, Turn) or not isinstance(turn.parts, Mapping):
        raise BrokenEnvironment("error", f"{name}: step must return a Turn, not {turn!r:.200}")
    numbers = [turn.reward, *turn.parts.values()]
    if not all(isinstance(number, int | float) and math.isfinite(number) for number in numbers):
        raise BrokenEnvironment("error", f"{name}: rewards must be finite numbers, not {numbers}")
    if not (turn.done or turn.messages):
        raise BrokenEnvironment("error", f"{name}: step neither said anything nor was done")
    return turn


def _messages(reaction: Any) -> list[Message]:
    messages = messages_of(reaction) if isinstance(reaction, str | list | tuple) else []
    if messages and all(isinstance(each, Mapping) and isinstance(each.get("role"), str) for each in messages):
        return messages
    raise BrokenEnvironment(
        "error", f"what it says must be a text or messages with a role, not {reaction!r:.200}"
    )
