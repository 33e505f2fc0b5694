"""Token-level recording of an agent's requests in one episode, and conversion into training segments.

An agent stores its history as text. Where that text continues a recorded answer, the prompt reuses the sampled tokens
of the answer; otherwise a new branch starts with the tokens of the agent's messages.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal

from rondo.base.errors import Conflict, InvalidRequest
from rondo.base.ids import new_id
from rondo.client.engine import Engine
from rondo.client.types import GenerateRequest, SamplingParams, TokenChunk
from rondo.graders import Score
from rondo.rl.environments.environment import Bounds, Message
from rondo.rl.environments.segment import Segment
from rondo.rl.rollout.seeds import seed_of
from rondo.text.conversation.answers import ParsedAnswer
from rondo.text.conversation.dialogue import Dialogue, ParsedTurn, Prompt
from rondo.text.tokenizer import Tokenizer

Read = Callable[[str], ParsedAnswer]
Spent = Literal["turns", "length"]

UNKNOWN_TO_LEARNER = ("logit_bias", "bad_words", "allowed_token_ids", "ignore_eos")


@dataclass(eq=False)
class RecordedPrompt:
    """A prompt as the policy received it."""

    prompt: Prompt
    dialogue: Dialogue | None = None
    read: Read | None = None
    """Parser of the answer. None if no prompt can continue the answer: a plain completion, or the continuation of a
    message.
    """
    parent: RecordedReply | None = None
    """The answer that this prompt continues."""


@dataclass(eq=False)
class RecordedReply:
    asked: RecordedPrompt
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    text: str = ""
    finish: str = "abort"
    said: ParsedAnswer | None = None

    def take(self, chunk: TokenChunk) -> None:
        self.ids += chunk.token_ids
        self.logprobs += chunk.logprobs or []
        self.versions += chunk.weight_versions
        self.text += chunk.text
        if chunk.finish_reason is not None:
            self.finish = chunk.finish_reason
            self.said = None if self.asked.read is None else self.asked.read(self.text)


class Recorder:
    """Recorder of one episode. `sampling` is set by the trainer: an agent may set the length and the stop conditions
    of an answer, but no other sampling parameter, because the learner computes log-probabilities under the
    trainer's.
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        max_model_len: int,
        sampling: SamplingParams,
        bounds: Bounds,
        seed: int,
        index: int,
    ) -> None:
        self.id, self.key = new_id("episode"), secrets.token_urlsafe(24)
        self.engine, self.tokenizer, self.max_model_len = engine, tokenizer, max_model_len
        self.replies: list[RecordedReply] = []
        """Complete answers only: an agent that disconnects early has not received the rest."""
        self.calls = self.tokens = 0
        self.spent: Spent | None = None
        """The limit with which a request was rejected."""
        self.posted: Score | None = None
        self.takes_reward = True
        self._sampling, self._bounds, self._seeds = sampling, bounds, (seed, index)
        self._asked: dict[tuple[int, ...], RecordedPrompt] = {}
        self._open = True

    def close(self) -> None:
        self._open = False

    def reward(self, total: float, parts: Mapping[str, float]) -> None:
        if not self.takes_reward:
            raise Conflict("this episode is graded by its task: it takes no reward.", code="graded")
        if self.posted is not None:
            raise Conflict("this episode has its reward already.", code="rewarded")
        try:
            self.posted = Score("ok", total, dict(parts))
        except ValueError as error:
            raise InvalidRequest(f"{error}.", param="reward") from error

    def prompt(
        self, dialogue: Dialogue, messages: Sequence[Message], read: Callable[[Prompt], Read]
    ) -> Prompt:
        """The prompt of a conversation; `read` creates the parser of the answer to a prompt."""
        asked = self._going_on(dialogue, messages) or RecordedPrompt(dialogue.begin(messages))
        asked.dialogue, asked.read = dialogue, read(asked.prompt)
        return self._asked.setdefault(tuple(asked.prompt.ids), asked).prompt

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[TokenChunk, None]:
        """Generate with the engine and record every token."""
        sampling = request.sampling
        room = self._room()
        ids = list(request.prompt_ids)
        asked = self._asked.get(tuple(ids)) or RecordedPrompt(Prompt((), "", ids))
        self.calls += 1
        request = replace(request, sampling=self._forced(sampling, room))
        replies: dict[int, RecordedReply] = {}
        async with aclosing(self.engine.generate(request)) as chunks:
            async for chunk in chunks:
                reply = replies.setdefault(chunk.index, RecordedReply(asked))
                reply.take(chunk)
                self.tokens += len(chunk.token_ids)
                if chunk.finish_reason is not None:
                    self.replies.append(reply)
                yield chunk if sampling.logprobs is not None else replace(chunk, logprobs=None)

    def pieces(self) -> list[Segment]:
        """One segment for each path from a first prompt to a last answer. Tokens on several paths are trained on in
        the first of them only.
        """
        parents = {id(reply.asked.parent) for reply in self.replies}
        taught: set[int] = set()
        return [_piece(leaf, taught) for leaf in self.replies if id(leaf) not in parents]

    def _going_on(self, dialogue: Dialogue, messages: Sequence[Message]) -> RecordedPrompt | None:
        """A prompt that continues the recorded answer with the longest matching conversation."""
        for reply in sorted(self.replies, key=lambda reply: -len(reply.asked.prompt.messages)):
            if not (_begins(reply, messages) and reply.asked.dialogue == dialogue and reply.said):
                continue
            prompt = dialogue.follow(reply.asked.prompt, ParsedTurn(reply.ids, reply.said.words), messages)
            if prompt is not None:
                return RecordedPrompt(prompt, parent=reply)
        return None

    def _room(self) -> int:
        if not self._open:
            raise InvalidRequest("this episode is over.", code="episode_over")
        room = self._bounds.tokens - self.tokens
        if self.calls >= self._bounds.turns or room < 1:
            self.spent = "length" if room < 1 else "turns"
            what = f"{self._bounds.tokens} tokens" if room < 1 else f"{self._bounds.turns} answers"
            raise InvalidRequest(f"this episode has had its {what}.", code="episode_over")
        return room

    def _forced(self, asked: SamplingParams, room: int) -> SamplingParams:
        for name in UNKNOWN_TO_LEARNER:
            if getattr(asked, name):
                raise InvalidRequest(
                    f"{name} is not supported in an episode: the learner knows nothing of it.", param=name
                )
        ours = self._sampling
        longest = min(each for each in (asked.max_tokens, ours.max_tokens, room) if each is not None)
        return ours.with_(
            n=asked.n,
            max_tokens=longest,
            min_tokens=min(asked.min_tokens, longest),
            stop=asked.stop,
            stop_token_ids=asked.stop_token_ids,
            include_stop_str_in_output=asked.include_stop_str_in_output,
            structured_outputs=asked.structured_outputs,
            prompt_logprobs=asked.prompt_logprobs,
            skip_special_tokens=asked.skip_special_tokens,
            keep_special_tokens=asked.keep_special_tokens,
            logprobs=asked.logprobs or 0,
            logprobs_mode="scaled",
            seed=seed_of(*self._seeds, self.calls),
        )


