"""Which tensors of a block are there at the same time, and which outlive it. Whatever the allocator makes of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

T = TypeVar("T")


def bytes_left_by(block: Callable[[], T]) -> tuple[T, int]:
    """What the block returns, and the bytes of all tensors made in it that are still there."""
    watch = _Watch()
    with watch:
        result = block()
    return result, watch.alive()


def most_bytes_in(block: Callable[[], object]) -> int:
    """Of tensors made in it, at its peak."""
    watch = _Watch()
    with watch:
        block()
    return watch.peak


class _Watch(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.made: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0

    def alive(self) -> int:
        self.made = {key: made for key, made in self.made.items() if not made[0].expired()}
        return sum(size for _, size in self.made.values())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {_key(x) for x in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(x, Tensor)}
        out = func(*args, **(kwargs or {}))
        for x in torch.utils._pytree.tree_leaves(out):
            if isinstance(x, Tensor) and _key(x) not in given:
                storage = x.untyped_storage()
                self.made[_key(x)] = StorageWeakRef(storage), storage.nbytes()
        self.peak = max(self.peak, self.alive())
        return out


def _key(x: Tensor) -> int:
    return x.untyped_storage()._cdata
