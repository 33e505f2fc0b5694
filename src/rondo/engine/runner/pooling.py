"""Pooling requests: they return a vector of their prompt instead of tokens, and end with the step that computes the
last token.

The vector is the model's normalised output at the last token, or its mean over all tokens. For a chunked prompt the
mean is accumulated chunk by chunk, so no part of it may be a prefix-cache hit. The last token is always computed, even
if all tokens before it are cached.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rondo.engine.schedule.request import Request
from rondo.engine.schedule.scoring import ScorePart, score_part

Ints = NDArray[np.int64]
Outputs = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class PooledPart:
    """Contribution of a step to one request's vector: the outputs at these `rows` of the flat row."""

    request: Request
    rows: range
    begins: bool
    ends: bool

    def take(self, x: Tensor, norm: Outputs, head: Outputs) -> None:
        request, total = self.request, norm(x).float().sum(0)
        if not self.begins and request.vector is not None:
            total = request.vector + total
        if self.ends and request.pooling == "mean":
            total = total / len(request.tokens)
        request.vector = total


@dataclass(frozen=True, slots=True)
class Pools:
    """Vectors and prompt scores of a step. The model returns the read rows in ascending order; `places` are the indices
    of the logits' rows among them, followed by the rows of the parts."""

    parts: Sequence[PooledPart | ScorePart]
    places: Tensor

    @property
    def ended(self) -> list[Request]:
        return [part.request for part in self.parts if part.ends]

    def take(self, x: Tensor, norm: Outputs, head: Outputs) -> Tensor:
        """Distributes the outputs x [R, H] before the norm to the parts and returns the rows for logits."""
        counts = [len(part.rows) for part in self.parts]
        x = x[self.places.to(x.device)]
        rest = x.shape[0] - sum(counts)
        for part, own in zip(self.parts, torch.split(x[rest:], counts), strict=True):
            part.take(own, norm, head)
        return x[:rest]


def parts_of(requests: Sequence[Request], starts: Ints, vocab: int) -> list[PooledPart | ScorePart]:
    """Parts of a step. `starts` are each request's first row in the step, and the total number of rows."""
    parts: list[PooledPart | ScorePart] = []
    for i, request in enumerate(requests):
        if request.pooling is None:
            if request.scores is not None:
                first = int(starts[i])
                part = score_part(request, first, int(starts[i + 1]) - first, vocab)
                parts += [] if part is None else [part]
            continue
        rows = range(int(starts[i]), int(starts[i + 1]))
        ends = request.computed + len(rows) == len(request.tokens)
        if request.pooling == "mean":
            parts.append(PooledPart(request, rows, request.computed == 0, ends))
        elif ends:
            parts.append(PooledPart(request, rows[-1:], True, True))
    return parts


def pools_of(
    parts: Sequence[PooledPart | ScorePart], leaders: list[Request], rows: list[int]
) -> tuple[list[Request], list[int], Pools | None]:
    """Merges the `rows` of the `leaders` with the rows of the parts: the owner of each read row, the rows, and their
    use."""
    if not parts:
        return leaders, rows, None
    readers = leaders + [part.request for part in parts for _ in part.rows]
    read = np.array(rows + [row for part in parts for row in part.rows], dtype=np.int64)
    order = read.argsort()
    places = torch.from_numpy(order.argsort())
    return [readers[i] for i in order], read[order].tolist(), Pools(parts, places)


def is_usable(request: Request) -> bool:
    """Whether the request's vector is finite."""
    return request.vector is not None and bool(torch.isfinite(request.vector).all())
