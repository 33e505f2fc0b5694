"""Prompt log-probabilities, computed chunk by chunk with the prompt.

A position's row yields the log-probability of the token after it. Cached tokens have no rows, so such a request
computes its prompt from the first token on. Its results survive preemption.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rondo.client.types import PromptLogprobs, SamplingParams
from rondo.engine.schedule.request import Request
from rondo.ops import token_logprobs

CHUNK_ELEMENTS = 1 << 22
"""Maximum number of logits in memory at once."""


@dataclass(slots=True, eq=False)
class PromptScores:
    """Scores of one prompt, shared by all its samples. The tokens after the first `planned` positions are scored or
    about to be."""

    targets: list[int]
    count: int
    temperature: float
    planned: int = 0
    _found: list[tuple[Tensor, Tensor, Tensor, Tensor]] = field(default_factory=list)
    _read: PromptLogprobs | None = None

    @classmethod
    def of(cls, prompt: Sequence[int], params: SamplingParams) -> PromptScores | None:
        if params.prompt_logprobs is None:
            return None
        raw = params.logprobs_mode == "raw" or params.temperature == 0
        return cls(list(prompt[1:]), params.prompt_logprobs, 1.0 if raw else params.temperature)

    @property
    def complete(self) -> bool:
        return self.planned == len(self.targets)

    def add(self, logits: Tensor, targets: Tensor) -> None:
        """Appends the scores of the next targets, from logits [R, V] and targets [R]."""
        logits = logits.float()
        chosen = logits.gather(-1, targets[:, None])
        logprobs = token_logprobs(logits, targets, self.temperature)
        ranks = (logits > chosen).sum(-1) + 1
        best = logits.topk(min(self.count, logits.shape[-1]), dim=-1)
        values = (logprobs[:, None] + (best.values - chosen) / self.temperature).clamp(max=0)
        self._found.append((logprobs, ranks, best.indices, values))

    def set_all(self, found: PromptLogprobs) -> None:
        """Sets all scores at once, when another engine has computed them."""
        self._read = found

    def read(self) -> PromptLogprobs | None:
        """The scores, or None if they are incomplete."""
        if self._read is None and sum(len(part[0]) for part in self._found) == len(self.targets):
            read: PromptLogprobs = [None]
            for part in self._found:
                for logprob, rank, tokens, values in zip(*(tensor.tolist() for tensor in part), strict=True):
                    own = (self.targets[len(read) - 1], logprob, rank)
                    read.append([own, *zip(tokens, values, range(1, len(tokens) + 1), strict=True)])
            self._read = read
        return self._read


@dataclass(frozen=True, slots=True)
class ScorePart:
    """Contribution of a step to one prompt's scores: the outputs at these `rows` of the flat row."""

    request: Request
    rows: range
    targets: list[int]
    vocab: int
    ends: bool = False

    def take(self, x: Tensor, norm: Callable[[Tensor], Tensor], head: Callable[[Tensor], Tensor]) -> None:
        assert self.request.scores is not None
        targets = torch.tensor(self.targets, dtype=torch.int64, device=x.device)
        step = max(1, CHUNK_ELEMENTS // self.vocab)
        for start in range(0, len(x), step):
            self.request.scores.add(head(x[start : start + step]), targets[start : start + step])


def score_part(request: Request, first: int, count: int, vocab: int) -> ScorePart | None:
    """Scores of a step that computes `count` tokens of the request, the first of them in row `first`."""
    scores = request.scores
    assert scores is not None
    low = max(scores.planned, request.computed)
    high = min(request.computed + count, len(scores.targets))
    if low >= high:
        return None
    scores.planned = high
    start = first - request.computed
    return ScorePart(request, range(start + low, start + high), scores.targets[low:high], vocab)
