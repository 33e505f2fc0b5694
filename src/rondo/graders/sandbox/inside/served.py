"""Serves a program's names to the tests: descriptor 3 has its source, 4 receives, 5 sends.

The program can modify this whole process. Its values are as untrusted as its output: they are plain values, and only
another process has the expected ones.
"""

import builtins
import inspect
import operator
from collections.abc import Callable, Mapping
from typing import Any

from . import literal, outline, wire
from .script import execute, forget_harness, new_module, open_streams, read_all

NAME = "solution"


def life() -> int:
    source = read_all(3)
    open_streams()
    forget_harness()
    ProgramServer(wire.MessagePipe(4, 5), source).run()
    return 0


class ProgramServer:
    def __init__(self, channel: wire.MessagePipe, source: str) -> None:
        self._channel = channel
        self._source = source
        self._module = new_module(NAME)
        self._objects: list[object] = []
        self._verbs: Mapping[str, Callable[..., Any]] = _VERBS | {
            "outline": lambda: outline.of(source),
            "load": self._load,
            "get": self._get,
        }

    def run(self) -> None:
        while True:
            try:
                asked = self._channel.receive()
            except wire.PeerLost:
                return
            self._answer(asked)

    def _answer(self, asked: dict[str, Any]) -> None:
        values: list[Any] = []
        try:
            values = literal.decode(asked["values"], self._object)
            named = {name: literal.decode(each, self._object) for name, each in asked["named"].items()}
            answer = {"value": self._encode(self._verbs[asked["verb"]](*values, **named))}
        except BaseException as error:
            answer = {"error": self._error(error)}
        if asked.get("changed") and "value" in answer:
            answer["changed"] = [self._encode(each) for each in values[1:]]
        self._send(answer)

    def _send(self, answer: dict[str, Any]) -> None:
        try:
            self._channel.send(answer)
        except Exception as error:
            self._channel.send({"error": self._error(error)})

    def _load(self) -> None:
        execute(self._source, f"{NAME}.py", vars(self._module))

    def _get(self, name: str) -> object:
        if name in vars(self._module):
            return vars(self._module)[name]
        raise NameError(f"the program has no {name!r}")

    def _encode(self, value: object) -> Any:
        return literal.encode(value, self._handle)

    def _handle(self, value: object) -> dict[str, Any]:
        self._objects.append(value)
        made: dict[str, Any] = {"number": len(self._objects) - 1, "callable": callable(value)}
        if isinstance(value, type) and issubclass(value, BaseException):
            made["error"] = _names(value)
        elif inspect.iscoroutine(value) or hasattr(type(value), "__await__"):
            made["awaitable"] = True
        return {"object": made}

    def _object(self, data: dict[str, Any]) -> object:
        if "object" in data:
            return self._objects[data["object"]]
        if "builtin" in data:
            return getattr(builtins, data["builtin"])
        if "type" in data:
            return literal.TYPES[data["type"]]
        if "iterator" in data:
            return iter([literal.decode(each, self._object) for each in data["iterator"]])
        return Callback(self, data["callback"])

    def call_back(self, number: int, values: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Calls a function of the tests, and serves their requests until it returns."""
        encoded = {name: self._encode(value) for name, value in named.items()}
        self._send({"callback": number, "values": [self._encode(each) for each in values], "named": encoded})
        while "verb" in (asked := self._channel.receive()):
            self._answer(asked)
        if "raised" in asked:
            kinds = (getattr(builtins, name, None) for name in asked["raised"])
            kind = next(
                (each for each in kinds if isinstance(each, type) and each is not object), RuntimeError
            )
            try:
                error = kind(asked["text"])
            except Exception:  # a type with other arguments
                error = RuntimeError(asked["text"])
            raise error
        return literal.decode(asked["value"], self._object)

    def _error(self, error: BaseException) -> dict[str, Any]:
        try:
            text = str(error)
        except BaseException:
            text = ""
        try:
            values = self._encode(list(error.args))
        except BaseException:
            values = [text]
        self._objects.append(error)
        number = len(self._objects) - 1
        return {"names": _names(type(error)), "values": values, "text": text[:10_000], "number": number}


class Callback:
    def __init__(self, server: ProgramServer, number: int) -> None:
        self._server, self._number = server, number

    def __call__(self, *values: Any, **named: Any) -> Any:
        return self._server.call_back(self._number, values, named)


def _names(kind: type) -> list[str]:
    return [each.__name__ for each in kind.__mro__]


def _next(iterator: Any) -> list[Any]:
    """A list of no or one value, since a value may be anything."""
    try:
        return [next(iterator)]
    except StopIteration:
        return []


def _wait(value: Any) -> Any:
    """Runs an awaitable to its end, in an event loop that lives as long as the program."""
    import asyncio  # slow to import, and rarely needed

    async def wait() -> Any:
        return await value

    if not _loops:
        _loops.append(asyncio.new_event_loop())
    asyncio.set_event_loop(_loops[0])
    return _loops[0].run_until_complete(wait())


_loops: list[Any] = []


def _next_async(iterator: Any) -> list[Any]:
    try:
        return [_wait(anext(iterator))]
    except StopAsyncIteration:
        return []


def _enter(manager: Any) -> Any:
    return type(manager).__enter__(manager)


def _leave(manager: Any, failed: bool) -> bool:
    error = RuntimeError("raised in the tests") if failed else None
    return bool(type(manager).__exit__(manager, type(error) if error else None, error, None))


def _leave_async(manager: Any, failed: bool) -> bool:
    error = RuntimeError("raised in the tests") if failed else None
    return bool(_wait(type(manager).__aexit__(manager, type(error) if error else None, error, None)))


_VERBS: dict[str, Callable[..., Any]] = {
    "call": lambda function, *values, **named: function(*values, **named),
    "attribute": getattr,
    "set": setattr,
    "len": len,
    "iter": iter,
    "next": _next,
    "await": _wait,
    "aiter": aiter,
    "anext": _next_async,
    "aenter": lambda manager: _wait(type(manager).__aenter__(manager)),
    "aleave": _leave_async,
    "item": operator.getitem,
    "set_item": operator.setitem,
    "delete_item": operator.delitem,
    "bool": bool,
    "str": str,
    "repr": repr,
    "is_a": isinstance,
    "enter": _enter,
    "leave": _leave,
    **{
        name: getattr(operator, name)
        for name in ("eq", "ne", "lt", "le", "gt", "ge", "add", "sub", "mul", "truediv")
    },
}
