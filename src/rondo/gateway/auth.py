"""Identity of a request: its API key, and the scope that each route needs."""

from __future__ import annotations

import asyncio
import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from rondo.base.errors import Forbidden, Unavailable
from rondo.client.protocol.item import ITEM_PATHS
from rondo.control.key import Key, Rights, Scope
from rondo.control.keys import LOCAL, PREFIX, Keys
from rondo.web.http import bearer_of

ENGINE = Key("engine", "engine", Rights("worker"), 0)
"""Identity of workers that present the key between the gateway and its engines."""
CACHED_KEYS = 4096
STORE_SECONDS = 12.0
"""Longer than SQLite waits for another program's lock."""
T = TypeVar("T")

PROXIED: Mapping[str, Scope] = dict.fromkeys((*sorted(ITEM_PATHS), "/v1/responses/input_tokens"), "inference")
"""Routes that the gateway passes to an engine, all by POST, and the scope that each needs."""


class Authenticator:
    """Key of a request. A key that was found is not looked up again for `seconds`."""

    def __init__(self, keys: Keys, required: bool, seconds: float, engine_key: str | None = None) -> None:
        self.keys, self.required, self.seconds = keys, required, seconds
        self._engine_key = None if engine_key is None else engine_key.encode()
        self._found: OrderedDict[str, tuple[float, Key]] = OrderedDict()
        self._lent: dict[str, Key] = {}

    async def key_of(self, headers: list[tuple[bytes, bytes]]) -> Key:
        given = bearer_of(headers)
        if self._engine_key is not None and hmac.compare_digest(given, self._engine_key):
            return ENGINE
        text = given.decode("latin-1")
        if text in self._lent:
            return self._lent[text]
        if not self.required and not text.startswith(PREFIX):
            return LOCAL  # OpenAI's clients always send a key, if only a placeholder
        now = time.monotonic()
        cached = self._found.get(text)
        if cached is not None and cached[0] > now:
            return cached[1]
        self._found.pop(text, None)
        key = await in_time(self.keys.find(text))
        self._found[text] = now + self.seconds, key
        if len(self._found) > CACHED_KEYS:
            self._found.popitem(last=False)
        return key

    @contextmanager
    def lend(self, key: Key) -> Iterator[str]:
        """Text that stands for the key within this process, for requests that the gateway makes on its behalf."""
        text = f"{PREFIX}{secrets.token_urlsafe(32)}"
        self._lent[text] = key
        try:
            yield text
        finally:
            del self._lent[text]

    def forget(self) -> None:
        """After a key changed."""
        self._found.clear()


async def in_time(pending: Awaitable[T]) -> T:
    """The store's answer, or an error if the store hangs."""
    try:
        async with asyncio.timeout(STORE_SECONDS):
            return await pending
    except TimeoutError:
        raise Unavailable(
            f"The store did not answer within {STORE_SECONDS:g} s: try again in a few seconds.",
            code="store_unavailable",
        ) from None


def check_admin(key: Key) -> None:
    if key.rights.role != "admin":
        raise Forbidden(
            f"The key {key.name!r} has the role {key.rights.role!r}; this route needs an admin's key.",
            code="admin_only",
        )


def check_worker(key: Key) -> None:
    if key.rights.role not in ("worker", "admin"):
        raise Forbidden(
            f"The key {key.name!r} has the role {key.rights.role!r}; this route needs a worker's key: "
            "`rondo keys create NAME --role worker`.",
            code="worker_only",
        )
