"""Stored responses: retrieval, deletion, the context that further responses build on, and responses in the background.

A response in the background is a request in the durable queue. It is stored with the state of that request until the
request has ended; retrieving it, or the next sweep, stores its result.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import sqlalchemy as sa

from rondo.base.errors import Conflict, InvalidRequest, NotFound, Unavailable
from rondo.base.telemetry.log import get_logger
from rondo.client.protocol.item import read_refusal, read_result
from rondo.control.config import ResponsesConfig
from rondo.control.objects.conversations import (
    append_items,
    conversation_of,
    items_of_conversation,
    size_of_conversation,
)
from rondo.control.objects.items import Item
from rondo.control.objects.pages import ObjectPage, PageQuery, rows_of_page
from rondo.control.queue.queue import Queue
from rondo.control.queue.work import New, QueuedRequest
from rondo.control.store.clock import MICROSECONDS, microseconds
from rondo.control.store.pending import Pending
from rondo.control.store.store import Store
from rondo.control.tables import conversations, responses

log = get_logger("rondo.responses")

LONGEST_CHAIN = 1000
"""Responses that one builds on."""
RUNNING = ("queued", "in_progress")
CHAT = "chat.completion"
"""State of the rows of stored chat completions, which `completions.py` reads."""
AT_A_TIME = 500

_columns = responses.c


@dataclass(frozen=True)
class StoredResponse:
    id: str
    owner: str
    state: str
    response: str
    """JSON as clients get it."""
    input: str
    """JSON of the items that this response added to its context."""
    previous: str | None = None
    conversation: str | None = None
    queued_as: str | None = None
    """Name of its group in the queue, while the request runs in the background."""
    created: int = 0
    expires: int | None = None

    @property
    def body(self) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(self.response)
        return body

    @property
    def input_items(self) -> list[Item]:
        items: list[Item] = json.loads(self.input)
        return items


_RESPONSE = [_columns[name] for name in StoredResponse.__dataclass_fields__]


class Responses:
    """`owner=None` reaches the responses of all owners."""

    def __init__(self, store: Store, queue: Queue, config: ResponsesConfig) -> None:
        self.store, self.queue, self.config = store, queue, config

    def context(
        self, owner: str | None, previous: str | None, conversation: str | None, largest: int | None = None
    ) -> Pending[list[Item]]:
        """Items before the input of a response that continues another one or a conversation, of at most `largest`
        bytes."""

        def work(db: sa.Connection) -> list[Item]:
            if conversation is not None:
                conversation_of(db, conversation, owner)
                check_size("conversation", size_of_conversation(db, conversation), largest)
                return items_of_conversation(db, conversation)
            return _chain(db, owner, previous, largest)

        return self.store.read(work)

    def keep(self, stored: StoredResponse) -> Pending[None]:
        """Stores a response, and adds its items to its conversation, if it still exists."""
        now, seconds = microseconds(), self.config.keep_seconds
        expires = None if seconds is None else now + int(seconds * MICROSECONDS)
        whole = replace(stored, created=now, expires=expires)

        def work(db: sa.Connection) -> None:
            db.execute(sa.insert(responses), vars(whole))
            if whole.state not in RUNNING:
                _extend_conversation(db, whole)

        return self.store.write(work)

    def extend_conversation(self, stored: StoredResponse) -> Pending[None]:
        """Adds the items of a response that is not stored itself."""
        return self.store.write(lambda db: _extend_conversation(db, stored))

    def begin(self, stored: StoredResponse, prompt: New) -> Pending[StoredResponse]:
        """Queues the request of a response in the background."""

        def work() -> StoredResponse:
            group = self.queue.put([prompt], stored.owner).result()
            queued = replace(stored, queued_as=group.name)
            try:
                self.keep(queued).result()
            except BaseException:
                self.queue.cancel(group.name).result()
                raise
            return queued

        return self.store.background(work)

    def get(self, id: str, owner: str | None) -> Pending[StoredResponse]:
        def work() -> StoredResponse:
            return self._settled(self.store.read(lambda db: response_of(db, id, owner)).result())

        return self.store.background(work)

    def page(self, owner: str | None, query: PageQuery) -> Pending[ObjectPage[StoredResponse]]:
        """Stored responses; those in the background have the state of the last sweep."""
        wanted = sa.select(*_RESPONSE).where(_columns.state != CHAT, alive())
        if owner is not None:
            wanted = wanted.where(_columns.owner == owner)

        def work(db: sa.Connection) -> ObjectPage[StoredResponse]:
            rows, more = rows_of_page(db, wanted, _columns.number, _columns.id, query)
            return ObjectPage([StoredResponse(*row) for row in rows], more)

        return self.store.read(work)

    def completed(self, owner: str | None) -> Iterator[StoredResponse]:
        """Completed responses, the oldest first, read in pages. It blocks."""
        done = sa.select(_columns.number, *_RESPONSE).where(_columns.state == "completed", alive())
        if owner is not None:
            done = done.where(_columns.owner == owner)
        wanted = (
            done.where(_columns.number > sa.bindparam("after")).order_by(_columns.number).limit(AT_A_TIME)
        )
        rows = self._rows(wanted, 0)
        while rows:
            yield from (StoredResponse(*row[1:]) for row in rows)
            rows = self._rows(wanted, rows[-1][0])

    def _rows(self, wanted: sa.Select[Any], after: int) -> Sequence[Any]:
        return self.store.read(lambda db: db.execute(wanted, {"after": after}).all()).result()

    def cancel(self, id: str, owner: str | None) -> Pending[StoredResponse]:
        def work() -> StoredResponse:
            stored = self.get(id, owner).result()
            if not stored.body.get("background"):
                raise InvalidRequest(
                    f"{id} does not run in the background: only responses with background: true can be cancelled.",
                    param="response_id",
                )
            if stored.state in RUNNING and stored.queued_as is not None:
                self.queue.cancel(stored.queued_as).result()
            return self.get(id, owner).result()

        return self.store.background(work)

    def delete(self, id: str, owner: str | None) -> Pending[None]:
        def work() -> None:
            stored = self.store.read(lambda db: response_of(db, id, owner)).result()
            if stored.queued_as is not None:
                self.queue.cancel(stored.queued_as).result()
            self.store.write(lambda db: db.execute(sa.delete(responses).where(_columns.id == id))).result()

        return self.store.background(work)

    def sweep(self) -> Pending[int]:
        """Deletes expired responses, and stores results of those in the background."""

        def expire(db: sa.Connection) -> int:
            old = sa.select(_columns.id).where(_columns.expires <= microseconds()).limit(AT_A_TIME)
            ids = list(db.execute(old.with_for_update(skip_locked=True)).scalars())
            if ids:
                db.execute(sa.delete(responses).where(_columns.id.in_(ids)))
            return len(ids)

        def work() -> int:
            total = 0
            while number := self.store.write(expire).result():
                total += number
            after = ""
            while found := self._in_background(after).result():
                for stored in found:
                    self._settle(stored)
                after = found[-1].id
            return total

        return self.store.background(work)

    def _in_background(self, after: str) -> Pending[list[StoredResponse]]:
        running = sa.select(*_RESPONSE).where(_columns.queued_as.is_not(None), _columns.id > after)
        wanted = running.order_by(_columns.id).limit(AT_A_TIME)
        return self.store.read(lambda db: [StoredResponse(*row) for row in db.execute(wanted)])

    def _settle(self, stored: StoredResponse) -> None:
        """An error of one response, such as a malformed result, does not keep others from being stored."""
        try:
            self._settled(stored)
        except Unavailable:
            raise
        except Exception:
            log.exception("a response in the background cannot be stored", extra={"response": stored.id})

    def _settled(self, stored: StoredResponse) -> StoredResponse:
        """With the result of its request, if it runs in the background and has ended meanwhile."""
        if stored.queued_as is None:
            return stored
        try:
            (request,) = self.queue.requests(stored.queued_as).result()
        except NotFound:
            return self._ended(stored, "failed", {"error": _error("The request was deleted from the queue.")})
        if request.state in ("queued", "resting", "leased"):
            state = "in_progress" if request.state == "leased" else "queued"
            return replace(stored, state=state, response=json.dumps(stored.body | {"status": state}))
        if request.state == "cancelled":
            return self._ended(stored, "cancelled", {})
        state, changes = _outcome(request)
        return self._ended(stored, state, changes)

    def _ended(self, stored: StoredResponse, state: str, changes: dict[str, Any]) -> StoredResponse:
        body = stored.body
        kept = {name: body[name] for name in OWN if name in body}
        ended = replace(
            stored, state=state, response=_text(body | changes | kept | {"status": state}), queued_as=None
        )

        def work(db: sa.Connection) -> None:
            running = _columns.id == stored.id, _columns.queued_as == stored.queued_as
            changed = {"state": state, "response": ended.response, "queued_as": None}
            updated = sa.update(responses).where(*running).values(**changed).returning(_columns.id)
            if db.execute(updated).first() is None or state not in ("completed", "incomplete"):
                return
            try:
                _extend_conversation(db, ended)
            except (
                Conflict,
                LookupError,
                TypeError,
            ) as error:  # such as an item id that the client used twice
                extra = {"response": ended.id, "conversation": ended.conversation, "error": str(error)}
                log.warning("a response is not added to its conversation", extra=extra)

        self.store.write(work).result()
        return ended


OWN = ("id", "created_at", "background", "store", "previous_response_id", "conversation", "metadata")
"""Fields of a response that the gateway sets."""


def alive() -> sa.ColumnElement[bool]:
    return sa.or_(_columns.expires.is_(None), _columns.expires > microseconds())


def response_of(db: sa.Connection, id: str, owner: str | None) -> StoredResponse:
    row: Any = db.execute(
        sa.select(*_RESPONSE).where(_columns.id == id, _columns.state != CHAT, alive())
    ).first()
    if row is None or (owner is not None and row.owner != owner):
        raise NotFound(
            f"Response with id {id[:100]!r} not found.", param="response_id", code="response_not_found"
        )
    return StoredResponse(*row)


def check_size(param: str, size: int, largest: int | None) -> None:
    if largest is not None and size > largest:
        raise InvalidRequest(
            f"The input has at least {size:,} bytes with its context, above gateway.max_body_bytes ({largest:,}): "
            "begin another conversation or chain of responses, delete items of the conversation, or raise the setting.",
            param=param,
            code="context_too_large",
        )


def _chain(db: sa.Connection, owner: str | None, previous: str | None, largest: int | None) -> list[Item]:
    parts: list[list[Item]] = []
    at, size = previous, 0
    while at is not None:
        stored = _previous(db, at, owner)
        output = _output(stored)
        size += len(stored.input) + len(_text(output))
        check_size("previous_response_id", size, largest)
        parts.append([*stored.input_items, *output])
        at = stored.previous
        if len(parts) > LONGEST_CHAIN:
            raise InvalidRequest(
                f"The chain of responses is longer than {LONGEST_CHAIN}: begin another one, or use a conversation.",
                param="previous_response_id",
            )
    return [item for part in parts[::-1] for item in part]


def _previous(db: sa.Connection, id: str, owner: str | None) -> StoredResponse:
    try:
        stored = response_of(db, id, owner)
    except NotFound as error:
        raise InvalidRequest(
            f"Previous response with id {id[:100]!r} not found: it was not stored, was deleted, or has expired.",
            param="previous_response_id",
            code="previous_response_not_found",
        ) from error
    if stored.queued_as is not None:
        raise Conflict(
            f"{id} has not ended: wait until its status is completed.", param="previous_response_id"
        )
    return stored


def _output(stored: StoredResponse) -> list[Item]:
    output: list[Item] = stored.body.get("output") or []
    return output


def _extend_conversation(db: sa.Connection, stored: StoredResponse) -> None:
    if stored.conversation is None:
        return
    exists = sa.select(conversations.c.id).where(conversations.c.id == stored.conversation).with_for_update()
    if db.execute(exists).first() is not None:
        append_items(db, stored.conversation, [*stored.input_items, *_output(stored)])


def _outcome(request: QueuedRequest) -> tuple[str, dict[str, Any]]:
    if request.state == "done" and request.result is not None:
        answer = read_result(request.result)
        body = json.loads(bytes(answer.body))
        if answer.status < 400 and isinstance(body, dict):
            return str(body.get("status") or "completed"), body
        return "failed", {"error": _error(_message(body))}
    refusal = read_refusal(request.reason or "")
    message = request.reason or "The request failed."
    return "failed", {"error": _error(_message(json.loads(bytes(refusal.body))) if refusal else message)}


def _message(body: Any) -> str:
    error = body.get("error") if isinstance(body, dict) else None
    return str(error.get("message")) if isinstance(error, dict) else str(body)[:1000]


def _error(message: str) -> dict[str, str]:
    return {"code": "server_error", "message": message}


def _text(body: Any) -> str:
    return json.dumps(body, ensure_ascii=False)
