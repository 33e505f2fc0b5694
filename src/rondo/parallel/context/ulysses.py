"""Attention over a partitioned row by all-to-all: some tokens with all heads are exchanged for all tokens with some
heads, and back.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from rondo.base.errors import ConfigError
from rondo.models.attend import Attend
from rondo.ops import AttentionSpec
from rondo.parallel.collectives import all_to_all
from rondo.parallel.context.row_cut import RowCut


class Ulysses:
    """Each rank computes a share of the heads for the whole row with `whole`; of the row it holds a stretch (`RowCut`
    without stripes). Results are bitwise equal to a single process, for any kind of attention.

    If there are fewer key heads than ranks, shared key heads are sent to each of their ranks.
    """

    def __init__(self, group: ProcessGroup, whole: Attend, cut: RowCut) -> None:
        assert not cut.striped
        self._group = group
        self._whole = whole
        self._cut = cut

    @property
    def lengths(self) -> Tensor:
        lengths = self._whole.lengths
        return lengths[torch.from_numpy(self._cut.tokens(self._group.rank())).to(lengths.device)]

    def __call__(
        self, spec: AttentionSpec, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None
    ) -> Tensor:
        own = self._own(spec)
        copies = own.num_kv_heads * self._group.size() // spec.num_kv_heads
        if copies > 1:
            k, v = (x.repeat_interleave(copies, dim=1) for x in (k, v))
        q, k, v = self._to_heads(own, q, k, v)
        if sinks is not None:
            sinks = sinks.chunk(self._group.size())[self._group.rank()]
        return self._to_tokens(self._whole(own, q, k, v, sinks))

    def _own(self, spec: AttentionSpec) -> AttentionSpec:
        """Spec with the heads of one rank. It has the fewest key heads that divide its query heads evenly."""
        size, heads, keys = self._group.size(), spec.num_heads, spec.num_kv_heads
        if heads % size:
            raise ConfigError(
                f"train.layout.cp: {size} does not divide the {heads} heads of attention that a rank has, which "
                'cp_method "ulysses" deals out; choose a cp that does, or cp_method "ring"',
                param="train.layout.cp",
            )
        if keys % size == 0:
            own = keys // size
        else:
            own = 1 if size % keys == 0 else heads // size
        return replace(spec, num_heads=heads // size, num_kv_heads=own)

    def _to_heads(self, own: AttentionSpec, *parts: Tensor) -> tuple[Tensor, ...]:
        """Converts each part [T/n, heads of all ranks, ..] to [T, heads of this rank, ..], in one exchange."""
        size, each = self._group.size(), self._cut.each
        joined = torch.cat([x.reshape(each, size, -1) for x in parts], dim=-1)
        splits = [each] * size
        whole = all_to_all(joined.transpose(0, 1).flatten(0, 1), self._group, splits, splits)
        heads = (own.num_heads, own.num_kv_heads, own.num_kv_heads)
        widths = [n * x.shape[-1] for n, x in zip(heads, parts, strict=True)]
        pieces = torch.split(whole, widths, dim=-1)
        return tuple(piece.reshape(size * each, n, -1) for piece, n in zip(pieces, heads, strict=True))

    def _to_tokens(self, out: Tensor) -> Tensor:
        """Converts [T, heads of this rank, Dv] to [T/n, heads of all ranks, Dv]."""
        size, each = self._group.size(), self._cut.each
        splits = [each] * size
        own = all_to_all(out, self._group, splits, splits)
        return own.view(size, each, *own.shape[1:]).transpose(0, 1).flatten(1, 2)
