"""Results of the store: `await` them in a coroutine, or call `.result()` in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class Pending(Future[T]):
    """A future for both faces. A transaction whose caller cancels before it begins is not executed."""

    def __await__(self) -> Generator[Any, None, T]:
        return asyncio.wrap_future(self).__await__()


def succeeded(result: T) -> Pending[T]:
    pending: Pending[T] = Pending()
    pending.set_result(result)
    return pending


def failed(error: Exception) -> Pending[Any]:
    pending: Pending[Any] = Pending()
    pending.set_exception(error)
    return pending


def settle(pending: Pending[T], function: Callable[[], T]) -> None:
    """Runs the function, and stores its result or its error."""
    if not pending.set_running_or_notify_cancel():
        return
    try:
        result = function()
    except BaseException as error:
        pending.set_exception(error)
    else:
        pending.set_result(result)
