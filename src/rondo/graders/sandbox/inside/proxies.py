"""The program as its tests see it: names that are asked for, objects that stand for objects of the other process.

An object of the program is never asked whether it is equal to a plain value, less than it, or what is left of it after
taking one away: such answers could be right whatever was expected. It is not; that is decided here.
"""

from __future__ import annotations

import builtins
import types
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from . import literal, wire

T = TypeVar("T")

_BUILTINS = {id(value): name for name, value in vars(builtins).items() if callable(value)}
_RAISED = {
    name: kind
    for name, kind in vars(builtins).items()
    if isinstance(kind, type) and (issubclass(kind, Exception) or kind is SystemExit)
}


class NotPassed(Exception):
    """The tests gave the program what cannot be passed on: they cannot be run here, whatever the program is."""


class ProgramError(Exception):
    """Raised by the program; of a type that Python does not have."""


class Program:
    """Asks the process that has the program."""

    def __init__(self, channel: wire.Wire, in_place: bool = False) -> None:
        self._channel, self._in_place = channel, in_place
        self._given: list[Callable[..., Any]] = []
        self._errors: dict[tuple[str, ...], type[BaseException]] = {}
        self.asked = False
        """Whether what happens may be the program's doing."""

    def ask(self, verb: str, *values: Any, **named: Any) -> Any:
        """What the program's process answers; what it raises is raised, as its nearest type of Python's own."""
        self.asked = True
        asked = {
            "verb": verb,
            "values": [self._encode(each) for each in values],
            "named": {name: self._encode(each) for name, each in named.items()},
            "changed": self._in_place and verb == "call",
        }
        self._channel.send(asked)
        answer = self._heard()
        while "callback" in answer:
            self._channel.send(self._called_back(answer))
            answer = self._heard()
        if "error" in answer:
            raise self._raised(answer["error"])
        if self._in_place and verb == "call":
            self._write_back(values[1:], answer.get("changed"))
        return self._decode(answer.get("value"))

    def error_type(self, names: Any) -> type[BaseException]:
        """A type of that name, below the nearest one that Python has."""
        key = tuple(str(name) for name in names)
        if key not in self._errors:
            base = next((_RAISED[name] for name in key if name in _RAISED), ProgramError)
            if key[0] in _RAISED:
                self._errors[key] = base
            else:
                parent = self.error_type(key[1:]) if key[1:] and key[1] not in ("object",) else base
                self._errors[key] = types.new_class(key[0], (parent if issubclass(parent, base) else base,))
        return self._errors[key]

    def _heard(self) -> dict[str, Any]:
        answer = self._channel.receive()
        if not isinstance(answer, dict):
            raise wire.Gone("the program sent what nobody can read")
        return answer

    def _encode(self, value: Any) -> Any:
        return literal.encode(value, self._other)

    def _other(self, value: object) -> dict[str, Any]:
        if type(value) is Object:
            return {"object": object.__getattribute__(value, "_number")}
        if id(value) in _BUILTINS:
            return {"builtin": _BUILTINS[id(value)]}
        if isinstance(value, types.FunctionType | types.MethodType | types.BuiltinFunctionType):
            self._given.append(value)
            return {"callback": len(self._given) - 1}
        raise NotPassed(
            f"the tests pass a {type(value).__name__} to the program. Plain values, functions and what the program "
            "gave can be passed; a class that both need has to be the program's."
        )

    def _decode(self, data: Any) -> Any:
        try:
            return literal.decode(data, self._object)
        except (ValueError, RecursionError) as error:
            raise wire.Gone("the program sent what nobody can read") from error

    def _object(self, data: dict[str, Any]) -> object:
        about = data.get("object")
        if not isinstance(about, dict) or type(about.get("number")) is not int:
            raise ValueError("not a value")
        if isinstance(about.get("error"), list):
            return self.error_type(about["error"])
        return Object(self, about["number"])

    def _called_back(self, asked: dict[str, Any]) -> dict[str, Any]:
        try:
            function = self._given[asked["callback"]]
            values = self._decode(asked["values"])
            named = {str(name): self._decode(each) for name, each in asked["named"].items()}
        except (LookupError, TypeError, AttributeError) as error:
            raise wire.Gone("the program sent what nobody can read") from error
        try:
            return {"value": self._encode(function(*values, **named))}
        except (wire.Gone, NotPassed):
            raise
        except Exception as error:
            return {"raised": f"{type(error).__name__}: {error}"}

    def _raised(self, about: Any) -> BaseException:
        try:
            kind = self.error_type(about["names"])
            values = self._decode(about["values"])
            text = str(about["text"])
        except (LookupError, TypeError) as error:
            raise wire.Gone("the program sent what nobody can read") from error
        try:
            return kind(*values) if isinstance(values, list) else kind(text)
        except Exception:  # a type that asks for other arguments
            return ProgramError(text)

    def _write_back(self, values: tuple[Any, ...], changed: Any) -> None:
        """What the program did to lists and the like that it was given is done to the tests' own."""
        for value, each in zip(values, changed if isinstance(changed, list) else []):
            after = self._decode(each)
            if type(value) is not type(after):
                continue
            if isinstance(value, list | bytearray):
                value[:] = after
            elif isinstance(value, dict | set):
                value.clear()
                value.update(after)


