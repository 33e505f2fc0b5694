"""What is added to the outputs of a model's modules within a block of code: how many adapters share one forward pass.

The model only asks; who adds what to which rows is decided outside. It is a matter of the thread: others may train the
same model meanwhile.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from torch import Tensor, nn


class Additions(Protocol):
    def add(self, module: nn.Module, x: Tensor, out: Tensor) -> Tensor:
        """`out` is what the module made of `x`; it may be changed in place."""


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
