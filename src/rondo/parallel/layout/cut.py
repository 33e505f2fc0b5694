"""Pipeline cuts: the layers of each piece, the stage of each piece, and the number of microbatches of a schedule. Pure.

A piece is a run of layers; the first one also has the embedding, the last one the head. The slowest piece limits the
throughput, so the cut minimizes the largest cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from itertools import count as numbers

from rondo.models.architecture import Dense, Gqa, Layer, Mla, ModelConfig, Moe
from rondo.parallel.config import LayoutConfig

CONTEXT = 4096
"""Length of document for which attention's products are counted, in tokens."""


@dataclass(frozen=True)
class Costs:
    """Cost of a token's forward pass, in multiplications."""

    layers: list[int]
    embed: int
    head: int


def costs(model: ModelConfig) -> Costs:
    """Costs of a model's parts. An embedding is a lookup without products, apart from a scale."""
    layers = [_layer(layer, model.hidden_size) for layer in model.layers]
    outputs = 1 if model.scores else model.vocab_size
    return Costs(layers, model.hidden_size, model.hidden_size * outputs)


def cut(costs: Costs, pieces: int) -> list[range]:
    """Layers of each piece: every layer once, in order, at least one per piece. The cut minimizes the cost of the most
    expensive piece, and prefers even cuts among the optimal ones.
    """
    count = len(costs.layers)
    sums = list(accumulate(costs.layers, initial=costs.embed))
    sums[0], sums[-1] = 0, sums[-1] + costs.head
    best: dict[int, _Cut] = {0: (0, 0, (0,))}
    for piece in range(pieces):
        last = count - (pieces - 1 - piece)
        best = {
            end: min(_longer(best[start], sums[end] - sums[start], end) for start in best if start < end)
            for end in range(piece + 1, last + 1)
        }
    return [range(start, end) for start, end in pairwise(best[count][2])]


def pieces_of(layout: LayoutConfig) -> int:
    """Number of pieces of the model. A zero-bubble schedule runs down the stages and back up: two pieces per stage."""
    return layout.pp * (2 if layout.schedule == "zero-bubble" and layout.pp > 1 else layout.virtual)


def stage_of(layout: LayoutConfig, piece: int) -> int:
    """Stage of a piece. Pieces cycle through the stages; in a zero-bubble schedule they run down and back up."""
    if layout.schedule == "zero-bubble" and piece >= layout.pp:
        return 2 * layout.pp - 1 - piece
    return piece % layout.pp


def microbatches(layout: LayoutConfig, rows: int) -> int:
    """Smallest number of microbatches, at least `rows`, that the schedule accepts."""
    match layout.schedule:
        case "1f1b":
            return max(rows, layout.pp)
        case "interleaved":
            # Equal rounds of at least one microbatch per stage.
            return next(n for n in numbers(max(rows, 1)) if n % max(1, n // layout.pp) == 0)
        case _:
            return max(rows, 1)


_Cut = tuple[int, int, tuple[int, ...]]
"""Cost of the most expensive piece, sum of squared costs, and ends of the pieces."""


def _longer(before: _Cut, cost: int, end: int) -> _Cut:
    dearest, squares, ends = before
    return max(dearest, cost), squares + cost * cost, (*ends, end)


def _layer(layer: Layer, hidden: int) -> int:
    return _attention(layer.attention, hidden) + _mlp(layer.mlp, hidden)


def _attention(part: Gqa | Mla, hidden: int) -> int:
    heads = part.num_heads
    seen = CONTEXT // 2
    if isinstance(part, Gqa):
        weights = hidden * part.head_dim * (2 * heads + 2 * part.num_kv_heads)
        seen = min(seen, part.window or seen)
    else:
        queries = heads * part.head_dim
        weights = hidden * queries if part.q_rank is None else part.q_rank * (hidden + queries)
        weights += hidden * (part.kv_rank + part.rope_dim)
        weights += part.kv_rank * heads * (part.nope_dim + part.value_dim)
        weights += heads * part.value_dim * hidden
    return weights + heads * (part.head_dim + part.value_dim) * seen


def _mlp(part: Dense | Moe, hidden: int) -> int:
    if isinstance(part, Dense):
        return 3 * hidden * part.intermediate
    router = part.router
    chosen = 3 * hidden * part.intermediate * router.top_k
    shared = _mlp(part.shared, hidden) if part.shared is not None else 0
    return chosen + shared + hidden * router.num_experts
