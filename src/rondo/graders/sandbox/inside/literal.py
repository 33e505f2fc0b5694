"""Plain values as JSON and back: the only values that cross between a program and its tests.

The reader builds every value anew from types of Python's own, so that no object of a program, such as one that equals
everything, crosses. `other` converts a value that is not plain.
"""

import collections
import decimal
import fractions
from collections.abc import Callable
from typing import Any

Other = Callable[[object], dict[str, Any]]
OtherBack = Callable[[dict[str, Any]], object]

_EXACT = 1 << 53
_MOST_DIGITS = 10_000


TYPES: dict[str, type] = {
    "NoneType": type(None),
    "ellipsis": type(...),
    "deque": collections.deque,
    "Decimal": decimal.Decimal,
    "Fraction": fractions.Fraction,
}
"""Types of plain values without a built-in name."""


class NotPlain(TypeError):
    """The value cannot cross the process boundary."""


def encode(value: Any, other: Other | None = None) -> Any:
    """The value as JSON. Subclasses become their base type; too deep or endless values raise `RecursionError`."""
    if value is None or value is True or value is False:
        return value
    for kind, write in _WRITERS:
        if isinstance(value, kind):
            return write(value, lambda each: encode(each, other))
    if other is None:
        raise NotPlain(f"{type(value).__name__} is not a plain value")
    return other(value)


def decode(data: Any, other: OtherBack | None = None) -> Any:
    """Raises `ValueError` for data that `encode` cannot have produced."""
    if isinstance(data, list):
        return [decode(each, other) for each in data]
    if not isinstance(data, dict):
        return data
    if len(data) != 1:
        raise ValueError("not a value")
    [(tag, body)] = data.items()
    if tag in _READERS:
        try:
            return _READERS[tag](body, lambda each: decode(each, other))
        except (TypeError, ArithmeticError, AttributeError) as error:
            raise ValueError("not a value") from error
    if other is None:
        raise ValueError("not a value")
    return other(data)


def _write_int(value: int, inner: Any) -> Any:
    value = int(value)
    return value if -_EXACT < value < _EXACT else {"int": hex(value)}


def _items(value: Any, inner: Any) -> list[Any]:
    return [inner(each) for each in value]


def _write_dict(value: Any, inner: Any) -> dict[str, Any]:
    return {"dict": [[inner(key), inner(each)] for key, each in dict.items(value)]}


_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))
_WRITERS: tuple[tuple[type, Callable[[Any, Any], Any]], ...] = (
    (int, _write_int),
    (float, lambda value, inner: float(value)),
    (str, lambda value, inner: str.__str__(value)),
    (list, lambda value, inner: _items(list.__iter__(value), inner)),
    (tuple, lambda value, inner: {"tuple": _items(tuple.__iter__(value), inner)}),
    (dict, _write_dict),
    (set, lambda value, inner: {"set": _items(set.__iter__(value), inner)}),
    (frozenset, lambda value, inner: {"frozenset": _items(frozenset.__iter__(value), inner)}),
    (bytes, lambda value, inner: {"bytes": bytes.hex(value)}),
    (bytearray, lambda value, inner: {"bytearray": bytearray.hex(value)}),
    (complex, lambda value, inner: {"complex": [value.real, value.imag]}),
    (range, lambda value, inner: {"range": [inner(each) for each in (value.start, value.stop, value.step)]}),
    (collections.deque, lambda value, inner: {"deque": _items(value, inner)}),
    (decimal.Decimal, lambda value, inner: {"decimal": str(value)}),
    (
        fractions.Fraction,
        lambda value, inner: {"fraction": [inner(value.numerator), inner(value.denominator)]},
    ),
    (type(...), lambda value, inner: {"ellipsis": 0}),
    *((kind, _items) for kind in _VIEWS),
)


def _pairs(body: Any, inner: Any) -> dict[Any, Any]:
    return {inner(key): inner(value) for key, value in body}


def _read_decimal(body: str, inner: Any) -> decimal.Decimal:
    if len(body) > _MOST_DIGITS:
        raise ValueError("too long a number")
    return decimal.Decimal(body)


_READERS: dict[str, Callable[[Any, Any], Any]] = {
    "int": lambda body, inner: int(body, 16),
    "tuple": lambda body, inner: tuple(map(inner, body)),
    "dict": _pairs,
    "set": lambda body, inner: set(map(inner, body)),
    "frozenset": lambda body, inner: frozenset(map(inner, body)),
    "bytes": lambda body, inner: bytes.fromhex(body),
    "bytearray": lambda body, inner: bytearray.fromhex(body),
    "complex": lambda body, inner: complex(*body),
    "range": lambda body, inner: range(*map(inner, body)),
    "deque": lambda body, inner: collections.deque(map(inner, body)),
    "decimal": _read_decimal,
    "fraction": lambda body, inner: fractions.Fraction(*map(inner, body)),
    "ellipsis": lambda body, inner: ...,
}
