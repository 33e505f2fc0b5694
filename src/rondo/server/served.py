"""The served model, and the validation of every request to it."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from rondo.base.errors import InvalidRequest, NotFound
from rondo.base.telemetry.account import current
from rondo.client.engine import Engine
from rondo.client.protocol.openai import ChatRequest, CompletionRequest, SamplingBody
from rondo.client.types import GenerateRequest, SamplingParams
from rondo.server.answers.prompts import Prompts
from rondo.server.answers.replies import Replies
from rondo.server.answers.shapes import Tokens
from rondo.server.workers.bodies import Bodies


@dataclass(frozen=True)
class ServedModel:
    """The model behind the routes."""

    engine: Engine
    prompts: Prompts
    replies: Replies
    tokens: Tokens
    name: str
    aliases: frozenset[str]
    max_model_len: int
    max_queued: int
    bodies: Bodies
    allow_priority: bool
    created: int
    eos_ids: tuple[int, ...]
    """The tokens that end an answer."""
    salts: Salts = field(default_factory=lambda: Salts(()))
    parts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The engine's requests of each active answer."""
    asked_as: dict[str, str] = field(default_factory=dict)
    """X-Request-Id of each answer; a client may use the same id for several."""

    aborted: set[str] = field(default_factory=set)
    """Aborted answers: between two of its requests, an answer has no request in the engine."""

    @contextmanager
    def under_way(self, id: str, requests: Sequence[GenerateRequest]) -> Iterator[None]:
        self.parts[id] = tuple(request.id for request in requests)
        account = current()
        if account is not None:
            self.asked_as[id] = account.request_id
        try:
            yield
        finally:
            del self.parts[id]
            self.asked_as.pop(id, None)
            self.aborted.discard(id)

    async def abort(self, id: str) -> None:
        """Aborts an answer, or a request of the engine."""
        if id in self.parts:
            self.aborted.add(id)
        for part in self.parts.get(id, (id,)):
            await self.engine.abort(part)

    def going_by(self, name: str) -> list[str]:
        """Active answers and requests with this id: an answer, a request of the engine, or all answers with one
        X-Request-Id."""
        if name in self.parts or any(name in ids for ids in self.parts.values()):
            return [name]
        return [id for id, asked in self.asked_as.items() if asked == name]

    @property
    def adapters(self) -> Sequence[str]:
        """Adapter names, except for names of the model itself."""
        return [name for name in self.engine.adapters() if not self.is_base(name)]

    def shown(self, name: str) -> str:
        """Name of the requested model in an answer."""
        return self.adapter(name) or self.name

    def is_base(self, name: str) -> bool:
        return name == self.name or name in self.aliases

    def adapter(self, name: str) -> str | None:
        """The adapter of this name; None for the model itself."""
        if self.is_base(name):
            return None
        if not self.engine.has_adapter(name):
            raise NotFound(
                f"the model {name!r} does not exist here; this server has {self.name!r}.",
                param="model",
                code="model_not_found",
            )
        return name

    def check_room(self, body: SamplingBody, prompts: int) -> None:
        """Rejects more samples than the queue can hold, before the first one starts."""
        n = body.best_of or body.n or 1
        if prompts * n > self.max_queued:
            raise InvalidRequest(
                f"{prompts} prompts with n = {n} make {prompts * n} samples, but at most {self.max_queued} may wait "
                "here (engine.max_queued). Ask for fewer at a time.",
                param="n" if n > 1 else "prompt",
            )

    def check_priority(self, priority: int) -> None:
        if priority and not self.allow_priority:
            raise InvalidRequest(
                "priority is not allowed here; the server's setting server.allow_priority turns it on.",
                param="priority",
            )

    def check(self, body: ChatRequest | CompletionRequest, prompts: int) -> SamplingParams:
        """Validates everything that does not depend on the prompt."""
        self.adapter(body.model)
        self.check_priority(body.priority)
        sampling = body.to_sampling()
        self.check_room(body, prompts)
        return sampling


class Use:
    """Requests under way, for the time since the model was last used."""

    def __init__(self) -> None:
        self._active = 0
        self._ended = time.monotonic()

    @property
    def idle_seconds(self) -> float:
        return 0.0 if self._active else time.monotonic() - self._ended

    def touch(self) -> None:
        """Notes a use other than a request, such as work of the durable queue."""
        self._ended = time.monotonic()

    @contextmanager
    def request(self) -> Iterator[None]:
        self._active += 1
        try:
            yield
        finally:
            self._active -= 1
            self.touch()


class Salts:
    """Salts of the prefix cache: requests find only prefixes that were cached under the same API key and `cache_salt`.

    Without them `usage.prompt_tokens_details.cached_tokens` would answer guesses about the prompts of another key.
    `keys` are the server's API keys. With one key, or none, requests without a `cache_salt` are not salted.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        self._per_key = len(set(keys)) > 1
        self._secret = secrets.token_bytes(32)

    def of(self, given: str | None) -> str | None:
        """The salt of the current request, whose `cache_salt` is `given`."""
        account = current()
        key = account.api_key if account is not None and self._per_key else None
        if given is None and key is None:
            return None
        # The lengths separate the parts: "a" under the key "bc" is not "ab" under the key "c".
        first, second = ((part or "").encode("utf-8", "surrogatepass") for part in (key, given))
        message = b"%d:%s%s" % (len(first), first, second)
        return hmac.new(self._secret, message, hashlib.sha256).hexdigest()