def _piece(leaf: RecordedReply, taught: set[int]) -> Segment:
    path = [leaf]
    while path[-1].asked.parent is not None:
        path.append(path[-1].asked.parent)
    path.reverse()
    piece = Segment(path[0].asked.prompt.ids)
    for reply, following in pairwise([*path, None]):
        assert reply is not None
        if id(reply) in taught:
            piece.add_given(reply.ids)
        else:
            taught.add(id(reply))
            piece.add_sampled(reply.ids, reply.logprobs, reply.versions)
        if following is not None:
            piece.add_given(following.asked.prompt.ids[len(reply.asked.prompt.ids) + len(reply.ids) :])
    return piece


def _begins(reply: RecordedReply, messages: Sequence[Message]) -> bool:
    before = reply.asked.prompt.messages
    if reply.said is None or not before or len(messages) <= len(before):
        return False
    led = [*before, reply.said.message]
    return all(_gist(one) == _gist(other) for one, other in zip(led, messages, strict=False))


def _gist(message: Message) -> tuple[Any, ...]:
    """The parts of a message that agents return unchanged. Call IDs, reasoning and whitespace may be missing or
    changed; the template's text decides whether the change matters.
    """
    calls = [call.get("function", {}) for call in message.get("tool_calls") or []]
    content = str(message.get("content") or "").strip()
    return message["role"], content, [(call.get("name"), _value(call.get("arguments"))) for call in calls]


def _value(arguments: object) -> object:
    try:
        return json.loads(arguments or "{}") if isinstance(arguments, str) else arguments or {}
    except ValueError:
        return arguments