class Object:
    """Something in the program that is not a plain value: a function, a class, an object of one."""

    __slots__ = ("_number", "_program")
    _number: int
    _program: Program

    def __init__(self, program: Program, number: int) -> None:
        object.__setattr__(self, "_program", program)
        object.__setattr__(self, "_number", number)

    def _ask(self, verb: str, *values: Any, **named: Any) -> Any:
        return object.__getattribute__(self, "_program").ask(verb, self, *values, **named)

    def __call__(self, *values: Any, **named: Any) -> Any:
        return self._ask("call", *values, **named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__name__", "__doc__", "__init__"):
            raise AttributeError(name)
        return self._ask("attribute", name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._ask("set", name, value)

    def __len__(self) -> int:
        return _exactly(int, self._ask("len"))

    def __bool__(self) -> bool:
        return _exactly(bool, self._ask("bool"))

    def __str__(self) -> str:
        return _exactly(str, self._ask("str"))

    def __repr__(self) -> str:
        return _exactly(str, self._ask("repr"))

    def __iter__(self) -> Iterator[Any]:
        iterator = self._ask("iter")
        while found := self._program.ask("next", iterator):
            yield found[0]

    def __next__(self) -> Any:
        found = self._ask("next")
        if not found:
            raise StopIteration
        return found[0]

    def __getitem__(self, key: Any) -> Any:
        return self._ask("item", key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._ask("set_item", key, value)

    def __delitem__(self, key: Any) -> None:
        self._ask("delete_item", key)

    def __enter__(self) -> Any:
        return self._ask("enter")

    def __exit__(self, kind: object, error: object, trace: object) -> bool:
        return _exactly(bool, self._ask("leave", kind is not None))

    def __instancecheck__(self, value: object) -> bool:
        return type(value) is Object and _exactly(bool, self._program.ask("is_a", value, self))

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return type(other) is Object and _exactly(bool, self._ask("eq", other))

    def __ne__(self, other: object) -> bool:
        return type(other) is not Object or _exactly(bool, self._ask("ne", other))


def _between_objects(name: str) -> Callable[[Object, object], Any]:
    def operation(self: Object, other: object) -> Any:
        return self._ask(name, other) if type(other) is Object else NotImplemented

    return operation


for _name in ("lt", "le", "gt", "ge", "add", "sub", "mul", "truediv"):
    setattr(Object, f"__{_name}__", _between_objects(_name))


def _exactly(kind: type[T], value: Any) -> T:
    if type(value) is not kind:
        raise wire.Gone(f"the program gave a {type(value).__name__} where Python asks for a {kind.__name__}")
    return value
