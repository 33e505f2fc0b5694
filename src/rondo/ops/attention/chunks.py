"""Attention of several tokens a request over keys and values in pages (prefill)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from rondo.ops.attention.packed import AttentionSpec, attend_masked, causal_mask
from rondo.ops.attention.paged import slots_at
from rondo.ops.attention.pages import Pages
from rondo.ops.dispatch import Op


@dataclass(frozen=True)
class Chunks:
    """The next tokens of R requests, concatenated. Request r has `counts[r]` new tokens after `pasts[r]` tokens in the
    pages of row r of `tables` [R, P]; the new tokens' keys and values are written to `slots` [T]. Built once a step,
    shared by all layers."""

    tables: Tensor
    slots: Tensor
    counts: Sequence[int]
    pasts: Sequence[int]
    _places: dict[int, tuple[Tensor, ...]] = field(default_factory=dict)

    def places(self, group: int, rows: int) -> tuple[Tensor, ...]:
        """For each request its first token, token count and past length; then for each block of `rows` queries, `group`
        to a token, its request and the index of its first query within that request."""
        if group not in self._places:
            counts, pasts = (
                torch.tensor(numbers, dtype=torch.int64) for numbers in (self.counts, self.pasts)
            )
            starts = counts.cumsum(0) - counts
            blocks = -(-counts * group // rows)
            owners = torch.arange(len(counts)).repeat_interleave(blocks)
            firsts = (torch.arange(len(owners)) - (blocks.cumsum(0) - blocks)[owners]) * rows
            made = (starts, counts, pasts, owners, firsts)
            self._places[group] = tuple(x.to(self.tables.device, non_blocking=True) for x in made)
        return self._places[group]


@Op
def chunk_attention(
    spec: AttentionSpec,
    keys: Pages,
    values: Pages,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    step: Chunks,
    sinks: Tensor | None = None,
) -> Tensor:
    """q [T, H, D], k [T, KV, D], v [T, KV, Dv] -> [T, H, Dv]. Writes k and v to their slots and attends to the stored
    values, so that the result does not depend on how a prompt is chunked."""
    keys.write(step.slots, k)
    values.write(step.slots, v)
    outputs, start = [], 0
    for table, count, past in zip(step.tables, step.counts, step.pasts, strict=True):
        at = torch.arange(past + count, device=q.device)
        slots = slots_at(table[None], at, keys.data.shape[1])
        seen_keys, seen_values = (pages.gather(slots, q.dtype)[0] for pages in (keys, values))
        mask = causal_mask(count, past + count, spec.window, q.device)
        outputs.append(attend_masked(spec, q[start : start + count], seen_keys, seen_values, mask, sinks))
        start += count
    return torch.cat(outputs)
