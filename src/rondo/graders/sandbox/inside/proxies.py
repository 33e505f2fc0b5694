"""Proxies of the program in its tests: names resolved on demand, and objects that represent remote objects.

An object of the program never evaluates equality, order or difference with a plain value: it could return a matching
result for any expected value. It is never equal; the proxy decides that.
"""

from __future__ import annotations

import builtins
import threading
import types
from collections.abc import Callable, Generator, Iterator
from typing import Any, TypeVar

from . import literal, wire
from .errors import ErrorTypes, NotPassed, ProgramError, Stopped

T = TypeVar("T")

_BUILTINS = {id(value): name for name, value in vars(builtins).items() if callable(value)}
_TYPES = {id(value): name for name, value in literal.TYPES.items()}
_MOST_ITEMS = 100_000
"""Maximum number of items of an iterator that tests pass; all items are passed at once."""
_MOST_CALLBACKS = 10_000
"""Calls of the tests' functions that one call of the program may make."""


class RemoteProgram:
    """Connection to the process with the program.

    `fault` is set by failures that the tests must not be able to catch: the end of the program, a malformed message,
    exhausted memory, a failed assertion in a function that the program called.
    """

    def __init__(self, channel: wire.MessagePipe, in_place: bool = False) -> None:
        self._channel, self._in_place = channel, in_place
        self._given: list[Callable[..., Any]] = []
        self._errors = ErrorTypes()
        self._error_numbers: dict[int, tuple[object, int]] = {}
        self._lock = threading.RLock()
        self._gone = ""
        self.fault = ""
        self.not_passed: NotPassed | None = None
        self.requests = 0
        self.calls = 0
        """Requests other than for a function, a class or an object by its name."""
        self.lacked = 0
        """Requests for a name that the program does not have."""
        self.callbacks = 0
        """Active calls of the tests' functions by the program."""

    def begin(self) -> None:
        """Clears the faults of the previous test; the end of the program remains a fault of every later test."""
        self.fault, self.not_passed = self._gone, None

    def ask(self, verb: str, *values: Any, **named: Any) -> Any:
        """Sends a request and returns the program's value; an exception of the program is raised as its nearest
        built-in type."""
        with self._lock:
            if self._gone:
                raise wire.PeerLost(self._gone)
            try:
                return self._asked(verb, values, named)
            except wire.PeerLost as error:
                self.fault = self._gone = self._gone or str(error)
                raise
            except NotPassed as error:
                self.not_passed = error
                raise

    def _asked(self, verb: str, values: tuple[Any, ...], named: dict[str, Any]) -> Any:
        self.requests += 1
        self.calls += verb != "get"
        asked = {
            "verb": verb,
            "values": [self._encode(each) for each in values],
            "named": {name: self._encode(each) for name, each in named.items()},
            "changed": self._in_place and verb == "call",
        }
        self._channel.send(asked)
        answer, called = self._heard(), 0
        while "callback" in answer:
            called += 1
            if called > _MOST_CALLBACKS:
                raise wire.PeerLost(
                    f"the program called functions of the tests more than {_MOST_CALLBACKS} times"
                )
            self._channel.send(self._called_back(answer))
            answer = self._heard()
        if "error" in answer:
            self.lacked += verb == "get"
            raise self._raised(answer["error"])
        if self._in_place and verb == "call":
            self._write_back(values[1:], answer.get("changed"))
        value = self._decode(answer.get("value"))
        if verb == "get" and not isinstance(value, Object):
            self.calls += 1
        return value

    def _heard(self) -> dict[str, Any]:
        with _readable():
            answer = self._channel.receive()
            if not isinstance(answer, dict):
                raise ValueError("not an answer")
            return answer

    def _encode(self, value: Any) -> Any:
        return literal.encode(value, self._other)

    def _other(self, value: object) -> dict[str, Any]:
        if isinstance(value, Object):
            return {"object": object.__getattribute__(value, "_number")}
        if type(value) is Items:
            return {"object": value.number}
        if id(value) in self._error_numbers:
            return {"object": self._error_numbers[id(value)][1]}
        if id(value) in _BUILTINS:
            return {"builtin": _BUILTINS[id(value)]}
        if id(value) in _TYPES:
            return {"type": _TYPES[id(value)]}
        if isinstance(value, types.FunctionType | types.MethodType | types.BuiltinFunctionType):
            self._given.append(value)
            return {"callback": len(self._given) - 1}
        if isinstance(value, Iterator):
            return {"iterator": [self._encode(each) for each in _all_items(value)]}
        raise NotPassed(
            f"the tests pass a {type(value).__name__} to the program. Plain values, functions and what the program "
            "gave can be passed; a class that both need has to be the program's."
        )

    def _decode(self, data: Any) -> Any:
        with _readable():
            return literal.decode(data, self._object)

    def _object(self, data: dict[str, Any]) -> object:
        about = data.get("object")
        if not isinstance(about, dict) or type(about.get("number")) is not int:
            raise ValueError("not a value")
        if isinstance(about.get("error"), list):
            kind = self._errors.of(about["error"])
            self._error_numbers[id(kind)] = kind, about["number"]
            return kind
        return (Awaitable if about.get("awaitable") is True else Object)(self, about["number"])

    def _called_back(self, asked: dict[str, Any]) -> dict[str, Any]:
        with _readable():
            function = self._given[asked["callback"]]
            values = self._decode(asked["values"])
            named = {str(name): self._decode(each) for name, each in asked["named"].items()}
        self.callbacks += 1
        try:
            return {"value": self._encode(function(*values, **named))}
        except (wire.PeerLost, NotPassed):
            raise
        except BaseException as error:
            if isinstance(error, AssertionError) and id(error) not in self._error_numbers:
                self.fault = self.fault or f"a function of the tests that the program called: {shown(error)}"
            return {"raised": [each.__name__ for each in type(error).__mro__], "text": shown(error)}
        finally:
            self.callbacks -= 1

    def _raised(self, about: Any) -> BaseException:
        with _readable():
            kind = self._errors.of(about["names"])
            values = self._decode(about["values"])
            text = str(about["text"])
            number = about["number"]
            if type(number) is not int:
                raise ValueError("not an exception")
        if issubclass(kind, MemoryError):
            self.fault = self.fault or "the program ran out of memory"
        try:
            error = kind(*values) if isinstance(values, list) else kind(text)
        except Exception:  # a type with other arguments
            error = ProgramError(text)
        self._error_numbers[id(error)] = error, number
        return error

    def is_raised(self, error: BaseException) -> bool:
        """Whether the exception was raised by the program."""
        return id(error) in self._error_numbers

    def _write_back(self, values: tuple[Any, ...], changed: Any) -> None:
        """Copies the program's changes to lists, dicts and other mutable arguments back to the tests' objects."""
        for value, each in zip(values, changed if isinstance(changed, list) else []):
            after = self._decode(each)
            if type(value) is not type(after):
                continue
            if isinstance(value, list | bytearray):
                value[:] = after
            elif isinstance(value, dict | set):
                value.clear()
                value.update(after)


