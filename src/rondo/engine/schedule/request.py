"""State of one sample.

`cached <= computed <= len(tokens)` always holds. A request has no "prefill" or "decode" state: it is `remaining` tokens
behind, and each step reduces that number. When it has caught up, its next token is sampled.

Samples of one prompt are computed once while their tokens are the same: one is the leader, the others are its
`followers`, which have a row (of sampling parameters) but no blocks. Each draws its own token from the leader's logits;
samples with a different token fork.

In a step, a request that is one token behind may carry `proposed` draft tokens, for which it has room for `ahead`
tokens in its blocks. Only accepted draft tokens are added to `tokens`.
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
    """Key of the adapter's content, for the prefix cache; 0 is the base model."""

    salt: int = 0
    """Cache salt: only requests with the same salt share blocks; 0 is none."""

    pooling: Pooling | None = None
    vector: Tensor | None = None
    """Output of a request with `pooling`, instead of tokens; see pooling.py."""
    scores: PromptScores | None = None
    """Prompt log-probabilities, if requested, shared with the siblings; see scoring.py."""
    matcher: GrammarMatcher | None = None
    """State of the answer in its grammar."""

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
    """All samples of the same prompt, this one included; empty if it is the only one."""
    leader: Request | None = None
    followers: list[Request] = field(default_factory=list)

    tables: list[Table] = field(default_factory=list)
    """While the request runs: its blocks in each group of layers."""
    host: list[Table] = field(default_factory=list)
    """While a swapped request waits: the host copies of its blocks, without blocks that have left the window."""
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
    """Reason of an abort by the engine."""
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
        """Scheduling order: lower priority value first, then earlier arrival."""
        return self.priority, self.arrival

    @property
    def remaining(self) -> int:
        return len(self.tokens) - self.computed

    @property
    def generated(self) -> int:
        return len(self.tokens) - self.prompt_length

    def follow(self, other: Request) -> None:
        """Copies the progress of the other request, except for its blocks."""
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
