"""Requests that want a vector of their prompt and not an answer: they end with the step that computes its last token.

The vector is the model's normalised output at the last token, or its mean over all of them. Of a prompt that is
computed in pieces the mean is added up piece by piece, so nothing of it may come out of the prefix cache. The last
token is always computed, whatever was found of those before it.
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
    """What a step adds to one request's vector: the outputs at these `rows` of the flat row."""

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
    """The vectors of a step, and the scores of prompts. The model gives all rows that are read in rising order;
    `places` says where among them those of its logits are, and after them those of the parts."""

    parts: Sequence[PooledPart | ScorePart]
    places: Tensor

    @property
    def ended(self) -> list[Request]:
        return [part.request for part in self.parts if part.ends]

    def take(self, x: Tensor, norm: Outputs, head: Outputs) -> Tensor:
        """The outputs x [R, H] before the norm go to the parts; those for logits are returned."""
        counts = [len(part.rows) for part in self.parts]
        x = x[self.places.to(x.device)]
        rest = x.shape[0] - sum(counts)
        for part, own in zip(self.parts, torch.split(x[rest:], counts), strict=True):
            part.take(own, norm, head)
        return x[:rest]


def parts_of(requests: Sequence[Request], starts: Ints, vocab: int) -> list[PooledPart | ScorePart]:
    """`starts` are each request's first row in the step, and last the number of all."""
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
    """All rows that are read, those `rows` of the `leaders` among them, whose each is, and what becomes of them."""
    if not parts:
        return leaders, rows, None
    readers = leaders + [part.request for part in parts for _ in part.rows]
    read = np.array(rows + [row for part in parts for row in part.rows], dtype=np.int64)
    order = read.argsort()
    places = torch.from_numpy(order.argsort())
    return [readers[i] for i in order], read[order].tolist(), Pools(parts, places)


def is_usable(request: Request) -> bool:
    """Whether the model's output was finite."""
    return request.vector is not None and bool(torch.isfinite(request.vector).all())
