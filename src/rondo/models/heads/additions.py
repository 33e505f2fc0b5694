"""Additions to the outputs of a model's modules within a block of code: how many adapters share one forward pass.

The model only calls `added`; the caller decides on the rows and adapters. The state is local to the thread, so other
threads may train the same model at the same time.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from torch import Tensor, nn


class Additions(Protocol):
    def add(self, module: nn.Module, x: Tensor, out: Tensor) -> Tensor:
        """`out` is the module's output for `x`; it may be changed in place."""


_current: ContextVar[Additions | None] = ContextVar("rondo_additions", default=None)


@contextmanager
def adding(additions: Additions | None) -> Iterator[None]:
    token = _current.set(additions)
    try:
        yield
    finally:
        _current.reset(token)


def added(module: nn.Module, x: Tensor, out: Tensor) -> Tensor:
    current = _current.get()
    return out if current is None else current.add(module, x, out)
