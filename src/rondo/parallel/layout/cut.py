"""Where a pipeline cuts a model, which rank has which piece, and how many microbatches a schedule takes. Pure.

A piece is a run of layers; the first has the embedding too, the last the head. All wait for the slowest, so the one
that costs most should cost the least possible.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from itertools import count as numbers

from rondo.models.architecture import Dense, Gqa, Layer, Mla, ModelConfig, Moe
from rondo.parallel.config import LayoutConfig

CONTEXT = 4096
"""Tokens of the document that attention's products are counted for."""


@dataclass(frozen=True)
class Costs:
    """Products of a token's forward pass, in multiplications."""

    layers: list[int]
    embed: int
    head: int


def costs(model: ModelConfig) -> Costs:
    """An embedding is looked up: it multiplies nothing, at most by a scale."""
    layers = [_layer(layer, model.hidden_size) for layer in model.layers]
    outputs = 1 if model.scores else model.vocab_size
    return Costs(layers, model.hidden_size, model.hidden_size * outputs)


def cut(costs: Costs, pieces: int) -> list[range]:
    """The layers of each piece: all once, in order, one or more a piece. Of cuts whose most expensive piece costs the
    least, one of the most even."""
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
    """How many pieces the model is cut into. A zero-bubble schedule goes down the stages and back up: two a stage."""
    return layout.pp * (2 if layout.schedule == "zero-bubble" and layout.pp > 1 else layout.virtual)


def stage_of(layout: LayoutConfig, piece: int) -> int:
    """Pieces go round the stages; under a zero-bubble schedule down and back up."""
    if layout.schedule == "zero-bubble" and piece >= layout.pp:
        return 2 * layout.pp - 1 - piece
    return piece % layout.pp


def microbatches(layout: LayoutConfig, rows: int) -> int:
    """The least number, from `rows` on, that the schedule takes."""
    match layout.schedule:
        case "1f1b":
            return max(rows, layout.pp)
        case "interleaved":
            # Rounds of one microbatch a stage or more, all alike.
            return next(n for n in numbers(max(rows, 1)) if n % max(1, n // layout.pp) == 0)
        case _:
            return max(rows, 1)


_Cut = tuple[int, int, tuple[int, ...]]
"""What the dearest piece costs, the sum of squares, and where pieces end."""


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
