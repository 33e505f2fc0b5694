"""Items of the Responses API from model output, and the events of their streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from rondo.base.ids import new_id
from rondo.text.parsing import ArgumentsDelta, Call, Content, Part, Reasoning

Event = dict[str, Any]
Logprobs = list[dict[str, Any]]


@dataclass
class _OpenText:
    """The text in progress, and its item."""

    kind: type[Content] | type[Reasoning]
    index: int
    id: str
    text: str = ""
    logprobs: Logprobs = field(default_factory=list)

    def item(self, status: str) -> dict[str, Any]:
        parts = [] if status == "in_progress" else [self.part()]
        if self.kind is Reasoning:
            return {"type": "reasoning", "id": self.id, "summary": [], "content": parts, "status": status}
        return {"type": "message", "id": self.id, "role": "assistant", "content": parts, "status": status}

    def part(self) -> dict[str, Any]:
        if self.kind is Reasoning:
            return {"type": "reasoning_text", "text": self.text}
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": self.logprobs}

    def opened(self) -> Iterator[Event]:
        yield _event("output_item.added", output_index=self.index, item=self.item("in_progress"))
        yield _event("content_part.added", **self._place, part=self.part())

    def say(self, text: str, logprobs: Logprobs) -> Iterator[Event]:
        self.text += text
        if self.kind is Reasoning:
            yield _event("reasoning_text.delta", **self._place, delta=text)
        else:
            self.logprobs = self.logprobs + logprobs
            yield _event("output_text.delta", **self._place, delta=text, logprobs=logprobs)

    def closed(self) -> Iterator[Event]:
        if self.kind is Reasoning:
            yield _event("reasoning_text.done", **self._place, text=self.text)
        else:
            yield _event("output_text.done", **self._place, text=self.text, logprobs=self.logprobs)
        yield _event("content_part.done", **self._place, part=self.part())

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self.id, "output_index": self.index, "content_index": 0}


@dataclass
class _OpenCall:
    """The call whose arguments are in progress."""

    index: int
    id: str
    call_id: str
    name: str
    arguments: str = ""

    def item(self, status: str) -> dict[str, Any]:
        return {
            "type": "function_call",
            "id": self.id,
            "call_id": self.call_id,
            "name": self.name,
            "arguments": self.arguments,
            "status": status,
        }

    def opened(self) -> Iterator[Event]:
        yield _event("output_item.added", output_index=self.index, item=self.item("in_progress"))

    def say(self, text: str, logprobs: Logprobs) -> Iterator[Event]:
        self.arguments += text
        if text:
            yield _event("function_call_arguments.delta", **self._place, delta=text)

    def closed(self) -> Iterator[Event]:
        told = {"name": self.name, "arguments": self.arguments}
        yield _event("function_call_arguments.done", **self._place, **told)

    @property
    def _place(self) -> dict[str, Any]:
        return {"item_id": self.id, "output_index": self.index}


class Output:
    """Builds items one after another; `items` are the completed ones."""

    def __init__(self, new_call_id: Callable[[], str], parallel: bool) -> None:
        self.items: list[dict[str, Any]] = []
        self._new_call_id = new_call_id
        self._parallel = parallel
        self._called = self._left_out = False
        self._open: _OpenText | _OpenCall | None = None

    def add(self, part: Part, logprobs: Logprobs) -> Iterator[Event]:
        if isinstance(part, Call):
            self._left_out = self._called and not self._parallel
            if not self._left_out:
                self._called = True
                yield from self._begin(part)
                yield from self._say(part.arguments, [])
            return
        if isinstance(part, ArgumentsDelta):
            if not self._left_out:
                yield from self._say(part.text, [])
            return
        if not isinstance(self._open, _OpenText) or self._open.kind is not type(part):
            yield from self._begin(part)
        yield from self._say(part.text, logprobs)

    def end(self, status: str) -> Iterator[Event]:
        """`status` applies to the last item. An answer without any content is an empty message."""
        if self._open is None and not self.items:
            yield from self._begin(Content(""))
        yield from self._close(status)

    def _begin(self, part: Content | Reasoning | Call) -> Iterator[Event]:
        yield from self._close()
        index = len(self.items)
        if isinstance(part, Call):
            self._open = _OpenCall(index, new_id("fc"), part.id or self._new_call_id(), part.name)
        else:
            kind = type(part)
            self._open = _OpenText(kind, index, new_id("msg" if kind is Content else "rs"))
        yield from self._open.opened()

    def _say(self, text: str, logprobs: Logprobs) -> Iterator[Event]:
        assert self._open is not None
        yield from self._open.say(text, logprobs)

    def _close(self, status: str = "completed") -> Iterator[Event]:
        now, self._open = self._open, None
        if now is None:
            return
        yield from now.closed()
        self.items.append(now.item(status))
        yield _event("output_item.done", output_index=now.index, item=self.items[-1])


def _event(kind: str, **fields: Any) -> Event:
    return {"type": f"response.{kind}"} | fields
