"""Queued requests of a gateway: `rondo.Client().generate(["Hello"])` survives restarts of every process.

A submission is a group of items `{"path": "/v1/chat/completions", "body": {...}}`. Results are durable one by one.
Calls that may be repeated are repeated with back-off while the gateway is away.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

from rondo.base.errors import RondoError, Unavailable
from rondo.base.ids import new_id

log = logging.getLogger("rondo.client")
Answer = TypeVar("Answer")
JsonObject = dict[str, Any]
PAGE = 500
"""Results per call."""
POLL_SECONDS = 20.0
AWAY_SECONDS = 120.0
"""Time for which calls are repeated while the gateway is away."""
FIRST_PAUSE, LONGEST_PAUSE = 0.2, 5.0


class QueueVerbs(ABC, Generic[Answer]):
    """Single calls, written once for both clients."""

    @abstractmethod
    def _call(
        self, method: str, path: str, body: object = None, headers: Mapping[str, str] | None = None
    ) -> Answer: ...

    def submit(
        self,
        items: Sequence[Mapping[str, Any]],
        *,
        idempotency_key: str | None = None,
        sealed: bool = True,
    ) -> Answer:
        """Stores items durably. The answer is their group; with `sealed=False`, `extend` adds more to it."""
        headers = {} if idempotency_key is None else {"Idempotency-Key": idempotency_key}
        return self._call(
            "POST", "/v1/queue/groups", {"items": [dict(each) for each in items], "sealed": sealed}, headers
        )

    def extend(
        self, group: str, at: int, items: Sequence[Mapping[str, Any]], *, seal: bool = False
    ) -> Answer:
        """Adds items to a group that has `at` of them, so that a repetition adds nothing twice."""
        body = {"at": at, "items": [dict(each) for each in items], "seal": seal}
        return self._call("POST", f"/v1/queue/groups/{group}/items", body)

    def group(self, group: str, wait: float = 0.0) -> Answer:
        """A group and its unfinished requests; waits up to `wait` seconds for its end."""
        return self._call("GET", f"/v1/queue/groups/{group}?{urlencode({'wait': wait})}")

    def groups(self, limit: int = 50) -> Answer:
        return self._call("GET", f"/v1/queue/groups?{urlencode({'limit': limit})}")

    def result_page(self, group: str, after: int = -1, limit: int = PAGE, wait: float = 0.0) -> Answer:
        """Results in order after the place `after`, up to the first request that has not ended."""
        query = urlencode({"after": after, "limit": limit, "wait": wait})
        return self._call("GET", f"/v1/queue/groups/{group}/results?{query}")

    def cancel_group(self, group: str) -> Answer:
        return self._call("POST", f"/v1/queue/groups/{group}/cancel")

    def retry_group(self, group: str) -> Answer:
        """Returns the group's dead letters to the queue."""
        return self._call("POST", f"/v1/queue/groups/{group}/retry")

    def queued_request(self, id: str) -> Answer:
        return self._call("GET", f"/v1/queue/requests/{id}")

    def retry_request(self, id: str) -> Answer:
        return self._call("POST", f"/v1/queue/requests/{id}/retry")

    def dead_letters(self, limit: int = 50) -> Answer:
        return self._call("GET", f"/v1/queue/dead?{urlencode({'limit': limit})}")

    def queue_summary(self) -> Answer:
        """Counts by model, owner and priority, and rates."""
        return self._call("GET", "/v1/queue")

    def own_key(self) -> Answer:
        """Id, name and rights of the client's key."""
        return self._call("GET", "/v1/key")

    def api_keys(self) -> Answer:
        """Ids, names and rights of all keys, for an admin's key."""
        return self._call("GET", "/v1/keys")

    def clear_queue(self) -> Answer:
        """Cancels the key's waiting requests, or with an admin's key all of them."""
        return self._call("POST", "/v1/queue/clear")

    def _generate(self, body: JsonObject, key: str) -> Answer:
        return self._call("POST", "/v1/generate", body, {"Idempotency-Key": key})

    def _get_results(self, ids: Sequence[str]) -> Answer:
        return self._call(
            "POST", "/v1/generate/get_results", {"request_ids": list(ids), "wait": POLL_SECONDS}
        )


