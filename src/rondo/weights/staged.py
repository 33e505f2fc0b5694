"""Pushing to engines of this process that have a copy of the weights: the old version serves until the new one is there
whole and its checksum is right; then the copies are exchanged between two steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from rondo.base.errors import Conflict
from rondo.weights.checksum import checksum
from rondo.weights.directory import Directory, Published
from rondo.weights.in_place import UpdatableEngine


@dataclass
class Staged:
    """From `source` to `target`, modules of the same kind, the second of which `engine` computes with."""

    model: str
    source: nn.Module
    target: nn.Module
    engine: UpdatableEngine
    directory: Directory
    owner: str = "learner"
    _spare: dict[str, Tensor] = field(default_factory=dict)
    _kept: int | None = None

    @contextmanager
    def update(self, version: int) -> Iterator[None]:
        """The block may write to the source; the engine learns nothing of it if it fails."""
        yield
        self._stage()
        total = checksum(self._spare.items())
        own = tensors_of(self.source)
        if total != checksum(own.items()):
            raise Conflict(
                f"the weights changed while version {version} was copied: no process may write to them during a push."
            )
        self.engine.start_weight_update()
        self._flip()
        self._publish(version, own, total)
        self.engine.finish_weight_update(version)

    @torch.no_grad()
    def _stage(self) -> None:
        own = tensors_of(self.source)
        if not self._spare:
            self._spare = {name: torch.empty_like(tensor) for name, tensor in own.items()}
        for name, tensor in own.items():
            self._spare[name].copy_(tensor)

    def _flip(self) -> None:
        """Exchanges the copies: the old weights become the buffer of the next version."""
        for name, tensor in tensors_of(self.target).items():
            self._spare[name], tensor.data = tensor.data, self._spare[name]

    def _publish(self, version: int, own: Mapping[str, Tensor], total: str) -> None:
        nbytes = sum(tensor.nbytes for _, tensor in own.items())
        entry = Published(self.model, version, self.owner, total, nbytes, len(own))
        self.directory.publish(entry)
        if self._kept is not None and self._kept != version:
            self.directory.withdraw(self.model, self._kept, self.owner)
        self._kept = version


def tensors_of(module: nn.Module) -> dict[str, Tensor]:
    """All tensors that a step may change: parameters, including an adapter's, and buffers."""
    found: dict[str, Tensor] = dict(module.named_parameters())
    return found | dict(module.named_buffers())