class _readable:
    """Context in which any failure means a malformed message of the program, not an exception of the tests."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None and not isinstance(error, wire.PeerLost):
            raise wire.PeerLost("the program sent an unreadable message") from error


def shown(error: BaseException) -> str:
    """Type and text of an exception, even if its text cannot be computed."""
    try:
        return f"{type(error).__name__}: {error}"
    except BaseException:
        return type(error).__name__


def _all_items(values: Iterator[Any]) -> list[Any]:
    items: list[Any] = []
    for each in values:
        if len(items) == _MOST_ITEMS:
            text = f"the tests pass an iterator of more than {_MOST_ITEMS} items to the program"
            # Values of the program are never generators; other iterables, such as ranges, may have any length.
            raise NotPassed(text) if isinstance(values, types.GeneratorType) else ValueError(text)
        items.append(each)
    return items


class Object:
    """Proxy of an object in the program that is not a plain value: a function, a class, an instance."""

    __slots__ = ("_number", "_program")
    _number: int
    _program: RemoteProgram

    def __init__(self, program: RemoteProgram, number: int) -> None:
        object.__setattr__(self, "_program", program)
        object.__setattr__(self, "_number", number)

    def _ask(self, verb: str, *values: Any, **named: Any) -> Any:
        return object.__getattribute__(self, "_program").ask(verb, self, *values, **named)

    def _exactly(self, kind: type[T], value: Any) -> T:
        """A program that returns another type is treated as ended: a `TypeError` could be caught."""
        if type(value) is not kind:
            program = object.__getattribute__(self, "_program")
            program.fault = (
                f"the program gave a {type(value).__name__} where Python asks for a {kind.__name__}"
            )
            raise wire.PeerLost(program.fault)
        return value

    def __call__(self, *values: Any, **named: Any) -> Any:
        return self._ask("call", *values, **named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in ("__name__", "__doc__", "__init__"):
            raise AttributeError(name)
        return self._ask("attribute", name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._ask("set", name, value)

    def __len__(self) -> int:
        return self._exactly(int, self._ask("len"))

    def __bool__(self) -> bool:
        return self._exactly(bool, self._ask("bool"))

    def __str__(self) -> str:
        return self._exactly(str, self._ask("str"))

    def __repr__(self) -> str:
        return self._exactly(str, self._ask("repr"))

    def __iter__(self) -> Iterator[Any]:
        return Items(self._program, self._ask("iter"))

    def __next__(self) -> Any:
        """Called by `next` alone: loops use `Items`. The end of this iterator must not end a loop around the call."""
        found = self._ask("next")
        if not found:
            raise Stopped
        return found[0]

    def __aiter__(self) -> AsyncItems:
        return AsyncItems(self._program, self._ask("aiter"))

    def __getitem__(self, key: Any) -> Any:
        return self._ask("item", key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._ask("set_item", key, value)

    def __delitem__(self, key: Any) -> None:
        self._ask("delete_item", key)

    def __enter__(self) -> Any:
        return self._ask("enter")

    def __exit__(self, kind: object, error: object, trace: object) -> bool:
        return self._exactly(bool, self._ask("leave", kind is not None))

    async def __aenter__(self) -> Any:
        return self._ask("aenter")

    async def __aexit__(self, kind: object, error: object, trace: object) -> bool:
        return self._exactly(bool, self._ask("aleave", kind is not None))

    def __instancecheck__(self, value: object) -> bool:
        return isinstance(value, Object) and self._exactly(bool, self._program.ask("is_a", value, self))

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Object) and self._exactly(bool, self._ask("eq", other))

    def __ne__(self, other: object) -> bool:
        return not isinstance(other, Object) or self._exactly(bool, self._ask("ne", other))


class Awaitable(Object):
    """A coroutine of the program or another awaitable object. It runs in the program's process."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, Any]:
        return self._ask("await")
        yield


