"""Ring attention: keys and values rotate through the ranks, one block in use and one in transit, and each rank's tokens
attend to each block as it arrives.

Ranks hold stripes of the row (`RowCut`). Attention of a rank's tokens to another rank's stripe is ordinary causal
attention over shorter documents, once queries and keys without any interaction are left out. So every step uses the
same kernels, has equal work on every rank, and scales windows with the lengths of documents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup

from rondo.models.attend import Packed
from rondo.ops import AttentionSpec, attention_part, attention_part_gradients
from rondo.parallel.collectives import arrived, start_passing
from rondo.parallel.context.meeting import Meeting
from rondo.parallel.context.row_cut import Ints, RowCut


class Ring:
    """Exact ring attention, with exact gradients, for any number of heads. Gradients of keys and values rotate in
    fp32.
    """

    def __init__(self, group: ProcessGroup, whole: Packed, cut: RowCut) -> None:
        self._group = group
        self._whole = whole
        rank = group.rank()
        self._own = torch.from_numpy(cut.tokens(rank)).to(whole.device)
        sources = [(rank - step) % group.size() for step in range(group.size())]
        meetings = [Meeting.of(cut, whole.cu_seqlens, rank, source) for source in sources]
        self._parts = [_Part.of(meeting, cut.each, whole.device) for meeting in meetings]

    @property
    def lengths(self) -> Tensor:
        return self._whole.lengths[self._own]

    def __call__(
        self, spec: AttentionSpec, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None
    ) -> Tensor:
        result: Tensor = _Ring.apply(spec, q, k, v, sinks, self._group, self._parts)  # type: ignore[no-untyped-call]
        return result


@dataclass(frozen=True)
class _Part:
    """Token indices of a meeting as tensors; None selects all rows."""

    meeting: Meeting
    queries: Tensor | None
    keys: Tensor | None

    @classmethod
    def of(cls, meeting: Meeting, each: int, device: torch.device | str) -> _Part:
        def rows(of: Ints) -> Tensor | None:
            return None if len(of) == each else torch.from_numpy(of).to(device)

        return cls(meeting, rows(meeting.queries), rows(meeting.keys))

    @property
    def cu_seqlens(self) -> tuple[int, ...]:
        return self.meeting.cu_seqlens

    def spec(self, spec: AttentionSpec) -> AttentionSpec | None:
        """None if no key is visible."""
        window = self.meeting.window(spec.window)
        if self.cu_seqlens[-1] == 0 or window == 0:
            return None
        return replace(spec, window=window)


def _rows(x: Tensor, rows: Tensor | None) -> Tensor:
    return x if rows is None else x.index_select(0, rows)


def _add(to: Tensor, rows: Tensor | None, x: Tensor) -> None:
    """Adds x to distinct rows."""
    if rows is None:
        to += x
    else:
        to.index_add_(0, rows, x.to(to.dtype))


class _Ring(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        spec: AttentionSpec,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        sinks: Tensor | None,
        group: ProcessGroup,
        parts: Sequence[_Part],
    ) -> Tensor:
        out, logarithms = _forward(spec, q, k, v, sinks, group, parts)
        ctx.save_for_backward(q, k, v, sinks, out, logarithms)
        ctx.spec, ctx.group, ctx.parts = spec, group, parts
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, sinks, out, logarithms = ctx.saved_tensors
        whole = _Whole(grads[0].contiguous(), q, out, logarithms)
        found = _backward(ctx.spec, whole, k, v, ctx.group, ctx.parts)
        return None, *found, None if sinks is None else whole.of_sinks(sinks), None, None


def _forward(
    spec: AttentionSpec,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sinks: Tensor | None,
    group: ProcessGroup,
    parts: Sequence[_Part],
) -> tuple[Tensor, Tensor]:
    out = q.new_zeros(q.shape[0], spec.num_heads, spec.value_dim, dtype=torch.float32)
    # A sink is a part with a weight and no value.
    before = -torch.inf if sinks is None else sinks.float()
    logarithms = q.new_zeros(q.shape[:2], dtype=torch.float32) + before
    here = _Block.of(k, v)
    for step, part in enumerate(parts):
        last = step + 1 == len(parts)
        coming = None if last else here.start_passing(group)
        _attend(spec, part, q, here, out, logarithms)
        if coming is not None:
            here = coming.arrived()
    return out.to(q.dtype), logarithms


def _attend(
    spec: AttentionSpec, part: _Part, q: Tensor, here: _Block, out: Tensor, logarithms: Tensor
) -> None:
    """Adds the contribution of a part to `out` and `logarithms`. Temporaries are freed before the next block
    arrives.
    """
    own_spec = part.spec(spec)
    if own_spec is not None:
        keys, values = (_rows(x, part.keys) for x in here.views())
        found = attention_part(own_spec, _rows(q, part.queries), keys, values, part.cu_seqlens)
        _merge(out, logarithms, part.queries, *found)


def _merge(out: Tensor, logarithms: Tensor, rows: Tensor | None, part: Tensor, of_part: Tensor) -> None:
    """Merges a part into the running result, both weighted by their shares of the softmax's sum."""
    before = _rows(logarithms, rows)
    total = torch.logaddexp(before, of_part)
    kept = (before - total).exp()[..., None]
    merged = _rows(out, rows) * kept + part.float() * (of_part - total).exp()[..., None]
    if rows is None:
        out.copy_(merged)
        logarithms.copy_(total)
    else:
        out.index_copy_(0, rows, merged)
        logarithms.index_copy_(0, rows, total)


