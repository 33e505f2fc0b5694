"""Exceptions of the program as raised in its tests.

An exception of the program is raised in the tests as a type of the same name below the nearest built-in type. Types
that control an iteration, a generator or an event loop are replaced: the program must not end a loop of its tests.
"""

import builtins
import types
from typing import Any

_MOST_BASES = 50
_LONGEST_NAME = 200


class NotPassed(BaseException):
    """The tests pass a value to the program that cannot be passed, independent of the program.

    Not an `Exception`, so that `assertRaises(Exception)` does not catch it.
    """


class ProgramError(Exception):
    """Exception of the program whose type is not a built-in type."""


class ProgramExit(BaseException):
    """Exception of the program that is not an `Exception`, such as `GeneratorExit`."""


class Stopped(Exception):
    """`StopIteration` raised by a call of the program; Python's own would end a loop of the tests."""


class StoppedAsync(Exception):
    """`StopAsyncIteration` raised by a call of the program."""


class ProgramAssertion(AssertionError):
    """`AssertionError` of the program. An exception class of the program does not catch the tests' own assertions."""


class ProgramException(Exception):
    """`Exception` itself, raised or returned by the program."""


REPLACED: dict[type[BaseException], type[BaseException]] = {
    StopIteration: Stopped,
    StopAsyncIteration: StoppedAsync,
}
_NARROWED = {AssertionError: ProgramAssertion, Exception: ProgramException}
for _kind, _replacement in (REPLACED | _NARROWED).items():
    _replacement.__name__ = _replacement.__qualname__ = _kind.__name__

_RAISED: dict[str, type[BaseException]] = {
    name: (REPLACED | _NARROWED).get(kind, kind)
    for name, kind in vars(builtins).items()
    if isinstance(kind, type) and issubclass(kind, Exception)
} | {"SystemExit": SystemExit, "KeyboardInterrupt": KeyboardInterrupt}


def caught(kind: Any) -> Any:
    """Types that an `except` clause or `assertRaises` of the tests catches, including the replacement of a replaced
    type."""
    if isinstance(kind, tuple):
        return tuple(each for part in kind for each in _both(part))
    return caught((kind,)) if isinstance(kind, type) and kind in REPLACED else kind


def is_failure(error: BaseException | None, expected: Any) -> bool:
    """Whether a failed assertion of the tests themselves is inside `assertRaises` of another type."""
    if not isinstance(error, AssertionError) or isinstance(error, ProgramAssertion):
        return False
    kinds = expected if isinstance(expected, tuple) else (expected,)
    return not any(isinstance(each, type) and issubclass(each, AssertionError) for each in kinds)


def _both(kind: Any) -> list[Any]:
    if isinstance(kind, tuple):
        return [caught(kind)]
    return [kind, REPLACED[kind]] if isinstance(kind, type) and kind in REPLACED else [kind]


class ErrorTypes:
    """Exception types made from the names of an exception's bases, each once."""

    def __init__(self) -> None:
        self._made: dict[tuple[str, ...], type[BaseException]] = {}

    def of(self, names: Any) -> type[BaseException]:
        """Raises `ValueError` if `names` are not the names of a type and its bases."""
        if not isinstance(names, list) or not 0 < len(names) <= _MOST_BASES:
            raise ValueError("not an exception")
        key = tuple(str(name)[:_LONGEST_NAME] for name in names)
        bases: list[type[BaseException]] = []
        for start in range(len(key) - 1, -1, -1):
            name = key[start]
            if name in _RAISED:
                kind = _RAISED[name]
            elif name.isidentifier() and name not in ("object", "BaseException"):
                kind = self._named(key[start:], tuple(bases) or (ProgramExit,))
            else:
                continue
            bases = [kind, *(each for each in bases if not issubclass(kind, each))]
        return bases[0] if bases else ProgramExit

    def _named(self, key: tuple[str, ...], bases: tuple[type[BaseException], ...]) -> type[BaseException]:
        if key not in self._made:
            try:
                self._made[key] = types.new_class(key[0], bases)
            except TypeError:  # incompatible bases
                self._made[key] = types.new_class(key[0], bases[:1])
        return self._made[key]
