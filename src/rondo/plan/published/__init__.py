"""Training runs that others published, with what they measured: the planner is held against them.

`speed` is tokens a second of one GPU, `memory` GiB of the fullest one.
"""

from rondo.plan.published.bloom import bloom
from rondo.plan.published.dense import bridge, llama3, megatron, recomputing
from rondo.plan.published.row import Row
from rondo.plan.published.sparse import sparse
from rondo.plan.published.titan import titan

__all__ = ["Row", "rows"]


def rows() -> list[Row]:
    return [*megatron(), *llama3(), *bridge(), *sparse(), *bloom(), *titan(), *recomputing()]
