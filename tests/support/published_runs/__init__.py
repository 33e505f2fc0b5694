"""Training runs that others published, with what they measured: the planner is held against them.

`speed` is tokens a second of one GPU, `memory` GiB of the fullest one.
"""

from support.published_runs.bloom import bloom
from support.published_runs.dense import bridge, llama3, megatron, recomputing
from support.published_runs.row import Row
from support.published_runs.sparse import sparse
from support.published_runs.titan import titan

__all__ = ["Row", "rows"]


def rows() -> list[Row]:
    return [*megatron(), *llama3(), *bridge(), *sparse(), *bloom(), *titan(), *recomputing()]
