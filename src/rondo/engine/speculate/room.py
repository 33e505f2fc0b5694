"""Room for proposed tokens in a step."""

from __future__ import annotations

from collections.abc import Container, Sequence

from rondo.engine.kv.groups import GroupedPool
from rondo.engine.schedule.request import Request


def make_room(
    running: Sequence[Request], beginning: Container[int], most: int, budget: int, pool: GroupedPool
) -> list[Request]:
    """Sets `ahead` of the requests that may carry draft tokens, and allocates blocks for them, from the remaining
    budget and free blocks of the step. Excluded are samples with followers, since they may fork, and requests that
    start in this step (`beginning`, by id)."""
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