def _backward(
    spec: AttentionSpec, whole: _Whole, k: Tensor, v: Tensor, group: ProcessGroup, parts: Sequence[_Part]
) -> tuple[Tensor, Tensor, Tensor]:
    """Keys and values rotate once more, and their gradients one rank behind them, until they reach their owner. The
    contribution of this rank's tokens to its own keys is added there.
    """
    of_q = torch.zeros_like(whole.q, dtype=torch.float32)
    here = _Block.of(k, v)
    own = here.gradients()
    behind: _Block | None = None
    for step, part in enumerate(parts):
        last = step + 1 == len(parts)
        coming = None if last else here.start_passing(group)
        given = own if step == 0 else here.gradients()
        _attend_back(spec, part, whole, here, of_q, given)
        if step > 0:
            if behind is not None:
                given.data.add_(behind.arrived().data)
            behind = given.start_passing(group)
        if coming is not None:
            here = coming.arrived()
    if behind is not None:
        own.data.add_(behind.arrived().data)
    of_k, of_v = own.views()
    return of_q.to(whole.q.dtype), of_k.to(k.dtype), of_v.to(v.dtype)


def _attend_back(
    spec: AttentionSpec, part: _Part, whole: _Whole, here: _Block, of_q: Tensor, given: _Block
) -> None:
    own_spec = part.spec(spec)
    if own_spec is None:
        return
    keys, values = (_rows(x, part.keys) for x in here.views())
    own = whole.rows(part.queries)
    found = attention_part_gradients(
        own_spec, own.grad, own.q, keys, values, own.out, own.logarithms, part.cu_seqlens
    )
    _add(of_q, part.queries, found[0])
    for to, x in zip(given.views(), found[1:], strict=True):
        _add(to, part.keys, x)


@dataclass(frozen=True)
class _Whole:
    """Inputs of the backward pass: queries, results and gradients of this rank's tokens, over all tokens that they
    attend to.
    """

    grad: Tensor
    q: Tensor
    out: Tensor
    logarithms: Tensor

    def rows(self, rows: Tensor | None) -> _Whole:
        return _Whole(*(_rows(x, rows) for x in (self.grad, self.q, self.out, self.logarithms)))

    def of_sinks(self, sinks: Tensor) -> Tensor:
        """Gradient of the sinks. A sink has no value: a larger sink reduces the weights of all values."""
        shares = (sinks.float() - self.logarithms).exp()
        return -(shares * (self.grad.float() * self.out.float()).sum(-1)).sum(0).to(sinks.dtype)


@dataclass(frozen=True)
class _Block:
    """Keys and values of one rank, or their gradients, in one contiguous buffer."""

    data: Tensor
    shapes: tuple[torch.Size, torch.Size]

    @classmethod
    def of(cls, k: Tensor, v: Tensor) -> _Block:
        return cls(torch.cat([k.flatten(), v.flatten()]), (k.shape, v.shape))

    def views(self) -> tuple[Tensor, Tensor]:
        of_k, of_v = self.shapes
        return self.data[: of_k.numel()].view(of_k), self.data[of_k.numel() :].view(of_v)

    def gradients(self) -> _Block:
        return replace(self, data=torch.zeros_like(self.data, dtype=torch.float32))

    def start_passing(self, group: ProcessGroup) -> _Block:
        return replace(self, data=start_passing(self.data, group))

    def arrived(self) -> _Block:
        return replace(self, data=arrived(self.data))
