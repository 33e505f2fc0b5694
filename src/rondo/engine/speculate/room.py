"""Room for proposed tokens in a step."""

from __future__ import annotations

from collections.abc import Container, Sequence

from rondo.engine.kv.groups import GroupedPool
from rondo.engine.schedule.request import Request


def make_room(
    running: Sequence[Request], beginning: Container[int], most: int, budget: int, pool: GroupedPool
) -> list[Request]:
    """The requests that may carry proposals, each with its `ahead` set and blocks for them: out of the step's budget
    and the blocks that nobody else wanted. Samples that ride together get none, since they part; nor does who begins
    in this step, `beginning` by id."""
    granted = []
    budget -= sum(request.planned for request in running)
    for request in running:
        length = len(request.tokens)
        if (
            request.planned != 1
            or length - request.computed != 1
            or request.followers
            or id(request) in beginning
        ):
            continue
        places = (len(request.tables[0].blocks) + pool.available) * pool.block_size - length
        count = min(most, request.most_ahead, budget, request.max_length - length - 1, places)
        if count > 0:
            pool.grow(request, length + count)
            request.ahead = count
            budget -= count
            granted.append(request)
    return granted
