"""What a model says as items of the Responses API, and the events that tell of them as they come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from rondo.base.ids import new_id
from rondo.text.parsing import Call, Content, Part, Reasoning

Event = dict[str, Any]
Logprobs = list[dict[str, Any]]


@dataclass
class _Open:
    """The text that is being said, and the item that it is in."""

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


class Output:
    """Puts parts together as items, one after another; `items` are those that are whole."""

    def __init__(self, new_call_id: Callable[[], str], most_calls: int | None) -> None:
        self.items: list[dict[str, Any]] = []
        self.reasoning = ""
        self._new_call_id = new_call_id
        self._most_calls = most_calls
        self._calls = 0
        self._open: _Open | None = None

    def add(self, part: Part, logprobs: Logprobs) -> Iterator[Event]:
        if isinstance(part, Call):
            if self._calls != self._most_calls:
                yield from self._call(part)
            return
        if self._open is None or self._open.kind is not type(part):
            yield from self._close()
            yield from self._begin(type(part))
        yield from self._say(part.text, logprobs)

    def end(self, status: str) -> Iterator[Event]:
        """`status` is that of the last item. An answer of nothing at all is an empty message."""
        if self._open is None and not self.items:
            yield from self._begin(Content)
        yield from self._close(status)

    def _begin(self, kind: type[Content] | type[Reasoning]) -> Iterator[Event]:
        now = self._open = _Open(kind, len(self.items), new_id("msg" if kind is Content else "rs"))
        yield _event("output_item.added", output_index=now.index, item=now.item("in_progress"))
        yield _event("content_part.added", **_place(now), part=now.part())

    def _say(self, text: str, logprobs: Logprobs) -> Iterator[Event]:
        now = self._open
        assert now is not None
        now.text += text
        if now.kind is Reasoning:
            self.reasoning += text
            yield _event("reasoning_text.delta", **_place(now), delta=text)
        else:
            now.logprobs = now.logprobs + logprobs
            yield _event("output_text.delta", **_place(now), delta=text, logprobs=logprobs)

    def _close(self, status: str = "completed") -> Iterator[Event]:
        now, self._open = self._open, None
        if now is None:
            return
        if now.kind is Reasoning:
            yield _event("reasoning_text.done", **_place(now), text=now.text)
        else:
            yield _event("output_text.done", **_place(now), text=now.text, logprobs=now.logprobs)
        yield _event("content_part.done", **_place(now), part=now.part())
        yield from self._done(now.item(status))

    def _call(self, call: Call) -> Iterator[Event]:
        yield from self._close()
        self._calls += 1
        id, index = new_id("fc"), len(self.items)
        item = {
            "type": "function_call",
            "id": id,
            "call_id": call.id or self._new_call_id(),
            "name": call.name,
        }
        begun = item | {"arguments": "", "status": "in_progress"}
        yield _event("output_item.added", output_index=index, item=begun)
        place = {"item_id": id, "output_index": index}
        yield _event("function_call_arguments.delta", **place, delta=call.arguments)
        yield _event("function_call_arguments.done", **place, name=call.name, arguments=call.arguments)
        yield from self._done(item | {"arguments": call.arguments, "status": "completed"})

    def _done(self, item: dict[str, Any]) -> Iterator[Event]:
        self.items.append(item)
        yield _event("output_item.done", output_index=len(self.items) - 1, item=item)


def _event(kind: str, **fields: Any) -> Event:
    return {"type": f"response.{kind}"} | fields


def _place(now: _Open) -> dict[str, Any]:
    return {"item_id": now.id, "output_index": now.index, "content_index": 0}
