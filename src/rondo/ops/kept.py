"""Selective activation checkpointing: the results of some operations are stored while the rest of a block is
recomputed.

A product or an attention calls `kept` for its result. In the first pass the result is computed and may be stored; when
the block is recomputed, the stored result is returned. This is below autograd, so that the operation saves the same
tensors for its backward pass as always. Torch's own operations are intercepted by the dispatch mode
`SelectiveCheckpoint`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

Kind = Literal["product", "attention"]
T = TypeVar("T")

_aten = torch.ops.aten
OF_TORCH: dict[Any, Kind] = {
    _aten.mm.default: "product",
    _aten.addmm.default: "product",
    _aten._scaled_mm.default: "product",
    _aten._scaled_dot_product_flash_attention_for_cpu.default: "attention",
    _aten._scaled_dot_product_flash_attention.default: "attention",
    _aten._scaled_dot_product_efficient_attention.default: "attention",
    _aten._scaled_dot_product_cudnn_attention.default: "attention",
}

_keeper: ContextVar[SelectiveCheckpoint | None] = ContextVar("rondo_keeper", default=None)


def kept(kind: Kind, compute: Callable[[], T]) -> T:
    """`compute()`, or its stored result."""
    keeper = _keeper.get()
    return compute() if keeper is None else keeper.result(kind, compute)


@contextmanager
def beside() -> Iterator[None]:
    """Within the block results are neither stored nor counted, for the computation of an adapter beside a module."""
    keeper = _keeper.get()
    if keeper is None:
        yield
        return
    with keeper.aside():
        yield


class SelectiveCheckpoint(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Stored results of one block: all attention, and the products selected by `wanted` from their number in the
    block."""

    def __init__(self, wanted: Callable[[int], bool]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._wanted = wanted
        self._held: dict[tuple[Kind, int], Any] = {}
        self._counts: dict[Kind, int] = {}
        self._again = False
        self._inside = False

    @contextmanager
    def run(self, *, again: bool) -> Iterator[None]:
        """Context for the block's first pass, and for its recomputation (`again`)."""
        self._again, self._counts = again, {}
        token = _keeper.set(self)
        try:
            with self:
                yield
        finally:
            _keeper.reset(token)

    @contextmanager
    def aside(self) -> Iterator[None]:
        before, self._inside = self._inside, True
        try:
            yield
        finally:
            self._inside = before

    def result(self, kind: Kind, compute: Callable[[], T]) -> T:
        if self._inside:
            return compute()
        number = self._counts.get(kind, 0)
        self._counts[kind] = number + 1
        if self._again and (kind, number) in self._held:
            given: T = _apart(self._held[kind, number])
            return given
        with self.aside():
            found = compute()
        if not self._again and (kind == "attention" or self._wanted(number)):
            self._held[kind, number] = _apart(found)
        return found

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        def compute() -> Any:
            return func(*args, **(kwargs or {}))

        kind = OF_TORCH.get(func)
        return compute() if kind is None else self.result(kind, compute)


def _apart(found: Any) -> Any:
    """The tensors detached from the autograd graph of the caller."""
    if isinstance(found, Tensor):
        return found.detach()
    return tuple(map(_apart, found)) if isinstance(found, tuple) else found
