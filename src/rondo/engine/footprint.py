"""How many blocks a request holds and needs. Where no layer sees further back than a window, they are few."""

from __future__ import annotations

from collections.abc import Sequence

from rondo.engine.blocks import GONE, BlockPool
from rondo.engine.request import Request


def piece(pool: BlockPool, request: Request, blocks: Sequence[int], budget: int) -> int:
    """By how many tokens it moves, with `blocks` as its own. Under a window it never needs room for all of them at
    once, so that its piece is cut to what is free, and nobody else has to give way."""
    count = min(request.remaining, budget)
    if pool.window is None:
        return count
    room = (len(blocks) + pool.available) * pool.block_size - request.computed
    return max(1, min(count, room))


def blocks_to_come(pool: BlockPool, request: Request, found: Sequence[int]) -> int:
    """Beside those `found` of it. Not only the first piece must fit: a prompt let in by halves would soon be thrown
    out again."""
    come = pool.blocks_for(len(request.tokens)) - len(found)
    if pool.window is None:
        return come
    return min(come, pool.window.most_blocks - (len(found) - found.count(GONE)))


def let_pass(pool: BlockPool, request: Request) -> None:
    """Gives back the blocks that no layer sees any more."""
    if pool.window is None:
        return
    before, passed = request.passed, pool.window.passed(request.computed)
    if passed > before:
        pool.release(request.blocks[before:passed])
        request.blocks[before:passed] = [GONE] * (passed - before)
        request.passed = passed