class Items:
    """An iteration over an object of the program."""

    def __init__(self, program: RemoteProgram, source: Any) -> None:
        self._program, self._source, self._ended = program, source, False

    @property
    def number(self) -> int:
        return int(self._source._number)

    def __iter__(self) -> Items:
        return self

    def __next__(self) -> Any:
        found = [] if self._ended else self._program.ask("next", self._source)
        if not found:
            self._ended = True
            raise StopIteration
        return found[0]


class AsyncItems:
    def __init__(self, program: RemoteProgram, source: Any) -> None:
        self._program, self._source = program, source

    def __aiter__(self) -> AsyncItems:
        return self

    async def __anext__(self) -> Any:
        found = self._program.ask("anext", self._source)
        if not found:
            raise StopAsyncIteration
        return found[0]


def next_item(iterator: Any, *default: Any) -> Any:
    """`next` for the tests: the end of an iterator of the program must not end a loop around the call."""
    if not isinstance(iterator, Object | Items):
        return next(iterator, *default)
    try:
        return next(iterator)
    except (StopIteration, Stopped) as error:
        program: RemoteProgram = object.__getattribute__(iterator, "_program")
        if default and not program.is_raised(error):
            return default[0]
        raise Stopped from None


def _between_objects(name: str) -> Callable[[Object, object], Any]:
    def operation(self: Object, other: object) -> Any:
        return self._ask(name, other) if isinstance(other, Object) else NotImplemented

    return operation


for _name in ("lt", "le", "gt", "ge", "add", "sub", "mul", "truediv"):
    setattr(Object, f"__{_name}__", _between_objects(_name))
