"""A worker that answers queued requests itself: it stands for a worker with an engine."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rondo.control.config import QueueConfig
from rondo.control.queue.leases import Leases
from rondo.control.queue.work import Finished, Leased
from rondo.control.store.store import Store

Answer = Callable[[dict[str, Any]], tuple[int, dict[str, Any]]]
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def echo(item: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    return 200, {"model": item["body"]["model"], "echo": item["body"], "usage": USAGE}


@contextmanager
def worker(
    store: Store, models: list[str], answer: Answer = echo, at_a_time: int = 50, name: str = "w"
) -> Iterator[list[str]]:
    """Yields the ids of the requests that it answered."""
    answered: list[str] = []
    ended = threading.Event()
    leases = Leases(store, QueueConfig(rest=0.01))

    def finished(leased: Leased) -> Finished:
        status, body = answer(json.loads(leased.body))
        text = json.dumps({"status": status, "body": body, "request_id": f"req-{leased.id}"})
        if status >= 400:
            return Finished(leased.id, leased.lease, error=text, again=False)
        return Finished(leased.id, leased.lease, text)

    def work() -> None:
        while not ended.is_set():
            leased = leases.take(name, models, at_a_time).result()
            if not leased:
                leases.sweep().result()
                ended.wait(0.01)
                continue
            leases.finish([finished(each) for each in leased]).result()
            answered.extend(each.id for each in leased)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        yield answered
    finally:
        ended.set()
        thread.join(60)
