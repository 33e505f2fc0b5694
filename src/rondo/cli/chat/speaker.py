"""A model that answers: the client of a server, with the adjustments that OpenAI-compatible servers need."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rondo.base.errors import RondoError
from rondo.client.http import Client

Message = dict[str, str]
CONTINUED_TOKENS = 256
"""Default length of a continued text, which seldom ends by itself."""
OPTIONAL = ("logprobs", "top_logprobs", "stream_options")
"""Requested fields that some servers refuse; the answer is complete without them."""


@dataclass
class Token:
    text: str
    logprob: float
    others: list[tuple[str, float]] = field(default_factory=list)


@dataclass
class Answer:
    """An answer that grows while it is streamed."""

    text: str = ""
    reasoning: str = ""
    tokens: list[Token] = field(default_factory=list)
    finish_reason: str | None = None
    output_tokens: int = 0
    prompt_tokens: int = 0
    began: float = field(default_factory=time.monotonic)
    first: float | None = None
    last: float | None = None

    @property
    def first_seconds(self) -> float:
        return 0.0 if self.first is None else self.first - self.began

    @property
    def tokens_per_second(self) -> float | None:
        """Of the tokens after the first; None for an answer of one event."""
        if self.first is None or self.last is None or self.last <= self.first or self.output_tokens < 2:
            return None
        return (self.output_tokens - 1) / (self.last - self.first)

    def add(self, event: Mapping[str, Any]) -> tuple[str, str]:
        """Reads an event of the stream and returns the new reasoning and the new text."""
        if usage := event.get("usage"):
            self.output_tokens = usage.get("completion_tokens") or self.output_tokens
            self.prompt_tokens = usage.get("prompt_tokens") or self.prompt_tokens
        if not event.get("choices"):
            return "", ""
        choice = event["choices"][0]
        delta = choice.get("delta") or {}
        text = choice.get("text") or delta.get("content") or ""
        reasoning = delta.get("reasoning") or delta.get("reasoning_content") or ""
        tokens = read_tokens(choice.get("logprobs"))
        self.finish_reason = choice.get("finish_reason") or self.finish_reason
        if text or reasoning or tokens:
            self.last = time.monotonic()
            self.first = self.first or self.last
            self.output_tokens += len(tokens) or 1
        self.tokens += tokens
        self.text += text
        self.reasoning += reasoning
        return reasoning, text


def read_tokens(logprobs: Mapping[str, Any] | None) -> list[Token]:
    """Tokens of a choice, in the format of chat or of completions."""
    if not logprobs:
        return []
    if "content" in logprobs:
        return [
            Token(
                one["token"],
                one["logprob"],
                [(other["token"], other["logprob"]) for other in one.get("top_logprobs") or ()],
            )
            for one in logprobs["content"] or ()
        ]
    tops = logprobs.get("top_logprobs") or [None] * len(logprobs["tokens"])
    return [
        Token(text, logprob, list((top or {}).items()))
        for text, logprob, top in zip(logprobs["tokens"], logprobs["token_logprobs"], tops, strict=False)
    ]


class Speaker:
    """One model behind `client`. `close` ends the client, and the engine if it is in this process."""

    def __init__(
        self, name: str, client: Client, model: str, where: str, close: Callable[[], None] | None = None
    ) -> None:
        """`model` is the name in requests, `where` a phrase for display."""
        self.name = name
        self.model = model
        self.where = where
        self.client = client
        self._close = close
        self.continues = False
        """Whether the model has no chat template, so that it continues texts."""
        self._refused: set[str] = set()

    @property
    def local(self) -> bool:
        return self._close is not None

    def sibling(self, model: str) -> Speaker:
        """Another model of the same server."""
        return Speaker(model, self.client, model, self.where)

    def close(self) -> None:
        self.client.close()
        if self._close is not None:
            self._close()

    def ask(
        self,
        messages: Sequence[Message],
        options: Mapping[str, Any],
        show: Callable[[str, str], None] = lambda reasoning, text: None,
        answer: Answer | None = None,
    ) -> Answer:
        """Streams the answer into `answer`, and each new piece to `show`."""
        answer = answer or Answer()
        while True:
            try:
                for event in self._events(messages, options):
                    show(*answer.add(event))
                return answer
            except RondoError as error:
                if answer.first is not None or not self._adjust(error):
                    raise

    def _events(self, messages: Sequence[Message], options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        body = {"logprobs": True, "stream_options": {"include_usage": True}, **options}
        body = {name: value for name, value in body.items() if name not in self._refused}
        if not self.continues:
            return self.client.stream_chat(messages, self.model, **body)
        if body.pop("logprobs", False):
            body["logprobs"] = body.pop("top_logprobs", 0)
        body.setdefault("max_tokens", CONTINUED_TOKENS)
        text = "".join(message["content"] for message in messages)
        return self.client.stream_complete(text, self.model, **body)

    def _adjust(self, error: RondoError) -> bool:
        """Whether the request can be sent in another form after this refusal."""
        if error.status not in (400, 404, 422, 501):
            return False
        if "chat template" in error.message and not self.continues:
            self.continues = True
            return True
        for name in OPTIONAL:
            if name not in self._refused and (error.param == name or name in error.message):
                self._refused |= {name} if name == "stream_options" else {"logprobs", "top_logprobs"}
                return True
        return False
