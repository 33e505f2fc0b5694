"""Rate limits of a key: requests and tokens a minute, each a bucket with a constant refill rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic

from rondo.base.errors import Overloaded
from rondo.control.key import Key


class RateLimited(Overloaded):
    """`after`: seconds until it may be tried again; `headers`: the limits, as responses state them."""

    def __init__(
        self, message: str, after: float, code: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message, code=code)
        self.after = after
        self.headers = {} if headers is None else dict(headers)


def limit_headers(unit: str, limit: int, left: float, reset: float) -> dict[str, str]:
    """Headers of a limit on `unit`, requests or tokens, as OpenAI names them. `reset`: seconds until it is full."""
    return {
        f"x-ratelimit-limit-{unit}": str(limit),
        f"x-ratelimit-remaining-{unit}": str(max(0, math.floor(left))),
        f"x-ratelimit-reset-{unit}": f"{reset:.3f}s",
    }


@dataclass
class Bucket:
    """Holds the quota of one minute. A later correction may overdraw it; then requests wait for the refill."""

    a_minute: int
    level: float
    at: float

    def fill(self, now: float) -> None:
        self.level = min(float(self.a_minute), self.level + (now - self.at) * self.a_minute / 60)
        self.at = now

    def seconds_until(self, wanted: float) -> float:
        return max(0.0, (wanted - self.level) * 60 / self.a_minute)

    @property
    def seconds_until_full(self) -> float:
        return self.seconds_until(self.a_minute)


@dataclass
class _Buckets:
    requests: Bucket | None
    tokens: Bucket | None


class Limits:
    """Of one process; a key's buckets are full when it is first seen."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now = now
        self._of: dict[str, tuple[tuple[int | None, int | None], _Buckets]] = {}

    def take(self, key: Key, tokens: int) -> dict[str, str]:
        """Takes the estimated tokens of one request. Returns the rate-limit headers; raises `RateLimited` if the rest
        is too small. A request larger than a minute's quota needs a full bucket."""
        if key.rights.requests_per_minute is None and key.rights.tokens_per_minute is None:
            return {}
        buckets = self._buckets(key)
        if buckets.requests is not None and (wait := buckets.requests.seconds_until(1)) > 0:
            raise _over(key, "requests", buckets.requests, 1, wait, self.headers(key))
        if buckets.tokens is not None:
            wait = buckets.tokens.seconds_until(min(tokens, buckets.tokens.a_minute))
            if wait > 0:
                raise _over(key, "tokens", buckets.tokens, tokens, wait, self.headers(key))
            buckets.tokens.level -= tokens
        if buckets.requests is not None:
            buckets.requests.level -= 1
        return self.headers(key)

    def settle(self, key: Key, tokens: int, used: int) -> None:
        """Corrects the estimate of `tokens` for a request to the `used` ones."""
        if key.rights.tokens_per_minute is None:
            return
        bucket = self._buckets(key).tokens
        if bucket is not None:
            bucket.level = min(float(bucket.a_minute), bucket.level + tokens - used)

    def headers(self, key: Key) -> dict[str, str]:
        """As OpenAI names them."""
        buckets = self._buckets(key)
        found: dict[str, str] = {}
        for name, bucket in (("requests", buckets.requests), ("tokens", buckets.tokens)):
            if bucket is not None:
                found |= limit_headers(name, bucket.a_minute, bucket.level, bucket.seconds_until_full)
        return found

    def _buckets(self, key: Key) -> _Buckets:
        wanted, now = (key.rights.requests_per_minute, key.rights.tokens_per_minute), self._now()
        if key.id not in self._of or self._of[key.id][0] != wanted:
            requests, tokens = (None if rate is None else Bucket(rate, rate, now) for rate in wanted)
            self._of[key.id] = wanted, _Buckets(requests, tokens)
        buckets = self._of[key.id][1]
        for bucket in (buckets.requests, buckets.tokens):
            if bucket is not None:
                bucket.fill(now)
        return buckets


def _over(
    key: Key, what: str, bucket: Bucket, wanted: int, wait: float, headers: Mapping[str, str]
) -> RateLimited:
    return RateLimited(
        f"Rate limit reached for the key {key.name!r} on {what} per min: limit {bucket.a_minute}, left "
        f"{max(0, math.floor(bucket.level))}, requested {wanted}. Please try again in {wait:.3f}s.",
        wait,
        f"{what}_per_minute",
        headers,
    )
