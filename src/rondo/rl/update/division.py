"""Division of a step over ranks. Every rank has all samples of a step and computes their advantages; model passes are
divided among data-parallel ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from rondo.models.architecture import ModelConfig, Moe
from rondo.rl.loop_config import RolloutRanks

if TYPE_CHECKING:
    from rondo.parallel.ranks.mesh import Mesh

T = TypeVar("T")


class RankDivision:
    """The ranks of an RL job. Without a mesh, all methods are those of a single process."""

    def __init__(self, mesh: Mesh | None = None) -> None:
        """`mesh` is the policy's."""
        self.mesh = mesh
        self._dense: Mesh | None = None

    @property
    def parts(self) -> int:
        """Number of parts into which the rows of a step are divided."""
        return 1 if self.mesh is None else self.mesh.degrees.dp

    @property
    def part(self) -> int:
        """This rank's part."""
        return 0 if self.mesh is None else self.mesh.dp_rank

    @property
    def rank(self) -> int:
        return 0 if self.mesh is None else self.mesh.world.rank

    def has_engine(self, ranks: RolloutRanks) -> bool:
        """Whether this rank has an engine, by the setting `rollout_ranks`."""
        mesh = self.mesh
        leads = mesh is None or (mesh.pp_rank, mesh.cp_rank, mesh.tp_rank) == (0, 0, 0)
        return {"all": True, "data_parallel": leads, "first": self.first}[ranks]

    def engines(self, ranks: RolloutRanks) -> int:
        """Number of engines."""
        size = 1 if self.mesh is None else self.mesh.world.size
        return {"all": size, "data_parallel": self.parts, "first": 1}[ranks]

    @property
    def first(self) -> bool:
        return self.mesh is None or self.mesh.world.first

    def mesh_for(self, model: ModelConfig) -> Mesh | None:
        """Mesh of another model of the job, which has the policy's layout. Experts are divided only if the model has
        some.
        """
        if self.mesh is None:
            return None
        from rondo.parallel.layout.degrees import degrees
        from rondo.parallel.ranks.mesh import Mesh

        mesh, layout = self.mesh, self.mesh.degrees.config
        if layout.ep == 1 or any(isinstance(layer.mlp, Moe) for layer in model.layers):
            degrees(layout, mesh.world.size, model)
            return mesh
        if self._dense is None:
            found = degrees(layout.model_copy(update={"ep": 1}), mesh.world.size, model)
            self._dense = Mesh(replace(found), mesh.world, mesh.device)
        return self._dense

    def total(self, column: NDArray[np.float64]) -> NDArray[np.float64]:
        """A column of the step of which each part has some numbers, and 0 elsewhere."""
        if self.parts == 1:
            return column
        assert self.mesh is not None
        from rondo.parallel.ranks.mesh import dist

        found = torch.from_numpy(column)
        dist.all_reduce(found, group=self.mesh.dp)
        return column

    def said(self, own: T) -> list[T]:
        """Values of all parts, in order."""
        return [own] if self.mesh is None else self.mesh.said(own)

    def said_by_all(self, own: T) -> list[T]:
        """Values of all ranks, in order."""
        if self.mesh is None:
            return [own]
        from rondo.parallel.ranks.mesh import said

        return said(own, None)

    def first_says(self, own: T) -> T:
        """The first rank's value, broadcast to all ranks."""
        if self.mesh is None:
            return own
        from rondo.parallel.ranks.mesh import dist

        found = [own]
        dist.broadcast_object_list(found, src=0)
        return found[0]

    def joined(self, own: Sequence[NDArray[np.float32]]) -> list[NDArray[np.float32]]:
        """The arrays of all parts."""
        return [array for part in self.said(list(own)) for array in part]


ALONE = RankDivision()
