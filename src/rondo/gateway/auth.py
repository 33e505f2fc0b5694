"""Identity of a request: its API key, and the scope that each route needs."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Mapping

from rondo.base.errors import Forbidden
from rondo.control.key import Key, Rights, Scope
from rondo.control.keys import PREFIX, Keys
from rondo.web.http import bearer_of

LOCAL = Key("local", "local", Rights("admin"), 0)
"""Identity of requests without a key, where keys are optional."""
CACHED_KEYS = 4096

PROXIED: Mapping[str, Scope] = dict.fromkeys(
    (
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/responses/input_tokens",
        "/v1/embeddings",
        "/v1/score",
        "/v1/rerank",
        "/v2/rerank",
        "/score",
        "/rerank",
        "/tokenize",
        "/detokenize",
    ),
    "inference",
)
"""Routes that the gateway passes to an engine, all by POST, and the scope that each needs."""


class Authenticator:
    """Finds the key of a request. A key that was found is not looked up again for `seconds`."""

    def __init__(self, keys: Keys, required: bool, seconds: float) -> None:
        self.keys, self.required, self.seconds = keys, required, seconds
        self._found: OrderedDict[str, tuple[float, Key]] = OrderedDict()

    async def key_of(self, headers: list[tuple[bytes, bytes]]) -> Key:
        text = bearer_of(headers).decode("latin-1")
        if not self.required and not text.startswith(PREFIX):
            return LOCAL  # OpenAI's clients always send a key, if only a placeholder
        now = time.monotonic()
        cached = self._found.get(text)
        if cached is not None and cached[0] > now:
            return cached[1]
        self._found.pop(text, None)
        key = await self.keys.find(text)
        self._found[text] = now + self.seconds, key
        if len(self._found) > CACHED_KEYS:
            self._found.popitem(last=False)
        return key

    def forget(self) -> None:
        """After a key changed."""
        self._found.clear()


def check_admin(key: Key) -> None:
    if key.rights.role != "admin":
        raise Forbidden(
            f"The key {key.name!r} has the role {key.rights.role!r}; this route needs an admin's key.",
            code="admin_only",
        )
