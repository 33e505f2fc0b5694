"""Signals: waits for them, and cancellation of such waits."""

import asyncio

import pytest

from rondo.control.store.signals import Signals, until_changed


@pytest.mark.parametrize("turns", range(6))
def test_a_cancellation_together_with_a_signal_ends_a_task(turns: int) -> None:
    """`turns` of the event loop lie between the two."""
    signals = Signals()

    async def forever() -> None:
        while True:
            with signals.waiting(["x"]) as changed:
                await until_changed(changed, 60)

    async def use() -> bool:
        task = asyncio.create_task(forever())
        await asyncio.sleep(0)
        signals.notify(["x"])
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        done, _ = await asyncio.wait([task], timeout=5)
        task.cancel()
        return task in done

    assert asyncio.run(use())


def test_a_wait_without_a_signal_ends_in_time() -> None:
    signals = Signals()

    async def use() -> bool:
        with signals.waiting(["x"]) as changed:
            await until_changed(changed, 0.01)
            return changed.done()

    assert asyncio.run(use())
    assert not signals._waiters
