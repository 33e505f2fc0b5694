"""Salts of the prefix cache: requests find only prefixes that were cached under the same API key and `cache_salt`.

Without them `usage.prompt_tokens_details.cached_tokens` would answer guesses about the prompts of another key.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Sequence

from rondo.base.telemetry.account import current


class Salts:
    """`keys` are the server's API keys. With one key, or none, requests without a `cache_salt` are not salted."""

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
