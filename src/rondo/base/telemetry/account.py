"""Statistics of one external request: the server opens an account, and the engine writes into it.

account = RequestStats("req-1")
with account:
    ...    # also in tasks that are started here
account.samples
"""

from __future__ import annotations

import time
from contextvars import ContextVar, Token
from dataclasses import dataclass, field

_current: ContextVar[RequestStats | None] = ContextVar("rondo_account", default=None)


@dataclass(frozen=True, slots=True)
class SampleStats:
    """One answer to one prompt. Times are from `time.monotonic`; 0 means that the event did not happen."""

    id: str
    model: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    finish_reason: str
    added: float
    started: float
    first: float
    last: float
    n: int
    max_tokens: int | None
    temperature: float
    top_p: float

    @property
    def queue(self) -> float:
        return max(0.0, self.started - self.added) if self.started else 0.0

    @property
    def to_first(self) -> float:
        return max(0.0, self.first - self.added) if self.first else 0.0

    @property
    def decode(self) -> float:
        return max(0.0, self.last - self.first) if self.first else 0.0


@dataclass
class RequestStats:
    request_id: str
    samples: list[SampleStats] = field(default_factory=list)
    api_key: str | None = field(default=None, repr=False)
    """The key that the request was sent with, where the server checks keys."""
    ignored: list[str] = field(default_factory=list)
    """Fields of the request that have no effect."""
    opened: float = field(default_factory=time.monotonic)
    opened_at: float = field(default_factory=time.time)
    """The same moment, on the wall's clock."""
    _token: Token[RequestStats | None] = field(init=False, repr=False)

    def __enter__(self) -> None:
        self._token = _current.set(self)

    def __exit__(self, *error: object) -> None:
        _current.reset(self._token)

    def wall(self, moment: float) -> float:
        """When a moment of `time.monotonic` was."""
        return self.opened_at + moment - self.opened


def current() -> RequestStats | None:
    return _current.get()