class SyncQueue(QueueVerbs[JsonObject]):
    def generate(
        self,
        prompts: Sequence[str | Mapping[str, Any]],
        model: str | None = None,
        *,
        idempotency_key: str | None = None,
        **options: Any,
    ) -> list[JsonObject]:
        """Queues prompts, each a text, `{"prompt"}` or `{"messages"}`, and waits for their results, in order. `options`
        are sampling parameters. A result has `response`, or `error` if it became a dead letter."""
        body, key = generate_body(prompts, model, options), idempotency_key or new_id("key")
        shown = patiently(lambda: self._generate(body, key))
        while unfinished(shown):
            ids = [each["request_id"] for each in shown["results"]]
            shown = patiently(partial(self._get_results, ids))
        results: list[JsonObject] = shown["results"]
        return results

    def results(self, group: str, after: int = -1) -> Iterator[JsonObject]:
        """Results of a group in order, as they arrive, until the last one."""
        total = patiently(lambda: self.group(group))["total"]
        while after < total - 1:
            page = patiently(partial(self.result_page, group, after, PAGE, POLL_SECONDS))["data"]
            for each in page:
                yield each
                after = each["place"]


class AsyncQueue(QueueVerbs[Awaitable[JsonObject]]):
    async def generate(
        self,
        prompts: Sequence[str | Mapping[str, Any]],
        model: str | None = None,
        *,
        idempotency_key: str | None = None,
        **options: Any,
    ) -> list[JsonObject]:
        """As the other client's."""
        body, key = generate_body(prompts, model, options), idempotency_key or new_id("key")
        shown = await patiently_async(lambda: self._generate(body, key))
        while unfinished(shown):
            ids = [each["request_id"] for each in shown["results"]]
            shown = await patiently_async(partial(self._get_results, ids))
        results: list[JsonObject] = shown["results"]
        return results

    async def results(self, group: str, after: int = -1) -> AsyncIterator[JsonObject]:
        """As the other client's."""
        total = (await patiently_async(lambda: self.group(group)))["total"]
        while after < total - 1:
            page = await patiently_async(partial(self.result_page, group, after, PAGE, POLL_SECONDS))
            for each in page["data"]:
                yield each
                after = each["place"]


def generate_body(
    prompts: Sequence[str | Mapping[str, Any]], model: str | None, options: Mapping[str, Any]
) -> JsonObject:
    body = {"prompts": [each if isinstance(each, str) else dict(each) for each in prompts], **options}
    return body if model is None else {**body, "model": model}


def unfinished(shown: Mapping[str, Any]) -> bool:
    return any(each["response"] is None and each["error"] is None for each in shown["results"])


def patiently(call: Callable[[], JsonObject], seconds: float = AWAY_SECONDS) -> JsonObject:
    """Repeats an idempotent call while the gateway is away."""
    patience = _Patience(seconds)
    while True:
        try:
            return call()
        except RondoError as error:
            time.sleep(patience.pause(error))


async def patiently_async(
    call: Callable[[], Awaitable[JsonObject]], seconds: float = AWAY_SECONDS
) -> JsonObject:
    patience = _Patience(seconds)
    while True:
        try:
            return await call()
        except RondoError as error:
            await asyncio.sleep(patience.pause(error))


class _Patience:
    """Pauses between the repetitions of a call, for at most `seconds`."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._end, self._pause = seconds, time.monotonic() + seconds, 0.0

    def pause(self, error: RondoError) -> float:
        """Seconds until the next repetition. Raises the error if a repetition is of no use, or the time is over."""
        away = isinstance(error, Unavailable) or error.status in (502, 503, 504)
        if not away or time.monotonic() > self._end:
            raise error
        if not self._pause:
            log.warning(f"trying again for up to {self._seconds:g} s: {error.message}")
        self._pause = min(2 * self._pause, LONGEST_PAUSE) if self._pause else FIRST_PAUSE
        return self._pause * random.uniform(0.5, 1.0)
