"""Number of operations of a training step from the model's shape and the rows' documents, in closed form.

Matrix products are counted, with two operations per multiplication, in the forward pass and for both gradients of the
backward pass; recomputation is not counted. Attention is counted by both conventions in use: in full, with every token
attending to all of its document (up to the layer's window), and under the causal mask.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from rondo.data.batching.packing import PackedRow
from rondo.models.adapters import adapter_of
from rondo.models.architecture import Dense, Gqa, Layer, Mla, Moe
from rondo.models.decoder import Decoder


@dataclass(frozen=True)
class RowFlops:
    """Input tokens of some rows, and the operations for all of them, with attention in full or under the causal
    mask.
    """

    tokens: float
    full: float
    causal: float


class Flops:
    """Operations of training a model, or of training an adapter, whose base has no gradients of weights."""

    def __init__(self, model: Decoder) -> None:
        config = model.config
        self._layers = [_Cost.of(layer, config.hidden_size) for layer in config.layers]
        self._head = config.vocab_size * config.hidden_size
        adapter = adapter_of(model)
        self._passes = 3 if adapter is None else 2
        self._added = 0
        if adapter is not None:
            self._added = sum(p.numel() for part in adapter.parts.values() for p in part.parameters())

    def of(self, rows: Iterable[PackedRow]) -> RowFlops:
        works = [self._of_row(row) for row in rows]
        return RowFlops(
            *(float(sum(getattr(work, field.name) for work in works)) for field in fields(RowFlops))
        )

    def _of_row(self, row: PackedRow) -> RowFlops:
        """Operations of a row. In the last layer only the rows that predict are computed after attention, and in the
        head.
        """
        tokens, read = len(row.tokens), len(np.unique(row.where))
        *before, last = self._layers
        met = tokens * (sum(each.into + each.after for each in before) + last.into)
        met += read * (last.after + self._head)
        products = 2.0 * (self._passes * met + 3 * tokens * self._added)
        begins = row.positions[row.cu_seqlens[:-1]]
        ends = begins + np.diff(row.cu_seqlens)
        pairs = {window: _pairs(begins, ends, window) for window in {each.window for each in self._layers}}
        full, causal = (
            products + 3 * sum(2.0 * each.width * pairs[each.window][i] for each in self._layers)
            for i in range(2)
        )
        return RowFlops(tokens, full, causal)


@dataclass(frozen=True)
class _Cost:
    """Costs of a layer: weights per token before and after attention, and multiplications per pair of query and key in
    all heads, for the score and for the weighted value.
    """

    into: int
    after: int
    width: int
    window: int | None

    @classmethod
    def of(cls, layer: Layer, hidden: int) -> _Cost:
        part = layer.attention
        after = part.num_heads * part.value_dim * hidden + _mlp(layer.mlp, hidden)
        width = part.num_heads * (part.head_dim + part.value_dim)
        return cls(_into(part, hidden), after, width, part.window if isinstance(part, Gqa) else None)


def _into(part: Gqa | Mla, hidden: int) -> int:
    queries = part.num_heads * part.head_dim
    if isinstance(part, Gqa):
        return hidden * (queries + 2 * part.num_kv_heads * part.head_dim)
    asked = hidden * queries if part.q_rank is None else part.q_rank * (hidden + queries)
    kept = hidden * (part.kv_rank + part.rope_dim)
    return asked + kept + part.kv_rank * part.num_heads * (part.nope_dim + part.value_dim)


def _mlp(part: Dense | Moe, hidden: int) -> int:
    if isinstance(part, Dense):
        return 3 * hidden * part.intermediate
    shared = 0 if part.shared is None else _mlp(part.shared, hidden)
    return hidden * (part.router.num_experts + 3 * part.router.top_k * part.intermediate) + shared


def _pairs(begins: NDArray[np.int64], ends: NDArray[np.int64], window: int | None) -> tuple[float, float]:
    """Numbers of query-key pairs of segments between these positions, whose prefixes are visible: in full, and under
    the causal mask.
    """
    wide = int(ends.max()) if window is None else window
    full = float(((ends - begins) * np.minimum(ends, wide)).sum())
    return full, float((_seen(ends, wide) - _seen(begins, wide)).sum())


def _seen(count: NDArray[np.int64], window: int) -> NDArray[np.int64]:
    """Number of pairs for the first `count` tokens of a document together."""
    growing = np.minimum(count, window)
    seen: NDArray[np.int64] = growing * (growing + 1) // 2 + (count - growing) * window
    return seen
