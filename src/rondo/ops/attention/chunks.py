"""Attention of several tokens a request over keys and values that lie in pages."""

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
    """The next tokens of each of R requests, one request's after the other's: `counts` of them, after `pasts` that are
    in the pages of its row of `tables` [R, P]. Their own keys and values go to `slots` [T]. Built once a step, used by
    every layer."""

    tables: Tensor
    slots: Tensor
    counts: Sequence[int]
    pasts: Sequence[int]
    _places: dict[int, tuple[Tensor, ...]] = field(default_factory=dict)

    def places(self, group: int, rows: int) -> tuple[Tensor, ...]:
        """Of each request: its first token, how many it has, and how many came before; then of each block of `rows`
        queries, `group` a token: whose it is, and which of its owner's queries is its first."""
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
    """q [T, H, D], k [T, KV, D], v [T, KV, Dv] -> [T, H, Dv]; writes k and v to their slots, and attends over what was
    stored, so that it does not matter where a prompt is cut."""
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
