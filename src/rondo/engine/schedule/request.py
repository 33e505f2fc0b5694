"""The engine's view of one sample: a few integers that say how far it has come.

`cached <= computed <= len(tokens)` always holds. A request is never "in prefill" or "in decode": it is `remaining`
tokens behind, and a step lets it catch up by some of them. When it has caught up it gets its next token.

Samples of one prompt are computed once for as long as their tokens are the same: one leads, the others are its
`followers`, which have a row (of sampling parameters) but no blocks. Each draws a token of its own from the leader's
logits; those that draw another one fork off.

In a step a request that is one token behind may carry `proposed` tokens, for which it has room in its blocks: `ahead`
of them. They are guesses of what comes next; only those that turn out right become tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from rondo.base.errors import RondoError
from rondo.client.types import FinishReason, Pooling, SamplingParams

if TYPE_CHECKING:
    from torch import Tensor

    from rondo.engine.kv.blocks import Table
    from rondo.engine.schedule.scoring import PromptScores
    from rondo.engine.structured.matcher import GrammarMatcher
    from rondo.engine.weights.adapters import LoadedAdapter

State = Literal["waiting", "running", "finished"]
UNLIMITED = 1 << 30


@dataclass(slots=True, eq=False)
class Request:
    id: str
    index: int
    tokens: list[int]
    sampling: SamplingParams
    max_length: int
    arrival: int
    priority: int = 0
    seed: int = 0

    adapter: LoadedAdapter | None = None
    adapter_key: int = 0
    """Of the adapter's content, for the prefix cache; 0 is the base alone."""

    salt: int = 0
    """Of the prefix cache: only requests with the same salt share blocks; 0 is none."""

    pooling: Pooling | None = None
    vector: Tensor | None = None
    """What it wants instead of tokens, where it says `pooling`: see pooling.py."""
    scores: PromptScores | None = None
    """Of its prompt, shared with its siblings, where it asks for them: see scoring.py."""
    matcher: GrammarMatcher | None = None
    """Where it is in the grammar that its answer obeys."""

    prompt_length: int = 0
    cached: int = 0
    computed: int = 0
    planned: int = 0
    ahead: int = 0
    most_ahead: int = UNLIMITED
    proposed: list[int] = field(default_factory=list)
    state: State = "waiting"
    row: int = -1
    preemptions: int = 0

    siblings: list[Request] = field(default_factory=list)
    """All samples of the same prompt, this one included; empty where it is the only one."""
    leader: Request | None = None
    followers: list[Request] = field(default_factory=list)

    tables: list[Table] = field(default_factory=list)
    """While it runs: its blocks, in each group of layers."""
    host: list[Table] = field(default_factory=list)
    """While it waits: the host blocks that keep what its blocks held, those that have passed left out."""
    keys: list[int] = field(default_factory=list)
    published: int = 0
    weight_version: int = -1
    publishable: bool = True
    claim: int | None = None

    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[list[tuple[int, float]]] = field(default_factory=list)
    weight_versions: list[int] = field(default_factory=list)
    first_cached: int = -1
    finish_reason: FinishReason | None = None
    error: RondoError | None = None
    """Why it was aborted, where that is the engine's doing."""
    stop_reason: int | str | None = None
    stop_ids: frozenset[int] = frozenset()
    added_at: float = 0.0
    started_at: float = 0.0
    first_at: float = 0.0
    last_at: float = 0.0

    def __post_init__(self) -> None:
        self.prompt_length = len(self.tokens)

    @property
    def name(self) -> tuple[str, int]:
        return self.id, self.index

    @property
    def order(self) -> tuple[int, int]:
        """Who goes first: lower priority value, then earlier arrival."""
        return self.priority, self.arrival

    @property
    def remaining(self) -> int:
        return len(self.tokens) - self.computed

    @property
    def generated(self) -> int:
        return len(self.tokens) - self.prompt_length

    def follow(self, other: Request) -> None:
        """Takes over how far the other has come, but for its blocks."""
        self.cached, self.computed = other.cached, other.computed
        self.weight_version, self.publishable = other.weight_version, other.publishable
        self.published, self.keys = other.published, other.keys.copy()

    def check(self) -> None:
        if self.leader is not None:
            assert self.leader.leader is None
            assert self.leader.tokens == self.tokens
            assert not self.tables
            assert not self.followers
        assert 0 <= self.cached <= self.computed <= len(self.tokens), (
            self.cached,
            self.computed,
            len(self.tokens),
        )
        assert all(self.published <= len(table.blocks) for table in self.tables)
        assert self.tables or not self.published
        assert not self.host or self.state == "waiting"
