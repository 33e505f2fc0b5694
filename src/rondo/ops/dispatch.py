"""The dispatcher: an operation is its reference, plus fast versions with a predicate on the arguments.

`RONDO_OPS=reference` in the environment (or `use_reference()` in a test) runs references only, which is the first step
in debugging a wrong number.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_reference_only = os.environ.get("RONDO_OPS", "") == "reference"


class Op(Generic[P, R]):
    """An operation with the signature of its reference; a call runs the first fast version that supports the
    arguments."""

    def __init__(self, reference: Callable[P, R]) -> None:
        self.reference = reference
        self.__name__ = getattr(reference, "__name__", "op")
        self.__doc__ = reference.__doc__
        self._fast: list[tuple[Callable[P, bool], Callable[P, R]]] = []

    def fast(
        self, supports: Callable[P, bool], *, first: bool = False
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Register a fast version. Versions are tried in the order of registration; `first` puts one at the front."""

        def register(version: Callable[P, R]) -> Callable[P, R]:
            self._fast.insert(0 if first else len(self._fast), (supports, version))
            return version

        return register

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.version(*args, **kwargs)(*args, **kwargs)

    @property
    def fast_versions(self) -> list[Callable[P, R]]:
        """Fast versions in the order in which they are tried."""
        return [version for _, version in self._fast]

    def version(self, *args: P.args, **kwargs: P.kwargs) -> Callable[P, R]:
        """The version that a call with these arguments runs."""
        if not _reference_only:
            for supports, version in self._fast:
                if supports(*args, **kwargs):
                    return version
        return self.reference


def references_only() -> bool:
    return _reference_only


@contextmanager
def use_reference() -> Iterator[None]:
    """Run only references inside the block."""
    global _reference_only
    before, _reference_only = _reference_only, True
    try:
        yield
    finally:
        _reference_only = before
